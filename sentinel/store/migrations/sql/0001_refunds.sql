-- The business side: orders, the refund ledger and its executions. Lives in the worker's database, which may be another one.
-- The worker proposes; these constraints and triggers decide what can become a row.

create schema refunds;

-- The tenant that rows belong to when nothing says otherwise; one line, written when the tenant is made.
create table refunds.defaults (
  only_row  boolean primary key default true check (only_row),
  tenant_id uuid not null
);
create function refunds.default_tenant() returns uuid language sql stable as
  $$ select tenant_id from refunds.defaults $$;

create table refunds.orders (
  tenant_id   uuid not null default refunds.default_tenant(),
  channel     text not null default 'retail',
  order_ref   text not null,
  account_ref text,
  ordered_at  timestamptz not null,
  paid_minor  bigint not null check (paid_minor >= 0),
  currency    text not null,
  recorded_at timestamptz not null default clock_timestamp(),
  primary key (tenant_id, channel, order_ref)
);
create index orders_account on refunds.orders (account_ref) where account_ref is not null;

-- One key for texts that a person would call the same: repeated texts over accounts are found by it.
create function refunds.text_key(words text) returns text language sql immutable parallel safe as
  $$ select md5(lower(regexp_replace(btrim(words), '\s+', ' ', 'g'))) $$;

create table refunds.ledger_entries (
  tenant_id         uuid not null default refunds.default_tenant(),
  ledger_entry_id   text not null check (ledger_entry_id ~ '^[A-Za-z0-9._:/@-]{1,120}$'),
  refund_id         text not null check (refund_id ~ '^[A-Za-z0-9._:/@-]{1,128}$'),
  agent_id          text not null default 'retail-refund-agent',
  action            text not null default 'refund.create',
  status            text not null default 'NEW' check (status in
                      ('NEW', 'GUARDING', 'ALLOWED', 'APPROVAL_REQUIRED', 'DENIED', 'EXECUTED', 'ERROR')),
  last_event        text,                                                  -- what brought it to this status
  event_number      bigint not null default 0,                             -- how many events it has had
  amount_minor      bigint not null check (amount_minor between 1 and 1000000000000),
  currency          text not null check (currency ~ '^[A-Z]{3}$'),
  idempotency_key   text not null generated always as ('refund:' || ledger_entry_id) stored,
  channel           text not null default 'retail',
  scenario          text not null default 'standard',
  account_ref       text,
  order_ref         text,
  requested_at      timestamptz not null default clock_timestamp(),
  reason            text,                                                  -- the customer's words: never leave this schema
  risk              jsonb not null default '{}',                           -- as handed in; the ledger's own facts win
  redaction_status  text not null default 'customer data hidden',
  -- the claim
  claim_epoch       bigint not null default 0,
  claimed_by        text,
  lease_until       timestamptz,
  attempts          integer not null default 0,
  next_attempt_at   timestamptz not null default clock_timestamp(),
  -- what was asked and answered
  guard_request     jsonb,                                                 -- fixed at the first ask: a retry asks the same
  operation_id      uuid,
  decision_event_id uuid,
  decision          text,
  reason_code       text,
  proof_id          text,
  approval_id       uuid,
  waiting_for       text check (waiting_for in ('operator', 'customer')),
  permit_token      text,
  start_id          uuid,                                                  -- stored before start is asked
  last_error        text,
  created_at        timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  primary key (tenant_id, ledger_entry_id),
  constraint guarding_has_lease check (status not in ('GUARDING', 'ALLOWED') or lease_until is not null),
  constraint waiting_has_someone check ((status = 'APPROVAL_REQUIRED') = (waiting_for is not null)),
  constraint error_has_text check (status <> 'ERROR' or last_error is not null),
  constraint allowed_has_permit check (status <> 'ALLOWED' or (operation_id is not null and decision_event_id is not null
                                       and permit_token is not null and start_id is not null))
) with (fillfactor = 60);
create index ledger_due on refunds.ledger_entries (tenant_id, next_attempt_at, ledger_entry_id)
  where status in ('NEW', 'APPROVAL_REQUIRED');
create index ledger_leased on refunds.ledger_entries (tenant_id, lease_until) where status in ('GUARDING', 'ALLOWED');
create index ledger_refund on refunds.ledger_entries (refund_id);
create index ledger_order on refunds.ledger_entries (order_ref, channel) where order_ref is not null;
create index ledger_account on refunds.ledger_entries (account_ref, requested_at) where account_ref is not null;
create index ledger_approval on refunds.ledger_entries (approval_id) where approval_id is not null;
create index ledger_text on refunds.ledger_entries (refunds.text_key(reason)) where length(reason) >= 40;
create index ledger_newest on refunds.ledger_entries (created_at desc, ledger_entry_id);

-- The simulated money movement. One per ledger entry and one per operation, for ever.
create table refunds.executions (
  tenant_id       uuid not null default refunds.default_tenant(),
  execution_id    uuid not null,
  ledger_entry_id text not null,
  refund_id       text not null,
  amount_minor    bigint not null check (amount_minor > 0),
  currency        text not null,
  system          text not null default 'simulated_refund',
  operation_id    uuid not null,
  start_id        uuid not null,
  start_event_id  uuid not null,
  claim_epoch     bigint not null,
  executed_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, execution_id),
  constraint executions_entry_once unique (tenant_id, ledger_entry_id),
  constraint executions_operation_once unique (tenant_id, operation_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);

-- What must be told to the authority, until it has acknowledged it.
create table refunds.outbox (
  tenant_id       uuid not null default refunds.default_tenant(),
  outbox_id       uuid not null,
  ledger_entry_id text not null,
  payload         jsonb not null,
  attempts        integer not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  last_error      text,
  acknowledged_at timestamptz,
  created_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, outbox_id)
) with (fillfactor = 70);
create index outbox_open on refunds.outbox (tenant_id, next_attempt_at) where acknowledged_at is null;

-- The trail of a row: every change of status, written by a trigger of ledger_entries (0005) and by nothing else.
create table refunds.ledger_events (
  tenant_id       uuid not null,
  event_id        bigint generated always as identity,
  ledger_entry_id text not null,
  from_status     text not null,
  event           text not null,
  to_status       text not null,
  claim_epoch     bigint not null,
  worker          text,
  reason_code     text,
  occurred_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, event_id)
);
create index ledger_events_entry on refunds.ledger_events (tenant_id, ledger_entry_id, event_id);

-- Where a worker stands in what it reads from the authority, and that it is alive.
create table refunds.workers (
  tenant_id        uuid not null default refunds.default_tenant(),
  worker_id        text not null,
  agent_id         text not null,
  mode             text not null check (mode in ('loop', 'once')),
  status           text not null check (status in ('running', 'stopped', 'authority_unreachable')),
  last_action      text,
  last_decision    text,
  last_seen_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, worker_id)
);

create table refunds.approval_cursors (
  tenant_id uuid not null,
  agent_id  text not null,
  since     timestamptz not null,
  primary key (tenant_id, agent_id)
);

-- An operator asks a running worker to process one entry now; the worker answers here.
create table refunds.process_requests (
  tenant_id    uuid not null,
  request_id   uuid not null,
  requested_by text not null,
  requested_at timestamptz not null default clock_timestamp(),
  claimed_by   text,
  lease_until  timestamptz,
  finished_at  timestamptz,
  result       jsonb,
  primary key (tenant_id, request_id)
);
create index process_requests_open on refunds.process_requests (tenant_id, requested_at) where finished_at is null;

-- The table of worker/states.py as data: a test holds the two equal. Anything else is refused here, whoever asks.
create table refunds.transitions (
  from_status text not null,
  event       text not null,
  to_status   text not null,
  primary key (from_status, event)
);
insert into refunds.transitions (from_status, event, to_status) values
  ('NEW', 'claimed', 'GUARDING'),
  ('APPROVAL_REQUIRED', 'claimed', 'GUARDING'),
  ('GUARDING', 'reclaimed', 'GUARDING'),
  ('ALLOWED', 'reclaimed', 'GUARDING'),
  ('GUARDING', 'allowed', 'ALLOWED'),
  ('GUARDING', 'approval_required', 'APPROVAL_REQUIRED'),
  ('GUARDING', 'denied', 'DENIED'),
  ('GUARDING', 'put_back', 'NEW'),
  ('GUARDING', 'gave_up', 'ERROR'),
  ('ALLOWED', 'executed', 'EXECUTED'),
  ('ALLOWED', 'start_refused', 'GUARDING');

create function refunds.check_execution() returns trigger language plpgsql as $$
declare
  entry refunds.ledger_entries;
begin
  select * into entry from refunds.ledger_entries
  where tenant_id = new.tenant_id and ledger_entry_id = new.ledger_entry_id for update;
  if not found or entry.status <> 'ALLOWED' or entry.claim_epoch <> new.claim_epoch
     or entry.operation_id is distinct from new.operation_id or entry.start_id is distinct from new.start_id
     or (entry.refund_id, entry.amount_minor, entry.currency) is distinct from (new.refund_id, new.amount_minor, new.currency) then
    raise exception 'no started permit of this claim matches the execution'
      using errcode = 'check_violation', constraint = 'execution_matches_permit';
  end if;
  return new;
end $$;
create trigger check_execution before insert on refunds.executions
  for each row execute function refunds.check_execution();

create function refunds.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append-only: % on %.% is refused', tg_op, tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;
create trigger append_only before update or delete or truncate on refunds.executions
  for each statement execute function refunds.refuse_change();
create trigger append_only before update or delete or truncate on refunds.ledger_events
  for each statement execute function refunds.refuse_change();

-- Executions, EXECUTED and the reports to come: one transaction for one or many rows, each only while its claim still
-- holds it and its lease runs. Returns the entries that were executed; for the others nothing was written.
-- settled: [{ledger_entry_id, epoch, execution_id, start_event_id, system, report_id, report}]
create function refunds.record_executions(tenant uuid, settled jsonb) returns setof text language plpgsql as $$
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
  -- The permit is used up: a slip that is worth nothing any more need not lie about.
  return query
    update refunds.ledger_entries e set status = 'EXECUTED', last_event = 'executed', event_number = e.event_number + 1, lease_until = null, permit_token = null,
      last_error = null
    where e.tenant_id = tenant and e.ledger_entry_id = any (held)
    returning e.ledger_entry_id;
end $$;
