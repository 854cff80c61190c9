"""Group commit: rows that arrive while a commit is in flight share the next one.

No timer and no thread of its own: a thread that may commit becomes the leader, commits its row with the queued ones, and
makes the next queued row the leader. At low load every row is a batch of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import DatabaseUnreachable
from sentinel.store.queries import LOCK_WAIT_SECONDS

WAIT_SECONDS = 15.0
"""Longer than every time limit of the database together; only a defect waits this long."""
BATCH_WAIT_SECONDS, ROW_WAIT_SECONDS = 0.5, 0.005
"""Seconds a batch waits for locks before its rows are committed one by one, and seconds each row then waits."""

Row = Mapping[str, Any]
Result = TypeVar("Result")


class _PendingRow(Generic[Result]):
    """A queued row. Its waiter is woken by `signal` (a thread) or `future` (an event loop)."""

    __slots__ = ("answer", "error", "future", "leads", "row", "signal", "until")

    def __init__(self, row: Row, future: asyncio.Future[None] | None = None) -> None:
        self.row = row
        self.future = future
        self.until = time.monotonic() + LOCK_WAIT_SECONDS
        self.answer: Result | None = None
        self.error: Exception | None = None
        self.leads = False
        self.signal = threading.Lock()
        self.signal.acquire()

    def result(self) -> Result:
        """The answer. Raises what was raised for this row."""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


def _wake(tickets: Sequence[_PendingRow[Any]]) -> None:
    """Wake the waiters of committed rows; each loop is called once for all its rows."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ticket in tickets:
        if ticket.future is None:
            ticket.signal.release()
        else:
            by_loop.setdefault(ticket.future.get_loop(), []).append(ticket.future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve_futures, futures)


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _resolve_futures(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class GroupCommit(Generic[Result]):
    """Records rows through `record`, many threads' rows in one call of `commit`.

    `commit` takes rows, and how many seconds it may wait for locks, and answers in their order, all in one transaction. It
    raises `StillDeciding` when that was too short; raised no later than LOCK_WAIT_SECONDS after it asked. One commit is in flight at a time, which makes
    the batches large and the database's work small; only when it takes longer than `slow_seconds`, because it waits for
    somebody's lock, may up to `max_parallel` run beside each other so that it does not hold up everybody.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Row], float], list[Result]],
        *,
        most: int = 64,
        slow_seconds: float = 0.05,
        max_parallel: int = 4,
    ) -> None:
        self._commit = commit
        self._most = most
        self._max_parallel = max_parallel
        self._slow_seconds = slow_seconds
        self._leaders = 0
        self._latest_began = 0.0
        self._mutex = threading.Lock()
        self._waiting: deque[_PendingRow[Result]] = deque()
        # Started at the first row that comes from a loop.
        self._threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="commit")

    def record(self, row: Row) -> Result:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        ticket = _PendingRow[Result](row)
        with self._mutex:
            ticket.leads = self._may_lead()
            if ticket.leads:
                self._leaders += 1
            else:
                self._waiting.append(ticket)
        if not ticket.leads and not ticket.signal.acquire(timeout=WAIT_SECONDS):
            self._withdraw(ticket)
        if ticket.leads:
            self._lead(ticket)
        return ticket.result()

    async def recorded(self, row: Row) -> Result:
        """`record` on an event loop: the commits of what waits here run in a thread of their own."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        ticket = _PendingRow[Result](row, future)
        with self._mutex:
            self._waiting.append(ticket)
            needs_leader = self._may_lead()
            if needs_leader:
                self._leaders += 1
        if needs_leader:
            self._threads.submit(self._run_as_leader)
        expiry = loop.call_later(WAIT_SECONDS, _expire, future)
        try:
            await future
        except TimeoutError:
            self._withdraw(ticket)
        finally:
            expiry.cancel()
        return ticket.result()

    def _may_lead(self) -> bool:
        return self._leaders == 0 or (
            self._leaders < self._max_parallel and time.monotonic() - self._latest_began > self._slow_seconds
        )

    def _run_as_leader(self) -> None:
        """Commit what waits, batch after batch, until nothing does."""
        while True:
            with self._mutex:
                batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                if not batch:
                    self._leaders -= 1
                    return
                self._latest_began = time.monotonic()
            try:
                self._settle(batch)
            finally:
                _wake(batch)

    def _withdraw(self, ticket: _PendingRow[Result]) -> None:
        """Remove a row that gave up waiting from the queue, unless it was just made leader."""
        with self._mutex:
            if ticket.leads:
                return
            with contextlib.suppress(ValueError):
                self._waiting.remove(ticket)
        raise EngineUnavailable("the row waited too long for its commit")

    def record_all(self, rows: Sequence[Row]) -> list[Result | Exception]:
        """A caller's own batch, in one commit of its own; per row the answer, or what it alone raised."""
        tickets = [_PendingRow[Result](row) for row in rows]
        if tickets:
            self._settle(tickets)
        return [ticket.answer if ticket.error is None else ticket.error for ticket in tickets]  # type: ignore[misc]

    def _lead(self, own: _PendingRow[Result]) -> None:
        """Commit the own row with the queued ones, then make the next queued row the leader."""
        with self._mutex:
            followers = [self._waiting.popleft() for _ in range(min(self._most - 1, len(self._waiting)))]
            self._latest_began = time.monotonic()
        try:
            self._settle([own, *followers])
        finally:
            _wake(followers)
            self._pass_leadership()

    def _pass_leadership(self) -> None:
        """Make the next queued row the leader; rows of event loops are led by a pool thread."""
        with self._mutex:
            if not self._waiting:
                self._leaders -= 1
            elif self._waiting[0].future is not None:
                self._threads.submit(self._run_as_leader)
            else:
                # Taken out of the queue before it is woken, so that no other leader can take it too.
                following = self._waiting.popleft()
                following.leads = True
                following.signal.release()

    def _settle(self, batch: list[_PendingRow[Result]]) -> None:
        """Commit the batch; where one row makes it fail, commit each row by itself."""
        if len(batch) == 1:
            self._commit_one(batch[0], _seconds_left(batch))
            return
        try:
            self._commit_all(batch, min(BATCH_WAIT_SECONDS, _seconds_left(batch)))
        except DatabaseUnreachable as error:
            for ticket in batch:
                ticket.error = error
        except StillDeciding:
            self._commit_row_by_row(batch)
        except Exception:
            for ticket in batch:
                self._commit_one(ticket, _seconds_left([ticket]))

    def _commit_row_by_row(self, batch: list[_PendingRow[Result]]) -> None:
        """A row is blocked by a lock: commit the unblocked rows now, the blocked ones together in the remaining time."""
        for ticket in batch:
            self._commit_one(ticket, ROW_WAIT_SECONDS)
        stuck = [ticket for ticket in batch if isinstance(ticket.error, StillDeciding)]
        if not stuck:
            return
        try:
            self._commit_all(stuck, _seconds_left(stuck))
        except StillDeciding:
            return  # each was refused in its own commit
        except Exception:
            for ticket in stuck:
                self._commit_one(ticket, ROW_WAIT_SECONDS)

    def _commit_all(self, batch: Sequence[_PendingRow[Result]], wait_seconds: float) -> None:
        answers = self._commit([ticket.row for ticket in batch], wait_seconds)
        for ticket, answer in zip(batch, answers, strict=True):
            ticket.answer, ticket.error = answer, None

    def _commit_one(self, ticket: _PendingRow[Result], wait_seconds: float) -> None:
        try:
            self._commit_all([ticket], wait_seconds)
        except Exception as error:
            ticket.error = error


def _seconds_left(batch: Sequence[_PendingRow[Any]]) -> float:
    """Seconds that the first row of the batch still waits."""
    return max(ROW_WAIT_SECONDS, min(ticket.until for ticket in batch) - time.monotonic())
