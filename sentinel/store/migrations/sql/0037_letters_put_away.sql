-- A dead letter that nobody wants any more, of a receiver that is gone, is put away by a person.
alter table sentinel.dead_letters add column put_away_at timestamptz, add column put_away_by text,
  add column put_away_reason text check (length(put_away_reason) <= 500),
  add constraint dead_letters_put_away check ((put_away_at is null) = (put_away_by is null) and (put_away_at is null) = (put_away_reason is null)),
  add constraint dead_letters_wanted check (put_away_at is null or resend_asked_at is null);
alter table sentinel.dead_letters alter column put_away_at set statistics 10, alter column put_away_by set statistics 10,
  alter column put_away_reason set statistics 10;
drop index sentinel.dead_letters_open;
create index dead_letters_open on sentinel.dead_letters (died_at, tenant_id) where delivered_at is null and put_away_at is null;

-- A receiver whose setting was taken out of the senders ends, once none of them serves it.
alter table sentinel.event_endpoints add column served_at timestamptz not null default clock_timestamp(),
  drop constraint event_endpoints_disabled_reason_check,
  add constraint event_endpoints_disabled_reason_check check (disabled_reason in ('administrator', 'gone', 'setting'));
alter table sentinel.event_endpoints alter column served_at set statistics 10;

-- What one agent asked, by how it stands, the newest first.
create index approvals_of_agent on sentinel.approvals (tenant_id, agent_id, status, approval_id);

-- What is due of one agent, for a worker whose key is bound to it.
create index ledger_due_of_agent on refunds.ledger_entries (tenant_id, agent_id, next_attempt_at, ledger_entry_id)
  where status in ('NEW', 'APPROVAL_REQUIRED');

-- What was decided of one principal's questions and of one agent's, in the order of time.
create index approvals_decided_of_principal on sentinel.approvals (tenant_id, principal_id, decided_at) where decided_at is not null;
create index approvals_decided_of_agent on sentinel.approvals (tenant_id, agent_id, decided_at) where decided_at is not null;

-- The day's attempts to sign in to one account, which each attempt counts.
create index sign_in_attempts_of_account on sentinel.sign_in_attempts (account_hash, attempted_at);
