-- What the refund workflow looks at before it asks, and the trail that every run of it leaves.

alter table refunds.ledger_entries
  add column mode     text check (mode ~ '^[a-z_]{1,40}$'),                -- how a scenario is meant to go, e.g. price_drop
  add column language text check (language ~ '^[A-Za-z0-9-]{2,35}$'),          -- in which the customer is written to
  add column contact  text check (length(contact) <= 320);                -- where the confirm link goes: never leaves this schema

alter table refunds.orders
  add column delivered_at       timestamptz,
  add column shipping_fee_minor bigint check (shipping_fee_minor >= 0),
  add column item_paid_minor    bigint check (item_paid_minor >= 0),     -- what the item in question cost
  add column price_now_minor    bigint check (price_now_minor >= 0),     -- what it costs now
  add column note               text;                                   -- the shop's or customer's words: never leave this schema

-- What stands against an order: an open complaint, a delayed shipment.
create table refunds.order_flags (
  tenant_id uuid not null default refunds.default_tenant(),
  channel   text not null,
  order_ref text not null,
  flag      text not null check (flag in ('open_complaint', 'delayed_shipment')),
  since     timestamptz not null default clock_timestamp(),
  closed_at timestamptz,
  primary key (tenant_id, channel, order_ref, flag)
);

-- Accounts that get nothing without a person, per channel: accounts are never joined across channels.
create table refunds.blacklist (
  tenant_id   uuid not null default refunds.default_tenant(),
  channel     text not null,
  account_ref text not null,
  since       timestamptz not null default clock_timestamp(),
  primary key (tenant_id, channel, account_ref)
);

-- Proof images as handed in, and what a recogniser read in them: collected once and kept.
create table refunds.proof_images (
  tenant_id       uuid not null default refunds.default_tenant(),
  ledger_entry_id text not null,
  sha256          text not null check (sha256 ~ '^[0-9a-f]{64}$'),
  media_type      text not null,
  content         bytea not null check (octet_length(content) <= 5242880),
  received_at     timestamptz not null default clock_timestamp(),
  recognised      jsonb,
  recognised_by   text,
  primary key (tenant_id, ledger_entry_id, sha256)
);

-- The steps that a run of the workflow went, written with the event they led to. A row keeps all its runs.
create table refunds.step_trails (
  tenant_id       uuid not null,
  ledger_entry_id text not null,
  trail_id        bigint generated always as identity,
  claim_epoch     bigint not null,
  steps           jsonb not null,
  occurred_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, ledger_entry_id, trail_id)
);
create trigger append_only before update or delete or truncate on refunds.step_trails
  for each statement execute function refunds.refuse_change();

-- A customer is asked, and declines or lets the time run out.
insert into refunds.transitions (from_status, event, to_status) values
  ('GUARDING', 'awaiting_customer', 'APPROVAL_REQUIRED'),
  ('GUARDING', 'customer_ended', 'DENIED');

-- As in 0001, with the trail that led to the execution.
-- settled: [{ledger_entry_id, epoch, execution_id, start_event_id, system, report_id, report, steps}]
create or replace function refunds.record_executions(tenant uuid, settled jsonb) returns setof text language plpgsql as $$
declare
  held text[];
begin
  held := array(
    select e.ledger_entry_id from refunds.ledger_entries e
    join jsonb_to_recordset(settled) as s (ledger_entry_id text, epoch bigint)
      on e.ledger_entry_id = s.ledger_entry_id and e.claim_epoch = s.epoch
    where e.tenant_id = tenant and e.status = 'ALLOWED' and e.lease_until > clock_timestamp()
    order by e.ledger_entry_id for update of e);
  insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, system,
                                  operation_id, start_id, start_event_id, claim_epoch)
  select e.tenant_id, s.execution_id, e.ledger_entry_id, e.refund_id, e.amount_minor, e.currency, s.system,
         e.operation_id, e.start_id, s.start_event_id, e.claim_epoch
  from jsonb_to_recordset(settled) as s (ledger_entry_id text, execution_id uuid, start_event_id uuid, system text)
  join refunds.ledger_entries e on e.tenant_id = tenant and e.ledger_entry_id = s.ledger_entry_id
  where e.ledger_entry_id = any (held);
  insert into refunds.outbox (tenant_id, outbox_id, ledger_entry_id, payload)
  select tenant, s.report_id, s.ledger_entry_id, s.report
  from jsonb_to_recordset(settled) as s (ledger_entry_id text, report_id uuid, report jsonb)
  where s.ledger_entry_id = any (held);
  insert into refunds.step_trails (tenant_id, ledger_entry_id, claim_epoch, steps)
  select tenant, s.ledger_entry_id, s.epoch, s.steps
  from jsonb_to_recordset(settled) as s (ledger_entry_id text, epoch bigint, steps jsonb)
  where s.ledger_entry_id = any (held) and s.steps is not null;
  -- The permit is used up: a slip that is worth nothing any more need not lie about.
  return query
    update refunds.ledger_entries e set status = 'EXECUTED', last_event = 'executed', event_number = e.event_number + 1, lease_until = null, permit_token = null,
      last_error = null
    where e.tenant_id = tenant and e.ledger_entry_id = any (held)
    returning e.ledger_entry_id;
end $$;
