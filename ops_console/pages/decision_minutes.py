"""Decisions by the minute over the last hour, with few queries: past minutes are cached.

A decision is committed within seconds of the time in its id, so only the last few minutes are queried each time.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass, field

from ops_console.board.figures import OUTCOMES
from ops_console.read_models import overview
from sentinel.store.database import Pool

MINUTES = 60
_ASKED_ANEW = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of time: when it begins (minutes since 1970) and how many decisions of each outcome it has."""

    begins: int
    counts: dict[str, int]

    @property
    def total(self) -> int:
        """The number of decisions of all outcomes."""
        return sum(self.counts.values())


@dataclass
class _Kept:
    until: int = 0
    minutes: dict[int, dict[str, int]] = field(default_factory=dict)


class DecisionMinutes:
    """The last hour of each tenant, cached per process. Thread-safe: one thread queries at a time, the others wait."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._kept: dict[uuid.UUID, _Kept] = defaultdict(_Kept)

    def last_hour(self, tenant_id: uuid.UUID) -> list[Part]:
        """`MINUTES` minutes, oldest first; the last one is still running."""
        with self._lock:
            kept = self._kept[tenant_id]
            since = max(kept.until - _ASKED_ANEW, 0)
            rows = overview.decision_minutes(self._pool, tenant_id, since=since, minutes=MINUTES)
            now = next(row.minute for row in rows if row.decision == "NOW")
            fresh: dict[int, dict[str, int]] = defaultdict(dict)
            for row in rows:
                if row.decision != "NOW":
                    fresh[row.minute][row.decision] = row.decisions
            known = {minute: counts for minute, counts in kept.minutes.items() if now - MINUTES < minute < since}
            kept.until, kept.minutes = now, {**known, **fresh}
            return [Part(minute, _whole(kept.minutes.get(minute, {}))) for minute in range(now - MINUTES + 1, now + 1)]


def _whole(counts: dict[str, int]) -> dict[str, int]:
    return {outcome: counts.get(outcome, 0) for outcome in OUTCOMES}


def in_steps(parts: list[Part], size: int) -> list[Part]:
    """Sum the parts into stretches of `size` minutes, newest first, for a table of readable length."""
    steps = [parts[place : place + size] for place in range(0, len(parts), size)]
    summed = [Part(step[0].begins, {o: sum(part.counts[o] for part in step) for o in OUTCOMES}) for step in steps]
    return summed[::-1]
