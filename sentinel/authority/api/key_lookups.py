"""Look-ups of keys for an event loop, in their own threads.

One look-up is in flight per key, shared by all requests that wait for it. The number of look-ups and the wait for each
are bounded whatever the database does: while it does not answer, callers are refused soon, and their look-ups are not
executed later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from sentinel.authority.engine import Caller
from sentinel.core.errors import EngineUnavailable

LOOK_UP_SECONDS = 2.0
"""The longest wait for a key's look-up; a look-up that has waited this long for a thread is not executed."""
TOOK_TOO_LONG = "The key could not be looked up in time."


@dataclass(frozen=True, slots=True, eq=False)
class LookUp:
    """One look-up: when it was requested, by the clock, and its result, which is None if the key is not usable."""

    began: float
    found: Future[Caller | None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.found.set_running_or_notify_cancel()  # so that a caller that stops waiting cannot cancel it for the others


class KeyLookUps:
    """Finds the callers of keys by `find`, which queries the database, in `at_once` threads named `name`.

    With `most` look-ups running or queued, a further one raises `EngineUnavailable` with the text `refusal`. A look-up
    is shared only for `shared_seconds`: a later caller waits for it and then looks the key up again, because the result
    may be too old.
    """

    def __init__(
        self, find: Callable[[bytes], Caller | None], *, at_once: int, most: int, name: str, refusal: str,
        shared_seconds: float, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._find, self._clock = find, clock
        self._most, self._refusal = most, refusal
        self._shared_seconds = shared_seconds
        self._under_way: dict[bytes, LookUp] = {}
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix=name)

    @property
    def under_way(self) -> int:
        """The number of look-ups that are running or wait for a thread."""
        return len(self._under_way)

    def begin(self, hashed: bytes) -> LookUp:
        """Return the key's look-up that is in flight, or start one, without waiting.

        Raises `EngineUnavailable` if too many are in flight.
        """
        look_up = self._under_way.get(hashed)
        if look_up is None:
            if len(self._under_way) >= self._most:
                raise EngineUnavailable(self._refusal)
            look_up = self._under_way[hashed] = LookUp(self._clock())
            self._threads.submit(self._run, hashed, look_up)
        return look_up

    async def find(self, hashed: bytes) -> Caller | None:
        """Return the key's caller, or None if the key is not usable.

        Raises `EngineUnavailable` if too many look-ups are in flight, or if this one fails or takes too long.
        """
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                while True:
                    look_up = self.begin(hashed)
                    may_share = self._clock() - look_up.began < self._shared_seconds
                    found = await asyncio.wrap_future(look_up.found)
                    if may_share:
                        return found
        except TimeoutError:
            raise EngineUnavailable(TOOK_TOO_LONG) from None

    def _run(self, hashed: bytes, look_up: LookUp) -> None:
        try:
            if self._clock() - look_up.began >= LOOK_UP_SECONDS:
                raise EngineUnavailable(TOOK_TOO_LONG)  # its callers have timed out already
            found = self._find(hashed)
        except BaseException as error:
            del self._under_way[hashed]
            look_up.found.set_exception(error)
        else:
            del self._under_way[hashed]
            look_up.found.set_result(found)
