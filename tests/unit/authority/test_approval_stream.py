"""The stream of decided approvals hands on every decision once, however many there are, by the database's clock."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sentinel.authority.api import approval_stream
from sentinel.authority.api.approval_stream import BACKLOG, ApprovalFeed, StreamSlots, Whose
from sentinel.authority.approvals import DecidedApproval
from sentinel.authority.engine import Caller
from sentinel.core.errors import EngineUnavailable
from tests.support.harness import on_a_loop

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""The database's time, which no process's clock here shows."""
CALLER = Caller(uuid.uuid4(), uuid.uuid4(), uuid.uuid4(), None, frozenset(), None)
LONGEST_SECONDS = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_stream, "POLL_SECONDS", 0.005)


class Decisions:
    """Decided approvals as the database gives them; `away` is how many reads find no database, `broken` how many no thread."""

    def __init__(self) -> None:
        self.all: list[DecidedApproval] = []
        self.away = self.broken = 0
        self.now = NOW

    def add(self, *moments: datetime) -> list[str]:
        made = [DecidedApproval(uuid.uuid4(), "expired", None, None, "agent", "refund.create", at) for at in moments]
        self.all = sorted([*self.all, *made], key=lambda one: one.decided_at)
        return [str(one.request_id) for one in made]

    def read_since(self, _whose: Whose, since: datetime) -> list[DecidedApproval]:
        self._answer()
        behind = [one for one in self.all if one.decided_at > since]
        return behind[:BACKLOG] + [one for one in behind[BACKLOG:] if one.decided_at == behind[BACKLOG - 1].decided_at]

    def clock(self) -> datetime:
        self._answer()
        return self.now

    def _answer(self) -> None:
        if self.broken:
            self.broken -= 1
            raise RuntimeError("can't start new thread")
        if self.away:
            self.away -= 1
            raise EngineUnavailable("away")


class Stream:
    """A client of the feed: the ids that it was sent, and how often each."""

    def __init__(
        self, feed: ApprovalFeed, last_seen: datetime | None, may_begin: Callable[[], bool] = lambda: True
    ) -> None:
        self.got: Counter[str] = Counter()
        self.is_connected, self._arrived, self._leave = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._answering = asyncio.ensure_future(
            feed.answer(CALLER, last_seen, self._receive, self._send, is_welcome=self._is_welcome, may_begin=may_begin)
        )

    async def until(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONGEST_SECONDS):
            while not wanted():
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        self._leave.set()
        await self._answering

    async def _receive(self) -> dict[str, Any]:
        await self._leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["body"].startswith(b"data: "):
            event = json.loads(message["body"].removeprefix(b"data: "))
            if event["type"] == "CONNECTED":
                self.is_connected.set()
            else:
                self.got[event["request_id"]] += 1
        self._arrived.set()

    async def _is_welcome(self) -> bool:
        return True


def feed_of(decisions: Decisions) -> ApprovalFeed:
    return ApprovalFeed(decisions.read_since, decisions.clock, StreamSlots(9, 9, 9))


def after(*seconds: float) -> list[datetime]:
    return [NOW + timedelta(seconds=second) for second in seconds]


async def _burst() -> None:
    decisions = Decisions()
    feed = feed_of(decisions)
    stream, other = Stream(feed, None), Stream(feed, None)
    await stream.is_connected.wait()
    await other.is_connected.wait()
    burst = decisions.add(*after(*(0.01 * n for n in range(1, 1201))), *after(*[13.0] * 700))
    late = decisions.add(*after(600))
    for one in (stream, other):
        await one.until(lambda one=one: late[0] in one.got)
        assert one.got == Counter([*burst, *late])
        await one.close()


async def _coming_back() -> None:
    decisions = Decisions()
    missed = decisions.add(*after(*range(-1201, 0)))
    decisions.add(*after(-2000))
    stream = Stream(feed_of(decisions), NOW - timedelta(seconds=1500))
    await stream.until(lambda: missed[-1] in stream.got)
    now = decisions.add(*after(1))
    await stream.until(lambda: now[0] in stream.got)
    assert stream.got == Counter([*missed, *now])
    await stream.close()


async def _outage() -> None:
    decisions = Decisions()
    missed = decisions.add(*after(*range(-800, 0)))
    decisions.away = 3
    stream = Stream(feed_of(decisions), NOW - timedelta(seconds=1500))
    await stream.is_connected.wait()
    decisions.away = 3
    await stream.until(lambda: missed[-1] in stream.got)
    decisions.away = 3
    now = decisions.add(*after(1))
    await stream.until(lambda: now[0] in stream.got)
    assert stream.got == Counter([*missed, *now])
    await stream.close()


async def _clock_set_back() -> None:
    decisions = Decisions()
    stream = Stream(feed_of(decisions), None)
    await stream.is_connected.wait()
    before = decisions.add(*after(1))
    await stream.until(lambda: before[0] in stream.got)
    decisions.now = NOW - timedelta(hours=1)
    now = decisions.add(*after(-3599))
    await stream.until(lambda: now[0] in stream.got)
    assert stream.got == Counter([*before, *now])
    await stream.close()


async def _no_thread() -> None:
    decisions = Decisions()
    decisions.broken = 2
    feed = feed_of(decisions)
    stream = Stream(feed, None)
    async with asyncio.timeout(LONGEST_SECONDS):
        await stream.is_connected.wait()
    decisions.broken = 2
    (made,) = decisions.add(*after(1))
    await stream.until(lambda: made in stream.got)
    await stream.close()


async def _waits_for_its_rate() -> None:
    decisions = Decisions()
    missed, tries, is_within = decisions.add(*after(-1)), Counter[bool](), [False]

    def may_begin() -> bool:
        tries[is_within[0]] += 1
        return is_within[0]

    stream = Stream(feed_of(decisions), NOW - timedelta(seconds=60), may_begin)
    await stream.until(lambda: tries[False] > 3)
    meanwhile = decisions.add(*after(1))
    await stream.until(lambda: tries[False] > 20)
    assert not stream.is_connected.is_set() and not stream.got, "heartbeats alone"
    is_within[0] = True
    await stream.until(lambda: meanwhile[0] in stream.got)
    assert stream.got == Counter([*missed, *meanwhile])
    await stream.close()


async def _begins_all_the_same() -> None:
    stream = Stream(feed_of(Decisions()), None, lambda: False)
    async with asyncio.timeout(LONGEST_SECONDS):
        await stream.is_connected.wait()
    await stream.close()


class _Away:
    """A feed whose database is away from the start, and who waits for it."""

    def __init__(self) -> None:
        self.is_stopping = False
        decisions = Decisions()
        decisions.away = 1_000_000
        self.places = StreamSlots(9, 9, 9)
        self.feed = ApprovalFeed(decisions.read_since, decisions.clock, self.places, lambda: self.is_stopping)

    def is_free(self) -> bool:
        return not self.places._taken and not self.feed._listeners

    async def wait(self, seconds: float) -> None:
        async def is_open() -> bool:
            raise AssertionError("nobody reads yet what is decided from now on")

        await self.feed.wait_for(CALLER, uuid.uuid4(), seconds, is_open=is_open)


async def _waits_end() -> None:
    away = _Away()
    async with asyncio.timeout(LONGEST_SECONDS):
        await away.wait(0.05)
        waiting = asyncio.ensure_future(away.wait(LONGEST_SECONDS * 2))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        away.is_stopping = True
        await waiting
    assert away.is_free()


async def _streams_end() -> None:
    away = _Away()
    stream, other = Stream(away.feed, None), Stream(away.feed, NOW)
    async with asyncio.timeout(LONGEST_SECONDS):
        await stream.until(stream._arrived.is_set)  # a heartbeat, by which a client that takes nothing is noticed
        await stream.close()
        away.is_stopping = True
        await other._answering
    assert away.is_free() and not stream.is_connected.is_set()


def test_a_burst_of_decisions_arrives_whole_and_so_does_what_is_decided_after_it() -> None:
    on_a_loop(_burst())


def test_who_comes_back_gets_all_that_was_decided_meanwhile_and_then_what_is() -> None:
    on_a_loop(_coming_back())


def test_who_waits_for_its_keys_rate_gets_what_is_decided_meanwhile() -> None:
    on_a_loop(_waits_for_its_rate())


def test_a_key_that_uses_up_its_rate_for_good_is_told_of_decisions_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approval_stream, "HEARTBEAT_SECONDS", 0.05)
    on_a_loop(_begins_all_the_same())


def test_a_database_that_is_away_costs_no_decision() -> None:
    on_a_loop(_outage())


def test_a_decision_made_after_the_clock_was_set_back_is_handed_on() -> None:
    """As after a failover to a server whose clock is right. The finding: no stream heard of any until the clock had caught up."""
    on_a_loop(_clock_set_back())


def test_a_read_that_fails_for_whatever_reason_is_made_again_and_costs_no_decision() -> None:
    on_a_loop(_no_thread())


def test_a_wait_that_begins_while_the_database_is_away_ends_in_its_time_and_with_its_process() -> None:
    on_a_loop(_waits_end())


def test_a_stream_that_begins_while_the_database_is_away_ends_with_its_client_and_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approval_stream, "HEARTBEAT_SECONDS", 0.02)
    on_a_loop(_streams_end())
