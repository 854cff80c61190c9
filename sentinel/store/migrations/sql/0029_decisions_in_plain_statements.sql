-- What is always so of a state is asked by one function: each CHECK is read anew at every statement.
create function sentinel.is_state_sound(
  status text, decision text, outcome text, started_at timestamptz, act_until timestamptz, permit_id uuid, permit_expires_at timestamptz,
  in_doubt_reason text, reservation text, reserved_minor bigint, limit_keys text[], limit_buckets timestamptz[]
) returns boolean language plpgsql immutable parallel safe as $$
begin
  return status in ('allowed', 'pending', 'approved', 'expired', 'denied', 'started', 'in_doubt', 'completed')
    and decision in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY') and outcome in ('success', 'error')
    and (started_at is not null) = (status in ('started', 'in_doubt', 'completed'))
    and (permit_id is null) = (permit_expires_at is null)
    and (status <> 'in_doubt' or in_doubt_reason is not null)
    and (status <> 'started' or act_until is not null)
    and reservation in ('held', 'captured', 'released') and reserved_minor > 0
    and (reservation is null) = (reserved_minor is null) and (reservation is null) = (limit_keys is null)
    and cardinality(limit_buckets) = cardinality(limit_keys);
end $$;

create function sentinel.is_started_and_over(status text) returns boolean language plpgsql immutable parallel safe as $$
begin
  return status in ('in_doubt', 'completed');
end $$;

alter table sentinel.operation_states
  drop constraint operation_states_status_check, drop constraint operation_states_decision_check, drop constraint operation_states_outcome_check,
  drop constraint operation_states_reserved_minor_check, drop constraint operation_states_reservation_check, drop constraint started_has_time,
  drop constraint permit_has_end, drop constraint doubt_has_reason, drop constraint started_may_act, drop constraint reserved_in_limits,
  drop constraint not_executed_was_started,
  add constraint state_is_sound check (sentinel.is_state_sound(status, decision, outcome, started_at, act_until, permit_id, permit_expires_at,
    in_doubt_reason, reservation, reserved_minor, limit_keys, limit_buckets)),
  add constraint not_executed_was_started check (not_executed_at is null or sentinel.is_started_and_over(status));

-- What a batch asks of limits comes as a line for each budget, with a slot for each limit. Functions are made anew from their present text.
drop type sentinel.limit_sum cascade;
create type sentinel.budget_sum as (
  tenant_id uuid, subject text, policy_id text, is_mixed boolean, limits text[], limit_places integer[], are_totals boolean[], asked bigint[],
  taken bigint[]
);
create type sentinel.tight_limit as (tenant_id uuid, limit_key text, is_total boolean);
