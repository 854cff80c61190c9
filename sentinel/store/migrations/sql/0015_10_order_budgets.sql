-- An order is what a source (a shop) calls by its id on a channel, and it has one budget: what was paid for it, and what
-- of that is reserved, executed, handled by a person or in doubt. The functions and triggers stand in schema/refunds/budgets.sql.

alter table refunds.orders
  add column source text not null default '' check (source ~ '^[A-Za-z0-9._:/@-]{0,64}$');      -- '': no source was named
alter table refunds.order_flags
  add column source text not null default '' check (source ~ '^[A-Za-z0-9._:/@-]{0,64}$');
alter table refunds.orders_taken add column source text not null default '';
alter table refunds.ledger_entries
  add column source text not null default '' check (source ~ '^[A-Za-z0-9._:/@-]{0,64}$'),
  -- Which part of its order's budget the amount stands in; null: none, or the entry names no order.
  add column budget_part text check (budget_part in ('reserved', 'executed', 'handled', 'in_doubt'));

alter table refunds.orders drop constraint orders_pkey, add primary key (tenant_id, channel, source, order_ref);
alter table refunds.order_flags drop constraint order_flags_pkey, add primary key (tenant_id, channel, source, order_ref, flag);
alter table refunds.orders_taken drop constraint orders_taken_pkey, add primary key (order_ref, channel, source, tenant_id);

create table refunds.order_budgets (
  tenant_id         uuid not null,
  channel           text not null,
  source            text not null,
  order_ref         text not null,
  currency          text not null,
  paid_minor        bigint check (paid_minor >= 0),                        -- null: not known; then nothing goes without a person
  reserved_minor    bigint not null default 0 check (reserved_minor >= 0), -- permitted, or waits for a person's word
  executed_minor    bigint not null default 0 check (executed_minor >= 0),
  handled_minor     bigint not null default 0 check (handled_minor >= 0),  -- paid back by a person, elsewhere
  in_doubt_minor    bigint not null default 0 check (in_doubt_minor >= 0), -- begun, and nobody knows whether it was paid
  -- What the parts are more than was paid, through facts that no database can refuse: a person handled more than was left,
  -- or the source has lowered what was paid. Never through a permission.
  beyond_minor      bigint not null default 0 check (beyond_minor >= 0),
  uncounted_entries integer not null default 0 check (uncounted_entries >= 0), -- in a part, in another currency: no sum holds them
  primary key (tenant_id, channel, source, order_ref),
  constraint order_budget_not_exceeded
    check (reserved_minor + executed_minor + handled_minor + in_doubt_minor - beyond_minor <= paid_minor)
) with (fillfactor = 70);

-- Refunds that an analyst filed say where their order came from; the order's facts were theirs where they say the same.
alter table refunds.ledger_entries disable trigger check_transition;
update refunds.ledger_entries e set source = r.source
from orders.reviews r
where e.tenant_id = r.tenant_id and e.ledger_entry_id = orders.refund_name(r.source, r.order_id) and e.order_ref = r.order_id;
insert into refunds.orders (tenant_id, channel, source, order_ref, account_ref, ordered_at, paid_minor, currency)
select r.tenant_id, 'retail', r.source, r.order_id, r.account_ref,
  least(r.received_at, (r.order_facts->>'placed_at')::timestamptz), r.amount_minor, r.currency
from orders.reviews r where r.resolution = 'refund';
delete from refunds.orders o using orders.reviews r
where o.source = '' and o.channel = 'retail' and r.resolution = 'refund'
  and (o.tenant_id, o.order_ref, o.paid_minor, o.currency) = (r.tenant_id, r.order_id, r.amount_minor, r.currency);

-- Where the amounts of old entries stand. What waits for a person holds its amount as far as the order reaches, oldest first.
update refunds.ledger_entries set budget_part = case
  when status = 'EXECUTED' then 'executed'
  when status = 'DENIED' then 'handled'
  when status = 'ERROR' then 'in_doubt'
  else 'reserved' end
where order_ref is not null
  and (status in ('EXECUTED', 'ALLOWED') or status = 'DENIED' and reason_code = 'handled_by_person'
       or status in ('ERROR', 'GUARDING') and start_id is not null);
update refunds.ledger_entries e set budget_part = 'reserved'
from (
  select w.tenant_id, w.ledger_entry_id, o.paid_minor - coalesce(t.taken, 0) as room,
    sum(w.amount_minor) over (partition by w.tenant_id, w.channel, w.source, w.order_ref order by w.created_at, w.ledger_entry_id) as upto
  from refunds.ledger_entries w
  join refunds.orders o using (tenant_id, channel, source, order_ref)
  left join lateral (
    select sum(x.amount_minor) as taken from refunds.ledger_entries x
    where (x.tenant_id, x.channel, x.source, x.order_ref) = (w.tenant_id, w.channel, w.source, w.order_ref)
      and x.budget_part is not null) t on true
  where w.status = 'APPROVAL_REQUIRED' and w.waiting_for = 'operator' and w.currency = o.currency) waiting
where e.tenant_id = waiting.tenant_id and e.ledger_entry_id = waiting.ledger_entry_id and waiting.upto <= waiting.room;
alter table refunds.ledger_entries enable trigger check_transition;

insert into refunds.order_budgets (tenant_id, channel, source, order_ref, currency, paid_minor)
select tenant_id, channel, source, order_ref, currency, paid_minor from refunds.orders;
insert into refunds.order_budgets (tenant_id, channel, source, order_ref, currency)
select distinct on (tenant_id, channel, source, order_ref) tenant_id, channel, source, order_ref, currency
from refunds.ledger_entries where order_ref is not null
order by tenant_id, channel, source, order_ref, created_at, ledger_entry_id
on conflict do nothing;
update refunds.order_budgets b set
  reserved_minor = s.reserved, executed_minor = s.executed, handled_minor = s.handled, in_doubt_minor = s.in_doubt,
  beyond_minor = greatest(0, s.reserved + s.executed + s.handled + s.in_doubt - b.paid_minor), uncounted_entries = s.uncounted
from (
  select c.tenant_id, c.channel, c.source, c.order_ref,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'reserved'), 0) as reserved,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'executed'), 0) as executed,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'handled'), 0) as handled,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'in_doubt'), 0) as in_doubt,
    count(*) filter (where e.currency <> c.currency) as uncounted
  from refunds.order_budgets c join refunds.ledger_entries e using (tenant_id, channel, source, order_ref)
  where e.budget_part is not null group by 1, 2, 3, 4) s
where (b.tenant_id, b.channel, b.source, b.order_ref) = (s.tenant_id, s.channel, s.source, s.order_ref);

-- What may be executed holds its part of the order, whoever writes it.
alter table refunds.ledger_entries add constraint ledger_permitted_holds_budget
  check (order_ref is null or status not in ('ALLOWED', 'EXECUTED') or budget_part is not null);

create index ledger_in_doubt on refunds.ledger_entries (tenant_id, updated_at) where budget_part = 'in_doubt';

-- A refund is executed once. What was executed twice before this stays on record, named by the invariant `executed_twice`.
drop index refunds.executions_refund;
do $$
declare
  twice text := (select string_agg(distinct quote_literal(refund_id), ', ') from (
    select refund_id from refunds.executions group by tenant_id, refund_id having count(*) > 1) d);
begin
  execute 'create unique index executions_refund_once on refunds.executions (tenant_id, refund_id)'
    || coalesce(' where refund_id not in (' || twice || ')', '');
end $$;
