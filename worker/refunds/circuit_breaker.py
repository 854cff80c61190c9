"""Circuit breaker for the authority: while it does not answer, hardly a row is claimed, so that an outage holds few rows.

Opens after a batch without any answer; then one row at a time probes, with growing pauses, until one is answered.
"""

from __future__ import annotations

import threading
import time

LONGEST_PROBE_SECONDS = 5.0
"""The longest pause between two probes."""


class CircuitBreaker:
    """Shared by all batches. Thread-safe."""

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
