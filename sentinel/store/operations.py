"""One operation as it was decided: what was asked, under which policy, when."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.rows import one_row


@dataclass(frozen=True, slots=True)
class Decided:
    """`request` is the canonical operation; `policy_digest` names the policy text that decided it last."""

    request: str
    policy_digest: str
    decided_at: datetime


FIND_DECIDED = """
select o.request, s.policy_digest, o.created_at as decided_at
from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
where o.tenant_id = %(tenant_id)s and o.operation_id = %(operation_id)s
"""


def find_decided(pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID) -> Decided | None:
    """The operation of that id, or None."""
    return one_row(pool, Decided, FIND_DECIDED, {"tenant_id": tenant_id, "operation_id": operation_id})
