"""One decided operation: its request, evidence, policy digest and time."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.queries import one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class DecidedOperation:
    """A decided operation: `request` is its canonical form, `policy_digest` identifies the policy text that decided it.

    `basis` is what the policy decided on beside it (`core.proof.decision_basis`), None for decisions from before it was
    stored. `tightened` names the limits, halt or once-key by which the database tightened the decision. `pack` is the
    body of the decision's event, which commits to all of these under `salt`.
    """

    request: str
    basis: str | None
    tightened: list[str]
    salt: str
    pack: str
    policy_digest: str
    decided_at: datetime


_DECIDED = """
select o.request, o.basis, coalesce(s.tightened, '{}') as tightened, o.salt, e.body as pack,
  t.policy_digest, e.occurred_at as decided_at
from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
join sentinel.decision_terms t on t.terms_id = s.terms_id
join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
where o.tenant_id = %(tenant_id)s
"""
FIND_DECIDED = _DECIDED + "and o.operation_id = %(operation_id)s"
FIND_DECIDED_BY_EVENT = SqlTemplate("""{decided}
and o.operation_id = (select operation_id from sentinel.events where tenant_id = %(tenant_id)s and event_id = %(event_id)s)
""").fill(decided=_DECIDED)


def find_decided(pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID) -> DecidedOperation | None:
    """Return the decided operation with that id, or None."""
    return one_row(pool, DecidedOperation, FIND_DECIDED, {"tenant_id": tenant_id, "operation_id": operation_id})


def find_decided_by_event(pool: Pool, tenant_id: uuid.UUID, event_id: uuid.UUID) -> DecidedOperation | None:
    """Return the operation that a decision's event belongs to, or None."""
    return one_row(pool, DecidedOperation, FIND_DECIDED_BY_EVENT, {"tenant_id": tenant_id, "event_id": event_id})
