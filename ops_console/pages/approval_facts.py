"""The facts on an approval's card: the params that the digest binds, leaf by leaf, each with the style in which to show
it.

The known ones (the amount, accounts, the identifiers of `core/operation.py`) come first. Every other name and value was
chosen by the agent: it is shown separately from our labels, and completely, however much there is. Free text is fenced
off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ops_console.pages.text import money
from sentinel.authority.approvals import ApprovalRow
from sentinel.core.canonical import sha256_hex
from sentinel.core.money import DIGITS
from sentinel.core.operation import IDENTIFIER, IDENTIFIER_PARAMS

READABLE = 100
"""How many facts of the agent's own choice a person can be expected to read; the card says so if there are more."""
_ACCOUNTS = ("account_ref", "account_id")
_FIRST = ("amount", *_ACCOUNTS)
"""Known facts in the order of the card; the other identifiers follow by name."""
_LONGEST_NAME = 128
_LIKE_A_PATH = re.compile(r"[.\[\]\"]")


@dataclass(frozen=True, slots=True)
class ShownFact:
    """One leaf of the operation's params. `style` is money, name, value, text (foreign, to be fenced) or hidden.
    `known`: the name is one of ours, whose form the authority checked; else the agent chose it.
    """

    path: str
    shown: str
    style: str
    known: bool = False


def is_bound(canonical: str, row: ApprovalRow) -> bool:
    """Whether the stored operation has the row's digest and amount; if not, one of them was tampered with."""
    amount = json.loads(canonical).get("params", {}).get("amount") or {}
    same = (amount.get("amount_minor"), amount.get("currency")) == (row.amount_minor, row.currency)
    return same and sha256_hex(canonical) == row.digest


def facts_of(canonical: str, *, accounts: bool) -> list[ShownFact]:
    """Return all of the operation's params, the known ones first; account names are hidden unless `accounts`."""
    params = json.loads(canonical).get("params", {})
    known = [
        name for name in (*_FIRST, *sorted(IDENTIFIER_PARAMS.difference(_FIRST))) if _is_known(name, params.get(name))
    ]
    own = {name: value for name, value in params.items() if name not in known}
    return [
        *(replace(_fact(name, name, params[name], accounts), known=True) for name in known),
        *sorted((_fact(*leaf, accounts) for leaf in _leaves("", "", own)), key=lambda fact: fact.style == "text"),
    ]


def _is_known(name: str, value: Any) -> bool:
    """Whether the value has the form that the authority accepts under this known name."""
    return _is_money(value) if name == "amount" else isinstance(value, str)


def _is_money(value: Any) -> bool:
    """Whether the value is an amount in form and currency. An agent may put anything under these two names in params of its own."""
    if not (isinstance(value, dict) and value.keys() == {"amount_minor", "currency"}):
        return False
    currency = value["currency"]
    return type(value["amount_minor"]) is int and isinstance(currency, str) and currency in DIGITS


def _leaves(path: str, name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, name of the member that holds it, value) for each leaf of `value`, which is at `path` under `name`."""
    if isinstance(value, dict) and value and not (path and _is_money(value)):
        for inner_name, inner in value.items():
            step = _step(inner_name)
            yield from _leaves(f"{path}.{step}" if path else step, inner_name, inner)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(f"{path}[{place + 1}]", name, inner)
    elif path:
        yield path, name, value


def _step(name: str) -> str:
    """The name as a step of a path: in quotation marks where it could be taken for several steps."""
    return json.dumps(name) if _LIKE_A_PATH.search(name) else name


def _fact(path: str, name: str, value: Any, accounts: bool) -> ShownFact:
    if name.rpartition(".")[2] in _ACCOUNTS and not accounts:
        return ShownFact(path, "shown to approvers", "hidden")
    if _is_money(value):
        return ShownFact(path, money(value["amount_minor"], value["currency"]), "money")
    if isinstance(value, bool):
        return ShownFact(path, "yes" if value else "no", "value")
    if isinstance(value, str):
        is_name = (path in IDENTIFIER_PARAMS or len(value) <= _LONGEST_NAME) and IDENTIFIER.fullmatch(value) is not None
        return ShownFact(path, value, "name" if is_name else "text")
    return ShownFact(path, json.dumps(value), "value")
