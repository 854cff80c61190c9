"""The public board's figures: each decision counted once, however many look."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest

from ops_console.board.figures import FRESH_SECONDS, Counts, percentile
from ops_console.board.heads import Reach
from sentinel.authority.feed import MinuteCount
from tests.support.feeds import NOW

TENANT = uuid.UUID(int=7)


def test_the_figures_count_each_decision_once_and_many_viewers_cost_one_count(fixtures: Any) -> None:
    app = fixtures.app()
    asked: list[int] = []
    client = app.test_client()
    for value in ("10.00", "11.00", "200.00"):
        fixtures.guard(value)
    fixtures.publish()
    assert "3 decisions" in client.get("/live/figures").get_data(as_text=True)
    real = app.flask.extensions["console"].board.pool.connection

    def counted(*arguments: Any, **named: Any) -> Any:
        asked.append(1)
        return real(*arguments, **named)

    app.flask.extensions["console"].board.pool.connection = counted
    began = time.monotonic()
    for _ in range(200):
        assert client.get("/live/figures").status_code == 200
    counts = 1 + (time.monotonic() - began) / FRESH_SECONDS
    assert len(asked) < 20 * counts


class Decided:
    """A feed in memory: (position, minutes ago, decision, latency)."""

    def __init__(self, rows: list[tuple[int, int, str, int]]) -> None:
        self.rows, self.reads, self.seconds, self.history = rows, 0, 0.0, 0

    def head(self, tenant_id: uuid.UUID) -> Reach:
        return Reach(max(row[0] for row in self.rows), self.history)

    def read(self, tenant_id: uuid.UUID, after: int, up_to: int) -> list[MinuteCount]:
        self.reads += 1
        return [
            MinuteCount(NOW - timedelta(minutes=ago, seconds=30), decision, ms, 1)
            for at, ago, decision, ms in self.rows
            if after < at <= up_to
        ]

    def counts(self, start: int = 0) -> Counts:
        return Counts(
            lambda: TENANT, lambda *_: start, self.head, self.read, now=lambda: NOW, clock=lambda: self.seconds
        )


def test_the_figures_tell_the_hour_and_the_day_apart_and_grow_by_what_is_new() -> None:
    feed = Decided(
        [(1, 1500, "ALLOW", 9), (2, 90, "ALLOW", 4), (3, 5, "ALLOW", 1), (4, 5, "DENY", 7), (5, 4, "ALLOW", 3)]
    )
    counts = feed.counts()
    first = counts.current()
    assert [(one.decision, one.count) for one in first.hour] == [("ALLOW", 2), ("APPROVAL_REQUIRED", 0), ("DENY", 1)]
    assert [(one.decision, one.count) for one in first.day] == [("ALLOW", 3), ("APPROVAL_REQUIRED", 0), ("DENY", 1)]
    assert (first.hour[0].median_ms, first.hour[0].p99_ms, first.hour[1].median_ms) == (1, 3, None)
    feed.rows.append((6, 0, "DENY", 8))
    assert counts.current() is first
    feed.seconds = 6.0
    assert counts.current().hour[2].count == 2
    assert feed.reads == 2


def test_a_long_day_is_counted_in_steps_and_it_is_said_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops_console.board.figures.AT_ONCE", 10)
    feed = Decided([(number, 5, "ALLOW", 1) for number in range(1, 26)])

    def slow(tenant_id: uuid.UUID, after: int, up_to: int) -> list[MinuteCount]:
        feed.seconds += 1.0
        return feed.read(tenant_id, after, up_to)

    counts = Counts(lambda: TENANT, lambda *_: 0, feed.head, slow, now=lambda: NOW, clock=lambda: feed.seconds)
    seen = []
    for _ in range(3):
        found = counts.current()
        seen.append((found.is_complete, found.day[0].count))
        feed.seconds += 1.0
    assert seen == [(False, 10), (False, 20), (True, 25)]


def test_a_step_reads_so_many_positions_however_few_of_them_are_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops_console.board.figures.AT_ONCE", 10)
    feed, ranges = Decided([(25, 5, "ALLOW", 1)]), []

    def read(tenant_id: uuid.UUID, after: int, up_to: int) -> list[MinuteCount]:
        ranges.append((after, up_to))
        return feed.read(tenant_id, after, up_to)

    found = Counts(lambda: TENANT, lambda *_: 0, feed.head, read, now=lambda: NOW, clock=lambda: 0.0).current()
    assert (ranges, found.is_complete, found.day[0].count) == ([(0, 10), (10, 20), (20, 25)], True, 1)


def test_the_figures_of_another_tenant_begin_anew() -> None:
    feeds = {
        TENANT: Decided([(number, 5, "ALLOW", 1) for number in range(1, 9)]),
        uuid.UUID(int=8): Decided([(3, 5, "DENY", 1)]),
    }
    shown, seconds = [TENANT], [0.0]
    counts = Counts(
        lambda: shown[0], lambda *_: 0, lambda one: feeds[one].head(one), lambda one, *between: feeds[one].read(one, *between),
        now=lambda: NOW, clock=lambda: seconds[0],
    )  # fmt: skip
    assert [one.count for one in counts.current().day] == [8, 0, 0]
    shown[0] = uuid.UUID(int=8)
    assert [one.count for one in counts.current().day] == [0, 0, 1]


def test_the_figures_of_a_feed_that_was_restored_begin_anew() -> None:
    feed = Decided([(number, 5, "ALLOW", 1) for number in range(1, 9)])
    counts = feed.counts()
    assert [one.count for one in counts.current().day] == [8, 0, 0]
    feed.rows, feed.history, feed.seconds = [*feed.rows[:3], (4, 1, "DENY", 1)], 1, 6.0
    found = counts.current()
    assert (found.is_complete, [one.count for one in found.day]) == (True, [3, 0, 1])


def test_percentiles_are_of_the_nearest_rank() -> None:
    from collections import Counter

    assert percentile(Counter({1: 50, 2: 49, 900: 1}), 0.5) == 1
    assert percentile(Counter({1: 50, 2: 49, 900: 1}), 0.99) == 2
    assert percentile(Counter({1: 50, 2: 48, 900: 2}), 0.99) == 900
    assert percentile(Counter(), 0.5) is None
