"""The feed of decisions by position, and lookup of a decision by its proof id. `core.publication` makes the public form."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.ids import event_of_proof, first_id_at
from sentinel.store.queries import all_rows, one_row, scalar
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One decision in the feed. `body` is its proof pack as canonical JSON without the hash.

    `is_bound` says whether the requesting key is bound to that agent.
    """

    position: int
    event_id: uuid.UUID
    agent_id: str
    is_bound: bool
    body: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class ProofRow:
    """A decision found by its proof id: the recorded pack's canonical body and hash ("sha256:…"), otherwise as `FeedRow`."""

    event_id: uuid.UUID
    agent_id: str
    is_bound: bool
    body: str
    hash: str


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """The number of decisions of one minute with the same verdict and latency."""

    minute: datetime
    decision: str
    latency_ms: int
    decisions: int


@dataclass(frozen=True, slots=True)
class AgentCount:
    """The number of an agent's decisions in a range of the feed, and the position of the newest of them."""

    agent_id: str
    decisions: int
    newest: int


@dataclass(frozen=True, slots=True)
class Head:
    """The newest decision of a feed: its position, and its event id, because after a restore another may get that position."""

    position: int
    event_id: uuid.UUID


NO_HEAD = Head(0, uuid.UUID(int=0))
"""The head of a feed without a decision."""


@dataclass(frozen=True, slots=True)
class PublicHalt:
    """A halt in force: its scope and what it covers ("" for everything in the scope)."""

    scope: str
    target: str


_COLUMNS = "position, event_id, agent_id, is_bound, body, occurred_at"
# `agents` null means that every agent of the tenant is public.
_WHOSE = "tenant_id = %(tenant_id)s and (%(agents)s::text[] is null or agent_id = any(%(agents)s::text[]))"
# The range of positions bounds the read even if the planner's statistics are outdated: with only "order by position
# desc limit 200" it sorted the whole of a young feed.
NEWEST = SqlTemplate("""
select {columns} from sentinel.public_feed
where {whose} and position > %(above)s and position <= %(up_to)s
order by position desc limit %(limit)s
""").fill(columns=_COLUMNS, whose=_WHOSE)
BY_AGENT = SqlTemplate("""
select agent_id, count(*) as decisions, max(position) as newest from sentinel.public_feed
where {whose} and position > %(after)s and position <= %(up_to)s group by agent_id
""").fill(whose=_WHOSE)
AT = SqlTemplate("""
select {columns} from sentinel.public_feed where {whose} and position = any(%(positions)s::bigint[]) order by position
""").fill(columns=_COLUMNS, whose=_WHOSE)
AFTER = SqlTemplate("""
select {columns} from sentinel.public_feed where {whose} and position > %(after)s order by position limit %(limit)s
""").fill(columns=_COLUMNS, whose=_WHOSE)
# No row if the given decision, which was the newest, is no longer at its position.
HEAD_BEHIND = """
select position, event_id from sentinel.public_feed
where tenant_id = %(tenant_id)s and position >= %(position)s
  and (%(position)s = 0 or exists (select from sentinel.public_feed
         where tenant_id = %(tenant_id)s and position = %(position)s and event_id = %(event_id)s))
order by position desc limit 1
"""
# Ids grow with time, so the first decision since a moment is found by id, on the primary key.
FIRST_SINCE = """
select position from sentinel.public_feed where tenant_id = %(tenant_id)s and event_id >= %(event_id)s order by event_id limit 1
"""
COUNT_BETWEEN = SqlTemplate("""
select date_trunc('minute', n.occurred_at) as minute, p.decision, least(p.latency_ms, 60000) as latency_ms,
  count(*) as decisions
from (select occurred_at, body from sentinel.public_feed
      where {whose} and position > %(after)s and position <= %(up_to)s) n,
  jsonb_to_record(n.body::jsonb) as p (decision text, latency_ms integer)
where p.decision is not null and p.latency_ms is not null
group by 1, 2, 3
""").fill(whose=_WHOSE)
# The nil tenant owns the global halts.
HALTS = """
select scope, target from sentinel.public_halts
where tenant_id in (%(tenant_id)s, '00000000-0000-0000-0000-000000000000') order by scope, target
"""
PROOF = """
select event_id, agent_id, is_bound, body, hash from sentinel.public_proofs
where tenant_id = %(tenant_id)s and event_id = %(event_id)s
  and (%(agents)s::text[] is null or agent_id = any(%(agents)s::text[]))
"""


def newest(
    pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, limit: int, *, above: int, up_to: int
) -> list[FeedRow]:
    """Return the latest decisions after position `above` and up to `up_to`, newest first; `agents` None means all."""
    fields = {"tenant_id": tenant_id, "agents": agents, "limit": limit, "above": above, "up_to": up_to}
    return all_rows(pool, FeedRow, NEWEST, fields)


def count_by_agent(
    pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, after: int, up_to: int
) -> list[AgentCount]:
    """Count each agent's decisions after position `after` and up to `up_to`. Reads no bodies."""
    fields = {"tenant_id": tenant_id, "agents": agents, "after": after, "up_to": up_to}
    return all_rows(pool, AgentCount, BY_AGENT, fields)


def at(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, positions: list[int]) -> list[FeedRow]:
    """Return the decisions at these positions, oldest first."""
    return all_rows(pool, FeedRow, AT, {"tenant_id": tenant_id, "agents": agents, "positions": positions})


def after(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, position: int, limit: int) -> list[FeedRow]:
    """Return at most `limit` decisions after `position`, oldest first."""
    return all_rows(pool, FeedRow, AFTER, {"tenant_id": tenant_id, "agents": agents, "after": position, "limit": limit})


def head(pool: Pool, tenant_id: uuid.UUID) -> int:
    """Return the position of the newest decision, 0 if there is none."""
    return (head_behind(pool, tenant_id, NO_HEAD) or NO_HEAD).position


def head_behind(pool: Pool, tenant_id: uuid.UUID, seen: Head) -> Head | None:
    """Return the newest decision, or `NO_HEAD` for an empty feed; None if `seen` is no longer in the feed.

    `seen` is a head returned earlier. A feed only grows, unless the database was restored, or a replica that lagged
    behind has taken over.
    """
    fields = {"tenant_id": tenant_id, "position": seen.position, "event_id": seen.event_id}
    return one_row(pool, Head, HEAD_BEHIND, fields) or (NO_HEAD if seen == NO_HEAD else None)


def latest_decision_of(pool: Pool, tenant_id: uuid.UUID, agent_id: str, *, among: int) -> FeedRow | None:
    """Return an agent's newest decision within the last `among` positions of the feed, or None."""
    last = head(pool, tenant_id)
    return next(iter(newest(pool, tenant_id, [agent_id], 1, above=max(0, last - among), up_to=last)), None)


def first_since(pool: Pool, tenant_id: uuid.UUID, moment: datetime) -> int | None:
    """Return the position of approximately the first decision since a moment; None if there is none."""
    found = scalar(pool, FIRST_SINCE, {"tenant_id": tenant_id, "event_id": first_id_at(moment)})
    return None if found is None else int(found)


def count_between(
    pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, after: int, up_to: int
) -> list[MinuteCount]:
    """Count the decisions after position `after` and up to `up_to`, by minute, verdict and latency in milliseconds."""
    fields = {"tenant_id": tenant_id, "agents": agents, "after": after, "up_to": up_to}
    return all_rows(pool, MinuteCount, COUNT_BETWEEN, fields)


def halts(pool: Pool, tenant_id: uuid.UUID) -> list[PublicHalt]:
    """Return the halts in force that cover this tenant or a part of it."""
    return all_rows(pool, PublicHalt, HALTS, {"tenant_id": tenant_id})


def find_proof(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, proof_id: str) -> ProofRow | None:
    """Return the proof pack with that proof id, or None; `agents` None means all."""
    event_id = event_of_proof(proof_id)
    if event_id is None:
        return None
    return one_row(pool, ProofRow, PROOF, {"tenant_id": tenant_id, "agents": agents, "event_id": event_id})
