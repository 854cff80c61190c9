"""The public board's data, read with the board's database role. No row leaves this module: only published documents do.

Everything public is made here (`core.publication`): pages, JSON, streams and proofs; the routes get nothing else.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache

from ops_console.board.agents import PublicAgents
from ops_console.board.events import LiveEvent, Looked, agent_status, policy_label
from ops_console.board.figures import DAY, Counts
from ops_console.board.heads import Heads, Reach
from ops_console.board.hub import CATCH_UP, KEPT
from ops_console.board.latest import MOST_OTHERS, Latest, Silence
from ops_console.remembered import Remembered
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
"""How many positions are read at first per decision wanted, since starts and reports take positions too."""
MOST_SHOWN = 100
"""How many of the latest decisions pages, widget and feed show at most."""
STEP, MOST_LOOKED = 20_000, 100_000
"""How many positions of the feed one statement reads, and one read in all: agents that are not shown may fill the feed."""
MOST_PUBLISHED = 2 * KEPT
"""How many published decisions are cached: enough for what the stream keeps and what pages show."""


@dataclass(frozen=True, slots=True)
class BoardAgent:
    """An agent on the board: its name there, its status, and its newest decision, or why there is none (`silence`)."""

    name: str
    status: str
    last: LiveEvent | None
    silence: Silence


@dataclass(frozen=True, slots=True)
class Newest:
    """The latest rows of a tenant's feed, newest first; `position` is the newest row's."""

    tenant_id: uuid.UUID
    position: int
    rows: list[feed.FeedRow]


@dataclass(frozen=True, slots=True)
class Known:
    """The cache of one history of the feed: each agent's latest decision, and the latest rows by how many are kept."""

    history: int
    latest: Latest
    kept: dict[int, Newest]


class Board:
    """The tenant that is shown, its published decisions and its agents.

    `ids()` returns the generator of public ids and is called on first use; `actions_of(policy_digest)` returns the
    actions that a policy names.
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
        self._heads = Heads(lambda tenant_id, seen: feed.head_behind(self.pool, tenant_id, seen))
        self.counts = Counts(lambda: self._tenant_id, self._before, self._heads.of, self._counted)
        self._lock = threading.Lock()
        self._known = self._nothing_of(0)
        self._published = lru_cache(MOST_PUBLISHED)(self._publish)

    def tenant(self) -> tuple[uuid.UUID, str]:
        """Return (id, label) of the public tenant; the nil id, which has no decisions, if no or several tenants match."""
        return self._tenant.get("tenant", self._find_tenant)

    def _find_tenant(self) -> tuple[uuid.UUID, str]:
        known = [(one.tenant_id, one.label) for one in public_tenants(self.pool)]
        wanted = self._wanted or (DEFAULT_PUBLIC_TENANT if len(known) != 1 else known[0][1])
        named = [one for one in known if wanted in (one[1], str(one[0]))]
        return named[0] if len(named) == 1 else (NOBODY, DEFAULT_PUBLIC_TENANT)

    def newest(self, limit: int) -> list[LiveEvent]:
        """The latest public decisions, newest first: those within `MOST_LOOKED` positions of the newest one.

        At most `MOST_SHOWN`, read once for all callers, whatever their limits are.
        """
        found = self._answers.get((self._tenant_id, "newest"), lambda: self.ask_newest(MOST_SHOWN).events)
        return found[:limit]

    def ask_newest(self, limit: int) -> Looked:
        """Return the latest public decisions, newest first, read now and not from the short-lived cache; at most `CATCH_UP`."""
        tenant_id, label = self.tenant()
        rows, position, history = self._newest(tenant_id, MOST_SHOWN if limit <= MOST_SHOWN else CATCH_UP)
        return Looked(tenant_id, [self._published(tenant_id, row) for row in rows[:limit]], 0, position, label, history)

    def after(self, position: int, limit: int) -> Looked:
        """Return the latest `limit` public decisions after a position, oldest first, and how many more there are.

        Reads at most `MOST_LOOKED` positions: a count of them, and the bodies of at most `limit` decisions and of one
        more for each agent that is not among those.
        """
        tenant_id, label = self.tenant()
        reach = self._heads.of(tenant_id)
        up_to = max(position, min(reach.position, position + MOST_LOOKED))
        rows, left_out = self._after(self._known_of(reach), tenant_id, position, limit, up_to)
        published = [self._published(tenant_id, row) for row in rows]
        return Looked(tenant_id, published, left_out, up_to, label, reach.history)

    def proof(self, proof_id: str) -> PublicFields:
        """The public proof pack of that id. Raises `NotFound`, also if its agent is not shown on the board."""
        row = feed.find_proof(self.pool, self._tenant_id, self._agents.ids, proof_id)
        if row is None:
            raise NotFound("there is no proof with this id")
        return self.publisher.pack(record_of(self._tenant_id, row))

    def agents(self) -> list[BoardAgent]:
        """Every public agent with a name, even without decisions, and the other agents that decided last."""
        tenant_id = self._tenant_id
        halts = self._answers.get((tenant_id, "halts"), lambda: feed.halts(self.pool, tenant_id))
        silence, latest = self._answers.get((tenant_id, "by agent"), lambda: self._ask_latest(tenant_id))
        return [
            BoardAgent(name, agent_status(agent_id, last.occurred_at if last else None, halts), last, silence)
            for name, (agent_id, last) in latest.items()
        ]

    def statuses(self) -> dict[str, PublicFields]:
        """The published status of each public agent, by its name on the board."""
        return {
            one.name: self.publisher.agent_status(one.status, one.last.fields if one.last else None)
            for one in self.agents()
        }

    @property
    def _tenant_id(self) -> uuid.UUID:
        return self.tenant()[0]

    def _publish(self, tenant_id: uuid.UUID, row: feed.FeedRow) -> LiveEvent:
        """Publish one row. It parses JSON, mints ids and may query for a policy, so call `_published`, which caches it."""
        record = record_of(tenant_id, row)
        event = self.publisher.event(record, self._agents.source(row.agent_id))
        return LiveEvent(row.position, row.occurred_at, event, policy_label(record.pack.get("policy_label")))

    def _nothing_of(self, history: int) -> Known:
        kept = {most: Newest(NOBODY, 0, []) for most in (MOST_SHOWN, CATCH_UP)}
        return Known(history, Latest(self._agents.named), kept)

    def _known_of(self, reach: Reach) -> Known:
        """Return the cache of this history of the feed. A past history gets an empty one, which is not kept."""
        with self._lock:
            if reach.history > self._known.history:
                self._known = self._nothing_of(reach.history)
            return self._known if reach.history == self._known.history else self._nothing_of(reach.history)

    def _newest(self, tenant_id: uuid.UUID, most: int) -> tuple[list[feed.FeedRow], int, int]:
        """Return the `most` latest rows, newest first, the position up to which there is no newer one, and the history.

        Only rows newer than the cached ones are read.
        """
        known = self._look(tenant_id)
        newest, position = known.latest.newest_of(tenant_id)
        kept = known.kept[most]
        if kept.tenant_id != tenant_id:
            kept = Newest(tenant_id, 0, [])
        if kept.position < newest:
            down_to = newest - MOST_LOOKED
            rows = self._latest_rows(tenant_id, most, max(down_to, kept.position), newest)
            rows += [row for row in kept.rows if row.position > down_to]
            kept = known.kept[most] = Newest(tenant_id, newest, rows[:most])
        return kept.rows, max(position, kept.position), known.history

    def _latest_rows(self, tenant_id: uuid.UUID, limit: int, down_to: int, up_to: int) -> list[feed.FeedRow]:
        """Read the latest `limit` rows in (`down_to`, `up_to`], newest first, going back in growing steps until there are enough."""
        rows: list[feed.FeedRow] = []
        step = _SPREAD * limit
        while up_to > down_to and len(rows) < limit:
            above = max(down_to, up_to - step)
            rows += feed.newest(self.pool, tenant_id, self._agents.ids, limit - len(rows), above=above, up_to=up_to)
            up_to, step = above, min(STEP, 4 * step)
        return rows

    def _after(
        self, known: Known, tenant_id: uuid.UUID, position: int, limit: int, up_to: int
    ) -> tuple[list[feed.FeedRow], int]:
        """Return the rows of `after` and how many more there are, and note each agent's newest decision in `known`."""
        counts = self._counted_by_agent(tenant_id, position, up_to)
        rows: list[feed.FeedRow] = []
        others: list[feed.FeedRow] = []
        if counts:
            last = max(one.newest for one in counts.values())
            above = max(position, last - _SPREAD * limit)
            rows = feed.newest(self.pool, tenant_id, self._agents.ids, limit, above=above, up_to=last)[::-1]
            missing = self._worth_reading(counts, {row.agent_id for row in rows})
            others = feed.at(self.pool, tenant_id, self._agents.ids, missing) if missing else []
        known.latest.add(tenant_id, position, [*others, *rows], up_to)
        return rows, sum(one.decisions for one in counts.values()) - len(rows)

    def _worth_reading(self, counts: dict[str, feed.AgentCount], shown: set[str]) -> list[int]:
        """Positions of newest decisions that were not read: of agents with a name, and of at most `MOST_OTHERS` others."""
        missing = {agent_id: one.newest for agent_id, one in counts.items() if agent_id not in shown}
        named = [missing.pop(agent_id) for agent_id in self._agents.named.keys() & missing.keys()]
        return sorted([*named, *sorted(missing.values())[-MOST_OTHERS:]])

    def _counted_by_agent(self, tenant_id: uuid.UUID, after: int, up_to: int) -> dict[str, feed.AgentCount]:
        found: dict[str, feed.AgentCount] = {}
        while after < up_to:
            end = min(up_to, after + STEP)
            for one in feed.count_by_agent(self.pool, tenant_id, self._agents.ids, after, end):
                before = found[one.agent_id].decisions if one.agent_id in found else 0
                found[one.agent_id] = replace(one, decisions=before + one.decisions)
            after = end
        return found

    def _look(self, tenant_id: uuid.UUID) -> Known:
        """Read what is new in the feed; if that is more than `MOST_LOOKED` positions, skip to its end (`_begin`)."""
        reach = self._heads.of(tenant_id)
        known = self._known_of(reach)
        position = known.latest.position_of(tenant_id)
        head = max(position, reach.position)  # another thread may have read further since
        if known.latest.is_of(tenant_id) and head - position <= MOST_LOOKED:
            self._after(known, tenant_id, position, _AT_ONCE, head)
            self._seek(known.latest, tenant_id, STEP)
        else:
            self._begin(known.latest, tenant_id, head)
        return known

    def _ask_latest(self, tenant_id: uuid.UUID) -> tuple[Silence, dict[str, tuple[str, LiveEvent | None]]]:
        latest = self._look(tenant_id).latest
        silence = latest.silence(tenant_id)
        found: dict[str, tuple[str, LiveEvent | None]] = {}
        for row in latest.rows(tenant_id):
            name = self._agents.name(row.agent_id) or self.publisher.agent(tenant_id, row.agent_id, row.is_bound)
            if name not in found:
                found[name] = (row.agent_id, self._published(tenant_id, row))
        for agent_id, (name, _) in self._agents.named.items():
            found.setdefault(name, (agent_id, None))
        return silence, found

    def _begin(self, latest: Latest, tenant_id: uuid.UUID, head: int) -> None:
        """Read the latest decisions up to `head`, then search the skipped positions for agents with a name not among
        them.

        That search proceeds in steps over several calls, and goes back a day or `MOST_LOOKED` positions, whichever is
        more.
        """
        before = latest.position_of(tenant_id)
        since = max(0, head - MOST_LOOKED)
        rows = self._latest_rows(tenant_id, _LOOKED_AT, max(before, since), head)
        if self._agents.named.keys() - {row.agent_id for row in rows}:
            since = min(since, self._before(tenant_id, datetime.now(UTC) - DAY))
        latest.begin(tenant_id, rows, head, since=since)
        self._seek(latest, tenant_id, MOST_LOOKED)

    def _seek(self, latest: Latest, tenant_id: uuid.UUID, most: int) -> None:
        """Search up to `most` skipped positions for the newest decisions of agents with a name that were not found yet."""
        while most > 0:
            agents, behind, up_to = latest.sought(tenant_id)
            if not agents:
                return
            after = max(behind, up_to - min(most, STEP))
            found = [one.newest for one in feed.count_by_agent(self.pool, tenant_id, sorted(agents), after, up_to)]
            rows = feed.at(self.pool, tenant_id, self._agents.ids, found) if found else []
            latest.add_sought(tenant_id, rows, after, up_to)
            most -= up_to - after

    def _before(self, tenant_id: uuid.UUID, moment: datetime) -> int:
        """The position before the first decision since `moment`; the head of the feed if there is none."""
        newest = feed.head(self.pool, tenant_id)
        first = feed.first_since(self.pool, tenant_id, moment)
        return newest if first is None else first - 1

    def _counted(self, tenant_id: uuid.UUID, after: int, up_to: int) -> list[feed.MinuteCount]:
        return feed.count_between(self.pool, tenant_id, self._agents.ids, after, up_to)
