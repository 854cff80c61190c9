"""SQL of `reconcile.py`: wrong executions, found from the tables alone."""

from __future__ import annotations

from sentinel.store.sql_template import SqlTemplate

NOW = b"select clock_timestamp()"

# What stood against a refund counts if it did so when the refund was last looked at before its permit: the claim before
# the first `allowed` after which nothing was put back.
_ASKED_AT = """(
  select coalesce(max(v.occurred_at), s.executed_at) from refunds.ledger_events v
  where v.tenant_id = s.tenant_id and v.ledger_entry_id = s.ledger_entry_id and v.event in ('claimed', 'reclaimed')
    and v.event_id < (
      select min(w.event_id) from refunds.ledger_events w
      where w.tenant_id = s.tenant_id and w.ledger_entry_id = s.ledger_entry_id and w.event = 'allowed' and w.event_id > (
        select coalesce(max(u.event_id), 0) from refunds.ledger_events u
        where u.tenant_id = s.tenant_id and u.ledger_entry_id = s.ledger_entry_id and u.event in ('put_back', 'start_refused'))))"""

# Orders whose budget is exceeded by what could not be refused (`beyond`), or is not what its entries come to.
FIND_BUDGETS = """
select b.channel, b.source, b.order_ref, b.currency, b.paid_minor, b.reserved_minor, b.executed_minor, b.handled_minor,
  b.in_doubt_minor, b.beyond_minor, case when b.beyond_minor > 0 then 'beyond_paid' else 'sums_differ' end as finding
from refunds.order_budgets b
left join (
  select channel, source, order_ref, currency, sum(amount_minor) filter (where budget_part = 'reserved') as reserved,
    sum(amount_minor) filter (where budget_part = 'executed') as executed,
    sum(amount_minor) filter (where budget_part = 'handled') as handled,
    sum(amount_minor) filter (where budget_part = 'in_doubt') as in_doubt
  from refunds.ledger_entries where tenant_id = %(tenant_id)s and order_ref is not null and budget_part is not null
  group by 1, 2, 3, 4) s using (channel, source, order_ref, currency)
where b.tenant_id = %(tenant_id)s and (b.beyond_minor > 0
  or (b.reserved_minor, b.executed_minor, b.handled_minor, b.in_doubt_minor)
     <> (coalesce(s.reserved, 0), coalesce(s.executed, 0), coalesce(s.handled, 0), coalesce(s.in_doubt, 0)))
order by b.channel, b.source, b.order_ref limit 200
"""

# routes: [{channel, scenario, mode, switch, system, card, small, caps}]. A person's approval excuses what a person may
# decide; it excuses no other amount, no other system, no missing card and no second payment of one refund. A first look
# goes a day back.
FIND = SqlTemplate("""
with looked as (
  select coalesce((select c.looked_to from refunds.reconcile_cursors c where c.tenant_id = %(tenant_id)s), clock_timestamp() - interval '1 day') as at
), expected as (
  select r.* from jsonb_to_recordset(%(routes)s) as r
    (channel text, scenario text, mode text, switch text, system text, card boolean, small boolean, caps jsonb)
), recent as materialized (
  select x.tenant_id, x.execution_id, x.ledger_entry_id, x.refund_id, x.amount_minor, x.currency, x.system, x.executed_at,
    e.channel, e.scenario, e.mode, e.source, e.order_ref, e.amount_minor as asked_minor, e.currency as asked_currency,
    e.account_ref as row_account, e.refund_id as asked_refund, e.approval_id is not null as approved
  from refunds.executions x
  join refunds.ledger_entries e on e.tenant_id = x.tenant_id and e.ledger_entry_id = x.ledger_entry_id
  where x.tenant_id = %(tenant_id)s
    and (not %(since_last)s or x.executed_at > (select at from looked) - make_interval(secs => %(overlap)s))
), seen as (
  select x.*, r.switch, r.system as right_system, coalesce(r.card, false) as card, r.channel is not null as routed,
    coalesce(r.small, false) as small, (r.caps ->> x.currency)::bigint as cap_minor, o.order_ref is not null as has_order,
    o.paid_minor, o.currency as order_currency, o.account_ref as order_account
  from recent x
  left join expected r on r.channel = x.channel and r.scenario = x.scenario and r.mode is not distinct from x.mode
  left join refunds.orders o on o.tenant_id = x.tenant_id and o.channel = x.channel and o.source = x.source and o.order_ref = x.order_ref
)
select s.execution_id, s.ledger_entry_id, s.channel, s.scenario, coalesce(s.switch, %(master)s) as switch, f.finding
from seen s
cross join lateral (values
  ('amount_differs', (s.amount_minor, s.currency, s.refund_id) is distinct from (s.asked_minor, s.asked_currency, s.asked_refund)),
  ('no_route', not s.routed or s.right_system is null),
  ('other_system', s.right_system <> s.system),
  ('other_currency', s.order_currency <> s.currency and not s.approved),
  ('order_unknown', s.small and not s.has_order and not s.approved),
  ('over_a_tenth', s.small and s.amount_minor * 10 > s.paid_minor and not s.approved),
  ('over_cap', s.small and not s.approved and s.amount_minor > coalesce(s.cap_minor, 0)),
  ('not_confirmed', s.card and not exists (
    select from refunds.confirmations c where c.tenant_id = s.tenant_id and c.ledger_entry_id = s.ledger_entry_id
      and c.status = 'confirmed' and c.answered_at <= s.executed_at
      and (c.amount_minor, c.currency) = (s.amount_minor, s.currency))),
  ('refund_twice', exists (
    select from refunds.executions y where y.tenant_id = s.tenant_id and y.refund_id = s.refund_id
      and y.execution_id <> s.execution_id)),
  ('order_over_refunded', s.order_currency = s.currency and s.paid_minor < (
    select sum(z.amount_minor) from refunds.ledger_entries y join refunds.executions z using (tenant_id, ledger_entry_id)
    where y.tenant_id = s.tenant_id and y.channel = s.channel and y.source = s.source and y.order_ref = s.order_ref
      and z.currency = s.currency and z.executed_at <= s.executed_at)),
  ('order_twice', s.small and not s.approved and exists (
    select from refunds.ledger_entries y join refunds.executions z using (tenant_id, ledger_entry_id)
    where y.tenant_id = s.tenant_id and y.channel = s.channel and y.source = s.source and y.order_ref = s.order_ref
      and y.ledger_entry_id <> s.ledger_entry_id and z.executed_at <= s.executed_at)),
  ('blacklisted', not s.approved and exists (
    select from refunds.blacklist b where b.tenant_id = s.tenant_id and b.channel = s.channel
      and b.account_ref in (s.row_account, s.order_account) and b.since < {asked_at})),
  ('open_complaint', not s.approved and exists (
    select from refunds.order_flags g where g.tenant_id = s.tenant_id and g.channel = s.channel and g.source = s.source and g.order_ref = s.order_ref
      and g.flag = 'open_complaint' and g.since < {asked_at} and (g.closed_at is null or g.closed_at > s.executed_at)))
) as f (finding, holds)
where f.holds and (not %(since_last)s or not exists (
  select from refunds.wrong_executions w where w.tenant_id = s.tenant_id and w.execution_id = s.execution_id
    and w.finding = f.finding))
order by s.executed_at, s.execution_id
""").fill(asked_at=_ASKED_AT)

KEEP = """
insert into refunds.wrong_executions (tenant_id, execution_id, finding, ledger_entry_id, channel, scenario, switch)
select %(tenant_id)s, f.execution_id, f.finding, f.ledger_entry_id, f.channel, f.scenario, f.switch
from jsonb_to_recordset(%(findings)s) as f
  (execution_id uuid, finding text, ledger_entry_id text, channel text, scenario text, switch text)
on conflict do nothing
"""
MOVE_CURSOR = """
insert into refunds.reconcile_cursors as c (tenant_id, looked_to) values (%(tenant_id)s, %(looked_to)s)
on conflict (tenant_id) do update set looked_to = greatest(c.looked_to, excluded.looked_to)
"""
