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
        """Count `cost` requests of `key`. Raises `RateLimited` with the seconds to wait, unless they are let in already.

        `key` is at least 10 random bytes that nobody else can reckon: a hash of a secret, or of a salt and what is public. It says where
        the key is counted, and whoever fills the places around another's has it refused. A key with a rate of its own says it every time.
        """
        interval = 1.0 / per_second if per_second else self._interval
        tolerance = (burst - 1) * interval if burst else self._tolerance
        stripe, tag = key[0] % _STRIPES, key[2:10]
        lock = self._locks[stripe]
        # It is held for microseconds: who still has it after a tenth of a second died with it. Then it is taken over, and
        # given back for everybody; at worst one request was counted too little.
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
                pass  # given back twice, by who took it over and by who was only stopped, it stays one lock

    def _slot(self, tag: bytes, stripe: int, start: int, now: float) -> tuple[int, float]:
        """The key's slot within its stripe, else one whose debt is paid, else a neighbour's (which only tightens)."""
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
