"""Group commit for threads: rows that arrive while a commit is in flight share the next one.

`batch_commit.py` is the same for an event loop. No timer and no thread of its own: a thread that finds no commit in flight
becomes the leader, commits its row with the queued ones, and makes the next queued row the leader. At low load every row
is a batch of one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sentinel.core.errors import EngineUnavailable
from sentinel.store.batch_commit import WAIT_SECONDS, PendingRow, keep_answers, settle

Row = Mapping[str, Any]
Result = TypeVar("Result")


class _PendingRow(PendingRow[Row, Result]):
    """A queued row whose thread is woken by `signal`."""

    __slots__ = ("leads", "signal")

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.leads = False
        self.signal = threading.Lock()
        self.signal.acquire()


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

    def record(self, row: Row) -> Result:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        pending = _PendingRow[Result](row)
        with self._mutex:
            pending.leads = self._may_lead()
            if pending.leads:
                self._leaders += 1
            else:
                self._waiting.append(pending)
        if not pending.leads and not pending.signal.acquire(timeout=WAIT_SECONDS):
            self._withdraw(pending)
        if pending.leads:
            self._lead(pending)
        return pending.result()

    def _may_lead(self) -> bool:
        return self._leaders == 0 or (
            self._leaders < self._max_parallel and time.monotonic() - self._latest_began > self._slow_seconds
        )

    def _withdraw(self, pending: _PendingRow[Result]) -> None:
        """Remove a row that gave up waiting from the queue, unless it was just made leader."""
        with self._mutex:
            if pending.leads:
                return
            with contextlib.suppress(ValueError):
                self._waiting.remove(pending)
        raise EngineUnavailable("the row waited too long for its commit")

    def _lead(self, own: _PendingRow[Result]) -> None:
        """Commit the own row with the queued ones, then make the next queued row the leader."""
        with self._mutex:
            followers = [self._waiting.popleft() for _ in range(min(self._most - 1, len(self._waiting)))]
            self._latest_began = time.monotonic()
        try:
            self._settle([own, *followers])
        finally:
            for pending in followers:
                pending.signal.release()
            self._pass_leadership()

    def _pass_leadership(self) -> None:
        """Make the next queued row the leader."""
        with self._mutex:
            if not self._waiting:
                self._leaders -= 1
            else:
                # Taken out of the queue before it is woken, so that no other leader can take it too.
                following = self._waiting.popleft()
                following.leads = True
                following.signal.release()

    def _settle(self, batch: Sequence[_PendingRow[Result]]) -> None:
        """Commit the batch; where one row makes it fail, commit each row by itself."""
        steps = settle(batch)
        try:
            rows, wait_seconds = next(steps)
            while True:
                try:
                    keep_answers(rows, self._commit([one.row for one in rows], wait_seconds))
                except Exception as error:
                    rows, wait_seconds = steps.throw(error)
                else:
                    rows, wait_seconds = next(steps)
        except StopIteration:
            return
