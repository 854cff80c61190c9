"""The database's clock without a query per decision: refreshed each second, extrapolated by the monotonic clock.

The process's wall clock has no part in it: set wrong or set back, it moves no decision.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry

NOW = "select clock_timestamp()"


class DatabaseClock:
    """The database's time, accurate to half a round trip."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._heard: tuple[datetime, float] | None = None
        """Its time, and the monotonic second at which that was so."""

    def refresh(self) -> None:
        """Query the database's time. Raises `EngineUnavailable`."""
        sent = time.monotonic()
        found = call_with_retry(self._pool, lambda connection: connection.execute(NOW).fetchone())
        assert found is not None
        self._heard = (found[0], (sent + time.monotonic()) / 2)

    def __call__(self) -> datetime:
        """The database's time now. Queries only in a process that never did; raises `EngineUnavailable` then."""
        if self._heard is None:
            self.refresh()
        assert self._heard is not None
        at, second = self._heard
        return at + timedelta(seconds=time.monotonic() - second)
