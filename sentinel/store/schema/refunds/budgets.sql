-- The budget of an order: one row for each tenant, channel, source and order, which every refund of it takes from.
--
-- An entry says in `budget_part` where its amount stands; triggers keep the row equal to the sums of its entries, so no way
-- of handling an entry passes it by, and the constraint `order_budget_not_exceeded` ends what would exceed it. Entries are
-- locked before budgets, and budgets in the order of their key.

-- One order's budget. Parts in the minor unit of `currency`; their sum is within what was paid, beside beyond_minor.
create table refunds.order_budgets (
  tenant_id         uuid not null,
  channel           text not null,
  source            text not null,
  order_ref         text not null,
  currency          text not null,
  paid_minor        bigint check (paid_minor >= 0),                        -- null: not known; then nothing goes without a person
  reserved_minor    bigint not null default 0 check (reserved_minor >= 0), -- permitted, or waits for a person's decision
  executed_minor    bigint not null default 0 check (executed_minor >= 0),
  handled_minor     bigint not null default 0 check (handled_minor >= 0),  -- paid back by a person, elsewhere
  in_doubt_minor    bigint not null default 0 check (in_doubt_minor >= 0), -- begun, and nobody knows whether it was paid
  -- What the parts are more than was paid, through facts that no database can refuse: a person handled more than was left, an entry
  -- that held no part may have been paid elsewhere, or the source has lowered what was paid. Never through a permission.
  beyond_minor      bigint not null default 0 check (beyond_minor >= 0),
  uncounted_entries integer not null default 0 check (uncounted_entries >= 0), -- in a part, in another currency: no sum holds them
  primary key (tenant_id, channel, source, order_ref),
  constraint order_budget_not_exceeded
    check (reserved_minor + executed_minor + handled_minor + in_doubt_minor - beyond_minor <= paid_minor)
) with (fillfactor = 70);

-- Where an order is refunded once without a person's decision, one entry takes it, in the statement that records the permission:
-- entries that are looked at at the same time do not see each other. What lets its amount go gives the order back.
create table refunds.orders_taken (
  tenant_id       uuid not null,
  channel         text not null,
  order_ref       text not null,
  ledger_entry_id text not null,                                           -- the one entry that has it
  taken_at        timestamptz not null default clock_timestamp(),
  source          text not null default '',
  primary key (order_ref, channel, source, tenant_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);

-- Whether a person is asked about another entry of the order and was never asked about this one: the person may refund the order by
-- hand, and the ledger learns of it later.
create or replace function refunds.is_behind_question(e refunds.ledger_entries) returns boolean language sql stable as $$
  select e.approval_id is null and exists (
    select from refunds.ledger_entries x
    where x.tenant_id = e.tenant_id and x.channel = e.channel and x.source = e.source and x.order_ref = e.order_ref
      and x.ledger_entry_id <> e.ledger_entry_id and x.approval_id is not null and x.status in ('NEW', 'GUARDING', 'APPROVAL_REQUIRED'))
$$;

-- Of a refund that an analyst filed, whether an order of the same id was refunded, or may yet be, under a budget that may be this order's
-- too: by rows that name no source, or in another channel of the same source.
create or replace function refunds.is_refunded_under_another_budget(e refunds.ledger_entries) returns boolean language sql stable as $$
  select coalesce(e.escalation = 'analyst_refund', false) and exists (
    select from refunds.ledger_entries x
    where x.tenant_id = e.tenant_id and x.order_ref = e.order_ref and x.source in ('', e.source)
      and (x.channel, x.source) <> (e.channel, e.source) and (x.budget_part is not null or x.status not in ('DENIED', 'ERROR')))
$$;

-- Which of these changes find room. A permission (`to_status` ALLOWED) that finds none is not given; a question to a person
-- that finds some holds it, so that what the person does meanwhile, here or elsewhere, is not lent to another refund.
-- What a person let pass although nobody knows what was paid comes with `unknown_lifted`. What takes its order (`takes_order`: it is
-- refunded once without a person) finds no room while a person is asked about another entry of it and was never asked about this one:
-- what the person pays by hand is known here later. Looked at behind the lock of the budget, which a question to a person takes too.
-- changes: [{ledger_entry_id, epoch, from_status, event, to_status, takes_order, unknown_lifted}]
create or replace function refunds.changes_within_budget(tenant uuid, changes jsonb) returns table (ledger_entry_id text, fits boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  wanted text[];
  one record;
  left_minor bigint;                                                       -- of the order, for those that come after
begin
  wanted := array(
    select e.ledger_entry_id from refunds.ledger_entries e
    join jsonb_to_recordset(changes) as c (ledger_entry_id text, epoch bigint, from_status text, event text)
      on c.ledger_entry_id = e.ledger_entry_id and c.epoch = e.claim_epoch and c.from_status = e.status
    where e.tenant_id = tenant and e.order_ref is not null and c.event in ('allowed', 'approval_required')
    order by e.ledger_entry_id for update of e);
  if wanted = '{}' then return; end if;
  perform from refunds.order_budgets b
  where (b.tenant_id, b.channel, b.source, b.order_ref) in (
    select e.tenant_id, e.channel, e.source, e.order_ref from refunds.ledger_entries e
    where e.tenant_id = tenant and e.ledger_entry_id = any (wanted))
  order by b.tenant_id, b.channel, b.source, b.order_ref for update;
  for one in
    select e.ledger_entry_id, e.budget_part, e.start_id, e.amount_minor, e.currency = b.currency as same_currency, c.event,
      coalesce(c.unknown_lifted, false) as lifted, b.paid_minor, b.uncounted_entries, b.beyond_minor,
      coalesce(c.takes_order, false) and e.approval_id is null
        and not exists (
          select from refunds.orders_taken t
          where (t.order_ref, t.channel, t.source, t.tenant_id) = (e.order_ref, e.channel, e.source, e.tenant_id)
            and t.ledger_entry_id = e.ledger_entry_id)
        and refunds.is_behind_question(e) as is_behind_question,
      b.paid_minor - b.reserved_minor - b.executed_minor - b.handled_minor - b.in_doubt_minor as room,
      row_number() over (partition by e.channel, e.source, e.order_ref order by e.created_at, e.ledger_entry_id) = 1 as is_first
    from jsonb_to_recordset(changes) as c (ledger_entry_id text, event text, takes_order boolean, unknown_lifted boolean)
    join refunds.ledger_entries e on e.tenant_id = tenant and e.ledger_entry_id = c.ledger_entry_id
    join refunds.order_budgets b on (b.tenant_id, b.channel, b.source, b.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
    where e.ledger_entry_id = any (wanted)
    order by e.channel, e.source, e.order_ref, e.created_at, e.ledger_entry_id
  loop
    if one.is_first then left_minor := one.room; end if;
    ledger_entry_id := one.ledger_entry_id;
    fits := coalesce(case
      -- What has been begun is seen through: its amount is counted already, and it may have been paid.
      when one.budget_part is not null and one.start_id is not null then true
      when one.is_behind_question then false
      when one.budget_part is not null then one.same_currency and one.beyond_minor = 0
      when not one.same_currency then false
      when one.paid_minor is null then one.lifted and one.event = 'allowed'
      else (one.uncounted_entries = 0 or one.lifted) and one.amount_minor <= left_minor end, false);
    -- What does not fit does not stand in the way of what does.
    if fits and one.budget_part is null then left_minor := left_minor - one.amount_minor; end if;
    return next;
  end loop;
end $$;

-- Where an entry's amount stands after a change of its status. A part is taken with a permission or a question to a person,
-- kept until the entry ends, and then it is what the end was. What has ended in doubt is let go by what the authority answers alone; so
-- that it is asked about, an entry that names no order is in doubt there too, although no budget counts it. What was executed and sent back
-- by a bank is let go by that finding alone. What was begun outside is not denied: a restored authority may have forgotten its start.
create or replace function refunds.set_budget_part() returns trigger language plpgsql as $$
begin
  if new.status = 'DENIED' and old.status <> 'DENIED' and new.start_id is not null and new.reason_code is distinct from 'handled_by_person'
     and refunds.is_begun_outside(new.tenant_id, new.ledger_entry_id) then
    raise exception '% was begun outside and may have been paid', new.ledger_entry_id
      using errcode = 'check_violation', constraint = 'ledger_begun_not_denied';
  end if;
  if new.status <> old.status then
    new.budget_part := case new.status
      when 'EXECUTED' then 'executed'
      when 'DENIED' then case when new.reason_code = 'handled_by_person' then 'handled' end
      -- A start that was refused, for now or for good, is where a start id is known and surely nothing happened, but where something was
      -- begun outside before; what a person called executed is no doubt.
      when 'ERROR' then case when new.reason_code = 'executed_elsewhere' then 'handled' when new.budget_part = 'in_doubt'
        or new.start_id is not null and new.last_event <> 'not_executed'
          and (old.last_event is distinct from 'start_refused' or refunds.is_begun_outside(new.tenant_id, new.ledger_entry_id))
          and (new.order_ref is not null or refunds.may_be_started(new)) then 'in_doubt' end
      else new.budget_part end;
  end if;
  if new.budget_part is distinct from old.budget_part and not coalesce(case
       when new.status in ('EXECUTED', 'DENIED', 'ERROR') and new.status <> old.status then true
       when old.status = 'ERROR' and new.status = 'ERROR' then old.budget_part = 'in_doubt' and coalesce(new.budget_part, 'handled') = 'handled'
       when old.status = 'EXECUTED' and new.status = 'EXECUTED' then
         old.budget_part = 'executed' and new.budget_part = 'returned' and refunds.was_sent_back(new)
       else old.budget_part is null and new.budget_part = 'reserved' and new.status in ('ALLOWED', 'APPROVAL_REQUIRED')
         and new.status <> old.status end, false)
     or old.budget_part = 'in_doubt' and new.status <> old.status then
    raise exception 'no way from % to % for the amount of %', coalesce(old.budget_part, 'no part'),
      coalesce(new.budget_part, 'no part'), new.ledger_entry_id using errcode = 'check_violation', constraint = 'ledger_budget_part';
  end if;
  return new;
end $$;

-- The row follows its entries, once per statement. With its owner's rights: no program may write a budget itself. An entry that ended
-- without a payment, and so holds no part of the order any more, gives the order back too (`orders_taken`).
create or replace function refunds.update_order_budgets() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  -- What names no order is most of what moves: nothing is compared for it.
  if not exists (select from moved_to n where n.order_ref is not null) then
    return null;
  end if;
  if not exists (
    select from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
    where n.order_ref is not null and n.budget_part is distinct from o.budget_part) then
    return null;
  end if;
  perform from refunds.order_budgets b
  where (b.tenant_id, b.channel, b.source, b.order_ref) in (
    select n.tenant_id, n.channel, n.source, n.order_ref
    from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
    where n.order_ref is not null and n.budget_part is distinct from o.budget_part)
  order by b.tenant_id, b.channel, b.source, b.order_ref for update;
  update refunds.order_budgets b set
    reserved_minor = b.reserved_minor + d.reserved, executed_minor = b.executed_minor + d.executed,
    handled_minor = b.handled_minor + d.handled, in_doubt_minor = b.in_doubt_minor + d.in_doubt,
    uncounted_entries = b.uncounted_entries + d.uncounted,
    beyond_minor = least(case when d.is_fact then null else b.beyond_minor end, greatest(0,
      b.reserved_minor + b.executed_minor + b.handled_minor + b.in_doubt_minor
      + d.reserved + d.executed + d.handled + d.in_doubt - b.paid_minor))
  from (
    select c.tenant_id, c.channel, c.source, c.order_ref,
      coalesce(sum(m.amount_minor * m.reserved) filter (where m.currency = c.currency), 0) as reserved,
      coalesce(sum(m.amount_minor * m.executed) filter (where m.currency = c.currency), 0) as executed,
      coalesce(sum(m.amount_minor * m.handled) filter (where m.currency = c.currency), 0) as handled,
      coalesce(sum(m.amount_minor * m.in_doubt) filter (where m.currency = c.currency), 0) as in_doubt,
      coalesce(sum(m.reserved + m.executed + m.handled + m.in_doubt) filter (where m.currency <> c.currency), 0) as uncounted,
      bool_or(m.is_fact) as is_fact
    from (
      select n.tenant_id, n.channel, n.source, n.order_ref, n.currency, n.amount_minor,
        (coalesce(n.budget_part, '') = 'reserved')::int - (coalesce(o.budget_part, '') = 'reserved')::int as reserved,
        (coalesce(n.budget_part, '') = 'executed')::int - (coalesce(o.budget_part, '') = 'executed')::int as executed,
        (coalesce(n.budget_part, '') = 'handled')::int - (coalesce(o.budget_part, '') = 'handled')::int as handled,
        (coalesce(n.budget_part, '') = 'in_doubt')::int - (coalesce(o.budget_part, '') = 'in_doubt')::int as in_doubt,
        -- It has happened, whether there was room or not.
        o.budget_part is null and n.budget_part in ('handled', 'in_doubt') as is_fact
      from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
      where n.order_ref is not null and n.budget_part is distinct from o.budget_part) m
    join refunds.order_budgets c on (c.tenant_id, c.channel, c.source, c.order_ref) = (m.tenant_id, m.channel, m.source, m.order_ref)
    group by 1, 2, 3, 4) d
  where (b.tenant_id, b.channel, b.source, b.order_ref) = (d.tenant_id, d.channel, d.source, d.order_ref);
  if exists (select from moved_to n where n.status in ('DENIED', 'ERROR') and n.order_ref is not null and n.budget_part is null) then
    delete from refunds.orders_taken t using moved_to n
    where n.status in ('DENIED', 'ERROR') and n.budget_part is null
      and (t.order_ref, t.channel, t.source, t.tenant_id) = (n.order_ref, n.channel, n.source, n.tenant_id) and t.ledger_entry_id = n.ledger_entry_id;
  end if;
  return null;
end $$;

-- An order that an entry names has its row before anything can be taken from it.
create or replace function refunds.open_order_budgets() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.order_budgets (tenant_id, channel, source, order_ref, currency, paid_minor)
  select distinct on (n.tenant_id, n.channel, n.source, n.order_ref)
    n.tenant_id, n.channel, n.source, n.order_ref, coalesce(o.currency, n.currency), o.paid_minor
  from entered n
  left join refunds.orders o on (o.tenant_id, o.channel, o.source, o.order_ref) = (n.tenant_id, n.channel, n.source, n.order_ref)
  where n.order_ref is not null
  order by n.tenant_id, n.channel, n.source, n.order_ref, n.created_at, n.ledger_entry_id
  on conflict do nothing;
  return null;
end $$;

-- What the source says was paid; where it corrects itself to less than is taken, nothing is left and the rest is `beyond`.
create or replace function refunds.update_order_paid() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.order_budgets as b (tenant_id, channel, source, order_ref, currency, paid_minor)
  select w.tenant_id, w.channel, w.source, w.order_ref, w.currency, w.paid_minor from written w
  order by w.tenant_id, w.channel, w.source, w.order_ref
  on conflict (tenant_id, channel, source, order_ref) do update set paid_minor = excluded.paid_minor,
    beyond_minor = greatest(0, b.reserved_minor + b.executed_minor + b.handled_minor + b.in_doubt_minor - excluded.paid_minor)
  where b.currency <> excluded.currency or b.paid_minor is distinct from excluded.paid_minor;
  -- In another currency than was thought: everything is counted anew.
  update refunds.order_budgets b set currency = s.currency,
    reserved_minor = s.reserved, executed_minor = s.executed, handled_minor = s.handled, in_doubt_minor = s.in_doubt,
    beyond_minor = greatest(0, s.reserved + s.executed + s.handled + s.in_doubt - b.paid_minor), uncounted_entries = s.uncounted
  from (
    select w.tenant_id, w.channel, w.source, w.order_ref, w.currency,
      coalesce(sum(e.amount_minor) filter (where e.currency = w.currency and e.budget_part = 'reserved'), 0) as reserved,
      coalesce(sum(e.amount_minor) filter (where e.currency = w.currency and e.budget_part = 'executed'), 0) as executed,
      coalesce(sum(e.amount_minor) filter (where e.currency = w.currency and e.budget_part = 'handled'), 0) as handled,
      coalesce(sum(e.amount_minor) filter (where e.currency = w.currency and e.budget_part = 'in_doubt'), 0) as in_doubt,
      count(*) filter (where e.currency <> w.currency and e.budget_part <> 'returned') as uncounted
    from written w
    join refunds.order_budgets c on (c.tenant_id, c.channel, c.source, c.order_ref) = (w.tenant_id, w.channel, w.source, w.order_ref)
    left join refunds.ledger_entries e on (e.tenant_id, e.channel, e.source, e.order_ref) = (w.tenant_id, w.channel, w.source, w.order_ref)
    where c.currency <> w.currency group by 1, 2, 3, 4, 5) s
  where (b.tenant_id, b.channel, b.source, b.order_ref) = (s.tenant_id, s.channel, s.source, s.order_ref);
  return null;
end $$;

-- What the authority says by now about entries that ended in doubt: executed (somebody else says so, so it counts as handled)
-- or not; the entry says so from then on, and one that was not executed has no time to act any more. Returns those that were in doubt
-- and are not any more.
-- resolutions: [{ledger_entry_id, executed, never_started, last_error}]
create or replace function refunds.resolve_budget_doubts(tenant uuid, resolutions jsonb) returns setof text language sql as $$
  update refunds.ledger_entries e set budget_part = case when w.executed then 'handled' end,
    last_error = coalesce(w.last_error, e.last_error),
    -- Who does not say whether it is a person's decision (a worker of before) says nothing more than that the amount is free.
    act_until = case when w.executed or w.never_started is null then e.act_until end,
    reason_code = case when w.executed or w.never_started is distinct from false then e.reason_code else 'not_executed' end
  from jsonb_to_recordset(resolutions) as w (ledger_entry_id text, executed boolean, never_started boolean, last_error text)
  where e.tenant_id = tenant and e.ledger_entry_id = w.ledger_entry_id and e.status = 'ERROR' and e.budget_part = 'in_doubt'
    -- That nothing was started is no person's decision, and a restored authority says it of what it forgot. It is not believed of what was
    -- started as the ledger knows it: by its end, or by an effect outside, which is recorded only under an answered start.
    and not ((w.never_started or w.never_started is null and not w.executed) and (
      coalesce(e.reason_code, '') in ('started_elsewhere', 'settlement_refused', 'not_executed')
      or exists (select from refunds.effects f where f.tenant_id = e.tenant_id and f.ledger_entry_id = e.ledger_entry_id)))
  returning e.ledger_entry_id
$$;

create trigger set_budget_part before update on refunds.ledger_entries for each row
  when ((new.order_ref is not null or new.status in ('ERROR', 'DENIED'))
    and (new.status is distinct from old.status or new.budget_part is distinct from old.budget_part))
  execute function refunds.set_budget_part();
create trigger update_order_budgets after update on refunds.ledger_entries
  referencing old table as moved_from new table as moved_to for each statement execute function refunds.update_order_budgets();
create trigger open_order_budgets after insert on refunds.ledger_entries
  referencing new table as entered for each statement execute function refunds.open_order_budgets();
create trigger update_order_paid_entered after insert on refunds.orders
  referencing new table as written for each statement execute function refunds.update_order_paid();
create trigger update_order_paid_corrected after update on refunds.orders
  referencing new table as written for each statement execute function refunds.update_order_paid();
