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

-- Who receives webhooks keeps an event with this and may do nothing else here. True: it was new.
create or replace function refunds.record_settlement_event(tenant uuid, of_system text, id text, kind text, payment text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.settlement_events (tenant_id, system, event_id, event_type, payment_ref) values (tenant, of_system, id, kind, payment)
  on conflict do nothing;
  return found;
end $$;
