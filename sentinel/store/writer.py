"""Group commit: decisions that arrive while a commit is in flight share the next one.

No timer and no thread of its own: the first thread to arrive leads, commits what is waiting, and hands the lead to
somebody still waiting when its own answer is there. At low load every decision is a batch of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.core.errors import EngineUnavailable
from sentinel.store.decisions import Recorded

WAIT_SECONDS = 15.0
"""Longer than every time limit of the database together; only a defect waits this long."""

Row = Mapping[str, Any]


class _Ticket:
    __slots__ = ("answer", "error", "leads", "row", "signal")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.answer: Recorded | None = None
        self.error: BaseException | None = None
        self.leads = False
        self.signal = threading.Lock()
        self.signal.acquire()


class DecisionWriter:
    """Records decided rows through `record`, many threads' rows in one call of `commit`.

    `commit` takes rows and answers in their order, all in one transaction. `lanes` commits may be in flight at once, so
    that one batch waiting for a lock does not hold up everybody.
    """

    def __init__(self, commit: Callable[[Sequence[Row]], list[Recorded]], *, most: int = 64, lanes: int = 2) -> None:
        self._commit = commit
        self._most = most
        self._free_lanes = lanes
        self._mutex = threading.Lock()
        self._waiting: list[_Ticket] = []

    def record(self, row: Row) -> Recorded:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        ticket = _Ticket(row)
        with self._mutex:
            self._waiting.append(ticket)
            ticket.leads = self._free_lanes > 0
            if ticket.leads:
                self._free_lanes -= 1
        if not ticket.leads and not ticket.signal.acquire(timeout=WAIT_SECONDS):
            raise EngineUnavailable("the decision waited too long for its commit")
        if ticket.leads:
            self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.answer is not None
        return ticket.answer

    def _lead(self, own: _Ticket) -> None:
        """Commit batches until the own row is answered, then hand the lane on."""
        while own.answer is None and own.error is None:
            with self._mutex:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not batch:
                break
            self._settle(batch)
            for ticket in batch:
                if ticket is not own:
                    ticket.signal.release()
        with self._mutex:
            if self._waiting:
                # The next leader stays in the line: its own row is the first of its batch.
                self._waiting[0].leads = True
                self._waiting[0].signal.release()
            else:
                self._free_lanes += 1

    def _settle(self, batch: list[_Ticket]) -> None:
        try:
            answers = self._commit([ticket.row for ticket in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            # Somebody's row spoilt the batch, and nothing of it was kept: each for itself.
            for ticket in batch:
                self._settle([ticket])
            return
        for ticket, answer in zip(batch, answers, strict=True):
            ticket.answer = answer
