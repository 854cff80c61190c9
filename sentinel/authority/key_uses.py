"""When keys were used, gathered in memory and written by the housekeeper: a decision never waits for it or writes it.

What is gathered is as coarse as the memory of keys (`authority/api/identity.py`); a process writes a key at most once a minute, and a
process that is killed forgets at most that minute.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from sentinel.authority.keys import record_uses
from sentinel.store.database import Pool

WRITE_SECONDS = 60.0


class KeyUses:
    """One process's uses of keys that are not written yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[tuple[uuid.UUID, uuid.UUID], float] = {}
        self._written: dict[tuple[uuid.UUID, uuid.UUID], float] = {}

    def note(self, tenant_id: uuid.UUID, key_id: uuid.UUID) -> None:
        """The key was accepted just now."""
        with self._lock:
            self._used[tenant_id, key_id] = self._clock()

    def write(self, pool: Pool) -> int:
        """Write the uses of keys that were not written this last minute; how many. Raises `EngineUnavailable`."""
        now = self._clock()
        with self._lock:
            self._written = {key: at for key, at in self._written.items() if now - at < WRITE_SECONDS}
            due = {key: at for key, at in self._used.items() if key not in self._written}
        if not due:
            return 0
        record_uses(pool, {key: now - at for key, at in due.items()})
        with self._lock:
            for key, at in due.items():
                self._written[key] = now
                if self._used.get(key) == at:
                    del self._used[key]
        return len(due)
