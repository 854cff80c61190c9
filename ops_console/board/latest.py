"""What the board remembers of the feed from one look to the next, so that each look reads only what came since."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection

from sentinel.authority.feed import FeedRow

MOST_OTHERS = 50
"""How many agents without a name are remembered: a key that is bound to no agent may decide under as many as it likes."""


class Latest:
    """How far the feed was looked through, whatever stood there, and the newest decision of each agent with a name and of the
    `MOST_OTHERS` others that decided last. For one tenant at a time.
    """

    def __init__(self, named: Collection[str]) -> None:
        self._named = frozenset(named)
        self._lock = threading.Lock()
        self._tenant_id: uuid.UUID | None = None
        self._position = self._newest = 0
        self._by_agent: dict[str, FeedRow] = {}
        self._sought: set[str] = set()
        self._back = self._down_to = 0

    def is_of(self, tenant_id: uuid.UUID) -> bool:
        """Whether this is the tenant whose rows are kept."""
        return self._tenant_id == tenant_id

    def position_of(self, tenant_id: uuid.UUID) -> int:
        """The position up to which this tenant's feed was looked through; 0 for another tenant."""
        with self._lock:
            return self._position if self._tenant_id == tenant_id else 0

    def newest_of(self, tenant_id: uuid.UUID) -> tuple[int, int]:
        """(the position of the newest row that was seen, the position up to which there is no newer one)."""
        with self._lock:
            return (self._newest, max(self._newest, self._position)) if self._tenant_id == tenant_id else (0, 0)

    def begin(
        self, tenant_id: uuid.UUID, rows: list[FeedRow], position: int, *, sought: Collection[str], down_to: int
    ) -> None:
        """Begin at `position` with the latest rows up to it; the newest of those `sought` is looked for `down_to` a position.

        What is known of the same tenant stays until something newer is found.
        """
        with self._lock:
            if self._tenant_id != tenant_id:
                self._tenant_id, self._newest, self._by_agent = tenant_id, 0, {}
            self._position, self._back, self._down_to = position, position, down_to
            self._sought = set(sought)
            self._put(rows)

    def add(self, tenant_id: uuid.UUID, after: int, rows: list[FeedRow], position: int) -> None:
        """The newest rows of all agents that decided behind `after` and up to `position`, up to which was looked through."""
        with self._lock:
            if self._tenant_id == tenant_id:
                self._put(rows)
                if after <= self._position:
                    self._position = max(self._position, position)

    def sought(self, tenant_id: uuid.UUID) -> tuple[set[str], int, int]:
        """(the agents whose newest decision was not found yet, the position down to which it was looked for, where that ends)."""
        with self._lock:
            return (set(self._sought) if self._tenant_id == tenant_id else set()), self._back, self._down_to

    def add_sought(self, tenant_id: uuid.UUID, rows: list[FeedRow], back: int) -> None:
        """What was found of those sought, down to the position `back`."""
        with self._lock:
            if self._tenant_id == tenant_id:
                self._put(rows)
                self._back = min(self._back, back)

    def rows(self, tenant_id: uuid.UUID) -> list[FeedRow]:
        """One row of each agent, newest first."""
        with self._lock:
            known = self._by_agent.values() if self._tenant_id == tenant_id else ()
            return sorted(known, key=lambda row: -row.position)

    def _put(self, rows: list[FeedRow]) -> None:
        for row in rows:
            self._sought.discard(row.agent_id)
            self._newest = max(self._newest, row.position)
            known = self._by_agent.get(row.agent_id)
            if known is None or known.position < row.position:
                self._by_agent[row.agent_id] = row
        others = [row for agent_id, row in self._by_agent.items() if agent_id not in self._named]
        for row in sorted(others, key=lambda row: -row.position)[MOST_OTHERS:]:
            del self._by_agent[row.agent_id]
