"""The public feed: decisions by position, and one proof pack by its name. Read with the board's role, which sees no more."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.ids import event_of_proof
from sentinel.store.rows import all_rows, one_row, single


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One decision in the feed. `body` is its proof pack as canonical JSON without the hash."""

    position: int
    event_id: uuid.UUID
    agent_id: str
    body: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class ProofRow:
    """A proof pack's canonical body and its hash ("sha256:…")."""

    body: str
    hash: str


_COLUMNS = "position, event_id, agent_id, body, occurred_at"
# agents null: every agent of the tenant is public.
_WHOSE = "tenant_id = %(tenant_id)s and (%(agents)s::text[] is null or agent_id = any(%(agents)s::text[]))"
NEWEST = f"select {_COLUMNS} from sentinel.public_feed where {_WHOSE} order by position desc limit %(limit)s"
AFTER = f"""
select {_COLUMNS} from sentinel.public_feed where {_WHOSE} and position > %(after)s order by position limit %(limit)s
"""
HEAD = "select position from sentinel.public_feed where tenant_id = %(tenant_id)s order by position desc limit 1"
LATEST_OF_AGENT = f"""
select {_COLUMNS} from sentinel.public_feed where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s
order by position desc limit 1
"""
PROOF = """
select body, hash from sentinel.public_proofs
where tenant_id = %(tenant_id)s and event_id = %(event_id)s
  and (%(agents)s::text[] is null or agent_id = any(%(agents)s::text[]))
"""


def newest(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, limit: int) -> list[FeedRow]:
    """The latest decisions, newest first; `agents` None means all of them."""
    return all_rows(pool, FeedRow, NEWEST, {"tenant_id": tenant_id, "agents": agents, "limit": limit})


def after(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, position: int, limit: int) -> list[FeedRow]:
    """The decisions behind `position`, oldest first."""
    return all_rows(pool, FeedRow, AFTER, {"tenant_id": tenant_id, "agents": agents, "after": position, "limit": limit})


def head(pool: Pool, tenant_id: uuid.UUID) -> int:
    """The position of the newest decision, 0 when there is none."""
    return int(single(pool, HEAD, {"tenant_id": tenant_id}) or 0)


def latest_of(pool: Pool, tenant_id: uuid.UUID, agent_id: str) -> FeedRow | None:
    """An agent's newest decision, or None."""
    return one_row(pool, FeedRow, LATEST_OF_AGENT, {"tenant_id": tenant_id, "agent_id": agent_id})


def find_proof(pool: Pool, tenant_id: uuid.UUID, agents: list[str] | None, proof_id: str) -> ProofRow | None:
    """The proof pack of that name, or None."""
    event_id = event_of_proof(proof_id)
    if event_id is None:
        return None
    return one_row(pool, ProofRow, PROOF, {"tenant_id": tenant_id, "agents": agents, "event_id": event_id})
