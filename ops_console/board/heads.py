"""The head of a tenant's feed, and detection of a feed that lost decisions.

After a database restore, or a failover to a replica that lagged, the feed ends earlier: decisions that were already
seen are gone, and their positions are given to others. So everything cached about a feed belongs to one numbered
history of it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.authority.feed import NO_HEAD, Head


@dataclass(frozen=True, slots=True)
class Reach:
    """The position of a feed's newest decision, and the number of its history, which changes once a seen decision is gone."""

    position: int
    history: int


class Heads:
    """The heads of tenants' feeds. Thread-safe.

    `read(tenant_id, seen)` returns the newest decision of a tenant's feed, or None if `seen` is no longer in it.
    """

    def __init__(self, read: Callable[[uuid.UUID, Head], Head | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._history = 0
        self._seen: dict[uuid.UUID, Head] = {}

    def of(self, tenant_id: uuid.UUID) -> Reach:
        """Read the current head of this tenant's feed. Raises `EngineUnavailable`."""
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
        """Start the history after `history`, unless another thread did so already, and return the current number."""
        with self._lock:
            if history == self._history:
                self._history, self._seen = history + 1, {}
            return self._history
