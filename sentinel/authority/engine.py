"""What every service of the authority is handed: database, policies, permit signer, clock and deadlines."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import msgspec

from sentinel.authority.decisions import Peeked, Receipt, Recorded, Row
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.keys import KeyUses
from sentinel.core.signing import PermitSigner
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.batch_commit import BatchCommitter
from sentinel.store.database import Pool
from sentinel.store.loop_connections import LoopConnections
from sentinel.store.queries import DatabaseClock


class Caller(msgspec.Struct, frozen=True, cache_hash=True):
    """The caller of a request: its key's tenant, principal, bound agent (None: any), scopes and owner."""

    tenant_id: uuid.UUID
    key_id: uuid.UUID
    principal_id: uuid.UUID
    agent_id: str | None
    scopes: frozenset[str]
    owner_operator_id: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Authority:
    """The parts that a service works with. `clock` gives the database's time, e.g. for policies that read the time of day."""

    pool: Pool
    connections: LoopConnections
    """The connections on which an event loop commits; they are closed with the pool."""
    decisions: BatchCommitter[GuardRow, Recorded]
    starts: BatchCommitter[Row, Receipt]
    reports: BatchCommitter[Row, Receipt]
    checks: BatchCommitter[GuardRow, Peeked]
    policies: ReloadablePolicies
    permits: PermitSigner
    clock: DatabaseClock
    permit_seconds: int = 120
    report_deadline_seconds: int = 300
    open_permits_per_key: int = 5000
    open_questions_per_key: int = 20_000
    longest_act_seconds: int = 3600
    key_uses: KeyUses = field(default_factory=KeyUses)
