-- The words of a state are domains, and what else is always so of it one CHECK: PostgreSQL reads the text of each anew at every statement.
create domain sentinel.operation_status as text check (value in
  ('allowed', 'pending', 'approved', 'expired', 'denied', 'started', 'in_doubt', 'completed'));
create domain sentinel.decision_word as text check (value in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY'));
create domain sentinel.outcome_word as text check (value in ('success', 'error'));

alter table sentinel.operation_states
  drop constraint operation_states_status_check, drop constraint operation_states_decision_check, drop constraint operation_states_outcome_check,
  drop constraint operation_states_reserved_minor_check, drop constraint operation_states_reservation_check, drop constraint started_has_time,
  drop constraint permit_has_end, drop constraint doubt_has_reason, drop constraint started_may_act, drop constraint reserved_in_limits,
  alter column status type sentinel.operation_status, alter column decision type sentinel.decision_word,
  alter column outcome type sentinel.outcome_word,
  add constraint state_is_sound check (
    (started_at is not null) = (status in ('started', 'in_doubt', 'completed')) and (permit_id is null) = (permit_expires_at is null)
    and (status <> 'in_doubt' or in_doubt_reason is not null) and (status <> 'started' or act_until is not null)
    and reservation in ('held', 'captured', 'released') and reserved_minor > 0 and (reservation is null) = (reserved_minor is null) and (reservation is null) = (limit_keys is null)
    and cardinality(limit_buckets) = cardinality(limit_keys));

-- The decision of an operation is found by its state.
drop index sentinel.events_operation;
create index events_operation on sentinel.events (operation_id) where kind <> 'decision';

-- What a batch asks of limits comes as a line for each budget, with a slot for each limit. Functions are made anew from their present text.
drop type sentinel.limit_sum cascade;
create type sentinel.budget_sum as (
  tenant_id uuid, subject text, policy_id text, is_mixed boolean, limits text[], limit_places integer[], are_totals boolean[], asked bigint[],
  taken bigint[]
);
create type sentinel.tight_limit as (tenant_id uuid, limit_key text, is_total boolean);
