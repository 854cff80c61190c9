-- What 0015 could not tell of orders and entries from before it counts against their orders, or goes to a person.

-- An entry that was put back to wait may have been started before that, and paid: its amount is taken of its order until it
-- ends, like that of an entry under way. Its trail tells: the last permission was not followed by a start that was refused.
create temporary table begun on commit drop as
select e.tenant_id, e.ledger_entry_id, e.channel, e.source, e.order_ref from refunds.ledger_entries e
where e.order_ref is not null and e.budget_part is null and e.start_id is not null and e.status in ('NEW', 'APPROVAL_REQUIRED')
  and coalesce((select v.event from refunds.ledger_events v
                where v.tenant_id = e.tenant_id and v.ledger_entry_id = e.ledger_entry_id
                  and v.event in ('allowed', 'start_refused') order by v.event_id desc limit 1), 'allowed') = 'allowed';
alter table refunds.ledger_entries disable trigger user;
update refunds.ledger_entries e set budget_part = 'reserved' from begun
where (e.tenant_id, e.ledger_entry_id) = (begun.tenant_id, begun.ledger_entry_id);
alter table refunds.ledger_entries enable trigger user;
update refunds.order_budgets b set reserved_minor = s.reserved, uncounted_entries = s.uncounted,
  beyond_minor = greatest(0, s.reserved + b.executed_minor + b.handled_minor + b.in_doubt_minor - b.paid_minor)
from (
  select c.tenant_id, c.channel, c.source, c.order_ref,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'reserved'), 0) as reserved,
    count(*) filter (where e.currency <> c.currency and e.budget_part is not null) as uncounted
  from refunds.order_budgets c join refunds.ledger_entries e using (tenant_id, channel, source, order_ref)
  group by 1, 2, 3, 4) s
where (b.tenant_id, b.channel, b.source, b.order_ref) = (s.tenant_id, s.channel, s.source, s.order_ref)
  and (b.tenant_id, b.channel, b.source, b.order_ref) in (select tenant_id, channel, source, order_ref from begun);
drop table begun;

-- An order of which an analyst filed a refund before a source was part of its key, and one of the same id without a source:
-- nobody knows whether they are one order, so no further refund of either goes without a person. A source that tells its
-- order again, in whatever differs, says with it what was paid.
update refunds.order_budgets b set paid_minor = null
from orders.refunds f join orders.reviews r using (tenant_id, review_id)
join refunds.order_budgets bare on bare.tenant_id = r.tenant_id and bare.channel = 'retail' and bare.source = '' and bare.order_ref = r.order_id
where f.filed_by is null and b.tenant_id = r.tenant_id and b.channel = 'retail' and b.order_ref = r.order_id and b.source in ('', r.source);
