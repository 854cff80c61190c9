"""What the board remembers of the feed from one look to the next, so that each look reads only what came since."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from enum import StrEnum

from sentinel.authority.feed import FeedRow

MOST_OTHERS = 50
"""How many agents without a name are remembered: a key that is bound to no agent may decide under as many as it likes."""


class Silence(StrEnum):
    """What is known of an agent with a name of which no decision was found."""

    NEVER = "never"
    """It decided nothing: the whole feed was looked through."""
    NOT_LATELY = "not_lately"
    """It decided nothing since the position at which looking began, a day or more ago."""
    SOUGHT = "sought"
    """Its newest decision is still looked for."""


class Latest:
    """How far the feed was looked through, whatever stood there, and the newest decision of each agent with a name and of the
    `MOST_OTHERS` others that decided last. For one tenant at a time.

    What was passed over is kept as parts, (the position behind which a part begins, the one up to which it goes). An agent
    with a name is looked for in a part as long as no decision of it is known that is newer than the part's beginning.
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

    def begin(self, tenant_id: uuid.UUID, rows: list[FeedRow], position: int, *, since: int) -> None:
        """Go on at `position`, with the latest rows up to it: what was not looked through before it is passed over, and looked
        through later as far as it is behind `since`.

        What is known of the same tenant stays until something newer is found. Nothing where another look got further.
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
        """The newest rows of all agents that decided behind `after` and up to `position`, up to which was looked through."""
        with self._lock:
            if self._tenant_id == tenant_id and after <= self._position:
                self._put(rows)
                self._cut(after, position)
                self._position = max(self._position, position)

    def sought(self, tenant_id: uuid.UUID) -> tuple[set[str], int, int]:
        """(the agents that are looked for, the position behind which, the position up to which): the newest part that was passed
        over. No agents where nobody is looked for any more.
        """
        with self._lock:
            while self._tenant_id == tenant_id and self._passed_over:
                behind, up_to = self._passed_over[-1]
                if agents := {one for one in self._named if self._position_of(one) <= behind}:
                    return agents, behind, up_to
                self._passed_over.pop()
            return set(), 0, 0

    def add_sought(self, tenant_id: uuid.UUID, rows: list[FeedRow], after: int, up_to: int) -> None:
        """What was found of those sought behind `after` and up to `up_to`, the end of a part that was passed over."""
        with self._lock:
            if self._tenant_id == tenant_id:
                self._put(rows)
                self._cut(after, up_to)

    def silence(self, tenant_id: uuid.UUID) -> Silence:
        """What is known of the agents with a name that have no row: asked before `rows`, which may find one meanwhile."""
        with self._lock:
            if self._tenant_id != tenant_id or self._passed_over:
                return Silence.SOUGHT
            return Silence.NOT_LATELY if self._since else Silence.NEVER

    def rows(self, tenant_id: uuid.UUID) -> list[FeedRow]:
        """One row of each agent, newest first."""
        with self._lock:
            known = self._by_agent.values() if self._tenant_id == tenant_id else ()
            return sorted(known, key=lambda row: -row.position)

    def _position_of(self, agent_id: str) -> int:
        """The position of an agent's newest decision that is known; 0 where none is."""
        known = self._by_agent.get(agent_id)
        return known.position if known else 0

    def _cut(self, after: int, up_to: int) -> None:
        """What lies between was looked through, and is passed over no more."""
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
