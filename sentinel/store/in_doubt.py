"""Operations that were started and whose outcome nobody knows: the list, and recording what a person found out."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, single


@dataclass(frozen=True, slots=True)
class InDoubtRow:
    """A started operation without a known outcome; its budget stays held. Amounts in minor units."""

    operation_id: uuid.UUID
    idempotency_key: str
    agent_id: str
    action: str
    resource: str
    amount_minor: int | None
    currency: str | None
    in_doubt_reason: str
    started_at: datetime
    in_doubt_since: datetime


LIST_IN_DOUBT = """
select o.operation_id, o.idempotency_key, o.agent_id, o.action, o.resource, o.amount_minor, o.currency,
       s.in_doubt_reason, s.started_at, s.in_doubt_since
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
where s.tenant_id = %(tenant_id)s and s.status = 'in_doubt'
order by s.in_doubt_since, s.operation_id limit %(limit)s
"""
RESOLVE_IN_DOUBT = """
select sentinel.resolve_in_doubt(%(tenant_id)s, %(operation_id)s, %(executed)s, %(resolved_by)s, %(evidence)s, %(event_id)s)
"""


def list_in_doubt(pool: Pool, tenant_id: uuid.UUID, *, limit: int = 200) -> list[InDoubtRow]:
    """The tenant's operations in doubt, longest first."""
    return all_rows(pool, InDoubtRow, LIST_IN_DOUBT, {"tenant_id": tenant_id, "limit": limit})


def resolve_in_doubt(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    operation_id: uuid.UUID,
    executed: bool,
    resolved_by: str,
    evidence: str,
    event_id: uuid.UUID,
) -> str:
    """ "resolved", "unknown" or "not_in_doubt". Executed captures the budget, not executed frees it."""
    return str(single(pool, RESOLVE_IN_DOUBT, {
        "tenant_id": tenant_id, "operation_id": operation_id, "executed": executed, "resolved_by": resolved_by,
        "evidence": evidence, "event_id": event_id,
    }))  # fmt: skip
