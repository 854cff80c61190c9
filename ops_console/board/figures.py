"""Decisions by outcome, with their latency, over the last hour and the last day: counted incrementally, kept by minute.

A process counts each decision once, by its position in the feed, so an update costs only what is new since the last
one. A new process counts the last day in short steps and marks its figures incomplete until it is done. Viewers share
one count.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_console.board.heads import Reach
from sentinel.authority.feed import MinuteCount
from sentinel.core.decision import Verdict
from sentinel.core.errors import SentinelError

OUTCOMES = tuple(verdict.value for verdict in Verdict)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
AT_ONCE = 2_000
FRESH_SECONDS = 5.0
_AGAIN_SECONDS = 0.3
_BUDGET_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class OutcomeFigure:
    """One outcome: how many decisions, their share in percent, and the latency of the decision in milliseconds."""

    decision: str
    count: int
    percent: float
    median_ms: int | None
    p99_ms: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """The last hour and day by outcome. `as_of` None: nothing was counted yet. `is_complete` False: a part is not counted yet."""

    as_of: datetime | None
    is_complete: bool
    hour: list[OutcomeFigure]
    day: list[OutcomeFigure]


class Counts:
    """The running count of one tenant's decisions.

    `tenant()` is the tenant to count. `start(tenant_id, moment)` is the position after which counting begins,
    `head(tenant_id)` the newest position, `read(tenant_id, after, up_to)` the counts of the positions between.

    When the tenant changes, or the history of its feed, the count starts over.
    """

    def __init__(
        self,
        tenant: Callable[[], uuid.UUID],
        start: Callable[[uuid.UUID, datetime], int],
        head: Callable[[uuid.UUID], Reach],
        read: Callable[[uuid.UUID, int, int], list[MinuteCount]],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenant, self._start, self._head, self._read = tenant, start, head, read
        self._now, self._clock = now, clock
        self._lock = threading.Lock()
        self._counted_at: float | None = None
        self._begin(None, 0)

    def _begin(self, tenant_id: uuid.UUID | None, history: int) -> None:
        """Discard the count and start over, in this history of this tenant's feed."""
        self._tenant_id, self._history = tenant_id, history
        self._minutes: dict[datetime, dict[str, Counter[int]]] = {}
        self._position: int | None = None
        self._figures = Figures(None, False, [], [])

    def current(self) -> Figures:
        """The figures, at most a few seconds old; older ones (see `as_of`) while the database is unavailable.

        When the tenant changes, they are counted again at once.
        """
        with self._lock:
            wait = FRESH_SECONDS if self._figures.is_complete else _AGAIN_SECONDS
            if self._counted_at is None or self._clock() - self._counted_at >= wait or self._is_of_another():
                self._count()
                self._counted_at = self._clock()
            return self._figures

    def _is_of_another(self) -> bool:
        try:
            return self._tenant() != self._tenant_id
        except SentinelError:
            return False

    def _count(self) -> None:
        now = self._now()
        try:
            is_complete = self._count_on(now)
        except SentinelError:
            return
        for minute in [minute for minute in self._minutes if minute < now - DAY]:
            del self._minutes[minute]
        self._figures = Figures(now, is_complete, self._outcomes(now - HOUR), self._outcomes(now - DAY))

    def _count_on(self, now: datetime) -> bool:
        """Count new decisions for at most `_BUDGET_SECONDS`, and return whether that reached the head of the feed."""
        tenant_id = self._tenant()
        if tenant_id != self._tenant_id:
            self._begin(tenant_id, self._history)
        reach = self._head(tenant_id)
        if reach.history != self._history:
            self._begin(tenant_id, reach.history)
        if self._position is None:
            self._position = self._start(tenant_id, now - DAY)
        head, end = reach.position, self._clock() + _BUDGET_SECONDS
        while self._position < head:
            # Bounded by positions, not by rows found, so that one step never reads more of the feed than this.
            up_to = min(head, self._position + AT_ONCE)
            for row in self._read(tenant_id, self._position, up_to):
                of_minute = self._minutes.setdefault(row.minute, {})
                of_minute.setdefault(row.decision, Counter())[row.latency_ms] += row.decisions
            self._position = up_to
            if self._clock() >= end:
                break
        return self._position >= head

    def _outcomes(self, since: datetime) -> list[OutcomeFigure]:
        by_outcome: dict[str, Counter[int]] = {name: Counter() for name in OUTCOMES}
        for minute, outcomes in self._minutes.items():
            if minute >= since:
                for decision, latencies in outcomes.items():
                    by_outcome.setdefault(decision, Counter()).update(latencies)
        total = sum(counts.total() for counts in by_outcome.values())
        return [_outcome(decision, latencies, total) for decision, latencies in by_outcome.items()]


def _outcome(decision: str, latencies: Counter[int], total: int) -> OutcomeFigure:
    count = latencies.total()
    percent = 100 * count / total if total else 0.0
    return OutcomeFigure(decision, count, percent, percentile(latencies, 0.5), percentile(latencies, 0.99))


def percentile(latencies: Counter[int], share: float) -> int | None:
    """Return the smallest value that at least `share` of the counted ones do not exceed (nearest rank); None if there are none."""
    needed, passed = share * latencies.total(), 0
    for value in sorted(latencies):
        passed += latencies[value]
        if passed >= needed:
            return value
    return None
