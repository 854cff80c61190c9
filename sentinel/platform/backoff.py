"""Exponential backoff: how long to wait before the next attempt of something that failed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that begin with `first_seconds` and double up to `longest_seconds`."""

    first_seconds: float
    longest_seconds: float

    def pause_seconds(self, failed_before: int, spread: float = 0.0) -> float:
        """The pause after a failure that had `failed_before` others before it; `spread` (0 to 1) adds up to a quarter."""
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(failed_before, 30)) * (1 + spread / 4)
