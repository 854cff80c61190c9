"""Look-ups of keys on behalf of an event loop, in threads of their own: one at a time for each key, shared by all who wait for it.

Their number and everybody's wait are bounded, whatever the database does: while it is silent callers are refused soon, and nothing
of what they asked is left to be done once it answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from sentinel.authority.engine import Caller
from sentinel.core.errors import EngineUnavailable

LOOK_UP_SECONDS = 2.0
"""Nobody waits longer for a key's look-up, and none is begun that waited so long for a thread."""
TOOK_TOO_LONG = "The key could not be looked up in time."


@dataclass(frozen=True, slots=True, eq=False)
class LookUp:
    """One look-up: when it was asked for, by the clock, and what it finds, None where the key is none."""

    began: float
    found: Future[Caller | None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.found.set_running_or_notify_cancel()  # one who stops waiting does not cancel it for the others


class KeyLookUps:
    """Finds the callers of keys by `find`, which asks the database, in `at_once` threads called `name`.

    With `most` under way a further one raises `EngineUnavailable` with the words `refusal`. Who comes when a look-up has been under way
    for `shared_seconds` does not share it, because what it finds may be too old: the key is looked up once more after it.
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
        """Look-ups that have begun or wait for a thread."""
        return len(self._under_way)

    def begin(self, hashed: bytes) -> LookUp:
        """The key's look-up that is under way, else a new one; nobody need wait for it. Raises `EngineUnavailable` where there are too many."""
        look_up = self._under_way.get(hashed)
        if look_up is None:
            if len(self._under_way) >= self._most:
                raise EngineUnavailable(self._refusal)
            look_up = self._under_way[hashed] = LookUp(self._clock())
            self._threads.submit(self._run, hashed, look_up)
        return look_up

    async def find(self, hashed: bytes) -> Caller | None:
        """The key's caller. Raises `EngineUnavailable` where too many are looked up, or nobody could say in time."""
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
                raise EngineUnavailable(TOOK_TOO_LONG)  # who waited for it has been told so
            found = self._find(hashed)
        except BaseException as error:
            del self._under_way[hashed]
            look_up.found.set_exception(error)
        else:
            del self._under_way[hashed]
            look_up.found.set_result(found)
