"""Orders under review as the console shows them, their alerts and budgets, and the one call that records an analyst's
decision.

Read models: a customer's address and account and the order's contents are neither selected nor granted. The signals
are.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.store.database import Pool
from sentinel.store.queries import act_once, all_rows, one_row
from sentinel.store.sql_template import SqlTemplate

LANES = ("low", "medium", "high")
STATUSES = ("RECEIVED", "SCORED", "DECIDED", "STARTED", "QUEUED", "FULFILLED", "HELD", "REFUND_FILED", "SHOP_REFUSED",
            "REFUND_REFUSED")  # fmt: skip


@dataclass(frozen=True, slots=True)
class OrderRow:
    """A review with its approval; amounts in minor units, times timezone-aware UTC.

    `approval_status`, `digest` and `offers_approve` belong to the approval that it waits or waited for; `due_at` is when an analyst
    should have answered, None for an order that waits for no approval. `ledger_entry_id` is the filed refund's entry:
    the last attempt that was not closed. `hold_state` is the state of a held order's hold in the shop ("refused": it
    had been shipped before, and the hold is not retried). `question_refused`: the order has no lane, because the
    authority refuses the question about it. `is_ruled_out`: it came back from the shop, and a person has resolved its
    fulfilment as not executed, so the shop is not asked again. `refund_is_live`: the outcome of a filed refund is not
    known yet, so no decision is taken; `refund_is_undecided`: the ledger does not know it either, so the refund is not
    retried; `refund_in_doubt` is that refund's operation while in doubt.
    """

    review_id: uuid.UUID
    source: str
    order_id: str
    amount_minor: int
    currency: str
    status: str
    lane: str | None
    band: str | None
    signals: list[dict[str, Any]] | None
    model: str | None
    score_ms: int | None
    reason_code: str | None
    operation_id: uuid.UUID | None
    approval_id: uuid.UUID | None
    proof_id: str | None
    approval_status: str | None
    digest: str | None
    offers_approve: bool | None
    due_at: datetime | None
    resolution: str | None
    resolved_by: str | None
    resolution_reason: str | None
    resolved_at: datetime | None
    ledger_entry_id: str | None
    hold_state: str | None
    question_refused: bool
    is_ruled_out: bool
    refund_is_live: bool
    refund_is_undecided: bool
    refund_in_doubt: uuid.UUID | None
    attempts: int
    last_error: str | None
    received_at: datetime
    decided_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class EffectRow:
    """An effect in the shop, done or still to be done; `kind` is "fulfil" or "hold". If `reported_at` and
    `report_error` are both set, a person discarded its report.
    """

    kind: str
    state: str
    tries: int
    tried_at: datetime | None
    shop_reference: str | None
    last_error: str | None
    reported_at: datetime | None
    report_error: str | None


@dataclass(frozen=True, slots=True)
class AnalystDecisionRow:
    """What a person decided about an order, and the order's status at that time."""

    decision: str
    from_status: str
    decided_by: str
    reason: str
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class LaneEventRow:
    """One change of a review's lane or status."""

    event: str
    from_lane: str | None
    from_status: str
    to_lane: str | None
    to_status: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class AlertRow:
    """An alert; `delivered_at` is None until a channel took it."""

    alert_id: uuid.UUID
    kind: str
    source: str
    order_id: str
    summary: str
    attempts: int
    last_error: str | None
    next_attempt_at: datetime
    delivered_at: datetime | None
    delivered_by: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """How many orders wait for an analyst and how many alerts are undelivered; ages in seconds."""

    queued: int
    oldest_queued_seconds: float
    overdue: int
    alerts_waiting: int
    oldest_alert_seconds: float


@dataclass(frozen=True, slots=True)
class OrderVoteResult:
    """The result of an analyst's decision; the codes of `result` are those of `orders.resolve_review`."""

    result: str
    approvals_given: int | None
    people_required: int | None
    ledger_entry_id: str | None


QUESTION_REFUSED = """(r.status = 'SCORED' and exists (select from orders.alerts n where n.order_id = r.order_id and n.source = r.source
  and n.kind = 'question_refused' and n.tenant_id = r.tenant_id))"""
# An order that has a decision waits for the intake, not for a person; its approval may have been decided elsewhere.
WAITS_FOR_PERSON = f"""r.next_attempt_at < 'infinity' and (r.status = 'QUEUED' and r.resolution is null
    and not exists (select from sentinel.approvals d where d.tenant_id = r.tenant_id and d.approval_id = r.approval_id
      and d.status in ('approved', 'rejected'))
  or r.status in ('SHOP_REFUSED', 'REFUND_REFUSED') or {QUESTION_REFUSED})"""
COLUMNS = SqlTemplate("""
r.review_id, r.source, r.order_id, r.amount_minor, r.currency, r.status, r.lane, r.band, r.signals, r.model, r.score_ms,
r.reason_code, r.operation_id, r.approval_id, r.proof_id,
case when a.status = 'pending' and a.expires_at <= statement_timestamp() then 'expired' else a.status end as approval_status,
a.digest, a.offers_approve, case when r.status = 'QUEUED' then coalesce(a.expires_at, r.due_at) end as due_at,
r.resolution, r.resolved_by, r.resolution_reason, r.resolved_at,
case when r.resolution = 'refund' then (select f.ledger_entry_id from orders.refunds f where f.tenant_id = r.tenant_id
  and f.review_id = r.review_id order by f.state = 'closed', f.attempt desc limit 1) end as ledger_entry_id,
case when r.status = 'HELD' then (select f.state from orders.effects f where f.review_id = r.review_id and f.kind = 'hold'
  and f.tenant_id = r.tenant_id) end as hold_state,
{question_refused} as question_refused,
case when r.status = 'SHOP_REFUSED' then exists (select from sentinel.operation_states s where s.tenant_id = r.tenant_id
  and s.operation_id = r.operation_id and s.not_executed_at is not null) else false end as is_ruled_out,
case when r.status = 'REFUND_REFUSED' then orders.has_live_refund(r.tenant_id, r.review_id) else false end as refund_is_live,
case when r.status = 'REFUND_REFUSED' then orders.has_undecided_refund(r.tenant_id, r.review_id) else false end as refund_is_undecided,
case when r.status = 'REFUND_REFUSED' then orders.refund_in_doubt(r.tenant_id, r.review_id) end as refund_in_doubt,
r.attempts, r.last_error, r.received_at, r.decided_at, r.updated_at
""").fill(question_refused=QUESTION_REFUSED)
FROM = """
from orders.reviews r left join sentinel.approvals a on a.tenant_id = r.tenant_id and a.approval_id = r.approval_id
"""
FIND_ORDER = f"""
select {COLUMNS} {FROM} where r.tenant_id = %(tenant_id)s and r.source = %(source)s and r.order_id = %(order_id)s
"""
EFFECTS = """
select kind, state, tries, tried_at, shop_reference, last_error, reported_at, report_error from orders.effects
where tenant_id = %(tenant_id)s and review_id = %(review_id)s order by created_at, kind
"""
ANALYST_DECISIONS = """
select decision, from_status, decided_by, reason, decided_at from orders.analyst_decisions
where tenant_id = %(tenant_id)s and review_id = %(review_id)s order by decision_id
"""
EVENTS = """
select event, from_lane, from_status, to_lane, to_status, occurred_at from orders.events
where tenant_id = %(tenant_id)s and review_id = %(review_id)s order by event_id
"""
ALERT_COLUMNS = """
alert_id, kind, source, order_id, summary, attempts, last_error, next_attempt_at, delivered_at, delivered_by, created_at
"""
ALERTS_OF = SqlTemplate("""
select {alert_columns} from orders.alerts
where tenant_id = %(tenant_id)s and source = %(source)s and order_id = %(order_id)s order by created_at, alert_id
""").fill(alert_columns=ALERT_COLUMNS)
QUEUE = SqlTemplate("""
select q.*, w.* from
  (select count(*)::integer as queued,
     coalesce(extract(epoch from clock_timestamp() - min(coalesce(r.decided_at, r.received_at))), 0)::double precision
       as oldest_queued_seconds,
     (count(*) filter (where r.status = 'QUEUED' and r.due_at < clock_timestamp()))::integer as overdue
   from orders.reviews r where r.tenant_id = %(tenant_id)s and {waits}) q,
  (select count(*)::integer as alerts_waiting,
     coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::double precision as oldest_alert_seconds
   from orders.alerts where tenant_id = %(tenant_id)s and delivered_at is null) w
""").fill(waits=WAITS_FOR_PERSON)
RESOLVE = """
select result, approvals_given, people_required, ledger_entry_id from orders.resolve_review(%(tenant_id)s, %(source)s,
  %(order_id)s, %(operator_id)s, %(decision)s, %(reason)s, %(digest)s, %(status)s, %(approval_id)s, %(via)s, %(event_id)s, %(second_event_id)s)
"""


def find_order(pool: Pool, tenant_id: uuid.UUID, source: str, order_id: str) -> OrderRow | None:
    """One order, or None."""
    return one_row(pool, OrderRow, FIND_ORDER, {"tenant_id": tenant_id, "source": source, "order_id": order_id})


def effects_of(pool: Pool, tenant_id: uuid.UUID, review_id: uuid.UUID) -> list[EffectRow]:
    """An order's effects in the shop, done and open, oldest first."""
    return all_rows(pool, EffectRow, EFFECTS, {"tenant_id": tenant_id, "review_id": review_id})


def analyst_decisions(pool: Pool, tenant_id: uuid.UUID, review_id: uuid.UUID) -> list[AnalystDecisionRow]:
    """The decisions that people made about the order, in order."""
    return all_rows(pool, AnalystDecisionRow, ANALYST_DECISIONS, {"tenant_id": tenant_id, "review_id": review_id})


def events_of(pool: Pool, tenant_id: uuid.UUID, review_id: uuid.UUID) -> list[LaneEventRow]:
    """The changes of the order's lane and status, in order."""
    return all_rows(pool, LaneEventRow, EVENTS, {"tenant_id": tenant_id, "review_id": review_id})


def alerts_of(pool: Pool, tenant_id: uuid.UUID, source: str, order_id: str) -> list[AlertRow]:
    """One order's alerts, in order."""
    return all_rows(pool, AlertRow, ALERTS_OF, {"tenant_id": tenant_id, "source": source, "order_id": order_id})


def queue_figures(pool: Pool, tenant_id: uuid.UUID) -> QueueFigures:
    """The number and age of the orders that wait for an analyst, and of the undelivered alerts."""
    found = one_row(pool, QueueFigures, QUEUE, {"tenant_id": tenant_id})
    assert found is not None
    return found


def resolve(
    pool: Pool, *, tenant_id: uuid.UUID, source: str, order_id: str, operator_id: uuid.UUID, decision: str, reason: str,
    digest: str | None, status: str | None, approval_id: uuid.UUID | None, via: str, event_id: uuid.UUID, second_event_id: uuid.UUID,
) -> OrderVoteResult:  # fmt: skip
    """Record one person's "fulfil", "refund", "hold" or "retry"; all checks are made in the transaction that records it."""
    return act_once(pool, OrderVoteResult, RESOLVE, {
        "tenant_id": tenant_id, "source": source, "order_id": order_id, "operator_id": operator_id, "decision": decision,
        "reason": reason, "digest": digest, "status": status, "approval_id": approval_id, "via": via, "event_id": event_id, "second_event_id": second_event_id,
    }, is_taken=lambda found: found.result in (decision, "recorded"))  # fmt: skip


RETAIL = "retail"
"""The channel in which an analyst's refund is filed."""


@dataclass(frozen=True, slots=True)
class OrderBudget:
    """What was paid for an order, and how much of it is reserved, refunded or left; in minor units. `paid_minor` and
    `left_minor` are None if it is not known what was paid.

    `returned_minor` was refunded but sent back by a bank; it is in none of the other parts.
    """

    currency: str
    paid_minor: int | None
    reserved_minor: int
    executed_minor: int
    handled_minor: int
    in_doubt_minor: int
    beyond_minor: int
    uncounted_entries: int
    left_minor: int | None
    returned_minor: int


_COLUMNS = """b.currency, b.paid_minor, b.reserved_minor, b.executed_minor, b.handled_minor, b.in_doubt_minor, b.beyond_minor,
  b.uncounted_entries,
  case when b.paid_minor is not null then
    greatest(0, b.paid_minor - b.reserved_minor - b.executed_minor - b.handled_minor - b.in_doubt_minor) end as left_minor,
  (select coalesce(sum(r.amount_minor), 0)::bigint from refunds.ledger_entries r
   where (r.tenant_id, r.channel, r.source, r.order_ref) = (b.tenant_id, b.channel, b.source, b.order_ref) and r.currency = b.currency
     and r.budget_part = 'returned') as returned_minor"""
_OF_LEDGER = SqlTemplate("""
select {columns} from refunds.ledger_entries e
join refunds.order_budgets b on (b.tenant_id, b.channel, b.source, b.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
where e.tenant_id = %(tenant_id)s and {which}
""")
OF_ENTRY = _OF_LEDGER.fill(columns=_COLUMNS, which="e.ledger_entry_id = %(ledger_entry_id)s")
OF_APPROVAL = _OF_LEDGER.fill(columns=_COLUMNS, which="e.approval_id = %(approval_id)s")
OF_ORDER = SqlTemplate("""
select {columns} from refunds.order_budgets b
where b.tenant_id = %(tenant_id)s and b.channel = %(channel)s and b.source = %(source)s and b.order_ref = %(order_ref)s
""").fill(columns=_COLUMNS)


def budget_of_entry(ledger: Pool, tenant_id: uuid.UUID, ledger_entry_id: str) -> OrderBudget | None:
    """The budget of the order that a ledger entry names; None if it names none."""
    return one_row(ledger, OrderBudget, OF_ENTRY, {"tenant_id": tenant_id, "ledger_entry_id": ledger_entry_id})


def budget_of_approval(ledger: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID) -> OrderBudget | None:
    """The budget of the order whose refund waits for this approval; None if no entry waits for it, or the entry names no order."""
    return one_row(ledger, OrderBudget, OF_APPROVAL, {"tenant_id": tenant_id, "approval_id": approval_id})


def budget_of_order(ledger: Pool, tenant_id: uuid.UUID, source: str, order_ref: str) -> OrderBudget | None:
    """The budget of a source's order; None while no refund of it has been requested."""
    fields = {"tenant_id": tenant_id, "channel": RETAIL, "source": source, "order_ref": order_ref}
    return one_row(ledger, OrderBudget, OF_ORDER, fields)
