-- What settlement systems tell by webhook after a refund was taken: that a bank sent it back, or that one was made elsewhere.

-- A signed event, kept once however often it comes. It is a reason to look at a payment, and is not believed by itself.
create table refunds.settlement_events (
  tenant_id   uuid not null default refunds.default_tenant(),
  system      text not null check (system ~ '^[a-z_]{1,40}$'),
  event_id    text not null check (event_id ~ '^[A-Za-z0-9_]{1,128}$'),
  event_type  text not null check (event_type ~ '^[a-z_.]{1,60}$'),
  payment_ref text not null check (payment_ref ~ '^[A-Za-z0-9._:/@-]{1,128}$'),
  received_at timestamptz not null default clock_timestamp(),
  looked_at   timestamptz,                                                 -- when the payment was looked at for it
  primary key (tenant_id, system, event_id)
) with (fillfactor = 70);
create index settlement_events_open on refunds.settlement_events (tenant_id, received_at) where looked_at is null;

-- What was found at a settlement system and is not as the ledger has it. Append-only; one per refund and finding.
create table refunds.settlement_findings (
  tenant_id       uuid not null,
  system          text not null check (system ~ '^[a-z_]{1,40}$'),
  system_refund   text not null check (system_refund ~ '^[A-Za-z0-9_]{1,128}$'), -- the system's name of the refund
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

-- Whether the refund that an entry was executed by was sent back, in full, as its settlement system says: that very refund, whose name the
-- entry's effect has.
create or replace function refunds.was_sent_back(e refunds.ledger_entries) returns boolean language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$
begin
  return exists (
    select from refunds.settlement_findings f
    join refunds.effects x on (x.tenant_id, x.ledger_entry_id, x.system, x.system_reference) = (f.tenant_id, f.ledger_entry_id, f.system, f.system_refund)
    where f.tenant_id = e.tenant_id and f.ledger_entry_id = e.ledger_entry_id and f.finding = 'refund_failed'
      and (f.amount_minor, f.currency) = (e.amount_minor, e.currency) and x.state = 'done');
end $$;

-- Executed refunds that were sent back let their amounts go: their orders owe them again. Returns the entries. Asked again and again, because
-- an entry may be executed after it was found; it goes by the findings, which are few.
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

-- Who receives webhooks keeps an event with this and may do nothing else here. True: it was new.
create or replace function refunds.record_settlement_event(tenant uuid, of_system text, id text, kind text, payment text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.settlement_events (tenant_id, system, event_id, event_type, payment_ref) values (tenant, of_system, id, kind, payment)
  on conflict do nothing;
  return found;
end $$;
