"""Bounds how many requests of one kind a process of the console serves at once, because each holds a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from sentinel.core.errors import Conflict


class Slots:
    """The slots of one kind of requests; `refusal` is said where all are taken."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._lock, self._taken = threading.Lock(), 0

    @contextlib.contextmanager
    def taken(self, most: int) -> Iterator[None]:
        """Take a slot for the block. Raises `Conflict` when `most` are taken."""
        with self._lock:
            if self._taken >= most:
                raise Conflict(self._refusal)
            self._taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1
