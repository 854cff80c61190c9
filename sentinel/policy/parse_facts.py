"""Parses the facts and numbers of a policy file: which facts there are, where each comes from, amounts per currency."""

from __future__ import annotations

import re

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, parse_money
from sentinel.policy.errors import nearest
from sentinel.policy.model import AMOUNT_PATH, EVIDENCE, OWN_FIELDS, Fact, FactPath, FactType, Voucher
from sentinel.policy.source import Listing, Node, Scalar, Source, Table

BUILT_IN = ("currency", "currency_covered", "now", "numbers", "present")
"""Names that the engine provides to conditions; a fact cannot take them."""

NAME_FORM = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
"""Names of rules, limits, numbers and reason codes."""

_REQUEST_FIELDS = ("params", "action", "agent_id", "resource", "risk_class", EVIDENCE)
_WITH_PARTS = ("params", EVIDENCE)
_NEVER_TEXT = (FactType.BOOL, FactType.INT, FactType.MONEY)
_OF_AMOUNT: dict[FactPath, FactType] = {("amount_minor",): FactType.INT, ("currency",): FactType.STRING}
"""What an amount consists of once a request is normalised, however it was written."""
MAX_VALUES = 100
_CEL_TEXT = (
    "as bool break bytes const continue double duration dyn else false for function if import in int let list loop map "
    "namespace null null_type package return string timestamp true type uint var void while"
)
_CEL_WORDS = frozenset(_CEL_TEXT.split())
_FACT = ("type", "from", "min", "max", "one_of", "vouched_by")
_FACT_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}(\.[a-z][a-z0-9_]{0,39}){0,3}", re.ASCII)
_PATH = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,7}", re.ASCII)


def read_facts(source: Source, node: Node) -> tuple[Fact, ...]:
    """Read the section `facts`; a wrong fact is noted in the source and left out."""
    table = source.table(node, "facts")
    facts: list[Fact] = []
    for name, value in table.entries.items():
        with source.collecting():
            _check_fact_name(source, name, table)
            facts.append(_fact(source, name, value))
    return tuple(facts)


def _check_fact_name(source: Source, name: str, table: Table) -> None:
    place, first = table.keys[name], name.split(".")[0]
    if not _FACT_NAME.fullmatch(name):
        raise source.error(
            place, f'fact "{name}": must have small letters, digits and underscores, and at most three dots'
        )
    if first in BUILT_IN or set(name.split(".")) & _CEL_WORDS:
        raise source.error(place, f'fact "{name}": the name is reserved in the language of conditions')
    for other, node in table.entries.items():
        kind = node.entries.get("type") if isinstance(node, Table) else None
        if isinstance(kind, Scalar) and kind.text == FactType.MONEY and name == f"{other}_minor":
            raise source.error(place, f'fact "{name}": the name stands for the minor units of "{other}"')
        if name.startswith(f"{other}."):
            raise source.error(place, f'fact "{name}": "{other}" is also a fact')


def _fact(source: Source, name: str, node: Node) -> Fact:
    fields = source.fields(node, f'fact "{name}"', known=_FACT, required=("type", "from"))
    kind = FactType(source.one_of(fields.entries["type"], f'fact "{name}": type', [t.value for t in FactType]))
    bounds: dict[str, int | None] = {"min": None, "max": None}
    for key in bounds:
        if key in fields.entries:
            if kind is not FactType.INT:
                raise source.error(fields.keys[key], f'fact "{name}": "{key}" is for facts of type int')
            bounds[key] = source.integer(fields.entries[key], key, least=-(2**53) + 1, most=2**53 - 1)
    least, most = bounds["min"], bounds["max"]
    if least is not None and most is not None and least > most:
        raise source.error(
            fields.entries["max"].place, f'fact "{name}": no number is at least {least} and at most {most}'
        )
    origin = fields.entries["from"]
    nodes = source.listing(origin, "from") if isinstance(origin, Listing) else (origin,)
    paths = tuple(read_path(source, item, f'fact "{name}": from') for item in nodes)
    for path, item in zip(paths, nodes, strict=True):
        _check_kind(source, name, kind, path, item)
    one_of = _values(source, name, kind, fields) if "one_of" in fields.entries else None
    return Fact(name, kind, paths, bounds["min"], bounds["max"], one_of, _voucher(source, name, fields, paths))


def _check_kind(source: Source, name: str, kind: FactType, path: FactPath, node: Node) -> None:
    """Raise `PolicyError` for a path at which no request has a value of this type: the fact would always be absent.

    Money is checked with the other facts (`compile`), because only the operation's own amount may come from its path.
    """
    hint = None
    if len(path) == 1 and kind in _NEVER_TEXT:
        hint = f"{path[0]} is always text"
    elif path[:2] == AMOUNT_PATH and kind is not FactType.MONEY and _OF_AMOUNT.get(path[2:]) is not kind:
        hint = "declare amount: {type: money, from: params.amount}; conditions see it as amount_minor and currency"
    if hint is not None:
        message = f'fact "{name}": no request has a value of type {kind.value} at {".".join(path)}'
        raise source.error(node.place, message, hint)


def _voucher(source: Source, name: str, fields: Table, paths: tuple[FactPath, ...]) -> Voucher:
    if "vouched_by" not in fields.entries:
        return Voucher.AGENT
    node, what = fields.entries["vouched_by"], f'fact "{name}": vouched_by'
    voucher = Voucher(source.one_of(node, what, [one.value for one in Voucher]))
    if voucher is Voucher.AUTHORITY and any(path[0] not in OWN_FIELDS for path in paths):
        known = " and ".join(OWN_FIELDS)
        raise source.error(
            node.place, f"{what}: the authority can vouch for {known} only; for the rest, name worker or agent"
        )
    return voucher


def _values(source: Source, name: str, kind: FactType, fields: Table) -> frozenset[str]:
    what = f'fact "{name}": one_of'
    if kind is not FactType.STRING:
        raise source.error(fields.keys["one_of"], f'fact "{name}": "one_of" is for facts of type string')
    items = source.listing(fields.entries["one_of"], what)
    values = [source.text(item, what) for item in items]
    if len(values) > MAX_VALUES:
        raise source.error(fields.keys["one_of"], f"{what}: more than {MAX_VALUES} values")
    for at, value in enumerate(values):
        if value in values[:at]:
            raise source.error(items[at].place, f'{what}: "{value}" is listed twice')
        if "\0" in value:  # no fact may be such a text, and PostgreSQL cannot read the recorded policy as JSON
            raise source.error(items[at].place, f"{what}: a zero character is not accepted")
    return frozenset(values)


def read_path(source: Source, node: Node, what: str) -> FactPath:
    """Read a dotted path into a guard request, e.g. params.risk.score or agent_id."""
    text = source.text(node, what, form=_PATH, means="a path like params.risk.score")
    path = tuple(text.split("."))
    if path[0] not in _REQUEST_FIELDS:
        hint = nearest(path[0], _REQUEST_FIELDS) or "a guard request has " + ", ".join(_REQUEST_FIELDS)
        raise source.error(node.place, f'{what}: "{path[0]}" is not a part of a guard request', hint)
    if (path[0] in _WITH_PARTS) != (len(path) > 1):
        raise source.error(
            node.place, f"{what}: only {' and '.join(_WITH_PARTS)} have parts, and there a part must be named"
        )
    return path


def read_numbers(source: Source, node: Node) -> dict[str, dict[str, int]]:
    """Read the section `numbers`: name → currency → minor units."""
    table = source.table(node, "numbers")
    for name, place in table.keys.items():
        if not NAME_FORM.fullmatch(name):
            raise source.error(place, f'numbers: "{name}" is not a name of small letters, digits and underscores')
    return {name: read_amounts(source, value, f"numbers.{name}") for name, value in table.entries.items()}


def read_amounts(source: Source, node: Node, what: str) -> dict[str, int]:
    """Read a mapping of currency → amount in major units, as currency → minor units."""
    table = source.table(node, what)
    if not table.entries:
        raise source.error(table.place, f"{what}: must have at least one currency")
    amounts = {}
    for currency, value in table.entries.items():
        if currency not in DIGITS:
            hint = nearest(currency.upper(), DIGITS)
            raise source.error(table.keys[currency], f'{what}: "{currency}" is not an ISO 4217 currency', hint)
        text = source.text(value, f"{what}: {currency}")
        try:
            amounts[currency] = parse_money(text, currency).amount_minor
        except InvalidInput as error:
            rule = next(iter(error.errors.values()))
            raise source.error(value.place, f'{what}: {currency} "{text}" {rule}') from error
    return amounts
