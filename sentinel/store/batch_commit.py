"""Batch commits: rows that arrive on an event loop while a commit is in flight share the next one.

No timer and no thread: the first row of a pause is committed once the loop has read all that has arrived, and whoever
comes while a batch is executed is in the next one, which is sent behind it while it waits for the disk. What makes a batch
fail is found by `settle`, by which rows have exactly the outcome they would have alone.
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
"""Longer than every time limit of the database together; only a defect waits this long."""
BATCH_WAIT_SECONDS, ROW_WAIT_SECONDS = 0.5, 0.005
"""Seconds a batch waits for locks before its rows are committed one by one, and seconds each row then waits."""
LAST_TRIES = 3
"""How often each row of a batch that was refused for a lock is tried a last time."""
_SWEEPS = 15
"""How often within WAIT_SECONDS rows that waited too long are looked for."""


class PendingRow(Generic[Row, Result]):
    """A row, and what became of it: an answer or an error."""

    __slots__ = ("_answers", "_place", "arrived", "done", "error", "row")

    def __init__(
        self, row: Row, done: Callable[[PendingRow[Row, Result]], None] | None = None, arrived: float | None = None
    ) -> None:
        self.row = row
        self.arrived = time.monotonic() if arrived is None else arrived
        """When it was asked for, by the monotonic clock: what it waited for before it came here counts."""
        self.done = done
        """Called once, when the outcome is there."""
        self._answers: Sequence[Result] | None = None
        self._place = 0
        self.error: Exception | None = None

    def keep(self, answers: Sequence[Result], place: int) -> None:
        """It was committed; its answer stands at `place` of all answers of the commit, which are read when they are asked for."""
        self._answers, self._place, self.error = answers, place, None

    def failed(self, error: Exception) -> None:
        """This attempt did not record it, as far as is known.

        A lock in the way takes back nothing of what an earlier attempt may have committed: that one's error stays.
        """
        if not (isinstance(error, StillDeciding) and isinstance(self.error, EngineUnavailable)):
            self.error = error

    @property
    def answer(self) -> Result | None:
        """The answer, where there is one."""
        return None if self._answers is None else self._answers[self._place]

    def result(self) -> Result:
        """The answer. Raises what was raised for this row."""
        if self.error is not None:
            raise self.error
        assert self._answers is not None
        return self._answers[self._place]

    def notify(self) -> None:
        """Call `done`, if nobody has yet."""
        done, self.done = self.done, None
        if done is not None:
            done(self)


Pending = PendingRow[Any, Any]
Settlement = Generator[tuple[Sequence[Pending], float], None, None]


def settle(batch: Sequence[Pending]) -> Settlement:
    """Yields which rows to commit together and how many seconds to wait for locks, until each row has its answer or error.

    Who drives it commits what is yielded and keeps the answers, or throws in what the commit raised. Where one row makes the
    batch fail, each is committed by itself.
    """
    if len(batch) == 1:
        yield from _alone(batch[0], seconds_left(batch))
        return
    try:
        yield batch, min(BATCH_WAIT_SECONDS, seconds_left(batch))
    except DatabaseUnreachable as error:
        for row in batch:
            row.failed(error)
    except StillDeciding:
        yield from _row_by_row(batch)
    except Exception as error:
        for row in batch:
            row.failed(error)
            yield from _alone(row, seconds_left([row]))


def _row_by_row(batch: Sequence[Pending]) -> Settlement:
    """A row is blocked by a lock: commit the unblocked rows now, the blocked ones together in the remaining time."""
    for row in batch:
        yield from _alone(row, ROW_WAIT_SECONDS)
    stuck = [row for row in batch if isinstance(row.error, StillDeciding)]
    if not stuck:
        return
    try:
        yield stuck, seconds_left(stuck)
    except StillDeciding:
        # Who held their lock may have waited for another one itself, and has given up by now.
        for row in stuck * LAST_TRIES:
            if isinstance(row.error, StillDeciding):
                yield from _alone(row, ROW_WAIT_SECONDS)
    except Exception as error:
        for row in stuck:
            row.failed(error)
            yield from _alone(row, ROW_WAIT_SECONDS)


def _alone(row: Pending, wait_seconds: float) -> Settlement:
    try:
        yield [row], wait_seconds
    except Exception as error:
        row.failed(error)


def seconds_left(batch: Sequence[Pending]) -> float:
    """Seconds that the first row of the batch still waits for locks."""
    return max(ROW_WAIT_SECONDS, min(row.arrived for row in batch) + LOCK_WAIT_SECONDS - time.monotonic())


def keep_answers(rows: Sequence[Pending], answers: Sequence[Any]) -> None:
    """Each row's answer, in the order of the rows."""
    if len(answers) != len(rows):
        raise ValueError(f"{len(answers)} answers to {len(rows)} rows")
    for place, row in enumerate(rows):
        row.keep(answers, place)


def commit_all(
    commit: Callable[[Sequence[Row], float], Sequence[Result]], rows: Sequence[Row]
) -> list[Result | Exception]:
    """A caller's own batch, without an event loop: per row the answer, or what it alone raised.

    `commit` takes rows and the seconds that locks may be waited for, and answers in their order, all in one transaction.
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
        return [one.answer if one.error is None else one.error for one in batch]  # type: ignore[misc]


Commit = Callable[[Sequence[Row], float, Callable[[], None] | None], Awaitable[Sequence[Result]]]
"""Rows, seconds that locks may be waited for, whom to call once only the commit is awaited → answers in their order, all in one transaction."""


class BatchCommitter(Generic[Row, Result]):
    """Commits rows of one kind through `commit`, many requests' rows at once.

    `commit` raises `StillDeciding` when the seconds were too short. One batch is executed at a time, which makes the
    batches large and the database's work small, and the next is sent while its commit waits for the disk; only when it
    takes longer than `slow_seconds`, because it waits for somebody's lock, may up to `max_parallel` run beside each other
    so that it does not hold up everybody. A row whose client goes away is committed all the same; its retry gets the
    recorded answer.
    """

    def __init__(
        self, commit: Commit[Row, Result], *, most: int = 64, slow_seconds: float = 0.05, max_parallel: int = 4
    ) -> None:
        self._commit = commit
        self._terms = most, slow_seconds, max_parallel
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    def add(self, row: Row, done: Callable[[PendingRow[Row, Result]], None], arrived: float | None = None) -> None:
        """Commit a row with others, and call `done` with its outcome: on the running loop, and never from within this call.

        `arrived` is when it was asked for, by the monotonic clock, where that was not just now.
        """
        self._line().add(PendingRow(row, done, arrived))

    async def recorded(self, row: Row) -> Result:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        future: asyncio.Future[PendingRow[Row, Result]] = asyncio.get_running_loop().create_future()
        self.add(row, lambda pending: None if future.done() else future.set_result(pending))
        return (await future).result()

    async def recorded_all(self, rows: Sequence[Row]) -> list[Result | Exception]:
        """A caller's own batch, in one commit of its own; per row the answer, or what it alone raised."""
        batch = [PendingRow[Row, Result](row) for row in rows]
        if batch:
            line = self._line()
            async with line.own_batches:  # so that they leave connections to the rows in the line
                await asyncio.shield(line.settled(batch))
        return [pending.answer if pending.error is None else pending.error for pending in batch]  # type: ignore[misc]

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        found = self._lines.get(loop)
        if found is None:
            found = self._lines[loop] = _Line(loop, self._commit, *self._terms)
        return found


class _Line:
    """The rows that wait on one event loop, and the commits that take them."""

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
        """Those in hand of which more is awaited than their commit."""
        self._latest_began = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_called = self._is_swept = False

    def add(self, row: Pending) -> None:
        """Take a row into the line."""
        self._waiting.append(row)
        if not self._is_called and self._may_begin():
            # Once the loop has read all that has arrived: then the first of a burst does not go alone.
            self._is_called = True
            self._loop.call_soon(self._begin)
        if not self._is_swept:
            self._is_swept = True
            self._loop.call_later(WAIT_SECONDS / _SWEEPS, self._sweep)

    def _begin(self) -> None:
        """Start committing what waits."""
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
        """A task that commits a batch; with `goes_on` of the line, and then what came meanwhile, batch after batch."""
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
            # Later: the next commit is under way while these answers are rendered.
            self._loop.call_soon(self._notify_all, batch)
            batch = self._next_batch() if self._may_begin() else []

    def _executed(self, batch: list[Pending]) -> None:
        """Only the commit of a batch is still awaited: what came meanwhile goes behind it."""
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
            except Exception as error:  # one that cannot be told must not keep the others from their answers
                self._loop.call_exception_handler(
                    {"message": "a row could not be told its outcome", "exception": error}
                )

    def _sweep(self) -> None:
        """Refuse rows that waited too long; those that no commit took are never committed."""
        before = time.monotonic() - WAIT_SECONDS
        # In any place of the line: a row may have waited elsewhere before it came.
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
    """Refuse a row whose outcome is still unknown: what a commit in flight may yet record, the retry of its key finds."""
    given_up: Pending = PendingRow(row.row, row.done)
    row.done = None
    given_up.error = EngineUnavailable("the row waited too long for its commit")
    given_up.notify()
