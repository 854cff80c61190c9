-- Permits: renewed after everything was asked again, given back when they run out unused.

-- Whether somebody holds what may happen only once, after giving back what a permit that ran out still holds of it. What a
-- person approved stays held: its permit can be renewed.
create or replace function sentinel.once_taken(tenant uuid, once text) returns boolean language plpgsql as $$
begin
  perform sentinel.release_expired_permits(tenant, null, once, 1);
  return exists (
    select from sentinel.operation_states s where s.tenant_id = tenant and s.once_key = once and s.once_live);
end $$;

-- A permit whose time is over un-started gives back its budget and what it held once. An approval stays good.
-- All of them (null, null, null), or of one tenant those that hold one of these limits or this once-key.
create or replace function sentinel.release_expired_permits(only_tenant uuid, only_limits text[], only_once text, most integer)
returns integer language plpgsql as $$
declare
  gone record;
  released integer := 0;
  moment timestamptz := clock_timestamp();
begin
  for gone in
    select s.tenant_id, s.operation_id, s.permit_id, s.approval_id, r.subject from sentinel.operation_states s
    left join sentinel.reservations r on r.tenant_id = s.tenant_id and r.permit_id = s.permit_id
    where s.status in ('allowed', 'approved') and s.permit_id is not null and s.permit_expires_at <= moment
      and (only_tenant is null or s.tenant_id = only_tenant)
      and (only_limits is null or r.state = 'held' and r.limit_keys && only_limits)
      and (only_once is null or s.once_live and s.once_key = only_once)
    limit most for update of s skip locked
  loop
    -- Many budgets in no order: a busy one is left for the next round, because waiting here could be waiting in a circle.
    continue when gone.subject is not null
      and not pg_try_advisory_xact_lock(sentinel.budget_lock(gone.tenant_id, gone.subject));
    update sentinel.operation_states
      set permit_id = null, permit_expires_at = null, once_live = once_live and gone.approval_id is not null
      where tenant_id = gone.tenant_id and operation_id = gone.operation_id;
    perform sentinel.settle_budget(gone.tenant_id, gone.permit_id, 'released', moment);
    released := released + 1;
  end loop;
  return released;
end $$;

-- A permit for an operation decided before: approved since, or its permit ran out un-started. Everything is asked again;
-- an approval lifts the reasons it lists and nothing else. What is new is a refusal or a new question to a person.
create or replace function sentinel.renew_permit(ask sentinel.guard_input, s sentinel.operation_states, moment timestamptz)
returns void language plpgsql as $$
declare
  lifted text[] := '{}';
  open_reasons text[];
  states sentinel.limit_state[] := '{}';
  refusal text;
begin
  if s.approval_id is not null then
    select a.reasons into lifted from sentinel.approvals a
    where a.tenant_id = s.tenant_id and a.approval_id = s.approval_id and a.status = 'approved';
    lifted := coalesce(lifted, '{}');
  end if;
  -- What does not offer "approve" cannot have been approved, even where an earlier approval lists a reason of that name.
  if not coalesce(ask.approvable, true) then lifted := '{}'; end if;
  if ask.verdict = 'DENY' then
    refusal := ask.reason_code;
  elsif s.once_key is not null and not s.once_live and exists (
      select from sentinel.operation_states other
      where other.tenant_id = s.tenant_id and other.once_key = s.once_key and other.once_live)
      and sentinel.once_taken(s.tenant_id, s.once_key) then
    refusal := 'duplicate_resource';
  end if;
  if refusal is null and ask.amount_minor is not null and jsonb_array_length(ask.limits) > 0 then
    states := sentinel.fitted_limits(ask, moment);
    select l.reason_code into refusal from unnest(states) as l where not l.fits and l.verdict = 'DENY' limit 1;
  end if;

  if refusal is not null then
    update sentinel.operation_states set status = 'denied', decision = 'DENY', reason_code = refusal, once_live = false,
      permit_id = null, permit_expires_at = null
    where tenant_id = s.tenant_id and operation_id = s.operation_id;
    perform sentinel.append_event(ask.tenant_id, ask.second_event_id, 'refused', s.operation_id, ask.agent_id, moment,
      jsonb_build_object('reason_code', refusal, 'policy_digest', ask.policy_digest));
    return;
  end if;

  open_reasons := array(
    select distinct r from unnest(case when ask.verdict = 'ALLOW' then '{}' else ask.reasons end
      || array(select l.reason_code from unnest(states) as l where not l.fits)) as r
    where not r = any(lifted) order by r);
  if cardinality(open_reasons) > 0 then
    perform sentinel.new_approval(ask, s.operation_id, array(select distinct r from unnest(open_reasons || lifted) r order by r), moment);
    update sentinel.operation_states set status = 'pending', decision = 'APPROVAL_REQUIRED', reason_code = open_reasons[1],
      approval_id = ask.approval_id, once_live = once_key is not null, permit_id = null, permit_expires_at = null
    where tenant_id = s.tenant_id and operation_id = s.operation_id;
    perform sentinel.append_event(ask.tenant_id, ask.second_event_id, 'asked_again', s.operation_id, ask.agent_id, moment,
      jsonb_build_object('reasons', open_reasons, 'approval_id', ask.approval_id, 'policy_digest', ask.policy_digest));
    return;
  end if;

  perform sentinel.hold_budget(ask.tenant_id, ask.permit_id, s.operation_id, ask.limits -> 0 ->> 'subject',
                               ask.amount_minor, states, moment);
  update sentinel.operation_states set permit_id = ask.permit_id, permit_for_person = coalesce(ask.asks_person, false), once_live = once_key is not null,
    permit_expires_at = moment + make_interval(secs => ask.permit_seconds)
  where tenant_id = s.tenant_id and operation_id = s.operation_id;
end $$;

-- Callers without a start step: handing out the permit is the start.
create or replace function sentinel.start_on_hand_out(ask sentinel.guard_input, operation uuid, permit uuid, moment timestamptz)
returns text language plpgsql as $$
declare
  e sentinel.events := sentinel.start_event(ask.tenant_id, ask.second_event_id, operation, ask.agent_id, ask.action, permit,
                                            ask.start_id, moment);
begin
  perform sentinel.write_events(array[e]);
  update sentinel.operation_states set status = 'started', started_at = moment, start_id = ask.start_id,
    start_event_id = e.event_id, start_hash = e.hash, act_until = sentinel.leave_until(ask.act_seconds, moment)
  where tenant_id = ask.tenant_id and operation_id = operation and status in ('allowed', 'approved');
  return e.hash;
end $$;
