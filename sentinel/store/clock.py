"""The database's clock without a question per decision: asked each second, carried on between by the process's monotonic one.

The process's wall clock has no part in it: set wrong or set back, it moves no decision.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call

NOW = "select clock_timestamp()"


class DatabaseClock:
    """What time it is there, as exact as half of one question's way there and back."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._heard: tuple[datetime, float] | None = None
        """Its time, and the monotonic second at which that was so."""

    def ask(self) -> None:
        """Hear it again. Raises `EngineUnavailable`."""
        sent = time.monotonic()
        found = in_one_call(self._pool, lambda connection: connection.execute(NOW).fetchone())
        assert found is not None
        self._heard = (found[0], (sent + time.monotonic()) / 2)

    def __call__(self) -> datetime:
        """Its time now. Only a process that never heard it asks here; raises `EngineUnavailable` then."""
        if self._heard is None:
            self.ask()
        assert self._heard is not None
        at, second = self._heard
        return at + timedelta(seconds=time.monotonic() - second)
