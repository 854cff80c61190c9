"""What the overview shows: what waits for a person, the worker's backlog, and decisions by the minute.

Every query uses a partial index or a bounded window, never a whole table, because the page refreshes itself every few
seconds while the authority is busy.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from ops_console.read_models.order_views import WAITS_FOR_PERSON
from sentinel.authority import approval_queue
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """Pending approvals of one kind and currency; `amount_minor` is their sum in minor units, None if they have no
    amount.

    `kind` is one of `approval_queue.KINDS`; `high` counts those of the first risk rank. `is_all` is False if more
    approvals, of any kind, are pending than were counted.
    """

    kind: str
    currency: str | None
    waiting: int
    high: int
    amount_minor: int | None
    oldest_at: datetime
    due_at: datetime
    is_all: bool


@dataclass(frozen=True, slots=True)
class SumRow:
    """How many of something there are in one currency, their sum in minor units, and the oldest one's time."""

    currency: str | None
    entries: int
    amount_minor: int | None
    oldest_at: datetime


MOST_ANSWERS = 1_000


@dataclass(frozen=True, slots=True)
class Answers:
    """Approvals decided in the last 24 hours: how many, and the median and 95th percentile of their waiting time in
    seconds.

    `expired` counts those that nobody decided in time, which are denied. Only the latest `MOST_ANSWERS` of each are
    counted.
    """

    given: int
    expired: int
    median_seconds: float | None
    slow_seconds: float | None


@dataclass(frozen=True, slots=True)
class LedgerLoad:
    """The worker's ledger: entries that are due and not begun, for how many seconds, and failed entries that still need
    a person.

    `findings` are those of the last 30 days at settlement systems: refunds that a bank sent back, if no other refund of
    their order was paid since, refunds made elsewhere, and payments that cannot be read.
    """

    due: int
    overdue_seconds: float
    failed: int
    failed_oldest_seconds: float
    findings: int
    findings_oldest_seconds: float


@dataclass(frozen=True, slots=True)
class UndeliveredAlerts:
    """The number of undelivered alerts, and the oldest one's age in seconds."""

    alerts: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class MinuteRow:
    """The number of decisions of one outcome in one minute, given in minutes since 1970. A row with the decision "NOW"
    only tells the current minute.
    """

    minute: int
    decision: str
    decisions: int


# Counts those that expire up to and including the moment of the first approval past the bound.
WAITING = SqlTemplate("""
with behind as (
  select b.expires_at from sentinel.approvals b
  where b.tenant_id = %(tenant_id)s and b.status = 'pending' and b.expires_at > statement_timestamp()
  order by b.expires_at offset %(most)s limit 1)
select {kind_sql} as kind, a.currency, count(*)::integer as waiting,
  (count(*) filter (where sentinel.risk_rank(a.required_people, a.reasons) = 1))::integer as high, sum(a.amount_minor)::bigint as amount_minor,
  min(a.created_at) as oldest_at, min(a.expires_at) as due_at, not exists (select from behind) as is_all
from sentinel.approvals a
where a.tenant_id = %(tenant_id)s and a.status = 'pending' and a.expires_at > statement_timestamp()
  and a.expires_at <= coalesce((select expires_at from behind), 'infinity')
group by 1, 2 order by 1, 2
""").fill(kind_sql=approval_queue.KIND_SQL)
IN_DOUBT = """
select o.currency, count(*)::integer as entries, sum(o.amount_minor)::bigint as amount_minor, min(s.in_doubt_since) as oldest_at
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
where s.tenant_id = %(tenant_id)s and s.status = 'in_doubt' group by o.currency order by o.currency
"""
CONTRADICTED = """
select o.currency, count(*)::integer as entries, sum(o.amount_minor)::bigint as amount_minor, min(s.in_doubt_since) as oldest_at
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
where s.tenant_id = %(tenant_id)s and s.status = 'in_doubt' and s.in_doubt_reason = 'contradiction'
group by o.currency order by o.currency
"""
# The orders of the analysts' queue that have no pending approval, counted and dated as in `order_views.QUEUE`.
REFUSED_ORDERS = SqlTemplate("""
select r.currency, count(*)::integer as entries, sum(r.amount_minor)::bigint as amount_minor,
  min(coalesce(r.decided_at, r.received_at)) as oldest_at
from orders.reviews r where r.tenant_id = %(tenant_id)s and {waits} and r.status <> 'QUEUED' group by r.currency order by r.currency
""").fill(waits=WAITS_FOR_PERSON)
# Only the latest of the day: enough for the percentiles, however many there are.
ANSWERS = """
select count(*)::integer as given,
  (select count(*)::integer from (select from sentinel.approvals a where a.tenant_id = %(tenant_id)s and a.status = 'expired'
     and a.decided_at > statement_timestamp() - interval '24 hours' limit %(most)s) ran_out) as expired,
  percentile_cont(0.5) within group (order by seconds) as median_seconds,
  percentile_cont(0.95) within group (order by seconds) as slow_seconds
from (select extract(epoch from a.decided_at - a.created_at)::double precision as seconds from sentinel.approvals a
      where a.tenant_id = %(tenant_id)s and a.decided_at > statement_timestamp() - interval '24 hours' and a.status <> 'expired'
      order by a.decided_at desc limit %(most)s) latest
"""
# A failed entry needs no person any more once its doubt was resolved as handled; if a person said "not executed", once
# its refund was entered again, or after 30 days; if an analyst has since decided otherwise about its order, at once.
LEDGER_LOAD = """
select d.due, d.overdue_seconds, f.failed, f.failed_oldest_seconds, s.findings, s.findings_oldest_seconds from
  (select count(*)::integer as due,
     coalesce(extract(epoch from clock_timestamp() - min(next_attempt_at)), 0)::double precision as overdue_seconds
   from refunds.ledger_entries
   where tenant_id = %(tenant_id)s and status = 'NEW' and next_attempt_at <= statement_timestamp()) d,
  (select count(*)::integer as failed,
     coalesce(extract(epoch from clock_timestamp() - min(updated_at)), 0)::double precision as failed_oldest_seconds
   from refunds.ledger_entries g
   where g.tenant_id = %(tenant_id)s and g.status = 'ERROR' and g.budget_part is distinct from 'handled'
     and not (g.reason_code is not distinct from 'not_executed' and g.budget_part is null
       and (g.updated_at < statement_timestamp() - interval '30 days' or exists (
         select from refunds.ledger_entries a
         where a.tenant_id = g.tenant_id and a.refund_id = g.refund_id and a.created_at > g.created_at)))
     and not (g.budget_part is null and exists (select from orders.refunds c
       where c.tenant_id = g.tenant_id and c.ledger_entry_id = g.ledger_entry_id and c.state = 'closed'))) f,
  (select count(*)::integer as findings,
     coalesce(extract(epoch from clock_timestamp() - min(n.found_at)), 0)::double precision as findings_oldest_seconds
   from refunds.settlement_findings n
   where n.tenant_id = %(tenant_id)s and n.found_at > statement_timestamp() - interval '30 days'
     and not (n.finding = 'refund_failed' and exists (
       select from refunds.ledger_entries e
       join refunds.ledger_entries x on (x.tenant_id, x.channel, x.source, x.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
       where e.tenant_id = n.tenant_id and e.ledger_entry_id = n.ledger_entry_id and x.ledger_entry_id <> e.ledger_entry_id
         and x.budget_part in ('executed', 'handled') and x.updated_at > n.found_at))) s
"""
UNDELIVERED = """
select count(*)::integer as alerts,
  coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::double precision as oldest_seconds
from orders.alerts where tenant_id = %(tenant_id)s and delivered_at is null
"""
# By the time in the operation's id (UUIDv7): the primary key finds the minutes, and no wide row is read. That time is
# of the authority's clock, good enough for display only. An approval that was decided since still counts as
# APPROVAL_REQUIRED.
DECISION_MINUTES = """
select ('x' || substr(s.operation_id::text, 1, 8) || substr(s.operation_id::text, 10, 4))::bit(48)::bigint / 60000 as minute,
  case when s.approval_id is not null then 'APPROVAL_REQUIRED' else s.decision end as decision, count(*)::integer as decisions
from sentinel.operation_states s
where s.tenant_id = %(tenant_id)s and s.operation_id >= (lpad(to_hex(greatest(%(since)s::bigint,
  floor(extract(epoch from statement_timestamp()) / 60)::bigint - %(minutes)s) * 60000), 12, '0') || '70008000000000000000')::uuid
group by 1, 2
union all select floor(extract(epoch from statement_timestamp()) / 60)::bigint, 'NOW', 0
"""


def waiting(pool: Pool, tenant_id: uuid.UUID) -> list[WaitingRow]:
    """Pending approvals by kind and currency, among about the first `approval_queue.MOST_COUNTED` to expire."""
    return all_rows(pool, WaitingRow, WAITING, {"tenant_id": tenant_id, "most": approval_queue.MOST_COUNTED})


def in_doubt(pool: Pool, tenant_id: uuid.UUID) -> list[SumRow]:
    """Operations in doubt by currency."""
    return all_rows(pool, SumRow, IN_DOUBT, {"tenant_id": tenant_id})


def refused_orders(pool: Pool, tenant_id: uuid.UUID) -> list[SumRow]:
    """Orders that wait for a person without an approval, by currency: the shop, the refund or the question was refused."""
    return all_rows(pool, SumRow, REFUSED_ORDERS, {"tenant_id": tenant_id})


def contradicted(pool: Pool, tenant_id: uuid.UUID) -> list[SumRow]:
    """Unresolved contradictions by currency: success was reported after a person said "not executed"."""
    return all_rows(pool, SumRow, CONTRADICTED, {"tenant_id": tenant_id})


def answers(pool: Pool, tenant_id: uuid.UUID) -> Answers:
    """The waiting times of the approvals decided in the last 24 hours, and how many expired."""
    found = one_row(pool, Answers, ANSWERS, {"tenant_id": tenant_id, "most": MOST_ANSWERS})
    assert found is not None
    return found


def ledger_load(pool: Pool, tenant_id: uuid.UUID) -> LedgerLoad:
    """Entries that are due, entries in ERROR, and findings at settlement systems; `pool` is the ledger's."""
    found = one_row(pool, LedgerLoad, LEDGER_LOAD, {"tenant_id": tenant_id})
    assert found is not None
    return found


def undelivered_alerts(pool: Pool, tenant_id: uuid.UUID) -> UndeliveredAlerts:
    """The number and age of the orders' undelivered alerts."""
    found = one_row(pool, UndeliveredAlerts, UNDELIVERED, {"tenant_id": tenant_id})
    assert found is not None
    return found


def decision_minutes(pool: Pool, tenant_id: uuid.UUID, *, since: int, minutes: int) -> list[MinuteRow]:
    """Decisions by minute from the minute `since` on, at most the last `minutes`; one row "NOW" has the current minute."""
    return all_rows(pool, MinuteRow, DECISION_MINUTES, {"tenant_id": tenant_id, "since": since, "minutes": minutes})
