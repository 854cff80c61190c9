"""Group commit: rows that arrive while a commit is in flight share the next one.

No timer and no thread of its own: a thread that finds a free lane leads, commits its row with what waits behind it, and
hands the lane to the next in line. At low load every row is a batch of one.
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
from sentinel.store.failures import PATIENCE_SECONDS

WAIT_SECONDS = 15.0
"""Longer than every time limit of the database together; only a defect waits this long."""
TOGETHER_SECONDS, GLANCE_SECONDS = 0.5, 0.005
"""How long a batch waits for locks before its rows are told apart, and how long each of them waits to be told."""

Row = Mapping[str, Any]
Answer = TypeVar("Answer")


class _Ticket(Generic[Answer]):
    """A row in the line. Who waits for it is told by `signal`, a thread, or by `told`, a loop's future."""

    __slots__ = ("answer", "error", "leads", "row", "signal", "told", "until")

    def __init__(self, row: Row, told: asyncio.Future[None] | None = None) -> None:
        self.row = row
        self.told = told
        self.until = time.monotonic() + PATIENCE_SECONDS
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.leads = False
        self.signal = threading.Lock()
        self.signal.acquire()

    def result(self) -> Answer:
        """The answer. Raises what was raised for this row."""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


def _wake(tickets: Sequence[_Ticket[Any]]) -> None:
    """Tell who waits that the answers are there; a loop is called once for all its rows."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ticket in tickets:
        if ticket.told is None:
            ticket.signal.release()
        else:
            by_loop.setdefault(ticket.told.get_loop(), []).append(ticket.told)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_tell, futures)


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _tell(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class GroupCommit(Generic[Answer]):
    """Records rows through `record`, many threads' rows in one call of `commit`.

    `commit` takes rows, and how many seconds it may wait for locks, and answers in their order, all in one transaction. It
    raises `StillDeciding` when that was too short; nobody is told so later than PATIENCE_SECONDS after it asked. One commit is in flight at a time, which makes
    the batches large and the database's work small; only when it takes longer than `slow_seconds`, because it waits for
    somebody's lock, may up to `lanes` run beside each other so that it does not hold up everybody.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Row], float], list[Answer]],
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
        # Started at the first row that comes from a loop.
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="commit")

    def record(self, row: Row) -> Answer:
        """The committed answer to one row. Raises what `commit` raises for this row alone."""
        ticket = _Ticket[Answer](row)
        with self._mutex:
            ticket.leads = self._may_lead()
            if ticket.leads:
                self._leaders += 1
            else:
                self._waiting.append(ticket)
        if not ticket.leads and not ticket.signal.acquire(timeout=WAIT_SECONDS):
            self._give_up(ticket)
        if ticket.leads:
            self._lead(ticket)
        return ticket.result()

    async def recorded(self, row: Row) -> Answer:
        """`record` on an event loop: the commits of what waits here run in a thread of their own."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        ticket = _Ticket[Answer](row, told)
        with self._mutex:
            self._waiting.append(ticket)
            needs_leader = self._may_lead()
            if needs_leader:
                self._leaders += 1
        if needs_leader:
            self._threads.submit(self._lead_line)
        expiry = loop.call_later(WAIT_SECONDS, _expire, told)
        try:
            await told
        except TimeoutError:
            self._give_up(ticket)
        finally:
            expiry.cancel()
        return ticket.result()

    def _may_lead(self) -> bool:
        return self._leaders == 0 or (
            self._leaders < self._lanes and time.monotonic() - self._latest_began > self._slow_seconds
        )

    def _lead_line(self) -> None:
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
            _wake(followers)
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the lane to the next in line; a loop's row is led by a thread of ours."""
        with self._mutex:
            if not self._waiting:
                self._leaders -= 1
            elif self._waiting[0].told is not None:
                self._threads.submit(self._lead_line)
            else:
                # Taken out of the line before it is woken, so that no other leader can take it too.
                following = self._waiting.popleft()
                following.leads = True
                following.signal.release()

    def _settle(self, batch: list[_Ticket[Answer]]) -> None:
        """Commit the batch. If somebody's row spoils it, nothing of it is kept: each for itself."""
        if len(batch) == 1:
            self._commit_one(batch[0], _left(batch))
            return
        try:
            self._commit_all(batch, min(TOGETHER_SECONDS, _left(batch)))
        except DatabaseUnreachable as error:
            for ticket in batch:
                ticket.error = error
        except StillDeciding:
            self._tell_apart(batch)
        except Exception:
            for ticket in batch:
                self._commit_one(ticket, _left([ticket]))

    def _tell_apart(self, batch: list[_Ticket[Answer]]) -> None:
        """Somebody's row waits for a lock: who does not is done now, who does waits on together for what is left to them."""
        for ticket in batch:
            self._commit_one(ticket, GLANCE_SECONDS)
        stuck = [ticket for ticket in batch if isinstance(ticket.error, StillDeciding)]
        if not stuck:
            return
        try:
            self._commit_all(stuck, _left(stuck))
        except StillDeciding:
            return  # as each of them was told at its glance
        except Exception:
            for ticket in stuck:
                self._commit_one(ticket, GLANCE_SECONDS)

    def _commit_all(self, batch: Sequence[_Ticket[Answer]], wait_seconds: float) -> None:
        answers = self._commit([ticket.row for ticket in batch], wait_seconds)
        for ticket, answer in zip(batch, answers, strict=True):
            ticket.answer, ticket.error = answer, None

    def _commit_one(self, ticket: _Ticket[Answer], wait_seconds: float) -> None:
        try:
            self._commit_all([ticket], wait_seconds)
        except Exception as error:
            ticket.error = error


def _left(batch: Sequence[_Ticket[Any]]) -> float:
    """Seconds that whoever asked first still waits."""
    return max(GLANCE_SECONDS, min(ticket.until for ticket in batch) - time.monotonic())
