-- Replays: the recorded decision for a repeated guard, with its current state.

-- The answer for a recorded operation in its current state.
create or replace function sentinel.current_answer(ask sentinel.guard_input, found_operation uuid, result text)
returns sentinel.guard_output language sql stable as $$
  select (ask.seq, result, o.operation_id, s.decision_event_id, s.decision, s.reason_code,
          case when s.status in ('started', 'in_doubt') and s.outcome is null then 'already_started'
               when s.status in ('started', 'in_doubt', 'completed') then 'completed' else s.status end,
          t.policy_id, t.policy_version, t.policy_label, o.resource, o.risk_class, o.digest, null,
          case when s.status in ('allowed', 'approved') then s.permit_id end,
          case when s.status in ('allowed', 'approved') then s.permit_expires_at end,
          s.approval_id, a.expires_at, case when a.status = 'approved' then a.decided_by end,
          case when a.status = 'approved' then a.decided_at end, s.outcome, e.body, e.hash, e.occurred_at,
          case when s.start_id = ask.start_id then s.start_event_id end, case when s.start_id = ask.start_id then s.start_hash end,
          case when s.start_id = ask.start_id then true end
         )::sentinel.guard_output
  from sentinel.operations o
  join sentinel.operation_states s using (tenant_id, operation_id)
  join sentinel.decision_terms t on t.terms_id = s.terms_id
  join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
  left join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
  where o.tenant_id = ask.tenant_id and o.operation_id = found_operation
$$;

-- The answer while a halt covers the request: refused for now only. The recorded decision stays valid, and the same key may be sent again
-- when the halt is lifted.
create or replace function sentinel.answer_under_halt(ask sentinel.guard_input, found_operation uuid) returns sentinel.guard_output
language plpgsql stable as $$
declare
  out sentinel.guard_output := sentinel.current_answer(ask, found_operation, 'replayed');
begin
  out.decision := 'DENY'; out.status := 'denied'; out.reason_code := 'halted';
  out.permit_id := null; out.permit_expires_at := null;
  return out;
end $$;

-- Repeats the first answer of the very request that made the start: its sender lost the connection before the answer came, and no caller
-- has received it. The caller may act from now on, so act_until is extended.
create or replace function sentinel.first_answer_again(ask sentinel.guard_input, s sentinel.operation_states, moment timestamptz)
returns sentinel.guard_output language plpgsql as $$
declare
  out sentinel.guard_output := sentinel.current_answer(ask, s.operation_id, case when s.decision_event_id = ask.event_id then 'decided' else 'replayed' end);
begin
  perform sentinel.extend_leave(s, ask.act_seconds, moment);
  out.status := case when s.approval_id is null then 'allowed' else 'approved' end;
  out.permit_id := s.permit_id; out.permit_expires_at := s.permit_expires_at;
  if out.start_event_id is not null then out.start_duplicate := false; end if;
  return out;
end $$;

-- Answers a repeated guard with the recorded decision. An unused permit is released when the caller now asks for a person about reasons
-- that no person has lifted; renew_permit then asks a person about the new reasons. A permit issued while asking for a person is replaced
-- when the caller no longer asks for one: renew_permit makes all checks again.
create or replace function sentinel.replay(ask sentinel.guard_input, o sentinel.operations)
returns sentinel.guard_output language plpgsql as $$
declare
  s sentinel.operation_states;
  out sentinel.guard_output;
  moment timestamptz;
  is_others boolean;
begin
  if o.digest <> ask.digest then
    out.seq := ask.seq; out.request := o.request; out.operation_id := o.operation_id; out.decided_at := o.created_at;
    out.result := case when sentinel.is_anothers(o, ask.principal_id, ask.bound_agent) then 'key_taken' else 'key_reused' end;
    return out;
  end if;
  select * into s from sentinel.operation_states
  where tenant_id = ask.tenant_id and operation_id = o.operation_id for update;
  moment := clock_timestamp();                                             -- after any wait for the row, e.g. for a vote
  is_others := sentinel.is_anothers(o, ask.principal_id, ask.bound_agent);
  -- Another requester may read the decision, but only the one that asked may act on it. A caller without a start step acts on these two
  -- states alone, so they are withheld.
  if is_others and s.status in ('allowed', 'approved') then
    out.seq := ask.seq; out.result := 'another_key';
    return out;
  end if;
  if is_others or s.not_executed_at is not null then
    -- After "not executed" no answer permits the action. The result is the latest resolution: after a success that contradicted "not
    -- executed" a person may have said "executed"; until then both are on record, with the success as the outcome.
    out := sentinel.current_answer(ask, o.operation_id,
      case when s.not_executed_at is null or s.status = 'completed' and s.outcome = 'success' then 'replayed' else 'not_executed' end);
    out.start_event_id := null; out.start_hash := null; out.start_duplicate := null;
    return out;
  end if;
  -- The ids are generated once per request, so a start whose event is second_event_id was made by this very request. A halt set since then
  -- still applies.
  if s.status = 'started' and s.start_event_id = ask.second_event_id
      and sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is null then
    return sentinel.first_answer_again(ask, s, moment);
  end if;
  if s.start_id = ask.start_id then perform sentinel.extend_leave(s, ask.act_seconds, moment); end if;
  if s.status = 'pending' and sentinel.expire_approval(s.tenant_id, s.approval_id, ask.second_event_id, moment) then
    return sentinel.current_answer(ask, o.operation_id, 'replayed');
  end if;
  if s.status not in ('allowed', 'approved') then return sentinel.current_answer(ask, o.operation_id, 'replayed'); end if;

  if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null then
    return sentinel.answer_under_halt(ask, o.operation_id);
  end if;
  if s.permit_id is not null and (s.permit_expires_at <= moment or sentinel.requires_approval(ask, s)
      or s.permit_for_person and not coalesce(ask.asks_person, false)) then
    perform sentinel.settle_usage(array[s], 'released');
    update sentinel.operation_states t set permit_id = null, permit_expires_at = null, holds = null, total_holds = null, reserved_minor = null,
      limit_keys = null, limit_owner = null, limit_buckets = null, parts_id = null, limit_overrides = null, reservation = null,
      once_live = t.once_live and t.approval_id is not null
    where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id returning * into s;
  end if;
  if s.permit_id is null then
    out.result := sentinel.renew_permit(ask, s, moment);
    if out.result is not null then
      out.seq := ask.seq;
      return out;
    end if;
    -- A renewal that would pass a breaker sets a halt instead.
    if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null then
      return sentinel.answer_under_halt(ask, o.operation_id);
    end if;
  end if;
  out := sentinel.current_answer(ask, o.operation_id, 'replayed');
  if (ask.hand_out_is_start or ask.start_id is not null) and out.permit_id is not null then
    -- second_event_id is still free: renew_permit uses it only in branches that issue no permit.
    out.start_hash := sentinel.start_on_hand_out(ask, o.operation_id, out.permit_id, moment);
    if ask.start_id is null then out.start_hash := null;
    else out.start_event_id := ask.second_event_id; out.start_duplicate := false; end if;
  end if;
  return out;
end $$;
