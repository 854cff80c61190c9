"""Random bytes from the system's generator, buffered a page at a time.

A decision needs random bytes in seven places. Asking the system for each gives up the interpreter seven times, which costs
a busy server more than everything else in the decision.
"""

from __future__ import annotations

import os
import threading

_PAGE_BYTES = 4096


class _Page:
    """Bytes not handed out yet. Each is handed out once; a forked process begins a page of its own."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Discard the buffer and the lock, e.g. in a forked process."""
        self._lock = threading.Lock()
        self._bytes = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes, at most a page."""
        with self._lock:
            if self._at + count > len(self._bytes):
                self._bytes, self._at = os.urandom(_PAGE_BYTES), 0
            start = self._at
            self._at = start + count
            return self._bytes[start : self._at]


random_bytes = _Page().take
"""`count` bytes (1 to 4096) from the system's generator, fit for secrets."""
