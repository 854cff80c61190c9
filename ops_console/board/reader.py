"""The public board's data, read with the public role. Rows come in here and go no further: what leaves is published.

Everything public takes this way, pages, JSON, streams and proofs (`core.publication`); the routes are handed nothing else.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ops_console.board.agents import PublicAgents
from ops_console.board.events import LiveEvent, agent_status, policy_label
from ops_console.board.figures import Counts
from sentinel.authority import feed
from sentinel.authority.public_ids import record_of
from sentinel.authority.tenants import public_tenants
from sentinel.core.errors import NotFound
from sentinel.core.public_ids import PublicIdGenerator
from sentinel.core.publication import PublicFields, Publisher
from sentinel.store.database import Pool

DEFAULT_PUBLIC_TENANT = "public-demo"
NOBODY = uuid.UUID(int=0)
_REMEMBER_TENANT_SECONDS = 5.0
_REMEMBER_BOARD_SECONDS = 0.5
_REMEMBER_ACTIONS_SECONDS = 60.0
_LOOKED_AT = 200
_AT_ONCE = 20
_SPREAD = 4
"""How many positions are looked through for each decision that is wanted: starts and reports have some too."""


class Remembered:
    """Answers kept for a moment, one asker at a time: many viewers ask the database as seldom as one."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Any, tuple[float, Any]] = {}

    def get(self, key: Any, ask: Callable[[], Any]) -> Any:
        """The kept answer to `key`, else `ask()`'s; what it raises is not kept."""
        with self._lock:
            asked_at = self._clock()
            kept = self._kept.get(key)
            if kept is None or asked_at - kept[0] >= self._seconds:
                kept = self._kept[key] = (asked_at, ask())
            return kept[1]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the board: the name that is shown, its state, and its newest decision if there is one."""

    name: str
    status: str
    last: LiveEvent | None


class Latest:
    """The newest decision of each agent that was seen, so that each look reads only what came since. For one tenant at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tenant_id: uuid.UUID | None = None
        self._position = 0
        self._by_agent: dict[str, feed.FeedRow] = {}

    def is_of(self, tenant_id: uuid.UUID) -> bool:
        """Whether this is the tenant whose rows are kept."""
        return self._tenant_id == tenant_id

    def position_of(self, tenant_id: uuid.UUID) -> int:
        """The position up to which this tenant's rows were read; 0 for another tenant."""
        with self._lock:
            return self._position if self._tenant_id == tenant_id else 0

    def begin(self, tenant_id: uuid.UUID, rows: list[feed.FeedRow], position: int) -> None:
        """Begin with a tenant: the latest rows of its agents up to `position`."""
        with self._lock:
            self._tenant_id, self._position, self._by_agent = tenant_id, position, {}
            self._put(rows)

    def add(self, tenant_id: uuid.UUID, after: int, rows: list[feed.FeedRow], position: int) -> None:
        """The newest rows of all agents that decided behind `after` and up to `position`."""
        with self._lock:
            if self._tenant_id == tenant_id:
                self._put(rows)
                if after <= self._position:
                    self._position = max(self._position, position)

    def rows(self, tenant_id: uuid.UUID) -> list[feed.FeedRow]:
        """One row of each agent, newest first."""
        with self._lock:
            known = self._by_agent.values() if self._tenant_id == tenant_id else ()
            return sorted(known, key=lambda row: -row.position)

    def _put(self, rows: list[feed.FeedRow]) -> None:
        for row in rows:
            known = self._by_agent.get(row.agent_id)
            if known is None or known.position < row.position:
                self._by_agent[row.agent_id] = row


class Board:
    """The tenant shown, its published decisions and its agents.

    `ids()` mints, asked for when first needed; `actions_of(policy_digest)` are the actions that a policy names.
    """

    def __init__(
        self,
        pool: Pool,
        wanted_tenant: str,
        agents: PublicAgents,
        *,
        ids: Callable[[], PublicIdGenerator],
        actions_of: Callable[[str], Collection[str]],
    ) -> None:
        self.pool = pool
        self._agents = agents
        self._wanted = wanted_tenant
        self._tenant = Remembered(_REMEMBER_TENANT_SECONDS)
        self._answers = Remembered(_REMEMBER_BOARD_SECONDS)
        known = Remembered(_REMEMBER_ACTIONS_SECONDS)
        self.publisher = Publisher(ids, lambda digest: known.get(digest, lambda: actions_of(digest)))
        self.counts = Counts(self._before, lambda: feed.head(self.pool, self._tenant_id), self._counted)
        self._latest = Latest()

    def tenant(self) -> tuple[uuid.UUID, str]:
        """(id, label) of the public tenant; a nil id, under which there is nothing, where there is none or several."""
        found: tuple[uuid.UUID, str] = self._tenant.get("tenant", self._find_tenant)
        return found

    def _find_tenant(self) -> tuple[uuid.UUID, str]:
        known = [(one.tenant_id, one.label) for one in public_tenants(self.pool)]
        wanted = self._wanted or (DEFAULT_PUBLIC_TENANT if len(known) != 1 else known[0][1])
        named = [one for one in known if wanted in (one[1], str(one[0]))]
        return named[0] if len(named) == 1 else (NOBODY, DEFAULT_PUBLIC_TENANT)

    def newest(self, limit: int) -> list[LiveEvent]:
        """The latest public decisions, newest first."""
        found: list[LiveEvent] = self._answers.get(limit, lambda: self.ask_newest(limit))
        return found

    def ask_newest(self, limit: int) -> list[LiveEvent]:
        """The same, asked now."""
        return [self._published(row) for row in self._newest(self._tenant_id, limit)]

    def after(self, position: int, limit: int) -> tuple[list[LiveEvent], int]:
        """At most `limit` public decisions behind a position, the latest, oldest first; and how many there are besides.

        Costs a count, and bodies of at most `limit` decisions and one of each agent that is not among them.
        """
        tenant_id = self._tenant_id
        counts = feed.count_by_agent(self.pool, tenant_id, self._agents.ids, position)
        if not counts:
            return [], 0
        last = max(one.newest for one in counts)
        above = max(position, last - _SPREAD * limit)
        rows = feed.newest(self.pool, tenant_id, self._agents.ids, limit, above=above, up_to=last)[::-1]
        shown = {row.agent_id for row in rows}
        missing = sorted(one.newest for one in counts if one.agent_id not in shown)[-_LOOKED_AT:]
        others = feed.at(self.pool, tenant_id, self._agents.ids, missing) if missing else []
        self._latest.add(tenant_id, position, [*others, *rows], last)
        return [self._published(row) for row in rows], sum(one.decisions for one in counts) - len(rows)

    def proof(self, proof_id: str) -> PublicFields:
        """The public proof pack of that name, of an agent that is shown. Raises `NotFound`."""
        row = feed.find_proof(self.pool, self._tenant_id, self._agents.ids, proof_id)
        if row is None:
            raise NotFound("there is no proof of that id")
        return self.publisher.pack(record_of(self._tenant_id, row))

    def agents(self) -> list[Agent]:
        """Each public agent; named ones are there even when they decided nothing."""
        halts: list[feed.PublicHalt] = self._answers.get("halts", lambda: feed.halts(self.pool, self._tenant_id))
        latest: dict[str, tuple[str, LiveEvent | None]] = self._answers.get("by agent", self._ask_latest)
        return [
            Agent(name, agent_status(agent_id, last.occurred_at if last else None, halts), last)
            for name, (agent_id, last) in latest.items()
        ]

    def statuses(self) -> dict[str, PublicFields]:
        """Each public agent at a glance, by its name on the board."""
        return {
            one.name: self.publisher.agent_status(one.status, one.last.fields if one.last else None)
            for one in self.agents()
        }

    @property
    def _tenant_id(self) -> uuid.UUID:
        return self.tenant()[0]

    def _published(self, row: feed.FeedRow) -> LiveEvent:
        tenant_id = self._tenant_id

        def publish() -> tuple[PublicFields, str]:
            record = record_of(tenant_id, row)
            event = self.publisher.event(record, self._agents.source(row.agent_id))
            return event, policy_label(record.pack.get("policy_label"))

        return LiveEvent(row.position, row.occurred_at, publish)

    def _newest(self, tenant_id: uuid.UUID, limit: int) -> list[feed.FeedRow]:
        """The latest rows, newest first: near the newest that was seen, and only where those are few, anywhere."""
        above = max(0, self._latest.position_of(tenant_id) - _SPREAD * limit)
        rows = feed.newest(self.pool, tenant_id, self._agents.ids, limit, above=above)
        if len(rows) < limit and above:
            rows = feed.newest(self.pool, tenant_id, self._agents.ids, limit)
        return rows

    def _ask_latest(self) -> dict[str, tuple[str, LiveEvent | None]]:
        tenant_id = self._tenant_id
        if self._latest.is_of(tenant_id):
            self.after(self._latest.position_of(tenant_id), _AT_ONCE)
        else:
            self._begin(tenant_id)
        found: dict[str, tuple[str, LiveEvent | None]] = {}
        for row in self._latest.rows(tenant_id):
            name = self._agents.name(row.agent_id) or self.publisher.agent(tenant_id, row.agent_id, row.is_bound)
            if name not in found:
                found[name] = (row.agent_id, self._published(row))
        for agent_id, (name, _) in self._agents.named.items():
            found.setdefault(name, (agent_id, None))
        return found

    def _begin(self, tenant_id: uuid.UUID) -> None:
        """Look at what was decided before: among the latest, and for each agent with a name that is not there, once."""
        rows = feed.newest(self.pool, tenant_id, self._agents.ids, _LOOKED_AT)
        known = {row.agent_id for row in rows}
        others = [
            feed.latest_decision_of(self.pool, tenant_id, agent_id) for agent_id in self._agents.named.keys() - known
        ]
        earlier = [row for row in others if row is not None]
        self._latest.begin(
            tenant_id, [*earlier, *rows[::-1]], max((row.position for row in [*earlier, *rows]), default=0)
        )

    def _before(self, moment: datetime) -> int:
        """The position before the first decision since `moment`."""
        newest = feed.head(self.pool, self._tenant_id)
        first = feed.first_since(self.pool, self._tenant_id, moment)
        return newest if first is None else first - 1

    def _counted(self, after: int, up_to: int) -> list[feed.MinuteCount]:
        return feed.count_between(self.pool, self._tenant_id, self._agents.ids, after, up_to)
