"""A cache with a short lifetime: however many people look at a page, its queries are made only every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Answer = TypeVar("Answer")
Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_REMEMBERED = 1_000
"""How many answers one cache holds; the oldest gives way to a new one."""


class Remembered:
    """A cache with a short lifetime and one lock: many viewers cost the database as little as one."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._failed: dict[Hashable, tuple[float, Exception]] = {}

    def get(self, key: Hashable, ask: Callable[[], Answer]) -> Answer:
        """Return the cached answer for `key`, else call `ask()` and cache its result. An error is raised to the caller
        and to those that waited for the same answer meanwhile; it is not cached."""
        came_at = self._clock()
        with self._lock:
            asked_at = self._clock()
            kept = self._kept.get(key)
            if kept is not None and asked_at - kept[0] < self._seconds:
                known: Answer = kept[1]
                return known
            failed = self._failed.get(key)
            if failed is not None and failed[0] > came_at:
                # Else each of many callers would wait for its own timeout, one after the other.
                raise failed[1].with_traceback(None)
            self._failed.pop(key, None)
            try:
                answer = ask()
            except Exception as error:
                keep_newest(self._failed, key, (self._clock(), error), MOST_REMEMBERED)
                raise
            keep_newest(self._kept, key, (asked_at, answer), MOST_REMEMBERED)
            return answer


def keep_newest(kept: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Put a value into a dict that holds at most `most`; the oldest gives way. The caller holds the dict's lock."""
    kept.pop(key, None)  # a dict keeps the place of a key that is there already
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
