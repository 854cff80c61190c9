-- What settlement systems report by webhook after a refund was accepted: that a bank sent it back, or that a refund was made elsewhere.

-- A signed event, stored once however often it is delivered. It is only a reason to look the payment up; it is not trusted by itself.
create table refunds.settlement_events (
  tenant_id   uuid not null default refunds.default_tenant(),
  system      text not null check (system ~ '^[a-z_]{1,40}$'),
  event_id    text not null check (event_id ~ '^[A-Za-z0-9_]{1,128}$'),
  event_type  text not null check (event_type ~ '^[a-z_.]{1,60}$'),
  payment_ref text not null check (payment_ref ~ '^[A-Za-z0-9._:/@-]{1,128}$'),
  received_at timestamptz not null default clock_timestamp(),
  looked_at   timestamptz,                                                 -- when the payment was looked up because of it
  primary key (tenant_id, system, event_id)
) with (fillfactor = 70);
create index settlement_events_open on refunds.settlement_events (tenant_id, received_at) where looked_at is null;

-- Differences found between a settlement system and the ledger. Append-only; one per refund and finding.
create table refunds.settlement_findings (
  tenant_id       uuid not null,
  system          text not null check (system ~ '^[a-z_]{1,40}$'),
  system_refund   text not null check (system_refund ~ '^[A-Za-z0-9_]{1,128}$'), -- the system's id of the refund
  finding         text not null check (finding in ('refund_failed', 'refunded_elsewhere', 'payment_unknown')),
  payment_ref     text not null,
  amount_minor    bigint not null check (amount_minor >= 0),
  currency        text not null,
  ledger_entry_id text,                                                    -- whose refund it was; null: made elsewhere
  reason          text check (length(reason) <= 200),
  found_at        timestamptz not null default clock_timestamp(),
  primary key (tenant_id, system, system_refund, finding),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries,
  constraint settlement_findings_whose check ((finding = 'refund_failed') = (ledger_entry_id is not null))
);
create trigger append_only before update or delete or truncate on refunds.settlement_findings
  for each statement execute function refunds.refuse_change();

-- Whether the settlement system says that the refund by which an entry was executed was sent back in full: the very refund whose id is the
-- effect's system_reference.
create or replace function refunds.was_sent_back(e refunds.ledger_entries) returns boolean language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$
begin
  return exists (
    select from refunds.settlement_findings f
    join refunds.effects x on (x.tenant_id, x.ledger_entry_id, x.system, x.system_reference) = (f.tenant_id, f.ledger_entry_id, f.system, f.system_refund)
    where f.tenant_id = e.tenant_id and f.ledger_entry_id = e.ledger_entry_id and f.finding = 'refund_failed'
      and (f.amount_minor, f.currency) = (e.amount_minor, e.currency) and x.state = 'done');
end $$;

-- Sets the budget part of executed refunds that were sent back to `returned`, so that their orders' budgets have the amounts again. Returns
-- the entries. Called periodically, because an entry may be executed after the finding; it starts from the findings, which are few.
create or replace function refunds.let_sent_back_go(tenant uuid) returns setof text language sql as $$
  with sent_back as (
    select e.tenant_id, e.ledger_entry_id from refunds.ledger_entries e
    where e.tenant_id = tenant and e.status = 'EXECUTED' and e.budget_part = 'executed'
      and e.ledger_entry_id in (
        select f.ledger_entry_id from refunds.settlement_findings f where f.tenant_id = tenant and f.finding = 'refund_failed')
      and refunds.was_sent_back(e)
    order by e.ledger_entry_id for update)
  update refunds.ledger_entries e set budget_part = 'returned' from sent_back s
  where e.tenant_id = s.tenant_id and e.ledger_entry_id = s.ledger_entry_id and e.status = 'EXECUTED' and e.budget_part = 'executed'
  returning e.ledger_entry_id
$$;

-- Stores an event; the only thing that the program that receives webhooks may do here. Returns true if it was new.
create or replace function refunds.record_settlement_event(tenant uuid, of_system text, id text, kind text, payment text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.settlement_events (tenant_id, system, event_id, event_type, payment_ref) values (tenant, of_system, id, kind, payment)
  on conflict do nothing;
  return found;
end $$;
