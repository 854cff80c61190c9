"""Counts the orders in flight, and a group commit whose leader waits a moment for the others while there are many.

Every step of an order costs a commit or a call, which many orders can share. With one order in flight nothing waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sentinel.store.group_commit import GroupCommit, Row

GATHER_SECONDS = 0.004
"""Much less than the commit that it saves, and than an order takes in all while many are in flight."""
MIN_IN_FLIGHT = 4

Result = TypeVar("Result")


class InFlight:
    """Counts who is inside. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.size = 0

    def __enter__(self) -> None:
        with self._mutex:
            self.size += 1

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self.size -= 1


class BatchingCommit(GroupCommit[Result]):
    """A group commit whose leader lets others of `in_flight` come first, for at most GATHER_SECONDS."""

    def __init__(self, commit: Callable[[Sequence[Row]], list[Result]], in_flight: InFlight, *, most: int = 64) -> None:
        # No caller's deadline applies here: locks are waited for as long as the connection says.
        super().__init__(lambda rows, _: commit(rows), most=most)
        self._in_flight = in_flight

    def _lead(self, own: Any) -> None:
        missing = self._in_flight.size - len(self._waiting) - 1
        if missing >= MIN_IN_FLIGHT:
            with self._mutex:
                # The wait is part of this batch's time: it must not look like one that is stuck.
                self._latest_began = time.monotonic()
            time.sleep(GATHER_SECONDS)
        super()._lead(own)


__all__ = ["BatchingCommit", "InFlight"]
