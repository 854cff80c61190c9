"""Details of one approval for the person who decides it, and how much of its limits is used now. Only reads."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.authority.approval_queue import KIND_SQL, RISK_RANK_SQL
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class ApprovalDetails:
    """What an approval's card shows beside its row: the bound operation, the requester, and the current circumstances.

    `request` is the canonical operation (or change) whose SHA-256 is the digest. The fields from `source` to
    `resolved_by` are the order's, and None for anything else. The decision's fields are None for a change of people,
    keys or receivers, which no agent requested. `asked_before` counts the operation's earlier approvals; `moment` is
    the database's time.
    """

    kind: str
    risk_rank: int
    request: str
    scenario: str | None
    operation_status: str
    reason_code: str
    decision_event_id: uuid.UUID | None
    policy_id: str | None
    policy_label: str | None
    policy_version: str | None
    policy_changed: bool
    requester: str | None
    requested_by_reader: bool
    halted: bool
    asked_before: int
    source: str | None
    order_id: str | None
    order_status: str | None
    band: str | None
    signals: list[dict[str, Any]] | None
    model: str | None
    resolution: str | None
    resolved_by: str | None
    moment: datetime


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """How much of a limit is used, in minor units; `fits` says whether the amount still fits under the cap."""

    limit_key: str
    reason_code: str
    cap_minor: int
    used_minor: int
    fits: bool


# The kind is "order" only where the approval has an order review: an analyst cannot decide an order without one.
CARD = SqlTemplate("""
select case when r.review_id is not null then 'order' else replace({kind_sql}, 'order', 'other') end as kind, {rank} as risk_rank, coalesce(o.request, c.request) as request,
  o.scenario, coalesce(s.status, c.outcome, a.status) as operation_status, coalesce(s.reason_code, a.reasons[1]) as reason_code,
  s.decision_event_id, t.policy_id, t.policy_label, t.policy_version,
  coalesce(f.policy_digest <> a.policy_digest, false) as policy_changed, p.email as requester,
  sentinel.is_requester(a, %(operator_id)s) as requested_by_reader,
  sentinel.halt_over(a.tenant_id, a.agent_id, a.action, o.scenario) is not null as halted,
  (select count(*) from sentinel.approvals b where b.operation_id = a.operation_id and b.tenant_id = a.tenant_id
     and b.approval_id < a.approval_id)::integer as asked_before,
  r.source, r.order_id, r.status as order_status, r.band, r.signals, r.model, r.resolution, r.resolved_by,
  statement_timestamp() as moment
from sentinel.approvals a
left join sentinel.operations o using (tenant_id, operation_id) left join sentinel.operation_states s using (tenant_id, operation_id)
left join sentinel.decision_terms t on t.terms_id = s.terms_id
left join sentinel.protected_changes c on c.tenant_id = a.tenant_id and c.approval_id = a.approval_id
left join sentinel.policies_in_force f on f.policy_id = t.policy_id
left join sentinel.operators p on p.tenant_id = a.tenant_id and p.operator_id = a.requester_operator_id
left join orders.reviews r on r.approval_id = a.approval_id and r.tenant_id = a.tenant_id
where a.tenant_id = %(tenant_id)s and a.approval_id = %(approval_id)s and (o.operation_id is not null or c.approval_id is not null)
""").fill(kind_sql=KIND_SQL, rank=RISK_RANK_SQL)
LIMIT_USAGE = """
select l.limit_key, l.reason_code, l.cap_minor, l.used_minor, l.fits
from unnest(sentinel.limit_states(%(tenant_id)s, %(asks)s::jsonb, %(amount_minor)s, statement_timestamp())) as l order by l.limit_key
"""


def card(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID, reader: uuid.UUID | None) -> ApprovalDetails | None:
    """Return the details of an approval, or None; `reader` is the operator for whom `requested_by_reader` is computed."""
    return one_row(
        pool, ApprovalDetails, CARD, {"tenant_id": tenant_id, "approval_id": approval_id, "operator_id": reader}
    )


def limit_usage(pool: Pool, tenant_id: uuid.UUID, asks: str, amount_minor: int) -> list[LimitUsage]:
    """Return how much of each limit is used and whether the amount still fits; `asks` is JSON of `sentinel.limit_ask`."""
    return all_rows(pool, LimitUsage, LIMIT_USAGE, {"tenant_id": tenant_id, "asks": asks, "amount_minor": amount_minor})
