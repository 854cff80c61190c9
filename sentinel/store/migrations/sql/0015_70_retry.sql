-- What waits for the outside is counted apart from attempts; and the way back out of ERROR, with who took it and why.

alter table refunds.ledger_entries add column waits integer not null default 0;

insert into refunds.transitions (from_status, event, to_status) values ('ERROR', 'retried', 'NEW');

-- Rows given up because somebody else had started their operation say so in their reason from now on, not in words alone.
update refunds.ledger_entries set reason_code = 'started_elsewhere'
where status = 'ERROR' and last_error like 'started\_elsewhere%' and reason_code is distinct from 'started_elsewhere';

create table refunds.retries (
  tenant_id       uuid not null,
  ledger_entry_id text not null,
  event_number    bigint not null,                                         -- of the event in the row's trail
  retried_by      text not null,
  login           text not null,
  reason          text not null,
  error_before    text not null,
  retried_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, ledger_entry_id, event_number),
  constraint retries_who_and_why check (btrim(retried_by) <> '' and btrim(reason) <> ''),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
create trigger append_only before update or delete or truncate on refunds.retries
  for each statement execute function refunds.refuse_change();

alter table refunds.ledger_events add column note text;                    -- why a person did it
