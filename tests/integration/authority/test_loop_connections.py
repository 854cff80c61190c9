"""Connections that an event loop reads: bounded, healed, and never left with somebody else's answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store import database, loop_connections
from sentinel.store.batch_commit import BatchCommitter
from sentinel.store.batch_statement import BatchStatement, pack_int4
from sentinel.store.database import AUTHORITY, POOLER, DatabaseUnreachable, Pool, with_role
from sentinel.store.loop_connections import LoopConnections
from sentinel.store.queries import scalar
from tests.faults.database_proxy import proxied
from tests.support.commits import commit_rows
from tests.support.fixtures import Fixtures
from tests.support.harness import on_a_loop
from tests.support.kept_sessions import SESSIONS
from tests.support.scripted_server import SLACK


def statement(sql: bytes, *, name: str = "tried") -> BatchStatement[int, int]:
    """A statement of one number, $1, the sum of its rows; it answers with one."""

    def decode(result: Any) -> list[int]:
        return [int.from_bytes(result.get_value(0, 0), "big", signed=True)]

    return BatchStatement(
        name, sql, ("int4",), lambda rows, _: [pack_int4(sum(rows))], decode,
    )  # fmt: skip


DOUBLED = statement(b"select $1 * 2")

Use = Callable[[LoopConnections], Coroutine[Any, Any, Any]]


@pytest.fixture
def on(fixtures: Fixtures) -> Iterator[Callable[..., Any]]:
    """Runs a coroutine function over connections of a loop of its own, each a new one, which are closed behind it."""
    SESSIONS.forget(fixtures.admin.info.dbname)

    def run(use: Use, *, url: str = fixtures.url, size: int = 2) -> Any:
        async def closing() -> Any:
            connections = LoopConnections(with_role(url, AUTHORITY), size=size)
            try:
                return await use(connections)
            finally:
                for one in connections._of_loop.values():
                    one.close()

        return on_a_loop(closing())

    yield run


async def refused(waiting: Awaitable[Any]) -> Exception:
    """What is raised of ours by what is awaited."""
    with pytest.raises(EngineUnavailable) as caught:
        await waiting
    return caught.value


def test_one_connection_serves_what_comes_in_turn_and_prepares_once(fixtures: Fixtures, on: Any) -> None:
    async def use(connections: LoopConnections) -> Any:
        for n in range(20):
            assert await connections.commit(DOUBLED, [n], 1.0) == [2 * n]
        (mine,) = connections._of_loop.values()
        (one,) = mine._all
        assert (connections.in_use, one._types) == (0, {DOUBLED.sql: [(23, b"")]})

    on(use)


def test_another_statement_of_the_same_name_is_refused_and_not_answered_as_the_first(on: Any) -> None:
    async def use(connections: LoopConnections) -> Any:
        assert await connections.commit(DOUBLED, [4], 1.0) == [8]
        with pytest.raises(EngineUnavailable, match="already exists"):
            await connections.commit(statement(b"select $1 * 3", name=DOUBLED.name), [4], 1.0)
        assert await connections.commit(DOUBLED, [5], 1.0) == [10]

    on(use)


def test_one_that_breaks_while_it_is_asked_is_not_used_again(on: Any) -> None:
    """libpq notices a cut connection when it sends, and closes its socket: the loop is never told."""

    # More than libpq keeps back: it sends while it is given the parameters.
    long = BatchStatement(
        "long", b"select length($1)", ("text",), lambda rows, _: [b"x" * rows[0]], DOUBLED.decode
    )  # fmt: skip

    async def use(connections: LoopConnections) -> Any:
        assert await connections.commit(long, [1], 1.0) == [1]
        (mine,) = connections._of_loop.values()
        (broken,) = mine._all
        with socket.socket(fileno=os.dup(broken._pg.socket)) as its_socket:
            its_socket.shutdown(socket.SHUT_RDWR)
        assert [await connections.commit(long, [n], 1.0) for n in (70_000, 1)] == [[70_000], [1]]
        assert (broken.is_open, broken in mine._all, connections.in_use) == (False, False, 0)

    on(use)


def test_behind_a_pooler_nothing_is_prepared(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []
    names = statement(b"select count(*)::int + $1 * 0 from pg_prepared_statements")

    async def use(connections: LoopConnections) -> None:
        await connections.commit(names, [1], 1.0)
        counted.extend(await connections.commit(names, [1], 1.0))

    on(use)
    monkeypatch.setenv(POOLER, "transaction")
    on(use)
    assert counted == [1, 0]


def test_a_type_of_our_own_is_found_by_its_name(fixtures: Fixtures, on: Any) -> None:
    empty = struct.pack("!iiI", 0, 0, 0)
    named: BatchStatement[int, int] = BatchStatement(
        "typed", b"select coalesce(array_length($1, 1), 7)", ("sentinel.guard_input[]",), lambda rows, ms: [empty],
        lambda result: [int.from_bytes(result.get_value(0, 0), "big")],
    )  # fmt: skip

    async def use(connections: LoopConnections) -> Any:
        return await connections.commit(named, [1], 1.0)

    assert on(use) == [7]
    pool = Pool(with_role(fixtures.url, AUTHORITY), size=1)
    try:
        assert commit_rows(pool, named, [1], 1.0) == [7]
    finally:
        pool.close()


@pytest.mark.usefixtures("patient")
def test_while_every_connection_is_taken_others_wait_and_are_then_refused(
    fixtures: Fixtures, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_connections, "FREE_WAIT_SECONDS", 0.1)
    held = statement(b"select $1 + (pg_advisory_xact_lock_shared(42) is null)::int", name="held")

    async def use(connections: LoopConnections) -> None:
        fixtures.admin.execute("select pg_advisory_lock(42)")
        first = [asyncio.ensure_future(connections.commit(held, [n], 1.0)) for n in range(2)]
        while connections.in_use < 2:
            await asyncio.sleep(0.01)
        assert isinstance(await refused(connections.commit(DOUBLED, [1], 1.0)), DatabaseUnreachable)
        fixtures.admin.execute("select pg_advisory_unlock(42)")
        assert await asyncio.gather(*first) == [[0], [1]]
        assert await connections.commit(DOUBLED, [4], 1.0) == [8]

    on(use)


def test_a_connection_that_the_server_ended_is_replaced_unseen(fixtures: Fixtures, on: Any) -> None:
    async def use(connections: LoopConnections) -> None:
        for n in range(5):
            assert await connections.commit(DOUBLED, [n], 1.0) == [2 * n]
            await asyncio.to_thread(end_backends, fixtures)

    on(use)


def end_backends(fixtures: Fixtures) -> None:
    fixtures.admin.execute(
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity where usename = current_user and query like '%* 2%'"
        " and pid <> pg_backend_pid()"
    )


def test_a_silent_server_is_given_up_within_the_deadline_and_the_loop_goes_on(
    fixtures: Fixtures, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(connections: LoopConnections) -> None:
        assert await connections.commit(DOUBLED, [1], 1.0) == [2]
        proxy.black_hole.set()
        monkeypatch.setattr(database, "SILENCE_SECONDS", 1.0)
        began, turns = time.monotonic(), 0
        waiting = asyncio.ensure_future(refused(connections.commit(DOUBLED, [2], 1.0)))
        while not waiting.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert isinstance(await waiting, DatabaseUnreachable)
        assert time.monotonic() - began < SLACK and turns > 2
        proxy.black_hole.clear()
        monkeypatch.undo()
        assert await connections.commit(DOUBLED, [3], 1.0) == [6]

    with proxied(fixtures.url) as proxy:
        on(use, url=proxy.url(fixtures.url))


def test_a_batch_without_a_loop_gives_a_silent_server_up_too(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness tries a decision in a thread: one that waited for ever would keep every route in threads."""
    with proxied(fixtures.url) as proxy:
        pool = Pool(with_role(proxy.url(fixtures.url), AUTHORITY), size=1)
        try:
            assert commit_rows(pool, DOUBLED, [1], 1.0) == [2]
            proxy.black_hole.set()
            monkeypatch.setattr(database, "SILENCE_SECONDS", 0.5)
            began = time.monotonic()
            with pytest.raises(DatabaseUnreachable):
                commit_rows(pool, DOUBLED, [2], 1.0)
            assert time.monotonic() - began < SLACK
            proxy.black_hole.clear()
            monkeypatch.undo()
            assert commit_rows(pool, DOUBLED, [3], 1.0) == [6]
        finally:
            proxy.black_hole.clear()
            pool.close()


def test_a_server_that_falls_silent_after_the_login_is_given_up_within_the_deadline(
    fixtures: Fixtures, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection asks one thing as soon as it is open: whether a pooler answers. Nobody may wait for that for ever."""
    monkeypatch.setattr(database, "SILENCE_SECONDS", 0.5)

    async def use(connections: LoopConnections) -> float:
        began = time.monotonic()
        assert isinstance(await refused(connections.commit(DOUBLED, [1], 1.0)), DatabaseUnreachable)
        return time.monotonic() - began

    def use_pool(url: str) -> float:
        pool = Pool(with_role(url, AUTHORITY), size=1)
        began = time.monotonic()
        with pytest.raises(DatabaseUnreachable):
            scalar(pool, "select 1")
        pool.close()
        return time.monotonic() - began

    with proxied(fixtures.url) as proxy:
        proxy.black_hole.set()
        assert on(use, url=proxy.url(fixtures.url)) < SLACK
        assert use_pool(proxy.url(fixtures.url)) < SLACK


def test_where_no_more_files_may_be_opened_a_batch_is_refused_and_the_next_opens_a_connection(
    on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: it was an unexpected error, 500 to who asked, with a connection that nobody had closed."""

    def no_file(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def use(connections: LoopConnections) -> Any:
        with monkeypatch.context() as full:
            full.setattr(os, "dup", no_file)
            told = await refused(connections.commit(DOUBLED, [4], 1.0))
        assert isinstance(told, DatabaseUnreachable) and "Too many open files" in str(told)
        assert await connections.commit(DOUBLED, [4], 1.0) == [8]

    on(use)


def test_a_commit_whose_task_is_cancelled_leaves_no_answer_behind_for_the_next(on: Any) -> None:
    slow = statement(b"select $1 + 100 + (pg_sleep(0.3) is null)::int", name="slow")

    async def use(connections: LoopConnections) -> None:
        task = asyncio.ensure_future(connections.commit(slow, [1], 1.0))
        await asyncio.sleep(0.1)
        task.cancel()
        assert await connections.commit(DOUBLED, [2], 1.0) == [4]
        await asyncio.sleep(0.4)
        assert await connections.commit(DOUBLED, [3], 1.0) == [6]

    on(use)


def test_a_lock_that_is_not_given_in_time_is_still_deciding_and_a_refusal_leaves_the_connection_usable(
    fixtures: Fixtures, on: Any
) -> None:
    locked = statement(b"select $1 + count(*)::int from (select from sentinel.sequencer for update) s", name="locked")
    refusing = statement(b"select 1 / $1", name="refusing")

    async def use(connections: LoopConnections) -> None:
        with pytest.raises(StillDeciding):
            await connections.commit(locked, [1], 1.0)
        assert "division by zero" in str(await refused(connections.commit(refusing, [0], 1.0)))
        assert await connections.commit(DOUBLED, [3], 1.0) == [6]
        (mine,) = connections._of_loop.values()
        assert len(mine._all) == 1

    fixtures.admin.execute("alter table sentinel.sequencer add column if not exists tried int")
    with psycopg.connect(fixtures.url) as other:
        other.execute("lock table sentinel.sequencer in access exclusive mode")
        on(use)


@pytest.mark.usefixtures("patient")
def test_deadlocks_are_tried_again_until_each_batch_is_committed(fixtures: Fixtures, on: Any) -> None:
    """Two batches that take two rows in opposite order, over and over: PostgreSQL ends one, which then succeeds."""
    fixtures.admin.execute("create table public.pairs (n int primary key, taken int not null default 0)")
    fixtures.admin.execute("insert into public.pairs values (1), (2)")
    fixtures.admin.execute(
        "create function public.take(one int, two int) returns int language plpgsql as $$ begin"
        " update public.pairs set taken = taken + 1 where n = one; perform pg_sleep(0.05);"
        " update public.pairs set taken = taken + 1 where n = two; return 1; end $$"
    )
    fixtures.admin.execute("grant all on public.pairs to sentinel_authority")
    there = statement(b"select public.take(1, 2) * $1", name="there")
    back = statement(b"select public.take(2, 1) * $1", name="back")

    async def use(connections: LoopConnections) -> None:
        for _ in range(3):
            pair = connections.commit(there, [1], 5.0), connections.commit(back, [1], 5.0)
            assert await asyncio.gather(*pair) == [[1], [1]]

    before = deadlocks(fixtures)
    on(use)
    assert fixtures.admin.execute("select taken from public.pairs").fetchall() == [(6,), (6,)]
    assert deadlocks(fixtures) > before


IN_THE_WAY = """
create function in_the_way(until timestamptz, n integer) returns integer language plpgsql as $$
begin
  if clock_timestamp() < until then raise exception 'it is in other hands' using errcode = 'deadlock_detected'; end if;
  return n;
end $$
"""


def test_what_is_in_the_way_for_a_moment_is_waited_for(fixtures: Fixtures, on: Any) -> None:
    """As a permit that housekeeping is giving back: four attempts without a pause all met it."""
    fixtures.admin.execute(IN_THE_WAY)
    for way in ("loop", "pool"):
        until = fixtures.one("select (clock_timestamp() + interval '0.15 seconds')::text")
        asked = statement(f"select in_the_way('{until}', $1)".encode(), name=f"in_the_way_{way}")

        async def use(connections: LoopConnections, asked: Any = asked) -> Any:
            return await connections.commit(asked, [7], 2.0)

        found = on(use) if way == "loop" else commit_rows(fixtures.authority.pool, asked, [7], 2.0)
        assert found == [7], way


def deadlocks(fixtures: Fixtures) -> int:
    fixtures.admin.execute("select pg_stat_clear_snapshot()")
    fixtures.admin.execute("select pg_stat_force_next_flush()")
    return int(fixtures.one("select deadlocks from pg_stat_database where datname = current_database()"))


COMMIT_SECONDS = 0.3


@pytest.fixture
def slow_commits(fixtures: Fixtures) -> BatchStatement[int, int]:
    """A statement that keeps its number, whose execution is quick and whose commit takes COMMIT_SECONDS, and fails for 13."""
    fixtures.admin.execute("create table public.kept (n int primary key)")
    fixtures.admin.execute(
        "create function public.waits() returns trigger language plpgsql as $$ begin"
        f" perform pg_sleep({COMMIT_SECONDS}); if new.n = 13 then raise 'no such number'; end if; return null; end $$"
    )
    fixtures.admin.execute(
        "create constraint trigger waits after insert on public.kept deferrable initially deferred"
        " for each row execute function public.waits()"
    )
    fixtures.admin.execute(
        "create function public.keep(n int) returns int language sql as $$ insert into public.kept values (n) returning n $$"
    )
    fixtures.admin.execute("grant all on public.kept to sentinel_authority")
    return statement(b"select public.keep($1)", name="keeping")


@pytest.mark.usefixtures("patient")
def test_an_answer_is_given_once_it_is_committed_and_another_is_sent_behind_it_before(
    fixtures: Fixtures, on: Any, slow_commits: BatchStatement[int, int]
) -> None:
    # Each commit waits until it is let, however long anybody stands still meanwhile.
    fixtures.admin.execute(
        "create or replace function public.waits() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(new.n); return null; end $$"
    )
    fixtures.admin.execute("select pg_advisory_lock(2), pg_advisory_lock(5)")

    async def use(connections: LoopConnections) -> None:
        executed = [asyncio.Event(), asyncio.Event()]
        first = asyncio.ensure_future(connections.commit(slow_commits, [1, 1], 5.0, executed[0].set))
        await asyncio.wait_for(executed[0].wait(), 60)
        assert not first.done() and fixtures.one("select count(*) from public.kept") == 0
        behind = asyncio.ensure_future(connections.commit(slow_commits, [3, 2], 5.0, executed[1].set))
        (mine,) = connections._of_loop.values()
        while [one.users for one in mine._all] != [2]:
            await asyncio.sleep(0)
        assert connections.in_use == 1 and not executed[1].is_set()
        fixtures.admin.execute("select pg_advisory_unlock(2)")
        assert await first == [2]
        assert fixtures.one("select count(*) from public.kept") == 1
        fixtures.admin.execute("select pg_advisory_unlock(5)")
        assert await behind == [5] and executed[1].is_set()
        assert (connections.in_use, len(mine._all)) == (0, 1)

    on(use)
    assert fixtures.admin.execute("select n from public.kept order by n").fetchall() == [(2,), (5,)]


def test_a_commit_that_fails_gives_no_answer_and_the_one_behind_it_stands(
    fixtures: Fixtures, on: Any, slow_commits: BatchStatement[int, int]
) -> None:
    """It was executed, and its answer was there; only its commit says whether it holds."""

    async def use(connections: LoopConnections) -> None:
        executed = asyncio.Event()
        failing = asyncio.ensure_future(refused(connections.commit(slow_commits, [6, 7], 5.0, executed.set)))
        await asyncio.wait_for(executed.wait(), 60)
        behind = asyncio.ensure_future(connections.commit(slow_commits, [3, 2], 5.0, lambda: None))
        assert "no such number" in str(await failing)
        assert await behind == [5]
        assert (await connections.commit(slow_commits, [8, 1], 5.0, lambda: None), connections.in_use) == ([9], 0)

    on(use)
    assert fixtures.admin.execute("select n from public.kept order by n").fetchall() == [(5,), (9,)]


def test_a_connection_that_is_lost_before_a_commit_costs_neither_it_nor_the_one_behind_it(
    fixtures: Fixtures, on: Any, slow_commits: BatchStatement[int, int]
) -> None:
    """Each is tried again on another connection: nobody was answered."""

    async def use(connections: LoopConnections) -> None:
        executed = asyncio.Event()
        first = asyncio.ensure_future(connections.commit(slow_commits, [1, 1], 5.0, executed.set))
        await asyncio.wait_for(executed.wait(), 60)
        behind = asyncio.ensure_future(connections.commit(slow_commits, [3, 2], 5.0, lambda: None))
        await asyncio.to_thread(
            fixtures.admin.execute,
            "select pg_terminate_backend(pid, 60000) from pg_stat_activity where query like '%public.keep%' and pid <> pg_backend_pid()",
        )
        assert await asyncio.gather(first, behind) == [[2], [5]]
        assert connections.in_use == 0

    on(use)
    assert fixtures.admin.execute("select n from public.kept order by n").fetchall() == [(2,), (5,)]


def test_what_is_sent_behind_a_slow_commit_has_its_own_time_from_the_end_of_that_commit(
    fixtures: Fixtures, on: Any, slow_commits: BatchStatement[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stalls for less than the deadline is no silent server, for whoever waits behind it neither."""
    monkeypatch.setattr(database, "SILENCE_SECONDS", 6 * COMMIT_SECONDS)
    sleeping = statement(f"select $1 + (pg_sleep($1 * {COMMIT_SECONDS}) is null)::int".encode(), name="sleeping")
    fixtures.admin.execute(
        "create or replace function public.waits() returns trigger language plpgsql as $$ begin"
        f" perform pg_sleep({4 * COMMIT_SECONDS}); return null; end $$"
    )

    async def behind_a_commit(connections: LoopConnections, number: int, sleeps: int) -> asyncio.Future[Any]:
        executed = asyncio.Event()
        first = asyncio.ensure_future(connections.commit(slow_commits, [number, 0], 5.0, executed.set))
        await asyncio.wait_for(executed.wait(), 60)
        behind = asyncio.ensure_future(connections.commit(sleeping, [sleeps, 0], 5.0, lambda: None))
        assert (await first, connections.in_use) == ([number], 1)
        return behind

    async def use(connections: LoopConnections) -> None:
        assert await connections.commit(sleeping, [0], 1.0) == [0], "it is prepared: now it goes in one"
        for number in range(1, 4):  # a process that stands still is taken for silent, a disk each time
            with contextlib.suppress(DatabaseUnreachable):
                assert await (await behind_a_commit(connections, number, sleeps=4)) == [4]
                break
        else:
            pytest.fail("who waited behind the commit was given up each time")
        began = time.monotonic()
        assert isinstance(await refused(await behind_a_commit(connections, 9, sleeps=100)), DatabaseUnreachable)
        assert time.monotonic() - began < SLACK, "it would have slept for half a minute"

    on(use, size=1)


@pytest.mark.parametrize("size", [1, 2])
def test_batches_behind_commits_leave_a_connection_to_who_waits_for_one(
    fixtures: Fixtures, on: Any, slow_commits: BatchStatement[int, int], size: int
) -> None:
    """Lines that are never empty use every connection: each next batch is sent once the one before it is executed."""
    committed: list[int] = []

    async def line(connections: LoopConnections, first: int) -> None:
        batches: list[asyncio.Task[None]] = []

        async def batch(n: int) -> None:
            def executed() -> None:
                if n < first + 4:
                    batches.append(asyncio.ensure_future(batch(n + 1)))

            await connections.commit(slow_commits, [n, 0], 5.0, executed)
            committed.append(n)

        batches.append(asyncio.ensure_future(batch(first)))
        for one in batches:  # which grows meanwhile
            await one

    async def use(connections: LoopConnections) -> None:
        lines = [asyncio.ensure_future(line(connections, 100 * n)) for n in range(1, size + 1)]
        while connections.in_use < size:
            await asyncio.sleep(0)
        before = len(committed)
        assert await connections.commit(DOUBLED, [4], 1.0) == [8]
        assert len(committed) - before <= 2 * size, "it waited for more than was sent before it"
        await asyncio.gather(*lines)
        assert (len(committed), connections.in_use) == (5 * size, 0)

    on(use, size=size)


def test_a_pool_that_closes_closes_the_connections_of_a_running_loop(fixtures: Fixtures) -> None:
    fixtures.guard()
    (mine,) = fixtures.authority.connections._of_loop.values()
    assert len(mine._all) == 1
    fixtures.authority.pool.close()
    assert len(mine._all) == 0


def test_a_client_that_goes_away_during_its_commit_loses_nothing(fixtures: Fixtures, on: Any) -> None:
    fixtures.admin.execute("create table public.kept (n int primary key)")
    fixtures.admin.execute(
        "create function public.keep(n int) returns int language sql as"
        " $$ insert into public.kept select n from pg_sleep(0.2) returning n $$"
    )
    fixtures.admin.execute("grant all on public.kept to sentinel_authority")
    keeping = statement(b"select public.keep($1)", name="keeping")

    async def use(connections: LoopConnections) -> None:
        async def commit(rows: Any, wait_seconds: float, executed: Any) -> Any:
            return await connections.commit(keeping, rows, wait_seconds)

        committer = BatchCommitter(commit)
        client = asyncio.ensure_future(committer.recorded(7))
        await asyncio.sleep(0.1)
        client.cancel()
        while fixtures.one("select count(*) from public.kept") == 0:
            await asyncio.sleep(0.02)

    on(use)
    assert fixtures.admin.execute("select n from public.kept").fetchall() == [(7,)]


def test_a_batch_that_a_read_only_database_refuses_is_refused_by_one_connection_and_the_next_may_write(
    fixtures: Fixtures, on: Any
) -> None:
    name = fixtures.admin.info.dbname
    writes = statement(b"with kept as (update sentinel.sequencer set restart_at = restart_at) select $1", name="writes")
    fixtures.admin.execute(f"alter database {name} set default_transaction_read_only = on".encode())

    async def use(connections: LoopConnections) -> None:
        tried: list[int] = []

        async def commit(rows: Any, wait_seconds: float, executed: Any) -> Any:
            tried.append(len(rows))
            return await connections.commit(writes, rows, wait_seconds, executed)

        committer = BatchCommitter(commit)
        outcomes = await committer.recorded_all(list(range(10)))
        assert [type(one) for one in outcomes] == [DatabaseUnreachable] * 10 and tried == [10]
        fixtures.admin.execute("set default_transaction_read_only = off")
        fixtures.admin.execute(f"alter database {name} reset default_transaction_read_only".encode())
        assert await committer.recorded(7) == 7

    on(use)
