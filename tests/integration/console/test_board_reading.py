"""How the public board reads the feed: a bounded part at each look, whatever agents that are not shown do."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from ops_console.board import reader
from ops_console.board.agents import parse_public_agents
from ops_console.board.hub import Hub
from ops_console.board.reader import MOST_LOOKED, STEP, Board
from ops_console.remembered import Remembered
from sentinel.authority import feed
from sentinel.authority.feed import NO_HEAD, AgentCount, FeedRow, Head
from sentinel.authority.tenants import PublicTenant
from sentinel.core.errors import EngineUnavailable
from tests.support.harness import at_once
from tests.support.served_programs import eventually

SHOWN, OTHER = "retail-refund-agent", "order-review"
TENANT = uuid.UUID(int=7)


class LongFeed:
    """A feed in memory of which only the decisions of agents that are not `OTHER` are kept; says how much of it was looked through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, FeedRow] = {}
        self.newest_position = 0
        self.restored_to: int | None = None
        self.ranges: list[int] = []
        self.fails = False
        for name in ("head", "head_behind", "newest", "count_by_agent", "at", "first_since", "halts"):
            monkeypatch.setattr(feed, name, getattr(self, name))
        monkeypatch.setattr(reader, "public_tenants", lambda pool: [PublicTenant(TENANT, "public-demo")])

    def board(self, agents: str = f"{SHOWN}=refund:refunds") -> Board:
        pool: Any = None
        ids: Callable[[], Any] = lambda: None  # noqa: E731
        made = Board(pool, "", parse_public_agents(agents), ids=ids, actions_of=lambda _: ())
        made._answers._seconds = 0.0
        return made

    def decide(self, agent_id: str = SHOWN, ago: timedelta = timedelta(0)) -> int:
        position, moment = self.newest_position + 1, datetime.now(UTC) - ago
        self.rows[position] = FeedRow(position, uuid.uuid4(), agent_id, True, '{"decision":"ALLOW"}', moment)
        self.newest_position = position
        return position

    def others_decide(self, times: int) -> None:
        self.newest_position += times

    def restore(self, position: int) -> None:
        """The database is again as it was when this was the newest position; what is decided from now on is something else."""
        self.rows = {at: row for at, row in self.rows.items() if at <= position}
        self.newest_position = self.restored_to = position

    def moments(self) -> list[datetime]:
        """When what stands in the feed now was decided, newest first."""
        return [self.rows[at].occurred_at for at in sorted(self.rows, reverse=True)]

    def looked_through(self) -> int:
        """How many positions since this was asked last."""
        found, self.ranges = sum(self.ranges), []
        return found

    def head(self, pool: Any, tenant_id: uuid.UUID) -> int:
        return self.newest_position

    def head_behind(self, pool: Any, tenant_id: uuid.UUID, seen: Head) -> Head | None:
        is_there = seen.position <= self.newest_position and seen == self.decision_at(seen.position)
        return self.decision_at(self.newest_position) if is_there else None

    def decision_at(self, position: int) -> Head:
        is_new = self.restored_to is not None and position > self.restored_to
        return Head(position, uuid.UUID(int=position + (1 << 64 if is_new else 0))) if position else NO_HEAD

    def newest(self, pool: Any, tenant_id: uuid.UUID, agents: Any, limit: int, *, above: int, up_to: int) -> Any:
        self.look(up_to - above)
        return [self.rows[one] for one in sorted(self.rows, reverse=True) if above < one <= up_to and self.is_of(one, agents)][:limit]  # fmt: skip

    def count_by_agent(self, pool: Any, tenant_id: uuid.UUID, agents: Any, after: int, up_to: int) -> Any:
        self.look(up_to - after)
        found = [self.rows[one] for one in sorted(self.rows) if after < one <= up_to and self.is_of(one, agents)]
        counts, newest = Counter(one.agent_id for one in found), {one.agent_id: one.position for one in found}
        return [AgentCount(agent_id, decisions, newest[agent_id]) for agent_id, decisions in counts.items()]

    def at(self, pool: Any, tenant_id: uuid.UUID, agents: Any, positions: list[int]) -> Any:
        return [self.rows[one] for one in sorted(positions)]

    def first_since(self, pool: Any, tenant_id: uuid.UUID, moment: datetime) -> int | None:
        return min((one for one in self.rows if self.rows[one].occurred_at >= moment), default=None)

    def halts(self, pool: Any, tenant_id: uuid.UUID) -> Any:
        return []

    def look(self, positions: int) -> None:
        assert positions <= STEP, "one statement looks through a bounded part"
        self.ranges.append(positions)
        if self.fails:
            raise EngineUnavailable("it took too long")

    def is_of(self, position: int, agents: list[str] | None) -> bool:
        return agents is None or self.rows[position].agent_id in agents


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> LongFeed:
    return LongFeed(monkeypatch)


def last_of(board: Board, name: str = "refund") -> int | None:
    """The position of an agent's newest decision as the board shows it."""
    (found,) = [one for one in board.agents() if one.name == name]
    return found.last.position if found.last else None


def test_a_look_reads_what_is_new_however_long_the_shown_agents_are_quiet(long: LongFeed) -> None:
    board = long.board()
    shown = long.decide()
    assert last_of(board) == shown
    for _ in range(20):
        long.others_decide(50_000)
        long.looked_through()
        assert last_of(board) == shown
        assert [one.position for one in board.newest(50)] == [shown]
        assert long.looked_through() <= 50_000 + 2 * STEP
    assert last_of(board) == shown
    assert [one.position for one in board.newest(50)] == [shown]
    assert long.looked_through() == 0


def test_however_many_of_the_latest_are_asked_for_one_look_finds_them(long: LongFeed) -> None:
    board = long.board()
    made = [long.decide() for _ in range(3)]
    for _ in range(5):
        long.others_decide(MOST_LOOKED // 4)
        made.append(long.decide())
        last_of(board)
        long.looked_through()
        for limit in range(1, 101):
            shown = [one.position for one in board.newest(limit)]
            assert shown == [one for one in made[::-1] if one > made[-1] - MOST_LOOKED][:limit]
        assert len(board.ask_newest(500).events) == len(shown)
        assert long.looked_through() <= MOST_LOOKED


def test_a_decision_is_published_once_and_by_who_reads_it(long: LongFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: each look made its decisions anew, and who showed one, the event loop, published it then."""
    board, published = long.board(), Counter[uuid.UUID]()
    publish = board.publisher.event

    def counted(record: Any, source: str | None = None) -> Any:
        published[record.event_id] += 1
        return publish(record, source)

    monkeypatch.setattr(board.publisher, "event", counted)
    for _ in range(30):
        long.decide()
    for _ in range(3):
        looked, after = board.ask_newest(500), board.after(0, 30)
        assert published == {row.event_id: 1 for row in long.rows.values()}
        assert looked.events[::-1] == after.events == board.newest(30)[::-1]
        assert last_of(board) == 30
        assert all(one.fields["decision"] == "ALLOW" for one in looked.events)
    assert set(published.values()) == {1}
    long.restore(20)
    long.decide()
    assert board.ask_newest(1).events[0] not in looked.events, "another decision at the position of one that is gone"


def test_a_board_that_nobody_looked_at_begins_with_the_latest_and_finds_what_it_missed(long: LongFeed) -> None:
    board = long.board()
    long.decide()
    assert last_of(board) == 1
    long.others_decide(500_000)
    missed = long.decide()
    long.others_decide(900_000)
    found = found_by_looks(long, board)
    assert found[0] == 1, "what is known stays until something newer is found"
    assert found[-1] == missed
    long.looked_through()
    last_of(board)
    assert long.looked_through() == 0


def found_by_looks(long: LongFeed, board: Board) -> list[int | None]:
    """The agent's last decision as each of many looks knows it; each goes through a bounded part of the feed."""
    found = []
    for _ in range(60):
        long.looked_through()
        found.append(last_of(board))
        assert long.looked_through() <= 2 * MOST_LOOKED
    return found


def test_a_named_agent_that_never_decided_costs_no_look_through_the_whole_feed(long: LongFeed) -> None:
    long.others_decide(5_000_000)
    board = long.board()
    assert (last_of(board), board.newest(50)) == (None, [])
    assert long.looked_through() <= 3 * MOST_LOOKED
    shown = long.decide()
    assert (last_of(board), [one.position for one in board.newest(50)]) == (shown, [shown])


def test_a_search_that_the_end_of_the_feed_ran_away_from_goes_on_where_it_was(long: LongFeed) -> None:
    shown = long.decide(ago=timedelta(hours=1))
    long.others_decide(600_000)
    board = long.board()
    assert last_of(board) is None
    long.others_decide(300_000)
    assert found_by_looks(long, board)[-1] == shown


def test_two_looks_at_once_after_a_long_quiet_forget_nothing_of_what_was_missed(
    long: LongFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = long.board()
    long.decide()
    assert last_of(board) == 1
    long.others_decide(300_000)
    missed = long.decide()
    long.others_decide(300_000)

    def another_looks_meanwhile(*given: Any, **how: Any) -> Any:
        monkeypatch.setattr(feed, "newest", long.newest)
        board.ask_newest(1)
        return long.newest(*given, **how)

    monkeypatch.setattr(feed, "newest", another_looks_meanwhile)
    board.ask_newest(1)
    assert eventually(lambda: last_of(board) == missed, within=20)


def test_a_look_that_took_too_long_does_not_make_the_next_one_longer(long: LongFeed) -> None:
    board = long.board()
    shown = long.decide()
    assert last_of(board) == shown
    long.fails = True
    for _ in range(10):
        long.others_decide(100_000)
        with pytest.raises(EngineUnavailable):
            board.agents()
    long.fails = False
    long.looked_through()
    assert last_of(board) == shown
    assert long.looked_through() <= 2 * MOST_LOOKED


def test_the_stream_counts_each_decision_in_bounded_parts_and_goes_on_behind_what_it_looked_through(
    long: LongFeed,
) -> None:
    board = long.board()
    asked: list[tuple[int, int]] = []

    def after(position: int, limit: int) -> Any:
        asked.append((position, long.newest_position))
        return board.after(position, limit)

    hub = Hub(after, board.ask_newest, max_viewers=1, most_of_address=1)
    first = long.decide()
    hub.join("192.0.2.1")
    try:
        events, (at, _), _ = hub.come(None)
        assert ([one.position for one in events], at) == ([first], first)
        long.others_decide(3 * MOST_LOOKED)
        last = long.decide()
        assert eventually(lambda: hub.latest == (last, 2), within=20)
        assert [one.position for one in hub.since(first)] == [last]
        assert eventually(lambda: asked[-1][0] == long.newest_position, within=20)
    finally:
        hub.leave("192.0.2.1")
    long.looked_through()
    time.sleep(0.3)
    assert long.looked_through() == 0


@pytest.mark.parametrize("since", [0, 1, 5, 30])
def test_a_board_whose_database_is_restored_shows_what_stands_in_it_now(long: LongFeed, since: int) -> None:
    """Fewer decisions since than were lost, or more: then only what stands at a position tells that it is another's."""
    board = long.board()
    for _ in range(20):
        long.decide()
    last_of(board)
    assert [one.occurred_at for one in board.newest(50)] == long.moments()
    long.restore(10)
    for _ in range(since):
        long.decide()
    assert last_of(board) == 10 + since
    assert [one.occurred_at for one in board.newest(50)] == long.moments()
    long.decide()
    assert [one.occurred_at for one in board.newest(50)] == long.moments()
    assert [one.occurred_at for one in board.ask_newest(500).events] == long.moments()


def test_mutant_a_board_that_asks_for_the_end_of_the_feed_alone_shows_what_is_gone(
    long: LongFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "head_behind", lambda pool, tenant_id, seen: long.head_behind(pool, tenant_id, NO_HEAD))
    board = long.board()
    for _ in range(20):
        long.decide()
    assert last_of(board) == 20
    long.restore(10)
    assert last_of(board) == 20


@pytest.mark.parametrize("since", [0, 1, 30])
def test_a_stream_over_a_restored_database_begins_anew_and_has_what_takes_the_lost_positions(
    long: LongFeed, since: int
) -> None:
    board = long.board()
    for _ in range(20):
        long.decide()
    hub = Hub(board.after, board.ask_newest, max_viewers=1, most_of_address=1)
    hub.join("192.0.2.1")
    try:
        assert hub.come(0)[1] == (20, 20)
        long.restore(10)
        for _ in range(since):
            long.decide()
        assert eventually(lambda: hub.begun == 1, within=20)
        last = long.decide()
        assert eventually(lambda: hub.latest[0] == last, within=20)
        assert [one.occurred_at for one in hub.since(0)] == long.moments()[::-1]
    finally:
        hub.leave("192.0.2.1")


def test_the_newest_decision_is_told_and_that_one_which_was_it_is_gone(fixtures: Any) -> None:
    pool = fixtures.app().flask.extensions["console"].board.pool
    assert feed.head_behind(pool, fixtures.tenant_id, NO_HEAD) == NO_HEAD
    first = fixtures.guard("10.00").decision_event_id
    fixtures.publish()
    seen = feed.head_behind(pool, fixtures.tenant_id, NO_HEAD)
    assert seen is not None
    assert seen == Head(feed.head(pool, fixtures.tenant_id), uuid.UUID(str(first)))
    assert feed.head_behind(pool, fixtures.tenant_id, seen) == seen
    fixtures.guard("10.00")
    fixtures.publish()
    newest = feed.head_behind(pool, fixtures.tenant_id, seen)
    assert newest is not None and newest.position > seen.position
    for lost in (Head(seen.position, uuid.uuid4()), Head(newest.position + 1, uuid.uuid4())):
        assert feed.head_behind(pool, fixtures.tenant_id, lost) is None


def test_however_many_names_one_key_decides_under_the_board_remembers_a_bounded_number(
    long: LongFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = long.board(f"{SHOWN}=refund:refunds,*")
    monkeypatch.setattr(board.publisher, "agent", lambda tenant_id, agent_id, is_bound: agent_id)
    first = long.decide()
    for number in range(1_000):
        long.decide(f"made-up-{number}")
        if number % 300 == 0:
            board.agents()
    shown = board.agents()
    assert {one.name for one in shown} == {"refund"} | {f"made-up-{number}" for number in range(950, 1_000)}
    assert last_of(board) == first
    again = long.decide("made-up-7")
    assert last_of(board, "made-up-7") == again, "one that was forgotten is back when it decides"
    long.decide()
    for number in range(1_000):
        long.decide(f"made-up-{number}")
    assert last_of(board) == again + 1, "an agent with a name is read however many others decided since"


def test_what_stands_between_two_public_decisions_is_looked_through_once(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "STEP", 4)
    monkeypatch.setattr(reader, "MOST_LOOKED", 10)
    made = [str(fixtures.guard("10.00").decision_event_id) for _ in range(3)]
    fixtures.publish()
    with psycopg.connect(fixtures.url, autocommit=True) as connection:
        (head,) = connection.execute("select max(position) from sentinel.feed").fetchone() or (0,)
    board = fixtures.app().flask.extensions["console"].board
    assert [one.fields["event_id"] for one in board.newest(50)] == made[::-1]
    assert board.ask_newest(50).position == head
    looked = board.after(0, 2)
    assert ([one.fields["event_id"] for one in looked.events], looked.left_out, looked.position) == (made[-2:], 1, head)


def test_who_waited_for_an_answer_that_failed_shares_the_failure_and_who_comes_later_asks_again() -> None:
    """The finding: under a database that hung, each of many callers waited for its own timeout, one after the other."""
    hanging, read = threading.Event(), threading.Semaphore(0)
    asked: list[int] = []

    def clock() -> float:
        now = time.monotonic()
        read.release()
        return now

    remembered = Remembered(60.0, clock)

    def ask() -> str:
        asked.append(1)
        if len(asked) == 1:
            assert hanging.wait(60)
            raise EngineUnavailable("no answer")
        return "answer"

    def let_it_fail() -> None:
        # Each has read the clock when it came, and the first once more when it asked.
        assert all(read.acquire(timeout=60) for _ in range(21))
        hanging.set()

    failed, *answers = at_once([let_it_fail, *[lambda: remembered.get("key", ask)] * 20])
    assert failed is None, failed
    assert {type(one) for one in answers} == {EngineUnavailable} and len(asked) == 1
    assert [remembered.get("key", ask) for _ in range(2)] == ["answer"] * 2 and len(asked) == 2


def test_a_cache_holds_a_bounded_number_of_answers_those_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: an answer whose key nobody named again was held for as long as the program ran."""
    monkeypatch.setattr("ops_console.remembered.MOST_REMEMBERED", 2)
    remembered, asked = Remembered(60.0), list[str]()
    for key in ("a", "b", "c", "c", "b", "a"):
        remembered.get(key, partial(asked.append, key))
    assert asked == ["a", "b", "c", "a"]
