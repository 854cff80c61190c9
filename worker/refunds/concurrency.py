"""What the batches of one process share: threads, the leases of their rows, and the circuit breaker for the authority.

Only rows in progress are renewed, so a released row's lease expires as planned; and only for a limited time, so that
another worker can take over from a batch that never ends. While the authority does not answer, only one row at a time
is claimed as a probe, with growing pauses, until one is answered, so that an outage holds few rows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from sentinel.platform.ongoing_failures import OngoingFailures, raised_at
from worker.refunds.ledger import Ledger, LedgerUnavailable

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 64
"""Rows per call to the authority: the most that it accepts."""


class WorkerPool:
    """`size` threads, shared by all batches."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="worker")

    def map(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`[call(item) for item in items]`, several at a time. The first exception is raised after all have ended."""
        if len(items) < 2:
            return [call(item) for item in items]
        results: list[Result | None] = [None] * len(items)
        # One task per thread that fetches items itself: a future per item costs more than it brings.
        open_items = deque(enumerate(items))

        def fetch() -> None:
            while True:
                try:
                    index, item = open_items.popleft()
                except IndexError:
                    return
                results[index] = call(item)

        tasks = [self._threads.submit(fetch) for _ in range(min(self._size, len(items)))]
        wait(tasks)
        for task in tasks:
            task.result()
        return results  # type: ignore[return-value]

    def map_chunks(
        self,
        call: Callable[[Sequence[Item]], Sequence[Result]],
        items: Sequence[Item],
        size: int = AT_ONCE,
        alone: Callable[[Item], bool] = lambda item: False,
    ) -> list[Result]:
        """`call` for the items in chunks of at most `size`, several at a time; all results in order.

        Items for which `alone` is true get a call of their own.
        """
        chunks: list[list[Item]] = []
        is_open = False
        for item in items:
            if alone(item) or not is_open or len(chunks[-1]) == size:
                chunks.append([])
            chunks[-1].append(item)
            is_open = not alone(item)
        return [result for results in self.map(call, chunks) for result in results]

    def close(self) -> None:
        """Take no more work; each thread ends when its own is done."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class PeriodicTask:
    """Periodic work besides the rows: calls `run` at most once in `every_seconds`, whichever thread asks. Thread-safe.

    Raises what `run` raises, e.g. `LedgerUnavailable`.
    """

    def __init__(self, run: Callable[[], object], every_seconds: float = 0.0) -> None:
        self._run, self._every_seconds = run, every_seconds
        self._lock, self._next_at = threading.Lock(), 0.0

    def run_due(self) -> None:
        """Run if the last run is long enough ago."""
        with self._lock:
            if time.monotonic() < self._next_at:
                return
            self._next_at = time.monotonic() + self._every_seconds
        self._run()


LONGEST_PROBE_SECONDS = 5.0
"""The longest pause between two probes."""


class CircuitBreaker:
    """Opens when the authority gives no answer; then one row at a time probes, until one is answered. Shared by all batches. Thread-safe."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = min(first_seconds, LONGEST_PROBE_SECONDS)
        self._longest = min(longest_seconds, LONGEST_PROBE_SECONDS)
        self._pause = self._first
        self._probe_at = 0.0
        self._lock = threading.Lock()
        self.open_because: str | None = None

    @property
    def is_closed(self) -> bool:
        """Whether calls go through; False while the authority does not answer."""
        return self.open_because is None

    def claimable(self, batch: int) -> int:
        """How many rows may be claimed now: all, or one as a probe, or none."""
        with self._lock:
            if self.open_because is None:
                return batch
            if time.monotonic() < self._probe_at:
                return 0
            self._probe_at = time.monotonic() + self._pause
            return 1

    def note(self, *, answered: int, unanswered: int, detail: str | None) -> bool:
        """Record the results of some calls; returns whether the authority answers again after it had not."""
        with self._lock:
            if answered:
                was_open = self.open_because is not None
                self.open_because, self._pause = None, self._first
                return was_open
            if unanswered:
                if self.open_because is not None:
                    self._pause = min(self._pause * 2, self._longest)
                self.open_because = detail or "no answer"
                self._probe_at = time.monotonic() + self._pause
            return False


_log = logging.getLogger("worker")

LONGEST_HOLD_SECONDS = 600.0


class LeaseKeeper:
    """Renews the leases of the rows in progress. Thread-safe."""

    def __init__(self, ledger: Ledger, heartbeat_seconds: float) -> None:
        self._ledger, self._heartbeat_seconds = ledger, heartbeat_seconds
        # By block and not by row: a later batch may have claimed a row again before the earlier one has ended.
        self._held: dict[object, tuple[float, Sequence[str]]] = {}
        self._ended = threading.Event()
        self._failures = OngoingFailures()

    @contextmanager
    def holding(self, ids: Sequence[str]) -> Iterator[None]:
        """Renew the leases of these rows during the block."""
        block = object()
        self._held[block] = time.monotonic(), ids
        try:
            yield
        finally:
            del self._held[block]

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Renew leases during the block, in a thread of its own."""
        beating = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        beating.start()
        try:
            yield
        finally:
            self._ended.set()
            beating.join(0.2)

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_seconds):
            oldest = time.monotonic() - LONGEST_HOLD_SECONDS
            ids = list({each for since, held in list(self._held.values()) if since > oldest for each in held})
            if not ids:
                continue
            try:
                self._ledger.extend(ids)
            except LedgerUnavailable as error:
                # Without renewal the leases expire and the rows go to another worker.
                if self._failures.should_log("renewal", str(error)):
                    _log.warning("claims could not be renewed: %s", error)
            except Exception as error:
                # Whatever failed, e.g. on a read-only standby, must not end this thread: no other renews leases.
                if self._failures.should_log("renewal", raised_at(error)):
                    _log.exception("claims could not be renewed")
            else:
                self._failures.recovered("renewal")
