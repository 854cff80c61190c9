"""Sums of what a batch's rows ask of limits and breakers, so that the database checks each one once and not for every row."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from sentinel.authority.guard_rows import GuardRow, GuardTerms

LimitTerms = tuple[str, int, int, str, int, str, str]
"""A limit without its subject, as a policy declares it.

Its window, window seconds, bucket seconds, time zone, cap in minor units, verdict and reason code.
"""
_LIMIT = ("window", "window_seconds", "bucket_seconds", "zone", "cap_minor", "verdict", "reason_code")
_BREAKER = ("breaker_key", "scope", "target", "window_seconds", "bucket_seconds", "most_operations", "most_minor", "declared")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """What rows of the same requester share: totals as (limit, limit key, subject), and breakers in the order of _BREAKER."""

    totals: list[tuple[LimitTerms, str, str]]
    breakers: list[tuple[Any, ...]]


_NOTHING = Common([], [])


@dataclass(slots=True)
class LimitSum:
    """The sums of one limit for one subject, in minor units.

    `asked_minor` sums the rows that the policy does not deny, `taken_minor` those that it allows. `is_mixed`: the batch
    has several versions of the limit's terms.
    """

    tenant_id: uuid.UUID
    limit_place: int
    limit_key: str
    subject: str
    is_total: bool
    is_mixed: bool
    asked_minor: int
    taken_minor: int


@dataclass(slots=True)
class BudgetSum:
    """One `sentinel.budget_sum`: a subject's budget under one policy; the lists have one element per limit.

    `asked` and `taken` are in minor units, as in `LimitSum`.
    """

    tenant_id: uuid.UUID
    subject: str
    policy_id: str
    is_mixed: bool
    limits: list[str]
    limit_places: list[int]
    are_totals: list[bool]
    asked: list[int]
    taken: list[int]


@dataclass(slots=True)
class RateSum:
    """One `sentinel.rate_sum`: what a batch adds to one breaker in one currency, counting rows that the policy allows.

    `shared` are the groups of rows that name the breaker; `all_operations` counts every currency. `is_mixed`: the batch
    has several versions of the breaker's terms, which in different currencies may differ in the amount only.
    """

    tenant_id: uuid.UUID
    shared: list[int]
    currency: str
    breaker: tuple[Any, ...]
    is_mixed: bool
    operations: int
    all_operations: int
    amount_minor: int


class TermsSum:
    """The sums of all rows with the same terms, so that their totals and breakers are added once and not for every row."""

    __slots__ = ("asked_minor", "common", "group", "operations", "taken_minor", "total_places")

    def __init__(self, group: int | None, common: Common, total_places: tuple[int, ...]) -> None:
        self.group, self.common, self.total_places = group, common, total_places
        self.asked_minor = self.taken_minor = self.operations = 0


class BatchSums:
    """Sums over rows that are added one by one. `limits` maps the limits' terms to their places in the batch."""

    def __init__(self) -> None:
        self.limits: dict[LimitTerms, int] = {}
        self._groups: dict[tuple[uuid.UUID, bytes], int] = {}
        self._terms: dict[GuardTerms, TermsSum] = {}
        self._sums: dict[str, list[LimitSum]] = {}

    def add(self, row: GuardRow) -> tuple[TermsSum, tuple[int, ...]]:
        """Add a row; return the sum of its terms, and the places of the row's limits, then of its totals."""
        terms = row.terms
        mine = self._terms.get(terms) or self._first_of(terms)
        minor = row.amount_minor or 0
        asked, taken = (minor if terms.verdict != "DENY" else 0), 0
        if terms.verdict == "ALLOW":
            mine.operations += 1
            taken = minor
        mine.asked_minor += asked
        mine.taken_minor += taken
        places = [
            self._count(terms.tenant_id, ask[2:9], ask.limit_key, ask.subject, False, asked, taken)
            for ask in row.limits
        ]
        return mine, (*places, *mine.total_places)

    def budget_sums(self) -> list[BudgetSum]:
        """Return one sum for each subject and policy; call it once, after the last `add`.

        A limit has several slots if rows have different terms for it.
        """
        for terms, mine in self._terms.items():
            for limit, key, subject in mine.common.totals:
                self._count(terms.tenant_id, limit, key, subject, True, mine.asked_minor, mine.taken_minor)
        found: dict[tuple[uuid.UUID, str, str], BudgetSum] = {}
        for same in self._sums.values():
            for one in same:
                policy_id, _, rest = one.limit_key.partition("/")
                budget = found.get(owner := (one.tenant_id, one.subject, policy_id))
                if budget is None:
                    budget = found[owner] = BudgetSum(one.tenant_id, one.subject, policy_id, False, [], [], [], [], [])
                budget.is_mixed |= one.is_mixed
                budget.limits.append(rest[: -len(one.subject) - 1])
                budget.limit_places.append(one.limit_place)
                budget.are_totals.append(one.is_total)
                budget.asked.append(one.asked_minor)
                budget.taken.append(one.taken_minor)
        return list(found.values())

    def rate_sums(self) -> list[RateSum]:
        """Return one sum for each breaker and currency."""
        rates: dict[tuple[uuid.UUID, str], list[RateSum]] = {}
        for terms, mine in self._terms.items():
            for breaker in mine.common.breakers:
                _add_rate(rates.setdefault((terms.tenant_id, breaker[0]), []), terms, mine, breaker)
        return [one for same in rates.values() for one in same]

    def _first_of(self, terms: GuardTerms) -> TermsSum:
        if terms.shared is None:
            mine = TermsSum(None, _NOTHING, ())
        else:
            common = _common(terms.shared)
            group = self._groups.setdefault((terms.tenant_id, terms.shared), len(self._groups))
            mine = TermsSum(group, common, tuple(self._place(limit) for limit, _, _ in common.totals))
        self._terms[terms] = mine
        return mine

    def _place(self, limit: LimitTerms) -> int:
        return self.limits.setdefault(limit, len(self.limits))

    def _count(self, tenant: uuid.UUID, limit: LimitTerms, key: str, subject: str, is_total: bool, asked: int, taken: int) -> int:  # fmt: skip
        place, same = self._place(limit), self._sums.setdefault(key, [])
        for one in same:
            if one.limit_place == place and one.tenant_id == tenant:
                one.asked_minor += asked
                one.taken_minor += taken
                return place
        same.append(LimitSum(tenant, place, key, subject, is_total, False, asked, taken))
        if len(same) > 1:
            mixed = [one for one in same if one.tenant_id == tenant]
            for one in mixed:
                one.is_mixed = len(mixed) > 1
        return place


def _add_rate(same: list[RateSum], terms: GuardTerms, mine: TermsSum, breaker: tuple[Any, ...]) -> None:
    """Add the rows of these terms to a breaker's sums; `same` are its sums so far, one for each currency."""
    currency = terms.currency or ""
    found = next((one for one in same if one.currency == currency and one.breaker == breaker), None)
    if found is None:
        mixed = any(one.currency == currency or _shared_terms(one.breaker) != _shared_terms(breaker) for one in same)
        operations = same[0].all_operations if same else 0
        found = RateSum(terms.tenant_id, [], currency, breaker, mixed, 0, operations, 0)
        same.append(found)
    if mine.group is not None and mine.group not in found.shared:
        found.shared.append(mine.group)
    found.operations += mine.operations
    found.amount_minor += mine.taken_minor
    for one in same:
        one.all_operations += mine.operations
        one.is_mixed |= found.is_mixed


def _shared_terms(breaker: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the terms of a breaker that are the same in every currency: without its amount, and the words that name it."""
    return breaker[: _BREAKER.index("most_minor")]


@lru_cache(maxsize=4096)
def _common(shared: bytes) -> Common:
    """Parse `GuardTerms.shared`."""
    read = orjson.loads(shared)
    return Common(
        [(tuple(ask[name] for name in _LIMIT), ask["limit_key"], ask["subject"]) for ask in read["totals"]],
        [tuple(rate[name] for name in _BREAKER) for rate in read["breakers"]],
    )
