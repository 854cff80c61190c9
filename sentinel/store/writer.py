"""Group commit: rows that arrive while a commit is in flight share the next one.

No timer and no thread of its own: a thread that finds a free lane leads, commits its row with what waits behind it, and
hands the lane to the next in line. At low load every row is a batch of one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import DatabaseUnreachable

WAIT_SECONDS = 15.0
"""Longer than every time limit of the database together; only a defect waits this long."""

Row = Mapping[str, Any]
Answer = TypeVar("Answer")


class _Ticket(Generic[Answer]):
    __slots__ = ("answer", "error", "leads", "row", "signal")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.leads = False
        self.signal = threading.Lock()
        self.signal.acquire()


class GroupCommit(Generic[Answer]):
    """Records rows through `record`, many threads' rows in one call of `commit`.

    `commit` takes rows and answers in their order, all in one transaction. One commit is in flight at a time, which makes
    the batches large and the database's work small; only when it takes longer than `slow_seconds`, because it waits for
    somebody's lock, may up to `lanes` run beside each other so that it does not hold up everybody.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Row]], list[Answer]],
        *,
        most: int = 64,
        slow_seconds: float = 0.05,
        lanes: int = 4,
    ) -> None:
        self._commit = commit
        self._most = most
        self._lanes = lanes
        self._slow_seconds = slow_seconds
        self._leaders = 0
        self._latest_began = 0.0
        self._mutex = threading.Lock()
        self._waiting: deque[_Ticket[Answer]] = deque()

    def record(self, row: Row) -> Answer:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        ticket = _Ticket[Answer](row)
        with self._mutex:
            ticket.leads = self._leaders == 0 or (
                self._leaders < self._lanes and time.monotonic() - self._latest_began > self._slow_seconds
            )
            if ticket.leads:
                self._leaders += 1
            else:
                self._waiting.append(ticket)
        if not ticket.leads and not ticket.signal.acquire(timeout=WAIT_SECONDS):
            self._give_up(ticket)
        if ticket.leads:
            self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.answer is not None
        return ticket.answer

    def _give_up(self, ticket: _Ticket[Answer]) -> None:
        """Leave the line, so that neither the lead nor a late commit comes to who is gone; unless the lead just came."""
        with self._mutex:
            if ticket.leads:
                return
            with contextlib.suppress(ValueError):
                self._waiting.remove(ticket)
        raise EngineUnavailable("the row waited too long for its commit")

    def record_all(self, rows: Sequence[Row]) -> list[Answer | Exception]:
        """A caller's own batch, in one commit of its own; per row the answer, or what it alone raised."""
        tickets = [_Ticket[Answer](row) for row in rows]
        if tickets:
            self._settle(tickets)
        return [ticket.answer if ticket.error is None else ticket.error for ticket in tickets]  # type: ignore[misc]

    def _lead(self, own: _Ticket[Answer]) -> None:
        """Commit the own row and what waits behind it, then hand the lane to the next in line."""
        with self._mutex:
            followers = [self._waiting.popleft() for _ in range(min(self._most - 1, len(self._waiting)))]
            self._latest_began = time.monotonic()
        try:
            self._settle([own, *followers])
        finally:
            for ticket in followers:
                ticket.signal.release()
            with self._mutex:
                if self._waiting:
                    # Taken out of the line before it is woken, so that no other leader can take it too.
                    following = self._waiting.popleft()
                    following.leads = True
                    following.signal.release()
                else:
                    self._leaders -= 1

    def _settle(self, batch: list[_Ticket[Answer]]) -> None:
        try:
            answers = self._commit([ticket.row for ticket in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, DatabaseUnreachable):
                for ticket in batch:
                    ticket.error = error
                return
            # Somebody's row spoilt the batch, and nothing of it was kept: each for itself.
            for ticket in batch:
                self._settle([ticket])
            return
        for ticket, answer in zip(batch, answers, strict=True):
            ticket.answer = answer
