-- Questions to a person: the request itself may ask for one (an escalation), a question may not offer "approve", and a
-- person may say that it was handled elsewhere. Functions are those of 0001 with these additions and nothing else.

-- A permit that was got with a question to a person.
alter table sentinel.operation_states add column permit_for_person boolean not null default false;

alter table sentinel.approvals
  -- False: a person may reject or handle by hand; approving would let the machine do what it cannot do now.
  add column offers_approve boolean not null default true,
  add column handled_reference text,                                       -- where it was handled, by whoever handled it
  add constraint handled_is_rejected check (handled_reference is null or status = 'rejected'),
  add constraint handled_reference_length check (length(handled_reference) between 1 and 200);

alter table sentinel.approval_votes
  drop constraint approval_votes_verdict_check,
  add constraint approval_votes_verdict_check check (verdict in ('approve', 'reject', 'handled'));

-- approvable: null means true. asks_person: null means false. Rows leave both out unless they say something.
alter type sentinel.guard_input add attribute approvable boolean, add attribute asks_person boolean;

-- One transition, and none without the voices it takes: who cannot vote (the authority) cannot approve either. What does
-- not offer "approve" is never approved, whatever a function says.
create or replace function sentinel.check_approval() returns trigger language plpgsql as $$
declare
  wanted text[] := case when new.status = 'approved' then array['approve']
                        when new.handled_reference is not null then array['handled'] else array['reject'] end;
begin
  if tg_op = 'INSERT' and new.status <> 'pending' or tg_op = 'UPDATE' and old.status <> 'pending' and (
      new.status <> old.status or new.handled_reference is distinct from old.handled_reference) then
    raise exception 'an approval begins pending and is decided once' using errcode = 'check_violation', constraint = 'approval_decided_once';
  end if;
  if tg_op = 'UPDATE' and old.status = 'pending' and new.status = 'approved' and not new.offers_approve then
    raise exception 'this question does not offer approval' using errcode = 'check_violation', constraint = 'approval_offered';
  end if;
  if tg_op = 'UPDATE' and old.status = 'pending' and new.status in ('approved', 'rejected') and (
      select count(*) from sentinel.approval_votes v
      where v.tenant_id = new.tenant_id and v.approval_id = new.approval_id and v.verdict = any(wanted)
    ) < (case new.status when 'approved' then new.required_people else 1 end) then
    raise exception 'an approval needs the voices of its people' using errcode = 'check_violation', constraint = 'approval_has_voices';
  end if;
  return new;
end $$;

create or replace function sentinel.new_approval(ask sentinel.guard_input, operation uuid, why text[], moment timestamptz)
returns void language sql as $$
  insert into sentinel.approvals
    (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, amount_minor,
     currency, digest, reasons, policy_digest, required_role, required_people, offers_approve,
     created_at, expires_at)
  values (ask.tenant_id, ask.approval_id, operation, ask.principal_id, ask.owner_operator_id, ask.agent_id, ask.action,
     ask.resource, ask.amount_minor, ask.currency, ask.digest, why, ask.policy_digest, ask.required_role,
     ask.required_people, coalesce(ask.approvable, true), moment, moment + make_interval(secs => ask.approval_seconds))
$$;

-- Whether somebody holds what may happen only once, after giving back what a permit that ran out still holds of it. What a
-- person approved stays held: its permit can be renewed.
create function sentinel.once_taken(tenant uuid, once text) returns boolean language plpgsql as $$
begin
  perform sentinel.release_expired_permits(tenant, null, once, 1);
  return exists (
    select from sentinel.operation_states s where s.tenant_id = tenant and s.once_key = once and s.once_live);
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

-- Whether the caller now asks for a person about something that nobody has lifted: then it must not keep a permit.
create function sentinel.asks_for_person(ask sentinel.guard_input, s sentinel.operation_states)
returns boolean language plpgsql stable as $$
begin
  return coalesce(ask.asks_person, false) and not ask.reasons <@ coalesce((
    select a.reasons from sentinel.approvals a
    where a.tenant_id = s.tenant_id and a.approval_id = s.approval_id and a.status = 'approved'), '{}');
end $$;

-- As in 0001; and a permit that was not used is taken back from who asks for a person instead. What is new then is put
-- to somebody, by renew_permit. One that was got while asking for a person is exchanged on the straight way: whatever the
-- question to a person left open is asked there.
create or replace function sentinel.replay(ask sentinel.guard_input, o sentinel.operations, moment timestamptz)
returns sentinel.guard_output language plpgsql as $$
declare
  s sentinel.operation_states;
  out sentinel.guard_output;
begin
  if o.digest <> ask.digest then
    out.seq := ask.seq; out.result := 'key_reused'; out.request := o.request;
    return out;
  end if;
  select * into s from sentinel.operation_states
  where tenant_id = ask.tenant_id and operation_id = o.operation_id for update;
  if s.status = 'pending' and sentinel.expire_approval(s.tenant_id, s.approval_id, ask.second_event_id, moment) then
    return sentinel.guard_view(ask, o.operation_id, 'replayed');
  end if;
  if s.status not in ('allowed', 'approved') then return sentinel.guard_view(ask, o.operation_id, 'replayed'); end if;

  if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null then
    -- Refused now, not for ever: the recorded decision stands and the key may ask again when the halt is lifted.
    out := sentinel.guard_view(ask, o.operation_id, 'replayed');
    out.decision := 'DENY'; out.status := 'denied'; out.reason_code := 'halted';
    out.permit_id := null; out.permit_expires_at := null;
    return out;
  end if;
  if s.permit_id is not null and (s.permit_expires_at <= moment or sentinel.asks_for_person(ask, s)
      or s.permit_for_person and not coalesce(ask.asks_person, false)) then
    perform sentinel.settle_budget(s.tenant_id, s.permit_id, 'released', moment);
    s.permit_id := null; s.once_live := s.once_live and s.approval_id is not null;
    update sentinel.operation_states set permit_id = null, permit_expires_at = null, once_live = s.once_live
    where tenant_id = s.tenant_id and operation_id = s.operation_id;
  end if;
  if s.permit_id is null then perform sentinel.renew_permit(ask, s, moment); end if;
  out := sentinel.guard_view(ask, o.operation_id, 'replayed');
  if ask.hand_out_is_start and out.permit_id is not null then
    -- renew_permit may have used second_event_id only on the ways that hand out no permit.
    perform sentinel.start_on_hand_out(ask, o.operation_id, moment);
  end if;
  return out;
end $$;

-- A question without effect: the same halts, once-keys and limits as record_decisions, nothing written.
create or replace function sentinel.peek_decision(ask_json jsonb) returns table (decision text, reason_code text) language plpgsql stable as $$
declare
  ask sentinel.guard_input := jsonb_populate_record(null::sentinel.guard_input, ask_json);
  moment timestamptz := clock_timestamp();
  halted boolean := sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null;
begin
  decision := ask.verdict; reason_code := ask.reason_code;
  if halted and (decision = 'DENY' or not coalesce(ask.asks_person, false)) then
    decision := 'DENY'; reason_code := 'halted';
  elsif decision <> 'DENY' and ask.once_key is not null and exists (
      select from sentinel.operation_states s
      where s.tenant_id = ask.tenant_id and s.once_key = ask.once_key and s.once_live) then
    decision := 'DENY'; reason_code := 'duplicate_resource';
  elsif decision <> 'DENY' and ask.amount_minor is not null and jsonb_array_length(ask.limits) > 0 then
    select sentinel.stricter(decision, l.verdict), case when sentinel.stricter(decision, l.verdict) <> decision
             then l.reason_code else peek_decision.reason_code end
      into decision, reason_code
    from unnest(sentinel.limit_states(ask.tenant_id, ask.limits, ask.amount_minor, moment)) l
    where not l.fits order by l.verdict = 'DENY' desc, l.limit_key limit 1;
    decision := coalesce(decision, ask.verdict); reason_code := coalesce(reason_code, ask.reason_code);
  end if;
  if halted and reason_code <> 'duplicate_resource' then
    decision := sentinel.stricter(decision, 'APPROVAL_REQUIRED'); reason_code := 'halted';
  end if;
  return next;
end $$;

-- vote: approve | reject | handled (then `elsewhere` is the reference of what was done).
-- result: approved | rejected | handled | recorded | unknown | not_pending | expired | requester | already_voted | role |
--         changed | not_offered
drop function sentinel.resolve_approval;
create function sentinel.resolve_approval(
  tenant uuid, approval uuid, operator uuid, vote text, why text, shown_digest text, how text, event uuid, second_event uuid,
  elsewhere text default null
) returns table (result text, approvals_given integer, people_required integer) language plpgsql as $$
declare
  a sentinel.approvals;
  person sentinel.operators;
  moment timestamptz;
  given integer;
  names text;
begin
  select * into a from sentinel.approvals where tenant_id = tenant and approval_id = approval for update;
  if not found then result := 'unknown'; return next; return; end if;
  moment := clock_timestamp();
  people_required := a.required_people;
  select * into person from sentinel.operators where tenant_id = tenant and operator_id = operator and active;
  result := case
    when a.status <> 'pending' then 'not_pending'
    when a.expires_at <= moment then 'expired'
    when person.operator_id is null or not (person.role = 'admin' or person.role = a.required_role) then 'role'
    when sentinel.is_requester(a, person.operator_id) then 'requester'
    when shown_digest is not null and shown_digest <> a.digest then 'changed'
    when vote = 'approve' and not a.offers_approve then 'not_offered' end;
  if result is not null then
    if result = 'expired' then perform sentinel.expire_approval(tenant, approval, event, moment); end if;
    return next; return;
  end if;
  insert into sentinel.approval_votes (tenant_id, approval_id, operator_id, verdict, reason, via, voted_at)
  values (tenant, approval, operator, vote, why, how, moment) on conflict do nothing;
  if not found then result := 'already_voted'; return next; return; end if;
  perform sentinel.append_event(tenant, event, 'approval_vote', a.operation_id, a.agent_id, moment,
    jsonb_build_object('approval_id', approval, 'digest', a.digest, 'operator', person.email, 'reason', why,
                       'reference', elsewhere, 'verdict', vote, 'via', how));
  -- A voice counts while its person could still give it: active, in the role, and not become the requester since.
  select count(*) filter (where v.verdict = 'approve'), string_agg(p.email, ', ' order by v.voted_at)
    into given, names from sentinel.approval_votes v join sentinel.operators p using (tenant_id, operator_id)
    where v.tenant_id = tenant and v.approval_id = approval and v.verdict = vote
      and p.active and (p.role = 'admin' or p.role = a.required_role) and not sentinel.is_requester(a, p.operator_id);
  approvals_given := given;
  if vote = 'approve' and given < a.required_people then result := 'recorded'; return next; return; end if;
  result := case vote when 'approve' then 'approved' when 'handled' then 'handled' else 'rejected' end;
  update sentinel.approvals set status = case vote when 'approve' then 'approved' else 'rejected' end,
    decided_at = moment, decided_by = names, reason = why, handled_reference = elsewhere
  where tenant_id = tenant and approval_id = approval and status = 'pending' and expires_at > moment;
  update sentinel.operation_states set status = case vote when 'approve' then 'approved' else 'denied' end,
    decision = case vote when 'approve' then decision else 'DENY' end,
    reason_code = case vote when 'approve' then reason_code when 'handled' then 'handled_by_person' else 'approval_rejected' end,
    -- What a person has done elsewhere is done: no other key may do it again.
    once_live = once_live and vote <> 'reject'
  where tenant_id = tenant and operation_id = a.operation_id and status = 'pending' and approval_id = approval;
  perform sentinel.append_event(tenant, second_event, 'approval_' || result, a.operation_id, a.agent_id, moment,
    jsonb_build_object('approval_id', approval, 'decided_by', names, 'digest', a.digest, 'reasons', a.reasons,
                       'operator', case vote when 'handled' then person.email end, 'reference', elsewhere));
  return next;
end $$;
