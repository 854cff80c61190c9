"""All SQL of the refunds schema, one named constant per statement; `ledger.py` has the typed calls.

`statement_timestamp()` stands where an index must be usable (it is fixed for the statement), `clock_timestamp()` where
the moment itself counts. Every change of a row names the state and the epoch it expects.
"""

from __future__ import annotations

from typing import LiteralString

from sentinel.store.sql_template import SqlTemplate
from worker.refunds.risk_facts import LEDGER_SAYS, MANY_ORDERS

ROW_COLUMNS = """e.tenant_id, e.ledger_entry_id, e.refund_id, e.agent_id, e.action, e.amount_minor, e.currency, e.idempotency_key,
  e.channel, e.scenario, e.mode, e.account_ref, e.source, e.order_ref, e.claim_epoch, e.attempts, e.waits, e.guard_request::text as guard_request,
  e.operation_id, e.decision_event_id, e.decision, e.reason_code, e.permit_token, e.start_id, e.last_error,
  e.start_id is not null and e.act_until is not null as may_be_started,
  e.start_id is not null and refunds.is_begun_outside(e.tenant_id, e.ledger_entry_id) as is_begun_outside"""

# Claims rows whose lease expired. The CTE reads one table only: SKIP LOCKED over a join can return more rows than it
# locked. A worker whose key is bound to its agent (`agent`, else null) takes only that agent's rows; the authority
# refuses it the others. An attempt is counted if the holder disappeared while it held the row, since the row may have
# ended it; not if it released the lease, nor if the database was unavailable meanwhile, as the claimer (`blames` is
# false) or the server's start time shows.
CLAIM_EXPIRED = SqlTemplate("""
with due as materialized (
  select tenant_id, ledger_entry_id from refunds.ledger_entries
  where tenant_id = %(tenant_id)s and status in ('GUARDING', 'ALLOWED') and lease_until <= least(statement_timestamp(), %(until)s)
    and agent_id = coalesce(%(agent)s::text, agent_id)
  order by lease_until, ledger_entry_id limit %(limit)s for update skip locked)
update refunds.ledger_entries e set status = 'GUARDING', last_event = 'reclaimed', event_number = e.event_number + 1,
  claim_epoch = e.claim_epoch + 1,
  claimed_by = %(worker_id)s, lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
  attempts = e.attempts + (%(blames)s and e.claimed_by is not null
    and pg_postmaster_start_time() < e.lease_until - make_interval(secs => %(lease_seconds)s))::integer
from due where e.tenant_id = due.tenant_id and e.ledger_entry_id = due.ledger_entry_id
returning {row_columns}
""").fill(row_columns=ROW_COLUMNS)

# Claims due rows: new ones, ones that were put back, and ones whose approval was decided or expired.
_CLAIM_DUE = SqlTemplate("""
with due as materialized (
  select tenant_id, ledger_entry_id from refunds.ledger_entries e
  where tenant_id = %(tenant_id)s and status in ('NEW', 'APPROVAL_REQUIRED') and {is_due}
  order by {order} limit %(limit)s for update skip locked)
update refunds.ledger_entries e set status = 'GUARDING', last_event = 'claimed', event_number = e.event_number + 1,
  claim_epoch = e.claim_epoch + 1,
  claimed_by = %(worker_id)s, lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
  waiting_for = null
from due where e.tenant_id = due.tenant_id and e.ledger_entry_id = due.ledger_entry_id
returning {row_columns}
""")
# The due rows that the next claims would take; changes nothing.
_PEEK_DUE = SqlTemplate("""
select {row_columns} from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.status in ('NEW', 'APPROVAL_REQUIRED') and {is_due}
order by {order} limit %(limit)s
""")
# Uses the index ledger_due, and for one agent ledger_due_of_agent, whose columns are compared as a row value and all
# ordered by: with `agent_id = ...` the planner could take the order from ledger_due as well, and would scan past all
# due rows of other agents.
_DUE: tuple[LiteralString, LiteralString] = (
    "e.next_attempt_at <= least(statement_timestamp(), %(until)s)", "e.next_attempt_at, e.ledger_entry_id",
)  # fmt: skip
_DUE_OF_AGENT: tuple[LiteralString, LiteralString] = (
    "e.agent_id >= %(agent)s and (e.agent_id, e.next_attempt_at) <= (%(agent)s, least(statement_timestamp(), %(until)s))",
    "e.agent_id, e.next_attempt_at, e.ledger_entry_id",
)  # fmt: skip
CLAIM_DUE, CLAIM_DUE_OF_AGENT, PEEK_DUE, PEEK_DUE_OF_AGENT = (
    template.fill(row_columns=ROW_COLUMNS, is_due=is_due, order=order)
    for template in (_CLAIM_DUE, _PEEK_DUE)
    for is_due, order in (_DUE, _DUE_OF_AGENT)
)

# Rows that CLAIM_EXPIRED would take.
COUNT_LAPSED = """
select count(*)::integer from refunds.ledger_entries
where tenant_id = %(tenant_id)s and status in ('GUARDING', 'ALLOWED') and lease_until <= statement_timestamp()
  and agent_id = coalesce(%(agent)s::text, agent_id)
"""

FIND_ROWS = SqlTemplate("""
select {row_columns} from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = any (%(ids)s::text[]) order by array_position(%(ids)s::text[], e.ledger_entry_id)
""").fill(row_columns=ROW_COLUMNS)

# Claims a row in the name of a person who handled it elsewhere: a new one, one that waits and whose approval nobody can
# decide any more, or one whose lease expired before anything was begun. From then on no worker holds it or can claim it.
# Not one with an effect begun outside, which a halt may have put back: its system may have paid it.
CLAIM_TO_HANDLE = SqlTemplate("""
update refunds.ledger_entries e set status = 'GUARDING', event_number = e.event_number + 1, claim_epoch = e.claim_epoch + 1,
  last_event = case e.status when 'GUARDING' then 'reclaimed' else 'claimed' end,
  claimed_by = %(who)s, lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s), waiting_for = null
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = %(id)s and (
  e.status = 'NEW'
  or e.status = 'APPROVAL_REQUIRED' and (e.waiting_for = 'customer' or e.next_attempt_at <= clock_timestamp())
  or e.status = 'GUARDING' and e.lease_until <= clock_timestamp() and (e.start_id is null or e.act_until is null))
  and not refunds.is_begun_outside(e.tenant_id, e.ledger_entry_id)
returning {row_columns}
""").fill(row_columns=ROW_COLUMNS)
WHY_NOT_HANDLED = """
select case when e.status in ('EXECUTED', 'DENIED') then 'ended' when e.status = 'ERROR' then 'in_error'
  when e.status = 'APPROVAL_REQUIRED' then 'waits_for_person' else 'in_hand' end
from refunds.ledger_entries e where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = %(id)s
"""

# Renews the leases of this worker's rows that have not expired yet.
EXTEND_LEASES = """
update refunds.ledger_entries set lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
where tenant_id = %(tenant_id)s and ledger_entry_id = any (%(ids)s::text[]) and claimed_by = %(worker_id)s
  and status in ('GUARDING', 'ALLOWED') and lease_until > clock_timestamp()
"""


def name_without_source(account: LiteralString, source: LiteralString) -> LiteralString:
    """SQL for an account's name without its source in front, null if it has none: a blacklisted bare name counts for every source."""
    return f"case when starts_with({account}, {source} || ':') then substr({account}, length({source}) + 2) end"


# The facts of rows, from the ledger, the orders, their flags and the blacklist. A fact that the ledger cannot know is
# null. The earlier entry wins: an entry is a duplicate of one that came before it, or of one that is already being
# paid. Counts are capped, so that one busy account or text cannot make every row expensive; the policy's thresholds are
# far below.
GATHER_FACTS = SqlTemplate("""
select e.ledger_entry_id, e.risk::text as risk, e.reason, f.account_ref,
  jsonb_build_object({derived})::text as derived,
  exists (
    select from refunds.ledger_entries x
    where x.tenant_id = e.tenant_id and x.refund_id = e.refund_id and x.ledger_entry_id <> e.ledger_entry_id
      and (x.status in ('ALLOWED', 'EXECUTED') or x.status = 'DENIED' and x.reason_code = 'handled_by_person'
           or x.status in ('NEW', 'GUARDING', 'APPROVAL_REQUIRED') and (x.created_at, x.ledger_entry_id) < (e.created_at, e.ledger_entry_id))) as refund_seen,
  case when e.order_ref is null then null
    when b.currency is distinct from e.currency then 'other_currency'
    when e.budget_part is not null and b.beyond_minor = 0 then 'enough'
    when b.paid_minor is null or b.uncounted_entries > 0 then 'unknown'
    when b.paid_minor >= b.reserved_minor + b.executed_minor + b.handled_minor + b.in_doubt_minor
         + case when e.budget_part is null then e.amount_minor else 0 end then 'enough'
    else 'exceeded'
  end as order_budget,
  case when length(e.reason) >= 40 and f.account_ref is not null then (
    select count(distinct s.account_ref)::integer from (
      select x.account_ref from refunds.ledger_entries x
      where x.tenant_id = e.tenant_id and length(x.reason) >= 40
        and refunds.text_key(x.reason) = refunds.text_key(e.reason)
        and x.requested_at > e.requested_at - interval '7 days' and x.account_ref <> f.account_ref
        and (x.created_at, x.ledger_entry_id) < (e.created_at, e.ledger_entry_id) limit 200) as s)
  else 0 end as same_text_accounts,
  e.order_ref is not null and exists (
    select from refunds.order_flags g where g.tenant_id = e.tenant_id and g.channel = e.channel and g.source = e.source
      and g.order_ref = e.order_ref and g.flag = 'open_complaint' and g.closed_at is null) as open_complaint,
  e.order_ref is not null and exists (
    select from refunds.order_flags g where g.tenant_id = e.tenant_id and g.channel = e.channel and g.source = e.source
      and g.order_ref = e.order_ref and g.flag = 'delayed_shipment' and g.closed_at is null) as delayed_shipment,
  coalesce(e.account_ref <> o.account_ref, false) as account_mismatch,
  -- Also under the name without its source: a wrong match only asks a person.
  exists (select from refunds.blacklist b where b.tenant_id = e.tenant_id and b.channel = e.channel
          and b.account_ref in (e.account_ref, o.account_ref, {without_source})) as blacklisted,
  e.order_ref is not null and exists (
    select from refunds.ledger_entries x
    where x.tenant_id = e.tenant_id and x.channel = e.channel and x.source = e.source and x.order_ref = e.order_ref
      and x.ledger_entry_id <> e.ledger_entry_id
      and (x.status in ('ALLOWED', 'EXECUTED') or x.budget_part in ('handled', 'in_doubt')))
    or e.order_ref is not null and refunds.is_behind_question(e) as refunded_before,
  e.order_ref is not null and refunds.is_refunded_under_another_budget(e) as refunded_under_another_budget,
  case when o.order_ref is not null then jsonb_build_object(
    'order_ref', o.order_ref, 'channel', o.channel, 'source', o.source, 'account_ref', o.account_ref, 'ordered_at', o.ordered_at,
    'delivered_at', o.delivered_at, 'paid_minor', o.paid_minor, 'currency', o.currency,
    'shipping_fee_minor', o.shipping_fee_minor, 'item_paid_minor', o.item_paid_minor,
    'price_now_minor', o.price_now_minor, 'note', o.note)::text end as "order",
  extract(epoch from e.requested_at - coalesce(o.delivered_at, o.ordered_at))::double precision as request_age_seconds,
  (select count(*)::integer from refunds.proof_images i
   where i.tenant_id = e.tenant_id and i.ledger_entry_id = e.ledger_entry_id) as images,
  e.language, e.contact, e.escalation
from refunds.ledger_entries e
left join refunds.orders o on o.tenant_id = e.tenant_id and o.channel = e.channel and o.source = e.source and o.order_ref = e.order_ref
left join refunds.order_budgets b on b.tenant_id = e.tenant_id and b.channel = e.channel and b.source = e.source and b.order_ref = e.order_ref
cross join lateral (select coalesce(e.account_ref, o.account_ref) as account_ref,
  -- Of any tenant, so that no more than these are looked at: it only says which way is the shorter. OFFSET: counted once for each row.
  (select count(*) > {many_orders} from (
    select from refunds.orders ao where ao.account_ref = coalesce(e.account_ref, o.account_ref) limit {many_orders} + 1) n) as has_many_orders
  offset 0) f
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = any (%(ids)s::text[])
""").fill(
    derived=LEDGER_SAYS,
    many_orders=MANY_ORDERS,
    without_source=name_without_source("f.account_ref", "e.source"),
)

# What is left of orders, in minor units of the currency they were paid in; orders whose paid amount is unknown are left
# out.
FIND_LEFT = """
select b.channel, b.source, b.order_ref, b.currency,
  greatest(b.paid_minor - b.reserved_minor - b.executed_minor - b.handled_minor - b.in_doubt_minor, 0)
from refunds.order_budgets b
join jsonb_to_recordset(%(orders)s) as n (channel text, source text, order_ref text) using (channel, source, order_ref)
where b.tenant_id = %(tenant_id)s and b.paid_minor is not null
"""

# The guard request is fixed before it is first sent, and is the same at every attempt. If it encloses the start, the
# start id and the end of the time to act are stored before it is sent too.
FIX_REQUESTS = """
update refunds.ledger_entries e set guard_request = coalesce(e.guard_request, q.request), start_id = coalesce(e.start_id, q.start_id),
  act_until = case when q.start_id is null then e.act_until else clock_timestamp() + make_interval(secs => %(act_seconds)s) end
from jsonb_to_recordset(%(requests)s) as q (ledger_entry_id text, epoch bigint, request jsonb, start_id uuid)
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = q.ledger_entry_id and e.status = 'GUARDING'
  and e.claim_epoch = q.epoch
returning e.ledger_entry_id, e.start_id
"""

# Applies events to rows that are in the expected state and epoch; other rows are left alone, and so is a permission
# whose order another row has taken, or whose order's budget has no room for it (`schema/refunds/budgets.sql`). ALLOWED
# begins the time to act, before the start is asked for. The report to the authority is put into the outbox in the same
# transaction, or not at all. A refund that a person handled, or that may have been paid elsewhere, also takes its order
# if that is refunded once (in any channel not in `in_parts`), so that no permission asked for meanwhile refunds the
# order again.
# A row that is to wait until a moment that is over, as where the authority's database has a clock that is behind, waits
# for some seconds: it would be claimed again at once, and asked about again and again.
APPLY_CHANGES = """
with room as materialized (select r.ledger_entry_id, r.fits from refunds.changes_within_budget(%(tenant_id)s, %(changes)s) r),
taken as (
  insert into refunds.orders_taken (tenant_id, channel, source, order_ref, ledger_entry_id)
  select e.tenant_id, e.channel, e.source, e.order_ref, e.ledger_entry_id
  from jsonb_to_recordset(%(changes)s) as c (ledger_entry_id text, epoch bigint, from_status text, to_status text,
    reason_code text, takes_order boolean, in_doubt boolean)
  join refunds.ledger_entries e on e.tenant_id = %(tenant_id)s and e.ledger_entry_id = c.ledger_entry_id
    and e.claim_epoch = c.epoch and e.status = c.from_status
  left join room r on r.ledger_entry_id = c.ledger_entry_id
  where c.takes_order and r.fits
    or (c.in_doubt or c.to_status = 'DENIED' and c.reason_code = 'handled_by_person' or c.reason_code = 'executed_elsewhere')
      and e.order_ref is not null and e.channel <> all (%(in_parts)s::text[])
  order by e.order_ref, e.channel, e.source, e.created_at, e.ledger_entry_id
  on conflict do nothing returning ledger_entry_id),
trails as (
  insert into refunds.step_trails (tenant_id, ledger_entry_id, claim_epoch, steps)
  select %(tenant_id)s, c.ledger_entry_id, c.epoch, c.steps
  from jsonb_to_recordset(%(changes)s) as c (ledger_entry_id text, epoch bigint, from_status text, steps jsonb)
  join refunds.ledger_entries e on e.tenant_id = %(tenant_id)s and e.ledger_entry_id = c.ledger_entry_id
    and e.claim_epoch = c.epoch and e.status = c.from_status
  where c.steps is not null),
changed as (
update refunds.ledger_entries e set
  status = c.to_status, last_event = c.event, event_number = e.event_number + 1, decision = coalesce(c.decision, e.decision),
  reason_code = coalesce(c.reason_code, e.reason_code), operation_id = coalesce(c.operation_id, e.operation_id),
  decision_event_id = coalesce(c.decision_event_id, e.decision_event_id), proof_id = coalesce(c.proof_id, e.proof_id),
  approval_id = coalesce(c.approval_id, e.approval_id), permit_token = coalesce(c.permit_token, e.permit_token),
  start_id = coalesce(e.start_id, c.start_id), last_error = c.last_error,
  act_until = case when c.to_status = 'ALLOWED' then clock_timestamp() + make_interval(secs => %(act_seconds)s)
                   when not c.not_started then e.act_until end,
  attempts = case when c.to_status = 'APPROVAL_REQUIRED' then 0 else e.attempts + c.failures end,
  waits = case when c.outside then e.waits + 1 when c.to_status in ('GUARDING', 'ALLOWED') then e.waits else 0 end,
  waiting_for = case when c.to_status = 'APPROVAL_REQUIRED' then coalesce(c.waiting_for, 'operator') end,
  claimed_by = case when c.to_status in ('GUARDING', 'ALLOWED') then e.claimed_by end,
  lease_until = case when c.to_status in ('GUARDING', 'ALLOWED') then e.lease_until end,
  next_attempt_at = coalesce(case when c.due_at <= clock_timestamp() then clock_timestamp() + interval '10 seconds' else c.due_at end,
    clock_timestamp() + make_interval(secs => c.due_in_seconds), e.next_attempt_at),
  budget_part = case when c.in_doubt then 'in_doubt' when r.fits then coalesce(e.budget_part, 'reserved') else e.budget_part end
from jsonb_to_recordset(%(changes)s) as c (ledger_entry_id text, epoch bigint, from_status text, event text, to_status text,
  decision text, reason_code text, operation_id uuid, decision_event_id uuid, proof_id text, approval_id uuid,
  permit_token text, start_id uuid, last_error text, failures integer, outside boolean, due_at timestamptz, due_in_seconds double precision,
  waiting_for text, takes_order boolean, in_doubt boolean, not_started boolean, report_id uuid, report jsonb)
left join room r on r.ledger_entry_id = c.ledger_entry_id
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = c.ledger_entry_id and e.status = c.from_status
  and e.claim_epoch = c.epoch
  and (c.to_status <> 'ALLOWED' or e.order_ref is null or r.fits)
  and (not c.takes_order or e.ledger_entry_id in (select ledger_entry_id from taken) or exists (
    select from refunds.orders_taken t where t.order_ref = e.order_ref and t.channel = e.channel and t.source = e.source
      and t.tenant_id = e.tenant_id and t.ledger_entry_id = e.ledger_entry_id))
returning e.ledger_entry_id, e.start_id, c.report_id, c.report),
reports as (
  insert into refunds.outbox (tenant_id, outbox_id, ledger_entry_id, payload)
  select %(tenant_id)s, report_id, ledger_entry_id, report from changed where report_id is not null)
select ledger_entry_id, start_id from changed
"""
# Why a permission was not recorded: the order's budget has no room for it, or another row has taken the order.
FIND_REFUSED = """
select e.ledger_entry_id, case
  when b.currency <> e.currency then 'order_other_currency'
  when e.budget_part is null and b.paid_minor is null then 'order_paid_unknown'
  when b.paid_minor < b.reserved_minor + b.executed_minor + b.handled_minor + b.in_doubt_minor
    + case when e.budget_part is null then e.amount_minor else 0 end then 'order_overdrawn'
  when e.budget_part is null and b.uncounted_entries > 0 then 'order_paid_unknown'
  when t.ledger_entry_id <> e.ledger_entry_id or e.channel <> all (%(in_parts)s::text[]) and refunds.is_behind_question(e)
    then 'refunded_before' end as reason
from refunds.ledger_entries e
join refunds.order_budgets b on b.tenant_id = e.tenant_id and b.channel = e.channel and b.source = e.source and b.order_ref = e.order_ref
left join refunds.orders_taken t
  on t.order_ref = e.order_ref and t.channel = e.channel and t.source = e.source and t.tenant_id = e.tenant_id
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = any (%(ids)s::text[])
"""

# Rows that ended in doubt, with or without an order whose budget counts them: at most as many as one round can ask
# about, and a random page each time, so that rows which nobody resolves do not keep the others from being asked about,
# in any process. Rows with an unsent success report are left out: a person who decided without knowing of it settles
# nothing. With `agent`, only its rows, as in claims.
FIND_IN_DOUBT = SqlTemplate("""
with doubts as materialized (
  select e.ledger_entry_id, e.created_at from refunds.ledger_entries e
  where e.tenant_id = %(tenant_id)s and e.budget_part = 'in_doubt' and e.guard_request is not null
    and e.agent_id = coalesce(%(agent)s::text, e.agent_id)
    and not exists (
      select from refunds.outbox o where o.tenant_id = e.tenant_id and o.ledger_entry_id = e.ledger_entry_id
        and o.acknowledged_at is null and o.payload ->> 'outcome' = 'success')),
page as (
  select d.ledger_entry_id from doubts d order by d.created_at, d.ledger_entry_id limit %(limit)s
  offset (select floor(random() * ceil(count(*)::numeric / %(limit)s))::bigint * %(limit)s from doubts))
select {row_columns} from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id in (select p.ledger_entry_id from page p)
order by e.created_at, e.ledger_entry_id
""").fill(row_columns=ROW_COLUMNS)
SETTLE_DOUBTS = "select refunds.resolve_budget_doubts(%(tenant_id)s, %(resolutions)s)"

# Releases leases without an event, because the outcome is unknown: the row is claimed again and asked about again.
RELEASE_LEASES = """
with trails as (
  insert into refunds.step_trails (tenant_id, ledger_entry_id, claim_epoch, steps)
  select %(tenant_id)s, c.ledger_entry_id, c.epoch, c.steps
  from jsonb_to_recordset(%(rows)s) as c (ledger_entry_id text, epoch bigint, steps jsonb)
  join refunds.ledger_entries e on e.tenant_id = %(tenant_id)s and e.ledger_entry_id = c.ledger_entry_id
    and e.claim_epoch = c.epoch and e.status in ('GUARDING', 'ALLOWED')
  where c.steps is not null)
update refunds.ledger_entries e set claimed_by = null, last_error = c.last_error, waits = e.waits + c.outside::integer,
  lease_until = clock_timestamp() + make_interval(secs => c.due_in_seconds)
from jsonb_to_recordset(%(rows)s) as c (ledger_entry_id text, epoch bigint, last_error text, due_in_seconds double precision,
  outside boolean)
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = c.ledger_entry_id and e.claim_epoch = c.epoch
  and e.status in ('GUARDING', 'ALLOWED')
returning e.ledger_entry_id
"""

# Puts rows in ERROR back to NEW for a person; per row null, or why it was refused.
RETRY_ENTRIES = """
select ledger_entry_id, refusal from refunds.retry_entries(%(tenant_id)s, %(ids)s::text[], %(who)s, %(why)s)
"""

# Makes rows that waited for something outside due again, spread at random over `within_seconds` so that not all ask at
# once.
WAKE_PUT_OFF = """
with woken as (
  update refunds.ledger_entries set next_attempt_at = clock_timestamp() + random() * make_interval(secs => %(within_seconds)s)
  where tenant_id = %(tenant_id)s and status = 'NEW' and waits > 0
    and next_attempt_at > clock_timestamp() + make_interval(secs => %(within_seconds)s)
  returning 1)
update refunds.ledger_entries set lease_until = clock_timestamp() + random() * make_interval(secs => %(within_seconds)s)
where tenant_id = %(tenant_id)s and status in ('GUARDING', 'ALLOWED') and claimed_by is null and waits > 0
  and lease_until > clock_timestamp() + make_interval(secs => %(within_seconds)s)
"""

# Writes executions, EXECUTED and the reports in one transaction; the function checks epoch and lease.
RECORD_EXECUTIONS = "select refunds.record_executions(%(tenant_id)s, %(settled)s, %(shared)s)"

# Which executions are on record, for a commit whose answer was lost.
FIND_EXECUTIONS = """
select ledger_entry_id from refunds.executions where tenant_id = %(tenant_id)s and execution_id = any (%(ids)s::uuid[])
"""

# Claims open reports for one attempt: no worker sends them again before the pause is over. With `agent`, only those of
# its rows: the authority refuses this key the reports of another agent.
TAKE_REPORTS = """
with due as materialized (
  select tenant_id, outbox_id from refunds.outbox d
  where tenant_id = %(tenant_id)s and acknowledged_at is null and next_attempt_at <= statement_timestamp()
    and created_at <= statement_timestamp() - make_interval(secs => %(older_than_seconds)s)
    and (%(agent)s::text is null or exists (
      select from refunds.ledger_entries e
      where e.tenant_id = d.tenant_id and e.ledger_entry_id = d.ledger_entry_id and e.agent_id = %(agent)s::text))
  order by next_attempt_at limit %(limit)s for update skip locked)
update refunds.outbox o set attempts = o.attempts + 1,
  next_attempt_at = clock_timestamp() + make_interval(secs => %(retry_seconds)s)
from due where o.tenant_id = due.tenant_id and o.outbox_id = due.outbox_id
returning o.outbox_id, o.ledger_entry_id, o.payload, o.attempts
"""

ACKNOWLEDGE_REPORTS = """
update refunds.outbox set acknowledged_at = clock_timestamp(), last_error = null
where tenant_id = %(tenant_id)s and outbox_id = any (%(ids)s::uuid[]) and acknowledged_at is null
"""

# A report that failed is due again after a pause; one that was refused waits for a person.
POSTPONE_REPORTS = """
update refunds.outbox o set last_error = p.last_error,
  next_attempt_at = case when p.due_in_seconds is null then 'infinity'
                         else clock_timestamp() + make_interval(secs => p.due_in_seconds) end
from jsonb_to_recordset(%(reports)s) as p (outbox_id uuid, last_error text, due_in_seconds double precision)
where o.tenant_id = %(tenant_id)s and o.outbox_id = p.outbox_id and o.acknowledged_at is null
"""

# Reports that were refused for good: a person resends or discards them (`schema/refunds/executions.sql`).
FIND_PARKED_REPORTS = """
select o.outbox_id, o.ledger_entry_id, o.payload ->> 'outcome' as outcome, o.attempts, o.last_error, o.created_at, e.status
from refunds.outbox o left join refunds.ledger_entries e using (tenant_id, ledger_entry_id)
where o.tenant_id = %(tenant_id)s and o.acknowledged_at is null and o.next_attempt_at = 'infinity' order by o.created_at, o.outbox_id
"""
RESEND_REPORTS = """
update refunds.outbox set next_attempt_at = clock_timestamp(),
  last_error = left(%(said)s || coalesce('; it was refused with: ' || last_error, ''), 500)
where tenant_id = %(tenant_id)s and outbox_id = any (%(ids)s::uuid[]) and acknowledged_at is null and next_attempt_at = 'infinity'
returning outbox_id
"""
DISCARD_REPORTS = "select refunds.discard_reports(%(tenant_id)s, %(ids)s::uuid[], %(said)s)"

# From when on decisions are to be fetched: the cursor, or when the oldest waiting row was created if that is later,
# less an overlap; null when no row waits.
# A cursor that is ahead of the clock counts as none: the clock was set back since, and decisions of now are before it.
APPROVALS_WANTED_SINCE = """
select case when count(*) > 0 then least(clock_timestamp(), greatest(min(e.created_at), (
    select c.since from refunds.approval_cursors c
    where c.tenant_id = %(tenant_id)s and c.agent_id = %(agent_id)s and c.since <= clock_timestamp())))
  - make_interval(secs => %(overlap_seconds)s) end
from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.status = 'APPROVAL_REQUIRED' and e.waiting_for = 'operator'
  and e.next_attempt_at > statement_timestamp()
"""
# Only rows that wait for a person: the same decision is fetched more than once, and must not wake a row that waits for
# its customer.
WAKE_DECIDED = """
update refunds.ledger_entries set next_attempt_at = clock_timestamp()
where tenant_id = %(tenant_id)s and approval_id = any (%(approval_ids)s::uuid[]) and status = 'APPROVAL_REQUIRED'
  and waiting_for = 'operator'
  and next_attempt_at > clock_timestamp()
returning ledger_entry_id
"""
MOVE_CURSOR = """
insert into refunds.approval_cursors as c (tenant_id, agent_id, since)
values (%(tenant_id)s, %(agent_id)s, least(%(since)s, clock_timestamp()))
on conflict (tenant_id, agent_id) do update set
  since = case when c.since > clock_timestamp() then excluded.since else greatest(c.since, excluded.since) end
"""

SHOW_WORKER = """
insert into refunds.workers as w (tenant_id, worker_id, agent_id, mode, status, last_action, last_decision)
values (%(tenant_id)s, %(worker_id)s, %(agent_id)s, %(mode)s, %(status)s, %(last_action)s, %(last_decision)s)
on conflict (tenant_id, worker_id) do update set status = excluded.status, last_seen_at = clock_timestamp(),
  last_action = coalesce(excluded.last_action, w.last_action), last_decision = coalesce(excluded.last_decision, w.last_decision)
"""

# Deletes processes of the agent that were not seen for a day, at most 1,000 at a time: each single run is a process of
# its own. By ctid: a join planned while there were few rows would compare every pair of rows of a backlog.
FORGET_WORKERS = """
delete from refunds.workers where ctid = any (array(
  select ctid from refunds.workers
  where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s and worker_id <> %(worker_id)s
    and last_seen_at < statement_timestamp() - interval '1 day'
  limit 1000 for update skip locked))
"""

# Deletes operators' requests that were answered 30 days ago; by ctid for the same reason.
FORGET_PROCESS_REQUESTS = """
delete from refunds.process_requests where ctid = any (array(
  select ctid from refunds.process_requests
  where tenant_id = %(tenant_id)s and finished_at < statement_timestamp() - interval '30 days'
  limit 1000 for update skip locked))
"""

# Rows that have been due for a while and that no worker takes: those of agents other than `agent`, to which this
# worker's key is bound, of which no worker was seen lately. A worker whose key is bound to no agent would have taken
# them before.
FIND_UNTAKEN = """
select e.agent_id, count(*)::integer as entries from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.status in ('NEW', 'APPROVAL_REQUIRED')
  and e.next_attempt_at <= statement_timestamp() - make_interval(secs => %(due_seconds)s) and e.agent_id <> %(agent)s
  and not exists (
    select from refunds.workers w where w.tenant_id = e.tenant_id and w.agent_id = e.agent_id
      and w.last_seen_at > clock_timestamp() - make_interval(secs => %(silent_seconds)s))
group by e.agent_id order by e.agent_id
"""

# Claims one request of an operator, for one worker at a time and for as long as it may hold the row. A worker whose key
# is bound (`agent`) leaves it to the worker of another agent if only that agent has a due row. The subqueries name
# `q.tenant_id`, so that they run per request and not at each poll.
TAKE_PROCESS_REQUEST = """
with due as materialized (
  select q.tenant_id, q.request_id from refunds.process_requests q
  where q.tenant_id = %(tenant_id)s and q.finished_at is null
    and (q.lease_until is null or q.lease_until <= statement_timestamp())
    and (%(agent)s::text is null
      or exists (
        select from refunds.ledger_entries e
        where e.tenant_id = q.tenant_id and e.status in ('NEW', 'APPROVAL_REQUIRED')
          and e.next_attempt_at <= statement_timestamp() and e.agent_id = %(agent)s::text)
      or not exists (
        select from refunds.workers w
        where w.tenant_id = q.tenant_id and w.agent_id <> %(agent)s::text and w.mode = 'loop' and w.status <> 'stopped'
          and w.last_seen_at > clock_timestamp() - make_interval(secs => %(silent_seconds)s)
          and exists (
            select from refunds.ledger_entries e
            where e.tenant_id = q.tenant_id and e.status in ('NEW', 'APPROVAL_REQUIRED')
              and e.next_attempt_at <= statement_timestamp() and e.agent_id = w.agent_id)))
  order by q.requested_at limit 1 for update skip locked)
update refunds.process_requests r set claimed_by = %(worker_id)s,
  lease_until = clock_timestamp() + make_interval(secs => %(hold_seconds)s)
from due where r.tenant_id = due.tenant_id and r.request_id = due.request_id
returning r.request_id
"""
FINISH_PROCESS_REQUEST = """
update refunds.process_requests set finished_at = clock_timestamp(), result = %(result)s
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and claimed_by = %(worker_id)s and finished_at is null
"""

# Inserts new rows; a row without an account gets its order's.
ADD_ROWS = """
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, agent_id, action, amount_minor, currency, channel,
  scenario, account_ref, source, order_ref, requested_at, reason, risk, mode, language, contact)
select %(tenant_id)s, r.ledger_entry_id, r.refund_id, r.agent_id, r.action, r.amount_minor, r.currency, r.channel, r.scenario,
  coalesce(r.account_ref, o.account_ref), r.source, r.order_ref, coalesce(r.requested_at, clock_timestamp()), r.reason, r.risk,
  r.mode, r.language, r.contact
from jsonb_to_recordset(%(rows)s) as r (position integer, ledger_entry_id text, refund_id text, agent_id text, action text,
  amount_minor bigint, currency text, channel text, scenario text, account_ref text, source text, order_ref text,
  requested_at timestamptz, reason text, risk jsonb, mode text, language text, contact text)
left join refunds.orders o on o.tenant_id = %(tenant_id)s and o.channel = r.channel and o.source = r.source and o.order_ref = r.order_ref
order by r.position
on conflict (tenant_id, ledger_entry_id) do nothing
returning ledger_entry_id
"""
# Those of the rows that name no account and whose order names none either: they share one budget (decision 0006).
COUNT_WITHOUT_ACCOUNT = """
select currency, count(*)::integer as entries, sum(amount_minor)::bigint as amount_minor from refunds.ledger_entries
where tenant_id = %(tenant_id)s and ledger_entry_id = any (%(ids)s::text[]) and account_ref is null
group by currency order by currency
"""
# Those of the rows, in channels whose orders may be unknown, that belong to no order in the ledger and do not say
# either whether they were requested in time (`stale_window`).
COUNT_WITHOUT_ORDER = """
select count(*)::integer from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = any (%(ids)s::text[]) and e.channel = any (%(channels)s::text[])
  and not e.risk ? 'stale_window' and not exists (
    select from refunds.orders o
    where o.tenant_id = e.tenant_id and o.channel = e.channel and o.source = e.source and o.order_ref = e.order_ref)
"""
# Importing the same order again changes nothing. A corrected order replaces the fields that it states and keeps the
# others, except amounts when the currency changed: they were never stated in the new currency.
ADD_ORDERS = """
insert into refunds.orders as o (tenant_id, channel, source, order_ref, account_ref, ordered_at, paid_minor, currency, delivered_at,
  shipping_fee_minor, item_paid_minor, price_now_minor, note, payment_ref)
select %(tenant_id)s, n.channel, n.source, n.order_ref, n.account_ref, n.ordered_at, n.paid_minor, n.currency, n.delivered_at,
  n.shipping_fee_minor, n.item_paid_minor, n.price_now_minor, n.note, n.payment_ref
from jsonb_to_recordset(%(orders)s) as n (channel text, source text, order_ref text, account_ref text, ordered_at timestamptz,
  paid_minor bigint, currency text, delivered_at timestamptz, shipping_fee_minor bigint, item_paid_minor bigint,
  price_now_minor bigint, note text, payment_ref text)
on conflict (tenant_id, channel, source, order_ref) do update set
  account_ref = coalesce(excluded.account_ref, o.account_ref),
  ordered_at = excluded.ordered_at, paid_minor = excluded.paid_minor, currency = excluded.currency,
  delivered_at = coalesce(excluded.delivered_at, o.delivered_at),
  shipping_fee_minor = coalesce(excluded.shipping_fee_minor, case when o.currency = excluded.currency then o.shipping_fee_minor end),
  item_paid_minor = coalesce(excluded.item_paid_minor, case when o.currency = excluded.currency then o.item_paid_minor end),
  price_now_minor = coalesce(excluded.price_now_minor, case when o.currency = excluded.currency then o.price_now_minor end),
  note = coalesce(excluded.note, o.note), payment_ref = coalesce(excluded.payment_ref, o.payment_ref), recorded_at = clock_timestamp()
where (o.ordered_at, o.paid_minor, o.currency) is distinct from (excluded.ordered_at, excluded.paid_minor, excluded.currency)
   or coalesce(excluded.account_ref <> o.account_ref, excluded.account_ref is not null)
   or coalesce(excluded.delivered_at <> o.delivered_at, excluded.delivered_at is not null)
   or coalesce(excluded.shipping_fee_minor <> o.shipping_fee_minor, excluded.shipping_fee_minor is not null)
   or coalesce(excluded.item_paid_minor <> o.item_paid_minor, excluded.item_paid_minor is not null)
   or coalesce(excluded.price_now_minor <> o.price_now_minor, excluded.price_now_minor is not null)
   or coalesce(excluded.note <> o.note, excluded.note is not null)
   or coalesce(excluded.payment_ref <> o.payment_ref, excluded.payment_ref is not null)
returning order_ref
"""
# Sets flags against orders: an open flag that is set again stays as it is, `closed` closes it, and closing it again
# keeps the first time. A closed flag that is set again is open from now on.
FLAG_ORDERS = """
insert into refunds.order_flags as f (tenant_id, channel, source, order_ref, flag, closed_at)
select %(tenant_id)s, n.channel, coalesce(n.source, ''), n.order_ref, n.flag, case when n.closed then clock_timestamp() end
from jsonb_to_recordset(%(flags)s) as n (channel text, source text, order_ref text, flag text, closed boolean)
on conflict (tenant_id, channel, source, order_ref, flag) do update set
  closed_at = case when excluded.closed_at is not null then coalesce(f.closed_at, excluded.closed_at) end,
  since = case when f.closed_at is not null and excluded.closed_at is null then clock_timestamp() else f.since end
returning order_ref
"""
BLACKLIST_ACCOUNTS = """
insert into refunds.blacklist (tenant_id, channel, account_ref)
select %(tenant_id)s, n.channel, n.account_ref from jsonb_to_recordset(%(accounts)s) as n (channel text, account_ref text)
on conflict (tenant_id, channel, account_ref) do nothing
returning account_ref
"""
ADD_IMAGE = """
insert into refunds.proof_images (tenant_id, ledger_entry_id, sha256, media_type, content)
values (%(tenant_id)s, %(ledger_entry_id)s, %(sha256)s, %(media_type)s, %(content)s)
on conflict (tenant_id, ledger_entry_id, sha256) do nothing
"""
# Without the images' bytes: those of a whole batch could exceed the statement timeout or the memory.
FIND_IMAGES = """
select ledger_entry_id, sha256, media_type, recognised::text as recognised from refunds.proof_images
where tenant_id = %(tenant_id)s and ledger_entry_id = any (%(ids)s::text[]) order by ledger_entry_id, received_at, sha256
"""
FIND_IMAGE_CONTENT = """
select content from refunds.proof_images
where tenant_id = %(tenant_id)s and ledger_entry_id = %(ledger_entry_id)s and sha256 = %(sha256)s
"""
KEEP_READING = """
update refunds.proof_images set recognised = %(reading)s, recognised_by = %(recogniser)s
where tenant_id = %(tenant_id)s and ledger_entry_id = %(ledger_entry_id)s and sha256 = %(sha256)s and recognised is null
"""

# A row's life for `worker workflow explain`: its events and the steps that led to them, by time.
EXPLAIN_ENTRY = SqlTemplate("""
select {row_columns}, e.status, e.waiting_for, e.next_attempt_at from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = %(id)s
""").fill(row_columns=ROW_COLUMNS)
EXPLAIN_EVENTS = """
select kind, occurred_at, claim_epoch, title, event, reason_code, worker, steps, note from (
select 'event' as kind, occurred_at, claim_epoch, from_status || ' → ' || to_status as title, event, reason_code, worker,
  null::jsonb as steps, note
from refunds.ledger_events where tenant_id = %(tenant_id)s and ledger_entry_id = %(id)s
union all
select 'steps', occurred_at, claim_epoch, null, null, null, null, steps, null
from refunds.trails where tenant_id = %(tenant_id)s and ledger_entry_id = %(id)s) life
order by claim_epoch, case when event in ('claimed', 'reclaimed') then 0 when event = 'allowed' then 1 when kind = 'steps' then 2
  else 3 end, occurred_at
"""

SUMMARISE = """
select status, decision, reason_code, currency, count(*) as entries, sum(amount_minor)::bigint as amount_minor
from refunds.ledger_entries where tenant_id = %(tenant_id)s
group by status, decision, reason_code, currency order by status, decision, reason_code, currency
"""
# The unfinished rows, as `e`: a union, so that each half uses its partial index; one `in` over all four states could
# use neither.
_OPEN_ROWS: LiteralString = """(
  select status, next_attempt_at, lease_until, waits, claimed_by from refunds.ledger_entries
  where tenant_id = %(tenant_id)s and status in ('NEW', 'APPROVAL_REQUIRED')
  union all
  select status, next_attempt_at, lease_until, waits, claimed_by from refunds.ledger_entries
  where tenant_id = %(tenant_id)s and status in ('GUARDING', 'ALLOWED')) e"""
# Counts of what is unfinished, by why a run did not process it.
COUNT_OPEN = SqlTemplate("""
select count(*) filter (where status in ('NEW', 'APPROVAL_REQUIRED') and next_attempt_at <= statement_timestamp()) as due,
  count(*) filter (where status = 'NEW' and next_attempt_at > statement_timestamp()) as paused,
  count(*) filter (where status = 'APPROVAL_REQUIRED') as waiting,
  count(*) filter (where status in ('GUARDING', 'ALLOWED')) as held,
  (select count(*) from refunds.outbox where tenant_id = %(tenant_id)s and acknowledged_at is null) as unreported,
  count(*) filter (where waits > 0 and (status = 'NEW' and next_attempt_at > statement_timestamp()
                                        or status in ('GUARDING', 'ALLOWED') and claimed_by is null)) as put_off
from {open_rows}
""").fill(open_rows=_OPEN_ROWS)
# The worker's gauges.
FIGURES = SqlTemplate("""
select o.due, o.lag_seconds, o.waiting, o.put_off, o.held, o.lapsed, f.errors, r.outbox_open, r.outbox_parked, s.settlement_findings from
  (select count(*) filter (where is_due) as due,
     coalesce(extract(epoch from statement_timestamp() - min(next_attempt_at) filter (where is_due)), 0)::double precision as lag_seconds,
     count(*) filter (where status = 'APPROVAL_REQUIRED') as waiting,
     count(*) filter (where waits > 0 and (status = 'NEW' or claimed_by is null)) as put_off,
     count(*) filter (where status in ('GUARDING', 'ALLOWED') and claimed_by is not null and not has_lapsed) as held,
     count(*) filter (where status in ('GUARDING', 'ALLOWED') and has_lapsed) as lapsed
   from (select status, next_attempt_at, waits, claimed_by,
           status in ('NEW', 'APPROVAL_REQUIRED') and next_attempt_at <= statement_timestamp() as is_due,
           coalesce(lease_until <= statement_timestamp(), false) as has_lapsed
         from {open_rows}) rows_now) o,
  (select count(*) as errors from refunds.ledger_entries where tenant_id = %(tenant_id)s and status = 'ERROR') f,
  (select count(*) as outbox_open, count(*) filter (where next_attempt_at = 'infinity') as outbox_parked
   from refunds.outbox where tenant_id = %(tenant_id)s and acknowledged_at is null) r,
  (select count(*) as settlement_findings from refunds.settlement_findings
   where tenant_id = %(tenant_id)s and found_at > statement_timestamp() - interval '24 hours') s
""").fill(open_rows=_OPEN_ROWS)
NOW = "select clock_timestamp()"
DEFAULT_TENANT = "select refunds.default_tenant()"
