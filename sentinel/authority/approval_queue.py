"""Approvals as people work through them: one queue of all kinds, and everything one card shows.

What waits comes by risk and then by what runs out first (`risk_rank` in `schema/authority/approvals.sql`); what was decided
comes newest first. Reading only: giving one's word is `approvals.resolve` and `order_views.resolve`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.authority.approvals import APPROVALS_GIVEN
from sentinel.core.decision import ESCALATIONS
from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, one_row

KINDS = ("refund", "escalation", "order", "other")
STATUSES = ("waiting", "decided", "approved", "rejected", "handled", "expired")
ORDER_ACTION = "order.fulfill"

# An escalation is a refund that a workflow handed over, whatever its amount.
KIND_SQL = f"""
case when a.action = '{ORDER_ACTION}' then 'order'
     when a.action not like 'refund.%%' then 'other'
     when a.reasons && array[{", ".join(f"'{code}'" for code in ESCALATIONS)}]::text[] then 'escalation'
     else 'refund' end
"""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One line of the queue. Amounts in minor units; `status` is one of `STATUSES` after "decided".

    `risk_rank`: 1 is looked at first, 3 last. `mine` is the reader's own word, if any.
    """

    approval_id: uuid.UUID
    kind: str
    risk_rank: int
    agent_id: str
    action: str
    resource: str
    amount_minor: int | None
    currency: str | None
    digest: str
    reasons: list[str]
    offers_approve: bool
    required_people: int
    approvals_given: int
    status: str
    created_at: datetime
    expires_at: datetime
    seconds_left: float
    decided_at: datetime | None
    decided_by: str | None
    mine: str | None


@dataclass(frozen=True, slots=True)
class CardRow:
    """What a card shows beyond the approval: the bound operation, who asks, and what stands around it now.

    `request` is the canonical operation whose SHA-256 is the digest. The order's fields are None for anything else.
    """

    kind: str
    risk_rank: int
    request: str
    idempotency_key: str
    scenario: str | None
    operation_status: str
    reason_code: str
    decision_event_id: uuid.UUID
    policy_id: str
    policy_label: str
    policy_version: str
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
class Standing:
    """How the queue stands, to see whether it changed: how many wait, and the newest of them."""

    waiting: int
    newest: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class LimitFill:
    """How full a limit is now, in minor units; `fits` says whether this amount still goes in."""

    limit_key: str
    reason_code: str
    cap_minor: int
    used_minor: int
    fits: bool


_RANK = "sentinel.risk_rank(a.required_people, a.reasons)"
_COLUMNS = f"""
a.approval_id, {KIND_SQL} as kind, {_RANK} as risk_rank, a.agent_id, a.action, a.resource, a.amount_minor, a.currency, a.digest, a.reasons,
a.offers_approve, a.required_people,
{APPROVALS_GIVEN},
case when a.status = 'pending' then case when a.expires_at <= statement_timestamp() then 'expired' else 'pending' end
     when a.handled_reference is not null then 'handled' else a.status end as status,
a.created_at, a.expires_at, extract(epoch from a.expires_at - statement_timestamp())::double precision as seconds_left,
a.decided_at, a.decided_by,
(select v.verdict from sentinel.approval_votes v where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id
   and v.operator_id = %(operator_id)s) as mine
"""
_OF_KIND = f"(%(kind)s::text is null or {KIND_SQL} = %(kind)s)"
# In the order of the index approvals_queue, which the cursor repeats.
WAITING_PAGE = f"""
select {_COLUMNS} from sentinel.approvals a
where a.tenant_id = %(tenant_id)s and a.status = 'pending' and a.expires_at > statement_timestamp() and {_OF_KIND}
  and (%(after_rank)s::integer is null
       or ({_RANK}, a.expires_at, a.approval_id) > (%(after_rank)s, %(after_at)s::timestamptz, %(after_id)s::uuid))
order by {_RANK}, a.expires_at, a.approval_id limit %(limit)s
"""
DECIDED_PAGE = f"""
select {_COLUMNS} from sentinel.approvals a
where a.tenant_id = %(tenant_id)s and a.decided_at is not null and {_OF_KIND}
  and case %(status)s when 'decided' then true when 'handled' then a.handled_reference is not null
      when 'rejected' then a.status = 'rejected' and a.handled_reference is null else a.status = %(status)s end
  and (%(after_at)s::timestamptz is null or (a.decided_at, a.approval_id) < (%(after_at)s, %(after_id)s::uuid))
order by a.decided_at desc, a.approval_id desc limit %(limit)s
"""
THESE = f"""
select {_COLUMNS} from sentinel.approvals a where a.tenant_id = %(tenant_id)s and a.approval_id = any(%(ids)s)
order by {_RANK}, a.expires_at, a.approval_id
"""
STANDING = """
select count(*)::integer as waiting, (array_agg(approval_id order by approval_id desc))[1] as newest
from sentinel.approvals where tenant_id = %(tenant_id)s and status = 'pending' and expires_at > statement_timestamp()
"""
# An order by its review: what has none takes no analyst's word.
CARD = f"""
select case when r.review_id is not null then 'order' else replace({KIND_SQL}, 'order', 'other') end as kind, {_RANK} as risk_rank, o.request, o.idempotency_key, o.scenario, s.status as operation_status, s.reason_code,
  s.decision_event_id, s.policy_id, s.policy_label, s.policy_version,
  coalesce(f.policy_digest <> a.policy_digest, false) as policy_changed, p.email as requester,
  sentinel.is_requester(a, %(operator_id)s) as requested_by_reader,
  sentinel.halt_over(a.tenant_id, a.agent_id, a.action, o.scenario) is not null as halted,
  (select count(*) from sentinel.approvals b where b.operation_id = a.operation_id and b.tenant_id = a.tenant_id
     and b.approval_id < a.approval_id)::integer as asked_before,
  r.source, r.order_id, r.status as order_status, r.band, r.signals, r.model, r.resolution, r.resolved_by,
  statement_timestamp() as moment
from sentinel.approvals a
join sentinel.operations o using (tenant_id, operation_id) join sentinel.operation_states s using (tenant_id, operation_id)
left join sentinel.policies_in_force f on f.policy_id = s.policy_id
left join sentinel.operators p on p.tenant_id = a.tenant_id and p.operator_id = a.requester_operator_id
left join orders.reviews r on r.approval_id = a.approval_id and r.tenant_id = a.tenant_id
where a.tenant_id = %(tenant_id)s and a.approval_id = %(approval_id)s
"""
LIMIT_FILLS = """
select l.limit_key, l.reason_code, l.cap_minor, l.used_minor, l.fits
from unnest(sentinel.limit_states(%(tenant_id)s, %(asks)s::jsonb, %(amount_minor)s, statement_timestamp())) as l order by l.limit_key
"""


def waiting_page(
    pool: Pool, tenant_id: uuid.UUID, reader: uuid.UUID | None, *, kind: str | None,
    after: tuple[int, datetime, uuid.UUID] | None, limit: int,
) -> list[QueueRow]:  # fmt: skip
    """What waits for a word, riskiest and soonest due first, from behind `after` = (rank, end, id)."""
    rank, at, last_id = after or (None, None, None)
    return all_rows(pool, QueueRow, WAITING_PAGE, {
        "tenant_id": tenant_id, "operator_id": reader, "kind": kind, "after_rank": rank, "after_at": at, "after_id": last_id,
        "limit": limit,
    })  # fmt: skip


def decided_page(
    pool: Pool, tenant_id: uuid.UUID, reader: uuid.UUID | None, *, kind: str | None, status: str,
    after: tuple[datetime, uuid.UUID] | None, limit: int,
) -> list[QueueRow]:  # fmt: skip
    """What was decided or ran out, newest first, from behind `after` = (decided_at, id)."""
    at, last_id = after or (None, None)
    return all_rows(pool, QueueRow, DECIDED_PAGE, {
        "tenant_id": tenant_id, "operator_id": reader, "kind": kind, "status": status, "after_at": at, "after_id": last_id,
        "limit": limit,
    })  # fmt: skip


def these(pool: Pool, tenant_id: uuid.UUID, reader: uuid.UUID | None, ids: Sequence[uuid.UUID]) -> list[QueueRow]:
    """The tenant's approvals of these ids, in the queue's order; an id that is not there is left out."""
    return all_rows(pool, QueueRow, THESE, {"tenant_id": tenant_id, "operator_id": reader, "ids": list(ids)})


def standing(pool: Pool, tenant_id: uuid.UUID) -> Standing:
    """How many wait, and the newest of them."""
    found = one_row(pool, Standing, STANDING, {"tenant_id": tenant_id})
    assert found is not None
    return found


def card(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID, reader: uuid.UUID | None) -> CardRow | None:
    """What a card shows besides the approval itself."""
    return one_row(pool, CardRow, CARD, {"tenant_id": tenant_id, "approval_id": approval_id, "operator_id": reader})


def limit_fills(pool: Pool, tenant_id: uuid.UUID, asks: str, amount_minor: int) -> list[LimitFill]:
    """How full these limits (JSON of `sentinel.limit_ask`) are now, and whether the amount fits."""
    return all_rows(pool, LimitFill, LIMIT_FILLS, {"tenant_id": tenant_id, "asks": asks, "amount_minor": amount_minor})
