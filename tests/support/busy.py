"""How busy the machine is: what a test allows itself in time is for a machine of its own."""

from __future__ import annotations

import functools
import os
import time

_SPIN_SECONDS = 0.02
_STANDS_STILL_SECONDS = 15.0
"""For so long a process may get no turn at all where others keep the machine busy, however little its load says of it."""

SYSTEM_READY_SECONDS = 30.0
"""How long a server of the test's own may take to say that it is ready: one that stands still for a moment is not out of order."""


def overload() -> float:
    """How much longer things take here than on a machine of our own, at least 1.

    The larger of waiting processes per processor over the last minute, and of how long a little computing takes now: the
    first comes late where the load has just begun.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1), _slowdown())


def in_time(seconds: float, limit: float) -> bool:
    """Whether something that took `seconds` here would take less than `limit` on a machine of its own."""
    return seconds < limit or seconds < limit * overload()


def long_enough(seconds: float) -> float:
    """How long to wait here for what another process does within `seconds` on a machine of its own."""
    return max(seconds * overload(), seconds + _STANDS_STILL_SECONDS)


def is_over(began: float, seconds: float) -> bool:
    """Whether `long_enough(seconds)` have passed since `began`, by the monotonic clock; how busy it is, is tried only when it may be."""
    passed = time.monotonic() - began
    return passed > seconds + _STANDS_STILL_SECONDS and passed > seconds * overload()


def _slowdown() -> float:
    """Seconds on the clock for each second that a thread computes; tried at most once a second."""
    return _tried_slowdown(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _tried_slowdown(second: int) -> float:
    began, computed = time.monotonic(), time.thread_time()
    while time.thread_time() - computed < _SPIN_SECONDS:
        pass
    return (time.monotonic() - began) / _SPIN_SECONDS
