"""What the rows of a batch together ask of limits and breakers, so that the database asks for room once and not for each row."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from sentinel.authority.guard_rows import GuardRow, GuardTerms

LimitTerms = tuple[str, int, int, str, int, str, str]
"""A limit as policies declare it, without whose budget it is: window, its seconds, those of its parts, zone, cap, verdict, reason code."""
_LIMIT = ("window", "window_seconds", "bucket_seconds", "zone", "cap_minor", "verdict", "reason_code")
_BREAKER = ("breaker_key", "scope", "target", "window_seconds", "bucket_seconds", "most_operations", "most_minor", "declared")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """The totals (limit, limit key, subject) and breakers (in the order of _BREAKER) of who asks."""

    totals: list[tuple[LimitTerms, str, str]]
    breakers: list[tuple[Any, ...]]


_NOTHING = Common([], [])


@dataclass(slots=True)
class LimitSum:
    """One `sentinel.limit_sum`: asked by all that is not denied, taken by what is allowed, in minor units."""

    tenant_id: uuid.UUID
    limit_place: int
    limit_key: str
    subject: str
    is_total: bool
    is_mixed: bool
    asked_minor: int
    taken_minor: int


@dataclass(slots=True)
class RateSum:
    """One `sentinel.rate_sum`: what is allowed in one currency; `shared` are the groups of rows that name the breaker."""

    tenant_id: uuid.UUID
    shared: list[int]
    currency: str
    breaker: tuple[Any, ...]
    is_mixed: bool
    operations: int
    all_operations: int
    amount_minor: int


class BatchSums:
    """Sums over rows that are added one by one. `limits` are the limits' terms with their places."""

    def __init__(self) -> None:
        self.limits: dict[LimitTerms, int] = {}
        self._groups: dict[bytes, int] = {}
        self._sums: dict[tuple[uuid.UUID, str], list[LimitSum]] = {}
        self._rates: dict[tuple[uuid.UUID, str], list[RateSum]] = {}

    def add(self, row: GuardRow) -> tuple[int | None, tuple[int, ...], Common]:
        """The place of what the row shares, the places of its limits and then of its totals, and what it shares."""
        terms, minor, places = row.terms, row.amount_minor or 0, []
        asked, taken = (minor if terms.verdict != "DENY" else 0), (minor if terms.verdict == "ALLOW" else 0)
        for ask in row.limits:
            limit = (ask.window, ask.window_seconds, ask.bucket_seconds, ask.zone, ask.cap_minor, ask.verdict, ask.reason_code)  # fmt: skip
            places.append(self._count(terms, limit, ask.limit_key, ask.subject, False, asked, taken))
        if terms.shared is None:
            return None, tuple(places), _NOTHING
        group, common = self._groups.setdefault(terms.shared, len(self._groups)), _common(terms.shared)
        places += [self._count(terms, limit, key, subject, True, asked, taken) for limit, key, subject in common.totals]
        for breaker in common.breakers:
            self._rate(terms, group, breaker, taken)
        return group, tuple(places), common

    @property
    def sums(self) -> list[LimitSum]:
        """One for each budget and limit; more than one of a budget where rows disagree about the limit's terms."""
        return [one for same in self._sums.values() for one in same]

    @property
    def rates(self) -> list[RateSum]:
        """One for each breaker and currency."""
        return [one for same in self._rates.values() for one in same]

    def _count(self, terms: GuardTerms, limit: LimitTerms, key: str, subject: str, is_total: bool, asked: int, taken: int) -> int:  # fmt: skip
        place = self.limits.setdefault(limit, len(self.limits))
        same = self._sums.setdefault((terms.tenant_id, key), [])
        for one in same:
            if one.limit_place == place:
                one.asked_minor += asked
                one.taken_minor += taken
                return place
        same.append(LimitSum(terms.tenant_id, place, key, subject, is_total, False, asked, taken))
        if len(same) > 1:
            for one in same:
                one.is_mixed = True
        return place

    def _rate(self, terms: GuardTerms, group: int, breaker: tuple[Any, ...], minor: int) -> None:
        same = self._rates.setdefault((terms.tenant_id, breaker[0]), [])
        currency, operations = terms.currency or "", int(terms.verdict == "ALLOW")
        mine = next((one for one in same if one.currency == currency and one.breaker == breaker), None)
        if mine is None:
            others = same[0].all_operations if same else 0
            mine = RateSum(
                terms.tenant_id, [], currency, breaker, any(one.breaker != breaker for one in same), 0, others, 0
            )
            same.append(mine)
        if group not in mine.shared:
            mine.shared.append(group)
        mine.operations += operations
        mine.amount_minor += minor
        for one in same:
            one.all_operations += operations
            one.is_mixed |= mine.is_mixed


@lru_cache(maxsize=4096)
def _common(shared: bytes) -> Common:
    """What `GuardTerms.shared` says."""
    read = orjson.loads(shared)
    return Common(
        [(tuple(ask[name] for name in _LIMIT), ask["limit_key"], ask["subject"]) for ask in read["totals"]],
        [tuple(rate[name] for name in _BREAKER) for rate in read["breakers"]],
    )
