"""Whether the authority answers at all: while it does not, hardly a row is claimed, so that an outage keeps hardly a row.

Closed after a batch in which nobody got an answer; then one row at a time tries, less and less often, until one does.
"""

from __future__ import annotations

import threading
import time

LONGEST_PROBE_SECONDS = 5.0
"""An authority that is back is noticed within this."""


class AuthorityGate:
    """Shared by all batches; thread-safe."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = min(first_seconds, LONGEST_PROBE_SECONDS)
        self._longest = min(longest_seconds, LONGEST_PROBE_SECONDS)
        self._pause = self._first
        self._probe_at = 0.0
        self._lock = threading.Lock()
        self.closed_because: str | None = None

    @property
    def is_open(self) -> bool:
        """False while nobody gets an answer."""
        return self.closed_because is None

    def claimable(self, batch: int) -> int:
        """How many rows may be claimed now: all, or one as a probe, or none."""
        with self._lock:
            if self.closed_because is None:
                return batch
            if time.monotonic() < self._probe_at:
                return 0
            self._probe_at = time.monotonic() + self._pause
            return 1

    def note(self, *, answered: int, silent: int, detail: str | None) -> bool:
        """What became of some calls; whether the authority answers again after it had not."""
        with self._lock:
            if answered:
                was_closed = self.closed_because is not None
                self.closed_because, self._pause = None, self._first
                return was_closed
            if silent:
                if self.closed_because is not None:
                    self._pause = min(self._pause * 2, self._longest)
                self.closed_because = detail or "no answer"
                self._probe_at = time.monotonic() + self._pause
            return False
