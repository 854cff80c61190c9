"""Failures of work that is tried again and again: one that goes on is logged when it begins and once a minute, not at every attempt.

While a database is away, the threads of one program would otherwise write several lines a second, for as long as that lasts.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentinel.core.errors import SentinelError

AGAIN_SECONDS = 60.0
STEADY_SECONDS = 1.0
"""How long nothing may fail before it counts as recovered: of a server that ends, some connections work longer than others."""


class OngoingFailures:
    """What fails in one program at present, by piece of work, and which causes are in its log. Thread-safe.

    `expected` are the errors that explain themselves, as while the database is unreachable.
    """

    def __init__(self, *expected: type[Exception], now: Callable[[], float] = time.monotonic) -> None:
        self._expected = expected or (SentinelError,)
        self._now, self._lock = now, threading.Lock()
        self._failing: set[Hashable] = set()
        self._logged: dict[str, float] = {}
        """When each cause was last logged."""
        self._failed_at = -math.inf

    def should_log(self, work: Hashable, cause: str) -> bool:
        """Note that `work` failed; returns whether nothing was logged for this cause in the last AGAIN_SECONDS.

        Other work that fails for the same cause is not logged either.
        """
        with self._lock:
            self._failing.add(work)
            last, now = self._logged.get(cause), self._now()
            self._failed_at = now
            if last is not None and now - last < AGAIN_SECONDS:
                return False
            self._logged = {each: at for each, at in self._logged.items() if now - at < AGAIN_SECONDS} | {cause: now}
            return True

    def recovered(self, work: Hashable) -> bool:
        """Note that `work` succeeded; returns whether it was the last that failed, and none did for STEADY_SECONDS.

        The next failure is then logged at once.
        """
        if work not in self._failing:
            return False
        with self._lock:
            if self._now() - self._failed_at < STEADY_SECONDS:
                return False
            self._failing.discard(work)
            if self._failing:
                return False
            self._logged = {}
            return True

    @contextmanager
    def logged(self, log: Any, event: str, work: Hashable, **about: Any) -> Iterator[None]:
        """Log to the structlog logger `log` what the block raises, instead of raising it.

        `<event>_postponed` tells the cause of an expected error, `<event>_failed` has the traceback of any other, and
        `<event>_resumed` says that no work fails any more.
        """
        try:
            yield
        except self._expected as error:
            if self.should_log(work, str(error)):
                log.warning(f"{event}_postponed", cause=str(error), **about)
        except Exception as error:
            if self.should_log(work, raised_at(error)):
                log.exception(f"{event}_failed", **about)
        else:
            if self.recovered(work):
                log.info(f"{event}_resumed")


def raised_at(error: BaseException) -> str:
    """The error's type and where it was raised, `KeyError in ask_authority.py:41`: its text may quote customer data."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
