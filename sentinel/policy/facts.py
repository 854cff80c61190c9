"""Reads the facts of one request under one policy: their typed values, and which of them the requester can vouch for.
Pure.

A missing or ill-typed value is absent, never zero or false. The request is the normalised one: its amount is
`{"amount_minor": 12600, "currency": "USD"}`; other money in params may be as it was written, `{"value": "126.00",
"currency": "USD"}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from sentinel.core.canonical import MAX_SAFE_INTEGER
from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, MAX_MINOR, parse_money
from sentinel.core.operation import DEFAULTED, IDENTIFIER, MAX_IDENTIFIER, check_identifier, with_defaults
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.model import EVIDENCE, Fact, FactPath, FactType, Voucher, variable_name

MAX_STRING = 500
WHOLE_TENANT = "~tenant"
"""The subject of a tenant's total: no identifier can contain the tilde."""
# dict first: `isinstance` with the abstract class is several times slower, and this runs for every step of every path.
_MAPPINGS = (dict, Mapping)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)


class Requester(msgspec.Struct, frozen=True):
    """The requesting key: its principal, and whether it is a worker's key and so may vouch for worker facts."""

    principal: str | None = None
    is_worker: bool = False


WORKER_REQUESTER = Requester(is_worker=True)
"""The requester in policy tests and explanations of a decision, where there is no key."""


class FactSet(msgspec.Struct):
    """The facts of one request: `variables` as conditions see them, the amount, and the once-key's value.

    `amount_minor`, `currency` and `once_value` are None where the request has no valid value. `who` is the requester by
    the names of a limit's `per`. `claimed` are the facts in the request that only a worker could vouch for and an agent
    sent; `unbound` are those taken from `evidence_context`, which no digest binds. In both, money is named twice: as the
    fact and as its variable.
    """

    variables: dict[str, Any]
    who: Mapping[str, str | None]
    amount_minor: int | None = None
    currency: str | None = None
    once_value: str | None = None
    claimed: frozenset[str] = frozenset()
    unbound: frozenset[str] = frozenset()

    def vouched(self) -> dict[str, Any]:
        """Return the variables without claimed facts, which count as missing."""
        return without(self.variables, self.claimed)


def without(variables: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the variables as they would be for a request without these facts, named as in `FactSet`."""
    known = dict(variables)
    for name in names:
        known.pop(name, None)
        if f"present.{name}" in known:
            known[f"present.{name}"] = False
    return known


def extract_facts(
    policy: CompiledPolicy, request: Mapping[str, Any], requester: Requester = WORKER_REQUESTER
) -> FactSet:
    """Read every declared fact. Never raises on a request of any shape."""
    who = {"tenant": WHOLE_TENANT, "agent": identifier(request.get("agent_id")), "key": requester.principal}
    found = FactSet({}, who=who)
    claimed: list[str] = []
    unbound: list[str] = []
    parents, plan, reads_defaulted = _plan(policy)
    if reads_defaulted:  # a guard request has these fields; a policy case or a trial may leave them out
        request = with_defaults(request)
    within = [_mapping_at(request, parent) for parent in parents]
    for fact, name, present, read, places in plan:
        raw = None
        for parent, key, is_evidence in places:
            raw = within[parent].get(key)
            if raw is not None:
                if is_evidence:
                    unbound += [fact.name, name]
                break
        if present is not None:
            # "Present" means that the request has a value there, even a malformed one.
            found.variables[present] = raw is not None
        if raw is None:
            continue
        if not requester.is_worker and fact.vouched_by is Voucher.WORKER and not fact.is_amount:
            claimed += [fact.name, name]
        if read is None:
            _take_money(found, fact, name, raw)
        elif (value := read(raw, fact)) is not None:
            found.variables[name] = value
    if found.currency is not None:
        found.variables["currency_covered"] = found.currency in policy.covered
        found.variables.update(policy.numbers.get(found.currency, {}))
    found.claimed, found.unbound = frozenset(claimed), frozenset(unbound)
    if policy.policy.once_per:
        found.once_value = identifier(_walk(request, policy.policy.once_per.path))
    return found


def carries(request: Mapping[str, Any], paths: tuple[FactPath, ...]) -> bool:
    """Whether the request holds anything, even something malformed, at any of the paths."""
    return any(_walk(request, path) is not None for path in paths)


def declared_evidence(policy: CompiledPolicy, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return only those members of an evidence context that the policy reads: the form that is decided on and stored.

    A declared fact keeps its value; a malformed one becomes `{}`, which is malformed for every type.
    """
    kept: dict[str, Any] = {}
    for path, fact in policy.evidence:
        raw = _walk(evidence, path)
        if raw is not None:
            _keep(kept, path, _money_as_text(raw) if isinstance(raw, _MAPPINGS) else raw, is_sound=_is_sound(raw, fact))
    return kept


def _keep(kept: dict[str, Any], path: FactPath, value: Any, *, is_sound: bool) -> None:
    for key in path[:-1]:
        kept = kept.setdefault(key, {})
    if is_sound:
        kept[path[-1]] = value
    else:
        kept.setdefault(path[-1], {})


def _is_sound(raw: Any, fact: Fact) -> bool:
    return _money(raw)[1] is not None if fact.type is FactType.MONEY else _READERS[fact.type](raw, fact) is not None


def _money_as_text(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: f"{value:f}" if isinstance(value, Decimal) else value for key, value in raw.items()}


def identifier(value: Any) -> str | None:
    """Return the value if it is an identifier that params may have (`docs/CONTRACT.md` §1), else None."""
    is_one = isinstance(value, str) and len(value) <= MAX_IDENTIFIER and IDENTIFIER.fullmatch(value) is not None
    return value if is_one else None


def check_once(policy: CompiledPolicy, request: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` naming the field where the once-key's value is no identifier; a missing one is accepted."""
    once = policy.policy.once_per
    value = None if once is None else _walk(request, once.path)
    if once is not None and value is not None:
        check_identifier(value, ".".join(once.path), MAX_IDENTIFIER)


_Read = Callable[[Any, Fact], Any]


@lru_cache(maxsize=256)
def _plan(
    policy: CompiledPolicy,
) -> tuple[
    tuple[FactPath, ...],
    tuple[tuple[Fact, str, str | None, _Read | None, tuple[tuple[int, str, bool], ...]], ...],
    bool,
]:
    """Return how to read a policy's facts: (paths of the objects that hold facts, one entry per fact, whether any fact
    or the once-key is a field with a default).

    An entry is (fact, its variable, its `present.…` variable if a condition reads that, its reader or None for money,
    and the places to look: index of the object in the paths, the member's name, whether it is evidence).
    """
    parents: dict[FactPath, int] = {}
    plan = tuple(
        (
            fact,
            variable_name(fact),
            f"present.{fact.name}" if fact.name in policy.presence else None,
            _READERS.get(fact.type),
            tuple((parents.setdefault(path[:-1], len(parents)), path[-1], path[0] == EVIDENCE) for path in fact.paths),
        )
        for fact in policy.facts
    )
    once = policy.policy.once_per
    paths = [*(path for fact in policy.facts for path in fact.paths), *([once.path] if once else [])]
    return tuple(parents), plan, any(path[0] in DEFAULTED for path in paths)


def _mapping_at(request: Mapping[str, Any], path: FactPath) -> Mapping[str, Any]:
    """Return the object at a path; an empty one where there is none."""
    found: Any = request
    for key in path:
        found = found.get(key)
        if not isinstance(found, _MAPPINGS):
            return _NOTHING
    return found  # type: ignore[no-any-return]


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _take_money(found: FactSet, fact: Fact, name: str, raw: Any) -> None:
    minor, currency = _money(raw)
    if currency is not None and fact.is_amount:
        found.amount_minor, found.currency = minor, currency
        found.variables["currency"] = currency
    # Nothing is converted: money in another currency than the amount's counts as missing.
    if currency is not None and currency == found.currency:
        found.variables[name] = minor


def _walk(request: Any, path: FactPath) -> Any:
    """Return the value at a path, or None."""
    found = request
    for key in path:
        found = found.get(key) if isinstance(found, _MAPPINGS) else None
    return found


def _bool(raw: Any, fact: Fact) -> bool | None:
    return raw if raw is True or raw is False else None


def _int(raw: Any, fact: Fact) -> int | None:
    if type(raw) is not int or not -MAX_SAFE_INTEGER <= raw <= MAX_SAFE_INTEGER:
        return None
    low, high = fact.minimum, fact.maximum
    return None if (low is not None and raw < low) or (high is not None and raw > high) else raw


def _string(raw: Any, fact: Fact) -> str | None:
    # The CEL engine reads a text only up to its first zero character, and PostgreSQL stores no text with one.
    if not isinstance(raw, str) or len(raw) > MAX_STRING or "\0" in raw:
        return None
    if fact.one_of is not None:
        return raw if raw in fact.one_of else None
    if not raw.isascii():
        try:
            raw.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which no UTF-8 text can hold
            return None
    return raw


def _timestamp(raw: Any, fact: Fact) -> datetime | None:
    if not isinstance(raw, str) or not _TIME.fullmatch(raw):
        return None
    try:
        return datetime.fromisoformat(raw).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _money(raw: Any) -> tuple[int, str] | tuple[None, None]:
    if not isinstance(raw, _MAPPINGS) or len(raw) != 2:
        return None, None
    if "value" in raw:
        return _written_money(raw)
    minor, currency = raw.get("amount_minor"), raw.get("currency")
    if type(minor) is not int or not 0 < minor <= MAX_MINOR or not isinstance(currency, str) or currency not in DIGITS:
        return None, None
    return minor, currency


def _written_money(raw: Mapping[str, Any]) -> tuple[int, str] | tuple[None, None]:
    try:
        money = parse_money(raw["value"], raw.get("currency"))
    except InvalidInput:
        return None, None
    return money.amount_minor, money.currency


_READERS: dict[FactType, Callable[[Any, Fact], Any]] = {
    FactType.BOOL: _bool,
    FactType.INT: _int,
    FactType.STRING: _string,
    FactType.TIMESTAMP: _timestamp,
}
