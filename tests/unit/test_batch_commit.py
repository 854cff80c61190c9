"""Batch commits on an event loop: every row gets its own answer once, in batches, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store import batch_commit
from sentinel.store.batch_commit import LAST_TRIES, BatchCommitter
from sentinel.store.database import DatabaseUnreachable
from sentinel.store.queries import RetriedTransaction
from tests.support.harness import on_a_loop, scaled, seeded


class Store:
    """A commit that answers with the row's number, notes each batch, and fails where it is told to; not before `held` is set."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        poisoned: Sequence[int] = (),
        dice: random.Random | None = None,
        held: asyncio.Event | None = None,
    ) -> None:
        self.seconds, self.poisoned, self.dice, self.held = seconds, set(poisoned), dice, held
        self.batches: list[list[int]] = []
        self.kept: Counter[int] = Counter()
        self.running = self.most_running = 0

    async def __call__(self, rows: Sequence[Any], wait_seconds: float, executed: Any) -> list[int]:
        numbers = [row["n"] for row in rows]
        self.batches.append(numbers)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if self.held is not None:
                await self.held.wait()
            await asyncio.sleep(self.seconds * (self.dice.random() if self.dice else 1))
            if self.poisoned & set(numbers):
                raise EngineUnavailable(f"row {min(self.poisoned & set(numbers))}")
            self.kept.update(numbers)
            return numbers
        finally:
            self.running -= 1


async def turns() -> None:
    """Lets everything go on that waits for no timer."""
    for _ in range(20):
        await asyncio.sleep(0)


async def each(committer: BatchCommitter[Any, int], numbers: Sequence[int]) -> list[Any]:
    """Every number as a request of its own; answers or what was raised."""
    return await asyncio.gather(*(committer.recorded({"n": n}) for n in numbers), return_exceptions=True)


def all_at_once(committer: BatchCommitter[Any, int], number: int) -> list[Any]:
    """Records `number` rows at once from one loop."""
    return on_a_loop(each(committer, range(number)))


def lost_or_swapped(commit: Store, committer: BatchCommitter[Any, int], number: int) -> list[str]:
    """What is wrong with the answers to `number` rows at once. The checker of this file."""
    found = []
    for n, answer in enumerate(all_at_once(committer, number)):
        if n in commit.poisoned:
            if not isinstance(answer, EngineUnavailable) or answer.detail != f"row {n}":
                found.append(f"row {n}: {answer!r} instead of its own error")
        elif answer != n:
            found.append(f"row {n}: {answer!r}")
    if commit.kept != Counter(set(range(number)) - commit.poisoned):
        found.append("rows were kept twice or not at all")
    return found


def test_every_row_gets_its_own_answer_and_is_kept_once() -> None:
    dice = seeded(12, 200)
    for _ in range(scaled(5)):
        commit = Store(seconds=0.002, dice=dice)
        assert lost_or_swapped(commit, BatchCommitter(commit), 100) == []
        assert len(commit.batches) < 20


def test_one_bad_row_spoils_nobody_elses() -> None:
    commit = Store(seconds=0.001, poisoned=[3, 17, 18])
    assert lost_or_swapped(commit, BatchCommitter(commit), 40) == []


def test_rows_that_arrive_during_a_commit_share_the_next_one() -> None:
    goes_on = asyncio.Event()
    commit = Store(held=goes_on)

    async def one_then_many() -> list[Any]:
        committer = BatchCommitter(commit, slow_seconds=10)
        first = asyncio.ensure_future(committer.recorded({"n": 0}))
        await turns()
        others = [asyncio.ensure_future(committer.recorded({"n": n})) for n in range(1, 40)]
        await turns()
        assert commit.batches == [[0]]
        goes_on.set()
        return await asyncio.gather(*others, first)

    assert on_a_loop(one_then_many()) == [*range(1, 40), 0]
    assert commit.batches == [[0], list(range(1, 40))]
    assert commit.most_running == 1


def test_rows_that_wait_go_behind_a_commit_as_soon_as_it_is_executed_and_those_that_come_then_wait_for_it() -> None:
    """Executed is not committed: nobody is answered by it."""
    batches: list[list[int]] = []
    disk, calls = asyncio.Event(), []

    async def commit(rows: Sequence[Any], wait_seconds: float, executed: Any) -> list[int]:
        batches.append([row["n"] for row in rows])
        calls.append(executed)
        await disk.wait()
        return batches[0] if rows[0]["n"] == 0 else [row["n"] for row in rows]

    async def three_times() -> list[Any]:
        committer = BatchCommitter(commit, slow_seconds=10)
        asked = [asyncio.ensure_future(committer.recorded({"n": 0}))]
        await turns()
        asked += [asyncio.ensure_future(committer.recorded({"n": n})) for n in (1, 2)]
        await turns()
        assert batches == [[0]]
        calls[0]()
        await turns()
        asked.append(asyncio.ensure_future(committer.recorded({"n": 3})))
        await turns()
        assert batches == [[0], [1, 2]] and not any(one.done() for one in asked)
        calls[0]()  # a second time, as behind a deadlock: nothing more is sent while another is executed
        await turns()
        assert batches == [[0], [1, 2]]
        disk.set()
        return await asyncio.gather(*asked)

    assert on_a_loop(three_times()) == [0, 1, 2, 3]
    assert batches == [[0], [1, 2], [3]]


def test_a_batch_has_at_most_the_size_it_was_given() -> None:
    commit = Store(seconds=0.001)
    assert lost_or_swapped(commit, BatchCommitter(commit, most=4), 40) == []
    assert max(map(len, commit.batches)) <= 4


def test_alone_a_row_is_a_batch_of_one_and_waits_for_nobody() -> None:
    commit = Store()

    async def one_by_one() -> list[int]:
        committer = BatchCommitter(commit)
        return [await committer.recorded({"n": n}) for n in range(5)]

    assert on_a_loop(one_by_one()) == [0, 1, 2, 3, 4]
    assert commit.batches == [[0], [1], [2], [3], [4]]


def test_who_waits_behind_a_commit_that_waits_for_a_lock_is_committed_beside_it() -> None:
    release, began = asyncio.Event(), []

    async def commit(rows: Sequence[Any], wait_seconds: float, executed: Any) -> list[int]:
        began.append([row["n"] for row in rows])
        if any(row["n"] == 0 for row in rows):
            await release.wait()
        return [row["n"] for row in rows]

    async def beside() -> list[int]:
        committer = BatchCommitter(commit, slow_seconds=0.02, max_parallel=2)
        stuck = asyncio.ensure_future(committer.recorded({"n": 0}))
        while not began:
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)  # now the first one counts as slow: who comes is not kept behind it
        found = [await asyncio.wait_for(committer.recorded({"n": 1}), 60)]
        release.set()
        return [*found, await stuck]

    assert on_a_loop(beside()) == [1, 0]


def test_a_callers_own_batch_is_one_commit_with_an_answer_or_error_per_row() -> None:
    commit = Store(poisoned=[2])

    async def batches() -> tuple[list[Any], list[Any]]:
        committer = BatchCommitter(commit)
        return await committer.recorded_all([{"n": n} for n in range(4)]), await committer.recorded_all([])

    answers, nothing = on_a_loop(batches())
    assert [answers[n] for n in (0, 1, 3)] == [0, 1, 3]
    assert isinstance(answers[2], EngineUnavailable)
    assert nothing == []
    assert commit.batches[0] == [0, 1, 2, 3]


def test_a_batch_that_waits_for_a_lock_commits_the_free_rows_and_refuses_the_blocked_one() -> None:
    asked: list[tuple[list[int], float]] = []

    async def commit(rows: Sequence[Any], wait_seconds: float, executed: Any) -> list[int]:
        numbers = [row["n"] for row in rows]
        asked.append((numbers, wait_seconds))
        if 2 in numbers:
            raise StillDeciding("blocked")
        return numbers

    async def blocked() -> list[Any]:
        return await BatchCommitter(commit).recorded_all([{"n": n} for n in range(4)])

    answers = on_a_loop(blocked())
    assert [answers[n] for n in (0, 1, 3)] == [0, 1, 3] and isinstance(answers[2], StillDeciding)
    assert [numbers for numbers, _ in asked] == [[0, 1, 2, 3], [0], [1], [2], [3], [2], *[[2]] * LAST_TRIES]
    waits = [seconds for _, seconds in asked]
    assert waits[0] == batch_commit.BATCH_WAIT_SECONDS and waits[1:5] == [batch_commit.ROW_WAIT_SECONDS] * 4
    assert 1.0 < waits[5] <= 2.0, "the rest of what it may wait in all"


@pytest.mark.parametrize("error", [pg.LockNotAvailable(), pg.DeadlockDetected()])
def test_a_lock_in_the_way_after_a_lost_attempt_is_not_told_as_still_deciding(error: psycopg.Error) -> None:
    """Its own commit may hold the lock: "still deciding" would say that nothing of it was done."""
    with pytest.raises(StillDeciding):
        RetriedTransaction(0.0).failed(error)
    attempts = RetriedTransaction(0.0)
    attempts.failed(psycopg.OperationalError("the connection was lost"))
    with pytest.raises(EngineUnavailable):
        attempts.failed(error)


@pytest.mark.parametrize("error", [pg.DiskFull("No space left on device"), pg.OutOfMemory(), pg.IoError()])
def test_a_server_that_has_no_room_is_not_told_as_one_that_cannot_be_reached(error: psycopg.Error) -> None:
    """The finding: a full disk was a lost connection, whose statements may have been committed."""
    attempts = RetriedTransaction(1.0)
    with pytest.raises(EngineUnavailable, match="^the database refused: "):
        attempts.failed(error)
    assert not attempts.was_lost


@pytest.mark.parametrize(
    "ends", [["lost", "locked"], ["locked", "locked", "lost", "locked"]], ids=["the batch", "what was stuck of it"]
)
def test_a_row_of_a_batch_whose_end_is_unknown_is_not_told_as_still_deciding(ends: list[str]) -> None:
    left = iter(ends)
    errors = {"lost": EngineUnavailable("the connection was lost"), "locked": StillDeciding("blocked")}

    async def commit(rows: Sequence[Any], wait_seconds: float, executed: Any) -> list[int]:
        if {2} & {row["n"] for row in rows}:
            raise errors[next(left)]
        return [row["n"] for row in rows]

    async def batch() -> list[Any]:
        return await BatchCommitter(commit).recorded_all([{"n": n} for n in (1, 2, 3)])

    answers = on_a_loop(batch())
    assert (answers[0], answers[2], next(left, None)) == (1, 3, None)
    assert isinstance(answers[1], EngineUnavailable)


def test_an_unreachable_database_is_told_to_everybody_once_and_the_next_row_is_tried_anew() -> None:
    down, calls = [True], []

    async def commit(rows: Any, wait_seconds: float, executed: Any) -> list[int]:
        calls.append(len(rows))
        if down[0]:
            raise DatabaseUnreachable("away")
        return [row["n"] for row in rows]

    committer = BatchCommitter(commit)
    assert all(isinstance(answer, DatabaseUnreachable) for answer in all_at_once(committer, 20))
    assert calls == [20]
    down[0] = False
    assert all_at_once(committer, 3) == [0, 1, 2]


def test_a_database_lost_in_the_midst_of_a_blocked_batch_is_not_waited_for_once_a_row() -> None:
    tried: list[list[int]] = []

    async def commit(rows: Sequence[Any], wait_seconds: float, executed: Any) -> list[int]:
        tried.append([row["n"] for row in rows])
        if len(rows) > 1:
            raise StillDeciding("a lock is in the way")
        if rows[0]["n"] == 1:
            raise DatabaseUnreachable("no answer")
        return [rows[0]["n"]]

    committer: BatchCommitter[Any, int] = BatchCommitter(commit)
    answers = on_a_loop(committer.recorded_all([{"n": n} for n in range(64)]))
    assert tried == [list(range(64)), [0], [1]]
    assert answers[0] == 0
    assert {type(one) for one in answers[1:]} == {DatabaseUnreachable}


def test_a_client_that_goes_away_disturbs_nobody() -> None:
    goes_on = asyncio.Event()
    commit = Store(held=goes_on)

    async def some_leave() -> list[Any]:
        committer = BatchCommitter(commit)
        tasks = [asyncio.ensure_future(committer.recorded({"n": n})) for n in range(20)]
        await turns()
        assert commit.batches == [[*range(20)]]
        for task in tasks[::2]:
            task.cancel()
        await turns()
        goes_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = on_a_loop(some_leave())
    assert answers[1::2] == list(range(1, 20, 2))
    assert all(isinstance(one, asyncio.CancelledError) for one in answers[::2])
    assert commit.kept == Counter(range(20)), "what was in the line is committed; its retry gets the recorded answer"


def test_who_cannot_be_told_its_outcome_keeps_nobody_else_from_theirs() -> None:
    told: list[int] = []

    async def one_breaks() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(-1))
        committer = BatchCommitter(Store())

        def notified(pending: Any) -> None:
            if pending.outcome == 1:
                raise ValueError("its connection is gone")
            told.append(pending.outcome)

        for n in range(3):
            committer.add({"n": n}, notified)
        while len(told) < 3:
            await asyncio.sleep(0.001)

    on_a_loop(one_breaks())
    assert told == [0, -1, 2]


def test_a_row_that_waits_too_long_is_given_up_and_never_committed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_commit, "WAIT_SECONDS", 0.1)
    held = asyncio.Event()
    commit = Store(held=held)

    async def two() -> list[Any]:
        committer = BatchCommitter(commit, max_parallel=1)
        first = asyncio.ensure_future(committer.recorded({"n": 0}))
        while not commit.batches:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(committer.recorded({"n": 1}))
        answers = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 60)
        held.set()
        while not commit.kept:
            await asyncio.sleep(0.001)
        await turns()
        return answers

    answers = on_a_loop(two())
    assert all(isinstance(one, EngineUnavailable) for one in answers)
    assert commit.batches == [[0]]
    assert commit.kept == Counter([0]), "the one in hand is not taken back; the one in the line is"


def test_what_a_row_waited_before_it_came_counts_in_any_place_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: whose key was looked up for minutes had another fifteen seconds to be committed in."""
    monkeypatch.setattr(batch_commit, "_SWEEPS", 500)
    kept: list[int] = []
    told: dict[int, Any] = {}

    async def three() -> None:
        goes_on, in_hand = asyncio.Event(), asyncio.Event()

        async def commit(rows: Sequence[Any], *_: Any) -> list[int]:
            in_hand.set()
            await goes_on.wait()
            kept.extend(rows)
            return list(rows)

        committer: BatchCommitter[int, int] = BatchCommitter(commit, max_parallel=1)
        long_ago = time.monotonic() - batch_commit.WAIT_SECONDS - 1
        for row, arrived in ((0, None), (1, None), (2, long_ago)):
            committer.add(row, lambda pending, row=row: told.update({row: pending.error}), arrived)  # type: ignore[misc]
            if not row:
                await in_hand.wait()
        while 2 not in told:
            await asyncio.sleep(0.001)
        goes_on.set()
        while len(told) < 3:
            await asyncio.sleep(0.001)

    on_a_loop(three())
    assert kept == [0, 1] and isinstance(told.pop(2), EngineUnavailable) and told == {0: None, 1: None}


def test_one_committer_serves_several_loops() -> None:
    committer = BatchCommitter(Store(seconds=0.001))
    assert all_at_once(committer, 5) == all_at_once(committer, 5) == [0, 1, 2, 3, 4]


class _ForgetsWhoAsked(BatchCommitter[Any, int]):
    """A mutant that gives everybody the first answer of the batch."""

    def add(self, row: Any, done: Any) -> None:
        first: list[Any] = self.__dict__.setdefault("first", [])

        def swapped(pending: Any) -> None:
            first.append(pending)
            done(first[0])

        super().add(row, swapped)


class _CommitsTwice(BatchCommitter[Any, int]):
    """A mutant that hands each row to the line two times."""

    def add(self, row: Any, done: Any) -> None:
        super().add(row, lambda pending: None)
        super().add(row, done)


@pytest.mark.parametrize("mutant", [_ForgetsWhoAsked, _CommitsTwice])
def test_mutants_that_swap_answers_or_commit_twice_are_caught(mutant: type[BatchCommitter[Any, int]]) -> None:
    commit = Store(seconds=0.002, poisoned=[7])
    assert lost_or_swapped(commit, mutant(commit, most=8), 30) != []


def test_mutant_that_spreads_one_rows_error_over_its_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def spreads(batch: Any) -> Any:
        try:
            yield batch, 1.0
        except EngineUnavailable as error:
            for row in batch:
                row.error = error

    monkeypatch.setattr(batch_commit, "settle", spreads)
    commit = Store(poisoned=[7])
    assert lost_or_swapped(commit, BatchCommitter(commit), 30) != []
