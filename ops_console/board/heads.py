"""How far a tenant's feed goes, and whether it is still the feed that was looked at.

A database that was restored, or a replica that was behind and took over, has an older end: decisions that were seen are gone,
and others are given their positions. So whatever is remembered of a feed is remembered of one history of it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.authority.feed import NO_HEAD, Head


@dataclass(frozen=True, slots=True)
class Reach:
    """The position of a feed's newest decision, and in which of its histories: another number once a decision that was seen is gone."""

    position: int
    history: int


class Heads:
    """`read(tenant_id, seen)` is the newest decision of a tenant's feed, None where `seen` is gone from it. Thread-safe."""

    def __init__(self, read: Callable[[uuid.UUID, Head], Head | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._history = 0
        self._seen: dict[uuid.UUID, Head] = {}

    def of(self, tenant_id: uuid.UUID) -> Reach:
        """How far this tenant's feed goes now. Raises `EngineUnavailable`."""
        with self._lock:
            history, seen = self._history, self._seen.get(tenant_id, NO_HEAD)
        found = self._read(tenant_id, seen)
        if found is None:
            history, found = self._begin_anew(history), self._read(tenant_id, NO_HEAD) or NO_HEAD
        with self._lock:
            if history == self._history and found.position > self._seen.get(tenant_id, NO_HEAD).position:
                self._seen[tenant_id] = found
        return Reach(found.position, history)

    def _begin_anew(self, history: int) -> int:
        """The number of the history after this one, which others may have found already."""
        with self._lock:
            if history == self._history:
                self._history, self._seen = history + 1, {}
            return self._history
