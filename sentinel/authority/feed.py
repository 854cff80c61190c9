"""The decision feed by position, and lookup by proof id. `core.publication` makes the public form."""

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

    `is_bound`: who asked has a key that is bound to that agent.
    """

    position: int
    event_id: uuid.UUID
    agent_id: str
    is_bound: bool
    body: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class ProofRow:
    """A decision by its proof's name: the recorded pack's canonical body and hash ("sha256:…"), otherwise as `FeedRow`."""

    event_id: uuid.UUID
    agent_id: str
    is_bound: bool
    body: str
    hash: str


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """How many decisions of one minute came out one way and took this long."""

    minute: datetime
    decision: str
    latency_ms: int
    decisions: int


@dataclass(frozen=True, slots=True)
class AgentCount:
    """How many decisions an agent made in a range of the feed, and the position of its newest there."""

    agent_id: str
    decisions: int
    newest: int


@dataclass(frozen=True, slots=True)
class Head:
    """The newest decision of a feed: its position, and its event, which tells it from another that is given the position later."""

    position: int
    event_id: uuid.UUID


NO_HEAD = Head(0, uuid.UUID(int=0))
"""Of a feed without a decision."""


@dataclass(frozen=True, slots=True)
class PublicHalt:
    """A halt in force: its scope and what it covers ("" for everything in the scope)."""

    scope: str
    target: str


_COLUMNS = "position, event_id, agent_id, is_bound, body, occurred_at"
# agents null: every agent of the tenant is public.
_WHOSE = "tenant_id = %(tenant_id)s and (%(agents)s::text[] is null or agent_id = any(%(agents)s::text[]))"
# The range is what bounds a read, whatever the planner thinks of a feed that grew since it was last looked at: by
# "order by position desc limit 200" alone it sorted the whole of a young feed.
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
# Nothing where the feed had a newest decision that does not stand there any more.
HEAD_BEHIND = """
select position, event_id from sentinel.public_feed
where tenant_id = %(tenant_id)s and position >= %(position)s
  and (%(position)s = 0 or exists (select from sentinel.public_feed
         where tenant_id = %(tenant_id)s and position = %(position)s and event_id = %(event_id)s))
order by position desc limit 1
"""
# Ids grow with time, so a day's beginning is found by id, on the primary key; behind it everything is counted once.
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
# Halts of the nil tenant are global.
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
    """The latest decisions behind `above` and up to a position, newest first; `agents` None means all of them."""
    fields = {"tenant_id": tenant_id, "agents": agents, "limit": limit, "above": above, "up_to": up_to}
    return all_rows(pool, FeedRow, NEWEST, fields)


def count_by_agent(
    pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, after: int, up_to: int
) -> list[AgentCount]:
    """How many decisions each agent made behind `after` and up to a position. Reads no bodies."""
    fields = {"tenant_id": tenant_id, "agents": agents, "after": after, "up_to": up_to}
    return all_rows(pool, AgentCount, BY_AGENT, fields)


def at(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, positions: list[int]) -> list[FeedRow]:
    """The decisions at these positions, oldest first."""
    return all_rows(pool, FeedRow, AT, {"tenant_id": tenant_id, "agents": agents, "positions": positions})


def after(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, position: int, limit: int) -> list[FeedRow]:
    """The decisions behind `position`, oldest first."""
    return all_rows(pool, FeedRow, AFTER, {"tenant_id": tenant_id, "agents": agents, "after": position, "limit": limit})


def head(pool: Pool, tenant_id: uuid.UUID) -> int:
    """The position of the newest decision, 0 where there is none."""
    return (head_behind(pool, tenant_id, NO_HEAD) or NO_HEAD).position


def head_behind(pool: Pool, tenant_id: uuid.UUID, seen: Head) -> Head | None:
    """The newest decision, `NO_HEAD` where there is none; None where `seen`, which was the newest, is not in the feed any more.

    A feed only grows, but for a database that was restored, or a replica that was behind and took over.
    """
    fields = {"tenant_id": tenant_id, "position": seen.position, "event_id": seen.event_id}
    return one_row(pool, Head, HEAD_BEHIND, fields) or (NO_HEAD if seen == NO_HEAD else None)


def latest_decision_of(pool: Pool, tenant_id: uuid.UUID, agent_id: str, *, among: int) -> FeedRow | None:
    """An agent's newest decision, or None where it has none among the last positions of the feed."""
    last = head(pool, tenant_id)
    return next(iter(newest(pool, tenant_id, [agent_id], 1, above=max(0, last - among), up_to=last)), None)


def first_since(pool: Pool, tenant_id: uuid.UUID, moment: datetime) -> int | None:
    """The position of about the first decision since a moment; None when there was none."""
    found = scalar(pool, FIRST_SINCE, {"tenant_id": tenant_id, "event_id": first_id_at(moment)})
    return None if found is None else int(found)


def count_between(
    pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, after: int, up_to: int
) -> list[MinuteCount]:
    """The decisions behind `after` and up to a position, counted by minute, outcome and milliseconds."""
    fields = {"tenant_id": tenant_id, "agents": agents, "after": after, "up_to": up_to}
    return all_rows(pool, MinuteCount, COUNT_BETWEEN, fields)


def halts(pool: Pool, tenant_id: uuid.UUID) -> list[PublicHalt]:
    """The halts in force that cover this tenant or a part of it."""
    return all_rows(pool, PublicHalt, HALTS, {"tenant_id": tenant_id})


def find_proof(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, proof_id: str) -> ProofRow | None:
    """The proof pack of that name, or None."""
    event_id = event_of_proof(proof_id)
    if event_id is None:
        return None
    return one_row(pool, ProofRow, PROOF, {"tenant_id": tenant_id, "agents": agents, "event_id": event_id})
