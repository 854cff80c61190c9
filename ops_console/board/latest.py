"""The board's memory of the feed between reads, so that each read covers only what is new."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from enum import StrEnum

from sentinel.authority.feed import FeedRow

MOST_OTHERS = 50
"""How many agents without a name are remembered: a key that is bound to no agent can invent any number of agent ids."""


class Silence(StrEnum):
    """Why there is no decision to show for an agent with a name."""

    NEVER = "never"
    """It has made no decision: the whole feed was searched."""
    NOT_LATELY = "not_lately"
    """It has made no decision since the position where the search begins, a day or more ago."""
    SOUGHT = "sought"
    """The search for its newest decision is not finished."""


class Latest:
    """How far the feed was searched, and the newest decision of each agent with a name and of the `MOST_OTHERS` other
    agents that decided last. For one tenant at a time. Thread-safe.

    Ranges of the feed that were skipped are kept as (after, up to) positions, `after` exclusive. A skipped range is
    still searched for an agent with a name while no decision of that agent is known that is newer than the range's
    beginning.
    """

    def __init__(self, named: Collection[str]) -> None:
        self._named = frozenset(named)
        self._lock = threading.Lock()
        self._tenant_id: uuid.UUID | None = None
        self._position = self._newest = 0
        self._by_agent: dict[str, FeedRow] = {}
        self._since = 0
        self._passed_over: list[tuple[int, int]] = []

    def is_of(self, tenant_id: uuid.UUID) -> bool:
        """Whether the kept rows are this tenant's."""
        return self._tenant_id == tenant_id

    def position_of(self, tenant_id: uuid.UUID) -> int:
        """The position up to which this tenant's feed was searched; 0 for another tenant."""
        with self._lock:
            return self._position if self._tenant_id == tenant_id else 0

    def newest_of(self, tenant_id: uuid.UUID) -> tuple[int, int]:
        """Return (the newest row's position, the position up to which there is no newer row); zeros for another tenant."""
        with self._lock:
            return (self._newest, max(self._newest, self._position)) if self._tenant_id == tenant_id else (0, 0)

    def begin(self, tenant_id: uuid.UUID, rows: list[FeedRow], position: int, *, since: int) -> None:
        """Continue at `position`, with the latest `rows` up to it. What was not searched before `position` becomes a
        skipped range, to be searched later, but only after the position `since`.

        Rows of the same tenant stay until newer ones are found. Does nothing if another thread already got further.
        """
        with self._lock:
            if self._tenant_id != tenant_id:
                self._tenant_id, self._newest, self._by_agent = tenant_id, 0, {}
                self._position, self._since, self._passed_over = 0, 0, []
            if position < self._position:
                return
            if since > self._position:
                self._since, self._passed_over = since, []
            behind = max(self._position, since)
            self._passed_over += [(behind, position)] if behind < position else []
            self._position = position
            self._put(rows)

    def add(self, tenant_id: uuid.UUID, after: int, rows: list[FeedRow], position: int) -> None:
        """Add the newest row of each agent that decided after `after` and up to `position`, a range now fully searched."""
        with self._lock:
            if self._tenant_id == tenant_id and after <= self._position:
                self._put(rows)
                self._cut(after, position)
                self._position = max(self._position, position)

    def sought(self, tenant_id: uuid.UUID) -> tuple[set[str], int, int]:
        """Return (agents, after, up to): the newest skipped range and the agents to search it for.

        Drops ranges in which no agent is searched for. No agents: the search is finished.
        """
        with self._lock:
            while self._tenant_id == tenant_id and self._passed_over:
                behind, up_to = self._passed_over[-1]
                if agents := {one for one in self._named if self._position_of(one) <= behind}:
                    return agents, behind, up_to
                self._passed_over.pop()
            return set(), 0, 0

    def add_sought(self, tenant_id: uuid.UUID, rows: list[FeedRow], after: int, up_to: int) -> None:
        """Add what the search of (`after`, `up_to`] found; `up_to` is the end of a skipped range."""
        with self._lock:
            if self._tenant_id == tenant_id:
                self._put(rows)
                self._cut(after, up_to)

    def silence(self, tenant_id: uuid.UUID) -> Silence:
        """Why agents with a name have no row. Ask this before `rows`: another thread may add a row in between."""
        with self._lock:
            if self._tenant_id != tenant_id or self._passed_over:
                return Silence.SOUGHT
            return Silence.NOT_LATELY if self._since else Silence.NEVER

    def rows(self, tenant_id: uuid.UUID) -> list[FeedRow]:
        """The newest row of each agent, newest first."""
        with self._lock:
            known = self._by_agent.values() if self._tenant_id == tenant_id else ()
            return sorted(known, key=lambda row: -row.position)

    def _position_of(self, agent_id: str) -> int:
        """The position of an agent's newest known decision; 0 if none is known."""
        known = self._by_agent.get(agent_id)
        return known.position if known else 0

    def _cut(self, after: int, up_to: int) -> None:
        """Remove (`after`, `up_to`], which was searched, from the skipped ranges."""
        left = [
            part for behind, end in self._passed_over for part in ((behind, min(end, after)), (max(behind, up_to), end))
        ]
        self._passed_over = [(behind, end) for behind, end in left if behind < end]

    def _put(self, rows: list[FeedRow]) -> None:
        for row in rows:
            self._newest = max(self._newest, row.position)
            if self._position_of(row.agent_id) < row.position:
                self._by_agent[row.agent_id] = row
        others = [row for agent_id, row in self._by_agent.items() if agent_id not in self._named]
        for row in sorted(others, key=lambda row: -row.position)[MOST_OTHERS:]:
            del self._by_agent[row.agent_id]
