"""Batch commits: rows that arrive on an event loop while a commit is in flight share the next one.

There is no timer and no thread: the first row after an idle period is committed once the loop has read all that has
arrived. Rows that arrive while a batch is executed form the next one, which is sent as soon as the first only waits for
the disk. When a batch fails, `settle` commits its rows one by one, so that each has exactly the outcome it would have
alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import DatabaseUnreachable
from sentinel.store.queries import LOCK_WAIT_SECONDS

Row = TypeVar("Row")
Result = TypeVar("Result")

WAIT_SECONDS = 15.0
"""A row without an outcome is refused after this. Longer than all timeouts of the database together: only a defect waits so long."""
BATCH_WAIT_SECONDS, ROW_WAIT_SECONDS = 0.5, 0.005
"""Seconds a batch waits for locks before its rows are committed one by one, and seconds each row then waits."""
LAST_TRIES = 3
"""How many more attempts a blocked row gets after the blocked rows' shared attempt has timed out on a lock."""
_SWEEPS = 15
"""How often per WAIT_SECONDS the queue is checked for rows that waited too long."""


class PendingRow(Generic[Row, Result]):
    """A row and its outcome: an answer or an error."""

    __slots__ = ("_answers", "_place", "arrived", "done", "error", "row")

    def __init__(
        self, row: Row, done: Callable[[PendingRow[Row, Result]], None] | None = None, arrived: float | None = None
    ) -> None:
        self.row = row
        self.arrived = time.monotonic() if arrived is None else arrived
        """When the row was requested, by the monotonic clock: the time it waited before it was added counts too."""
        self.done = done
        """Called once, when the outcome is known."""
        self._answers: Sequence[Result | Exception] | None = None
        self._place = 0
        self.error: Exception | None = None

    def keep(self, answers: Sequence[Result | Exception], place: int) -> None:
        """Record that the row was committed; its answer is `answers[place]`, which is decoded only when it is read.

        An error in its place is this row's alone, and final.
        """
        self._answers, self._place, self.error = answers, place, None

    def failed(self, error: Exception) -> None:
        """Record that this attempt failed.

        An earlier `EngineUnavailable` is kept over a later `StillDeciding`: the earlier attempt may have committed, and
        a blocked lock says nothing about that.
        """
        if not (isinstance(error, StillDeciding) and isinstance(self.error, EngineUnavailable)):
            self.error = error

    @property
    def is_open(self) -> bool:
        """Whether another attempt could still commit the row: it has no answer, and no error other than a blocked lock."""
        return self._answers is None and (self.error is None or isinstance(self.error, StillDeciding))

    @property
    def outcome(self) -> Result | Exception:
        """The answer, or the error that was recorded for this row."""
        if self.error is not None:
            return self.error
        assert self._answers is not None
        return self._answers[self._place]

    def result(self) -> Result:
        """The answer. Raises the error that was recorded for this row."""
        outcome = self.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def notify(self) -> None:
        """Call `done`, unless it was called already."""
        done, self.done = self.done, None
        if done is not None:
            done(self)


Pending = PendingRow[Any, Any]
Settlement = Generator[tuple[Sequence[Pending], float], None, None]


def settle(batch: Sequence[Pending]) -> Settlement:
    """Yield rows to commit together and the seconds to wait for locks, until each row has its answer or error.

    The caller commits the yielded rows and stores their answers with `keep_answers`, or throws the commit's error into
    the generator. When a batch fails because of one row, each row is committed by itself.
    """
    try:
        if len(batch) == 1:
            yield from _alone(batch[0], seconds_left(batch))
        else:
            yield from _together(batch)
    except DatabaseUnreachable as error:
        # Each further attempt would wait for its own timeout and fail the same way.
        for row in batch:
            if row.is_open:
                row.failed(error)


def _together(batch: Sequence[Pending]) -> Settlement:
    """Commit a batch in one transaction; if that fails, its rows one by one. Raises `DatabaseUnreachable`."""
    try:
        yield batch, min(BATCH_WAIT_SECONDS, seconds_left(batch))
    except DatabaseUnreachable:
        raise
    except StillDeciding:
        yield from _row_by_row(batch)
    except Exception as error:
        for row in batch:
            row.failed(error)
            yield from _alone(row, seconds_left([row]))


def _row_by_row(batch: Sequence[Pending]) -> Settlement:
    """Commit a batch blocked by a lock: unblocked rows one by one now, the blocked ones together in the remaining time."""
    for row in batch:
        yield from _alone(row, ROW_WAIT_SECONDS)
    stuck = [row for row in batch if isinstance(row.error, StillDeciding)]
    if not stuck:
        return
    try:
        yield stuck, seconds_left(stuck)
    except DatabaseUnreachable:
        raise
    except StillDeciding:
        # The holder of their lock may itself have waited for another lock, and have given up by now.
        for row in stuck * LAST_TRIES:
            if isinstance(row.error, StillDeciding):
                yield from _alone(row, ROW_WAIT_SECONDS)
    except Exception as error:
        for row in stuck:
            row.failed(error)
            yield from _alone(row, ROW_WAIT_SECONDS)


def _alone(row: Pending, wait_seconds: float) -> Settlement:
    """Commit one row. Raises `DatabaseUnreachable`; any other error is recorded for the row."""
    try:
        yield [row], wait_seconds
    except DatabaseUnreachable as error:
        row.failed(error)
        raise
    except Exception as error:
        row.failed(error)


def seconds_left(batch: Sequence[Pending]) -> float:
    """Seconds that the oldest row of the batch may still wait for locks, ROW_WAIT_SECONDS at least."""
    return max(ROW_WAIT_SECONDS, min(row.arrived for row in batch) + LOCK_WAIT_SECONDS - time.monotonic())


def keep_answers(rows: Sequence[Pending], answers: Sequence[Any]) -> None:
    """Store each row's answer; `answers` are in the order of `rows`. Raises `ValueError` when their numbers differ."""
    if len(answers) != len(rows):
        raise ValueError(f"{len(answers)} answers to {len(rows)} rows")
    for place, row in enumerate(rows):
        row.keep(answers, place)


def commit_all(
    commit: Callable[[Sequence[Row], float], Sequence[Result]], rows: Sequence[Row]
) -> list[Result | Exception]:
    """Commit a caller's own batch without an event loop; returns for each row its answer or the error it alone raised.

    `commit` takes rows and the seconds to wait for locks, and returns answers in their order, all in one transaction.
    """
    batch = [PendingRow[Row, Result](row) for row in rows]
    steps = settle(batch)
    try:
        some, wait_seconds = next(steps)
        while True:
            try:
                keep_answers(some, commit([one.row for one in some], wait_seconds))
            except Exception as error:
                some, wait_seconds = steps.throw(error)
            else:
                some, wait_seconds = next(steps)
    except StopIteration:
        return [one.outcome for one in batch]


Commit = Callable[[Sequence[Row], float, Callable[[], None] | None], Awaitable[Sequence[Result | Exception]]]
"""(rows, seconds to wait for locks, callback for when only the commit is awaited) → answers in their order, in one transaction.

An error in the place of an answer is what is still to be done for that row after the commit, and failed.
"""


class BatchCommitter(Generic[Row, Result]):
    """Commits rows of one kind through `commit`, up to `most` rows of many requests at once.

    `commit` raises `StillDeciding` when it did not get its locks in time. One batch is executed at a time, which makes
    the batches large and the database's work small, and the next is sent while its commit waits for the disk. Only when
    a batch takes longer than `slow_seconds`, because it waits for a lock, up to `max_parallel` run in parallel, so that
    it does not block the others. A row whose client disconnects is committed all the same; the client's retry gets the
    recorded answer.
    """

    def __init__(
        self, commit: Commit[Row, Result], *, most: int = 64, slow_seconds: float = 0.05, max_parallel: int = 4
    ) -> None:
        self._commit = commit
        self._terms = most, slow_seconds, max_parallel
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    def add(self, row: Row, done: Callable[[PendingRow[Row, Result]], None], arrived: float | None = None) -> None:
        """Queue a row for the next commit; `done` gets its outcome on the running loop, never from within this call.

        `arrived` is when the row was requested, by the monotonic clock; now if it is None.
        """
        self._line().add(PendingRow(row, done, arrived))

    async def recorded(self, row: Row) -> Result:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        future: asyncio.Future[PendingRow[Row, Result]] = asyncio.get_running_loop().create_future()
        self.add(row, lambda pending: None if future.done() else future.set_result(pending))
        return (await future).result()

    async def recorded_all(self, rows: Sequence[Row]) -> list[Result | Exception]:
        """Commit a caller's own batch in a commit of its own; returns for each row its answer or the error it alone raised."""
        batch = [PendingRow[Row, Result](row) for row in rows]
        if batch:
            line = self._line()
            async with line.own_batches:  # bounded, so that own batches leave connections for the queued rows
                await asyncio.shield(line.settled(batch))
        return [pending.outcome for pending in batch]

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        found = self._lines.get(loop)
        if found is None:
            found = self._lines[loop] = _Line(loop, self._commit, *self._terms)
        return found


class _Line:
    """The queue of one event loop: rows that wait for a commit, and the commits in flight."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        commit: Commit[Any, Any],
        most: int,
        slow_seconds: float,
        max_parallel: int,
    ) -> None:
        self._loop, self._commit = loop, commit
        self._most, self._slow_seconds, self._max_parallel = most, slow_seconds, max_parallel
        self.own_batches = asyncio.Semaphore(max_parallel)
        self._waiting: deque[Pending] = deque()
        self._in_hand: list[Sequence[Pending]] = []
        self._executing: list[Sequence[Pending]] = []
        """The batches in `_in_hand` whose statement is still executing; the others only wait for their commit."""
        self._latest_began = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_called = self._is_swept = False

    def add(self, row: Pending) -> None:
        """Queue a row, and schedule a commit unless one is in flight."""
        self._waiting.append(row)
        if not self._is_called and self._may_begin():
            # Only after the loop has read all that has arrived, so that the first row of a burst does not go alone.
            self._is_called = True
            self._loop.call_soon(self._begin)
        if not self._is_swept:
            self._is_swept = True
            self._loop.call_later(WAIT_SECONDS / _SWEEPS, self._sweep)

    def _begin(self) -> None:
        """Start committing the queued rows."""
        self._is_called = False
        if self._waiting and len(self._in_hand) < self._max_parallel:
            self.settled(self._next_batch(), goes_on=True)

    def _may_begin(self) -> bool:
        """Whether no commit is in flight, or only slow ones that leave room for another."""
        return not self._in_hand or (
            len(self._in_hand) < self._max_parallel and time.monotonic() - self._latest_began >= self._slow_seconds
        )

    def _next_batch(self) -> list[Pending]:
        return [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]

    def settled(self, batch: list[Pending], *, goes_on: bool = False) -> asyncio.Task[None]:
        """Start a task that commits `batch`; with `goes_on` it is the queue's, and rows queued meanwhile follow, batch after batch."""
        task = self._loop.create_task(self._commit_batches(batch) if goes_on else self._settle(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _commit_batches(self, batch: list[Pending]) -> None:
        while batch:
            self._in_hand.append(batch)
            self._executing.append(batch)
            self._latest_began = time.monotonic()
            try:
                await self._settle(batch, partial(self._executed, batch))
            finally:
                self._in_hand.remove(batch)
                if batch in self._executing:
                    self._executing.remove(batch)
            # Deferred, so that the next commit is in flight while these answers are rendered.
            self._loop.call_soon(self._notify_all, batch)
            batch = self._next_batch() if self._may_begin() else []

    def _executed(self, batch: list[Pending]) -> None:
        """Note that a batch only waits for its commit now, and send the rows queued meanwhile behind it."""
        if batch in self._executing:
            self._executing.remove(batch)
        if self._waiting and not self._executing and len(self._in_hand) < self._max_parallel:
            self.settled(self._next_batch(), goes_on=True)

    async def _settle(self, batch: list[Pending], executed: Callable[[], None] | None = None) -> None:
        steps = settle(batch)
        try:
            rows, wait_seconds = next(steps)
            while True:
                try:
                    keep_answers(rows, await self._commit([one.row for one in rows], wait_seconds, executed))
                except Exception as error:
                    rows, wait_seconds = steps.throw(error)
                else:
                    rows, wait_seconds = next(steps)
        except StopIteration:
            return

    def _notify_all(self, batch: Sequence[Pending]) -> None:
        for row in batch:
            try:
                row.notify()
            except Exception as error:  # a failing callback must not keep the other rows from their answers
                self._loop.call_exception_handler(
                    {"message": "a row could not be told its outcome", "exception": error}
                )

    def _sweep(self) -> None:
        """Refuse rows that waited longer than WAIT_SECONDS; those still queued are never committed."""
        before = time.monotonic() - WAIT_SECONDS
        # Anywhere in the queue, not only at its head: a row may have waited elsewhere before it was added.
        late = [row for row in self._waiting if row.arrived < before]
        if late:
            self._waiting = deque(row for row in self._waiting if row.arrived >= before)
        for row in late:
            _give_up(row)
        for batch in self._in_hand:
            for row in batch:
                if row.arrived < before:
                    _give_up(row)
        self._is_swept = bool(self._waiting or self._in_hand)
        if self._is_swept:
            self._loop.call_later(WAIT_SECONDS / _SWEEPS, self._sweep)


def _give_up(row: Pending) -> None:
    """Refuse a row whose outcome is still unknown. If a commit in flight still records it, a retry of its key finds it."""
    given_up: Pending = PendingRow(row.row, row.done)
    row.done = None
    given_up.error = EngineUnavailable("the row waited too long for its commit")
    given_up.notify()
