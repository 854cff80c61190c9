-- The budget of an order: one row for each tenant, channel, source and order; every refund of the order takes from it.
--
-- An entry's `budget_part` is the part that its amount is counted in. Triggers keep the row equal to the sums of its entries, so no way of
-- handling an entry bypasses it, and the constraint `order_budget_not_exceeded` refuses what would exceed it. Entries are locked before
-- budgets, and budgets in the order of their key.

-- One order's budget. Parts in the minor unit of `currency`; their sum minus beyond_minor is at most paid_minor.
create table refunds.order_budgets (
  tenant_id         uuid not null,
  channel           text not null,
  source            text not null,
  order_ref         text not null,
  currency          text not null,
  paid_minor        bigint check (paid_minor >= 0),                        -- null: not known; then every refund needs a person
  reserved_minor    bigint not null default 0 check (reserved_minor >= 0), -- allowed, or waiting for a person's decision
  executed_minor    bigint not null default 0 check (executed_minor >= 0),
  handled_minor     bigint not null default 0 check (handled_minor >= 0),  -- refunded by a person, elsewhere
  in_doubt_minor    bigint not null default 0 check (in_doubt_minor >= 0), -- begun, unknown whether it was paid
  -- By how much the parts exceed what was paid, because of facts that the database cannot refuse: a person handled more than was left, an
  -- entry that held no part may have been paid elsewhere, or the source lowered the paid amount. An ALLOW never causes it.
  beyond_minor      bigint not null default 0 check (beyond_minor >= 0),
  uncounted_entries integer not null default 0 check (uncounted_entries >= 0), -- have a part but another currency; in no sum
  primary key (tenant_id, channel, source, order_ref),
  constraint order_budget_not_exceeded
    check (reserved_minor + executed_minor + handled_minor + in_doubt_minor - beyond_minor <= paid_minor)
) with (fillfactor = 70);

-- An order may be refunded once without a person's decision; the entry that does so takes the order in the statement that records its
-- ALLOW, because entries that are processed at the same time do not see each other. An entry that ends without a payment gives the order
-- back.
create table refunds.orders_taken (
  tenant_id       uuid not null,
  channel         text not null,
  order_ref       text not null,
  ledger_entry_id text not null,                                           -- the entry that took it
  taken_at        timestamptz not null default clock_timestamp(),
  source          text not null default '',
  primary key (order_ref, channel, source, tenant_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);

-- Whether a person is being asked about another entry of the order and was never asked about this one: that person may refund the order by
-- hand, and the ledger learns of it only later.
create or replace function refunds.is_behind_question(e refunds.ledger_entries) returns boolean language sql stable as $$
  select e.approval_id is null and exists (
    select from refunds.ledger_entries x
    where x.tenant_id = e.tenant_id and x.channel = e.channel and x.source = e.source and x.order_ref = e.order_ref
      and x.ledger_entry_id <> e.ledger_entry_id and x.approval_id is not null and x.status in ('NEW', 'GUARDING', 'APPROVAL_REQUIRED'))
$$;

-- For a refund that an analyst filed: whether an order with the same id was refunded, or may still be, under a different budget row that
-- may be the same order's: by entries that name no source, or in another channel of the same source.
create or replace function refunds.is_refunded_under_another_budget(e refunds.ledger_entries) returns boolean language sql stable as $$
  select coalesce(e.escalation = 'analyst_refund', false) and exists (
    select from refunds.ledger_entries x
    where x.tenant_id = e.tenant_id and x.order_ref = e.order_ref and x.source in ('', e.source)
      and (x.channel, x.source) <> (e.channel, e.source) and (x.budget_part is not null or x.status not in ('DENIED', 'ERROR')))
$$;

-- Which of these changes fit into their orders' budgets. An ALLOW (`to_status` ALLOWED) that does not fit is not recorded; a question to a
-- person that fits reserves its amount, so that no other refund takes it while the person decides, here or elsewhere.
-- `unknown_lifted`: a person let the entry pass although the paid amount is not known. An entry that takes its order (`takes_order`: one
-- refund without a person) does not fit while a person is being asked about another entry of the order and was never asked about this one,
-- because the ledger learns later what that person pays by hand. Checked under the lock of the budget, which a question to a person takes
-- too.
-- changes: [{ledger_entry_id, epoch, from_status, event, to_status, takes_order, unknown_lifted}]
create or replace function refunds.changes_within_budget(tenant uuid, changes jsonb) returns table (ledger_entry_id text, fits boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  wanted text[];
  one record;
  left_minor bigint;                                                       -- what is left of the order for later entries
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
      -- An entry that was begun is continued: its amount is counted already, and it may have been paid.
      when one.budget_part is not null and one.start_id is not null then true
      when one.is_behind_question then false
      when one.budget_part is not null then one.same_currency and one.beyond_minor = 0
      when not one.same_currency then false
      when one.paid_minor is null then one.lifted and one.event = 'allowed'
      else (one.uncounted_entries = 0 or one.lifted) and one.amount_minor <= left_minor end, false);
    -- An entry that does not fit takes nothing, so a later one may still fit.
    if fits and one.budget_part is null then left_minor := left_minor - one.amount_minor; end if;
    return next;
  end loop;
end $$;

-- Sets the budget part of an entry when its status changes. A part is taken with an ALLOW or a question to a person and kept until the
-- entry ends; then it is set by how the entry ended. An entry that ended in doubt leaves that part only by what the authority answers; an
-- entry that names no order is marked in_doubt too, although no budget counts it, so that the authority is asked about it. An executed
-- entry that a bank sent back leaves its part only by that finding. An entry with an effect begun outside cannot become DENIED: a restored
-- authority may have forgotten its start.
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
      -- After a refused start, temporary or permanent, surely nothing happened although the entry has a start id, unless an effect was
      -- begun outside before. An entry that a person resolved as executed is not in doubt.
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

-- Updates the budget rows from the changed entries, once per statement. Security definer: no program may write a budget itself. An entry
-- that ended without a payment, and so has no part any more, gives the order back too (`orders_taken`).
create or replace function refunds.update_order_budgets() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  -- Most changed entries name no order: return before comparing anything.
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
        -- It has happened, whether or not the budget had room.
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

-- Creates the budget row of each order that a new entry names, before anything can be taken from it.
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

-- Copies what the source says was paid into the budget; if the source lowers it below what is taken, nothing is left and the excess is
-- beyond_minor.
create or replace function refunds.update_order_paid() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.order_budgets as b (tenant_id, channel, source, order_ref, currency, paid_minor)
  select w.tenant_id, w.channel, w.source, w.order_ref, w.currency, w.paid_minor from written w
  order by w.tenant_id, w.channel, w.source, w.order_ref
  on conflict (tenant_id, channel, source, order_ref) do update set paid_minor = excluded.paid_minor,
    beyond_minor = greatest(0, b.reserved_minor + b.executed_minor + b.handled_minor + b.in_doubt_minor - excluded.paid_minor)
  where b.currency <> excluded.currency or b.paid_minor is distinct from excluded.paid_minor;
  -- The currency is not the one assumed before: count all entries again.
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

-- Records what the authority now says about entries that ended in doubt: executed (not by this entry's execution, so it counts as handled)
-- or not executed; an entry that was not executed loses its act_until. Returns the entries that were in doubt and no longer are.
-- resolutions: [{ledger_entry_id, executed, never_started, last_error}]
create or replace function refunds.resolve_budget_doubts(tenant uuid, resolutions jsonb) returns setof text language sql as $$
  update refunds.ledger_entries e set budget_part = case when w.executed then 'handled' end,
    last_error = coalesce(w.last_error, e.last_error),
    -- An older worker does not say whether it is a person's decision (never_started is null): then only the amount is freed.
    act_until = case when w.executed or w.never_started is null then e.act_until end,
    reason_code = case when w.executed or w.never_started is distinct from false then e.reason_code else 'not_executed' end
  from jsonb_to_recordset(resolutions) as w (ledger_entry_id text, executed boolean, never_started boolean, last_error text)
  where e.tenant_id = tenant and e.ledger_entry_id = w.ledger_entry_id and e.status = 'ERROR' and e.budget_part = 'in_doubt'
    -- "Never started" is not a person's decision, and a restored authority says it of operations that it forgot. It is not accepted for an
    -- entry that the ledger knows was started: by how it ended, or by an effect outside, which is recorded only under an answered start.
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
