-- Reconciliation of past executions: the wrong ones that it found, and how far it has come.

-- Wrong executions found on live data: each finding is recorded once. Append-only.
create table refunds.wrong_executions (
  tenant_id       uuid not null,
  execution_id    uuid not null,
  finding         text not null check (finding ~ '^[a-z_]{1,60}$'),        -- what is wrong with it
  ledger_entry_id text not null,
  channel         text not null,
  scenario        text not null,
  switch          text not null,                                           -- the switch that was turned off for it
  found_at        timestamptz not null default clock_timestamp(),
  primary key (tenant_id, execution_id, finding),
  foreign key (tenant_id, execution_id) references refunds.executions
);
create index wrong_executions_newest on refunds.wrong_executions (found_at);
create trigger append_only before update or delete or truncate on refunds.wrong_executions
  for each statement execute function refunds.refuse_change();

-- Up to when executions have been checked.
create table refunds.reconcile_cursors (
  tenant_id uuid primary key,
  looked_to timestamptz not null
);
