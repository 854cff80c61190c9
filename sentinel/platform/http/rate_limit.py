"""A rate limit per key that is exact over all processes of a host: GCRA in shared memory.

One map of slots, made before the processes fork, guarded by semaphores that take no system call while nobody waits; a
database row per request would cost more than the decision's own lookups.
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import time
from collections.abc import Callable

from sentinel.core.errors import RateLimited

_SLOTS, _STRIPES, _PROBES = 4096, 64, 8
_SLOT = struct.Struct("=8sd")
_DEAD_AFTER_SECONDS = 0.1


class SharedRateLimit:
    """Generic cell rate algorithm: `per_second` sustained, `burst` at once, per key.

    Make it before forking; `take` may then be called from any thread of any process.
    """

    def __init__(self, *, per_second: int, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1.0 / per_second
        self._tolerance = (burst - 1) * self._interval
        self._clock = clock
        self._map = mmap.mmap(-1, _SLOTS * _SLOT.size)
        processes = multiprocessing.get_context("fork")
        self._locks = [processes.Lock() for _ in range(_STRIPES)]

    def take(
        self, key: bytes, cost: int = 1, *, per_second: int | None = None, burst: int | None = None, is_let_in: bool = False
    ) -> None:  # fmt: skip
        """Count `cost` requests of `key`. Raises `RateLimited` with the seconds to wait, unless `is_let_in`.

        With `is_let_in` the requests were admitted before, and are only counted. `key` is at least 10 bytes that nobody
        else can predict: a hash of a secret, or of a salt and public data. It selects the slot, and a client that could
        fill the slots around another's would get that one refused. A key with a rate of its own needs `per_second` and
        `burst` at every call.
        """
        interval = 1.0 / per_second if per_second else self._interval
        tolerance = (burst - 1) * interval if burst else self._tolerance
        stripe, tag = key[0] % _STRIPES, key[2:10]
        lock = self._locks[stripe]
        # It is held for microseconds: a process that still holds it after a tenth of a second has died. Then this call
        # goes on without it and releases it for everybody; at worst one request is not counted.
        lock.acquire(timeout=_DEAD_AFTER_SECONDS)
        try:
            now = self._clock()
            offset, arrival = self._slot(tag, stripe, int.from_bytes(key[:2], "big"), now)
            arrival = max(arrival, now)
            if arrival - now > tolerance and not is_let_in:
                raise RateLimited(max(1, round(arrival - now - tolerance + 0.5)))
            _SLOT.pack_into(self._map, offset, tag, arrival + cost * interval)
        finally:
            try:  # noqa: SIM105 - `contextlib.suppress` costs as much as the lock, and this runs for every request
                lock.release()
            except ValueError:
                pass  # released already: its holder was not dead but only stopped; it still stays one lock

    def _slot(self, tag: bytes, stripe: int, start: int, now: float) -> tuple[int, float]:
        """(offset, arrival time) of the key's slot in its stripe, else of a free one, else of another key's, which is stricter."""
        per_stripe = _SLOTS // _STRIPES
        free: int | None = None
        for probe in range(_PROBES):
            offset = (stripe * per_stripe + (start + probe) % per_stripe) * _SLOT.size
            found, arrival = _SLOT.unpack_from(self._map, offset)
            if found == tag:
                return offset, arrival
            if free is None and arrival <= now:
                free = offset
        if free is not None:
            return free, now
        return offset, arrival
