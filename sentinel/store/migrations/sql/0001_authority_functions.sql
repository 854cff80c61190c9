-- The authority's transactions, one round trip each. All run at READ COMMITTED: "lock, then read" is only right
-- where each statement sees what the lock waited for. Every function that decides takes the halt lock shared and
-- setting a halt takes it alone, so nothing decided or started can commit after a halt that it did not see.

create function sentinel.halt_lock() returns bigint language sql immutable parallel safe as
  $$ select 7305013942711301::bigint $$;

-- The lock of one budget's owner; record_decisions gets the same text from its caller.
create function sentinel.budget_lock(tenant uuid, subject text) returns bigint language sql immutable parallel safe as
  $$ select hashtextextended('budget/' || tenant || '/' || subject, 1) $$;

create function sentinel.utc_text(moment timestamptz) returns text language sql stable parallel safe as
  $$ select to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

create function sentinel.sha256_text(body text) returns text language sql immutable parallel safe as
  $$ select 'sha256:' || encode(sha256(convert_to(body, 'UTF8')), 'hex') $$;

-- An event's body is canonical JSON: jsonb keeps keys unique, this writes them sorted and without spaces.
create function sentinel.canonical(fields jsonb) returns text language sql immutable parallel safe as $$
  select '{' || coalesce(string_agg(to_json(key)::text || ':' || value, ',' order by key collate "C"), '') || '}'
  from (select key, case jsonb_typeof(value) when 'object' then sentinel.canonical(value)
                                             when 'array' then replace(value::text, '", "', '","')
                                             else value::text end as value
        from jsonb_each(fields) where jsonb_typeof(value) <> 'null') as members
$$;

-- An event whose body the caller wrote.
create function sentinel.append_body(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, body_text text
) returns text language plpgsql as $$
declare
  body_hash text := sentinel.sha256_text(body_text);
begin
  insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  values (tenant, event, event_kind, operation, agent, body_text, body_hash, moment);
  return body_hash;
end $$;

create function sentinel.append_event(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, fields jsonb
) returns text language plpgsql as $$
begin
  return sentinel.append_body(tenant, event, event_kind, operation, agent, moment, sentinel.canonical(
    fields || jsonb_build_object(
      'event', event_kind, 'event_id', event, 'occurred_at', sentinel.utc_text(moment), 'operation_id', operation)));
end $$;

-- The first halt in force over this request, or null. PL/pgSQL, like all that the hot path calls: its plans are kept.
create function sentinel.halt_over(tenant uuid, agent text, act text, scene text) returns uuid language plpgsql stable as $$
begin
  return (
    select halt_id from sentinel.halts
    where lifted_at is null
      and (scope = 'global' or tenant_id = tenant and (
           scope = 'tenant' or scope = 'agent' and target = agent
           or scope = 'action' and (target = act or right(target, 2) = '.*' and act like left(target, -1) || '%')
           or scope = 'scenario' and target = scene))
    limit 1);
end $$;

create type sentinel.limit_ask as (
  limit_key text, subject text, "window" text, window_seconds integer, bucket_seconds integer, zone text,
  cap_minor bigint, verdict text, reason_code text
);

create type sentinel.limit_state as (
  limit_key text, bucket timestamptz, window_seconds integer, cap_minor bigint, used_minor bigint, fits boolean,
  verdict text, reason_code text
);

-- Per limit: the window part being filled, and whether the amount still fits. A rolling window also counts the part it
-- only half covers, so it is never shorter than promised.
create function sentinel.limit_states(tenant uuid, asks jsonb, amount bigint, moment timestamptz)
returns sentinel.limit_state[] language plpgsql stable as $$
begin
  return array(
    select (ask.limit_key, part.bucket, ask.window_seconds, ask.cap_minor, used.minor, used.minor + amount <= ask.cap_minor,
            ask.verdict, ask.reason_code)::sentinel.limit_state
    from jsonb_populate_recordset(null::sentinel.limit_ask, asks) as ask
    cross join lateral (
      select case ask."window"
               when 'calendar_day' then date_trunc('day', moment, ask.zone)
               when 'calendar_month' then date_trunc('month', moment, ask.zone)
               else date_bin(make_interval(secs => ask.bucket_seconds), moment, 'epoch') end as bucket,
             case when ask."window" = 'rolling' then date_bin(make_interval(secs => ask.bucket_seconds),
               moment - make_interval(secs => ask.window_seconds), 'epoch') end as first_rolling) as part
    cross join lateral (
      select coalesce(sum(u.held_minor + u.captured_minor), 0)::bigint as minor from sentinel.usage u
      where u.tenant_id = tenant and u.limit_key = ask.limit_key and u.bucket >= coalesce(part.first_rolling, part.bucket)) as used
    order by ask.limit_key);
end $$;

-- A permit whose time is over un-started gives back its budget and what it held once. An approval stays good.
-- All of them (null, null, null), or of one tenant those that hold one of these limits or this once-key.
create function sentinel.release_expired_permits(only_tenant uuid, only_limits text[], only_once text, most integer)
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

create type sentinel.guard_input as (
  seq integer, tenant_id uuid, principal_id uuid, owner_operator_id uuid, idempotency_key text, operation_id uuid, event_id uuid,
  permit_id uuid, approval_id uuid, second_event_id uuid, agent_id text, action text, resource text,
  risk_class text, scenario text, digest text, request text, salt text, once_key text, amount_minor bigint, currency text,
  hand_out_is_start boolean, verdict text, reason_code text, reasons text[], policy_id text, policy_version text,
  policy_label text, policy_digest text, limits jsonb, required_role text, required_people integer, approval_seconds integer,
  permit_seconds integer, pack_parts text[], elapsed_ms integer
);

-- result: decided | replayed | key_reused. decision and reason_code are what holds now; pack is what was recorded.
create type sentinel.guard_output as (
  seq integer, result text, operation_id uuid, decision_event_id uuid, decision text, reason_code text, status text,
  policy_id text, policy_version text, policy_label text, resource text, risk_class text, digest text, request text,
  permit_id uuid, permit_expires_at timestamptz, approval_id uuid, approval_expires_at timestamptz, approver text,
  approved_at timestamptz, outcome text, pack text, pack_hash text, decided_at timestamptz
);

create function sentinel.new_approval(ask sentinel.guard_input, operation uuid, why text[], moment timestamptz)
returns void language sql as $$
  insert into sentinel.approvals
    (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, amount_minor,
     currency, digest, reasons, policy_digest, required_role, required_people, created_at, expires_at)
  values (ask.tenant_id, ask.approval_id, operation, ask.principal_id, ask.owner_operator_id, ask.agent_id, ask.action,
     ask.resource, ask.amount_minor, ask.currency, ask.digest, why, ask.policy_digest, ask.required_role,
     ask.required_people, moment, moment + make_interval(secs => ask.approval_seconds))
$$;

create function sentinel.stricter(one text, other text) returns text language sql immutable parallel safe as $$
  select case when 'DENY' in (one, other) then 'DENY' when 'APPROVAL_REQUIRED' in (one, other) then 'APPROVAL_REQUIRED'
         else 'ALLOW' end
$$;

-- Budget left for this request, after giving back what expired permits still hold of it, whoever held them.
create function sentinel.fitted_limits(ask sentinel.guard_input, moment timestamptz)
returns sentinel.limit_state[] language plpgsql as $$
declare
  states sentinel.limit_state[];
begin
  states := sentinel.limit_states(ask.tenant_id, ask.limits, ask.amount_minor, moment);
  while exists (select from unnest(states) where not fits)
     and sentinel.release_expired_permits(
           ask.tenant_id, array(select limit_key from unnest(states) where not fits), null, 100) > 0 loop
    states := sentinel.limit_states(ask.tenant_id, ask.limits, ask.amount_minor, moment);
  end loop;
  return states;
end $$;

-- The recorded operation as the caller sees it now.
create function sentinel.guard_view(ask sentinel.guard_input, found_operation uuid, result text)
returns sentinel.guard_output language sql stable as $$
  select (ask.seq, result, o.operation_id, s.decision_event_id, s.decision, s.reason_code,
          case when s.status in ('started', 'in_doubt') and s.outcome is null then 'already_started'
               when s.status in ('started', 'in_doubt', 'completed') then 'completed' else s.status end,
          s.policy_id, s.policy_version, s.policy_label, o.resource, o.risk_class, o.digest, null,
          case when s.status in ('allowed', 'approved') then s.permit_id end,
          case when s.status in ('allowed', 'approved') then s.permit_expires_at end,
          s.approval_id, a.expires_at, case when a.status = 'approved' then a.decided_by end,
          case when a.status = 'approved' then a.decided_at end, s.outcome, e.body, e.hash, e.occurred_at
         )::sentinel.guard_output
  from sentinel.operations o
  join sentinel.operation_states s using (tenant_id, operation_id)
  join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
  left join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
  where o.tenant_id = ask.tenant_id and o.operation_id = found_operation
$$;

-- Callers without a start step: handing out the permit is the start.
create function sentinel.start_on_hand_out(ask sentinel.guard_input, operation uuid, moment timestamptz)
returns void language plpgsql as $$
declare
  event_hash text;
begin
  event_hash := sentinel.append_event(ask.tenant_id, ask.second_event_id, 'start', operation, ask.agent_id, moment,
    jsonb_build_object('action', ask.action, 'agent_id', ask.agent_id, 'start_step', 'none'));
  update sentinel.operation_states set status = 'started', started_at = moment,
    start_event_id = ask.second_event_id, start_hash = event_hash
  where tenant_id = ask.tenant_id and operation_id = operation and status in ('allowed', 'approved');
end $$;

-- A permit for an operation decided before: approved since, or its permit ran out un-started. Everything is asked again;
-- an approval lifts the reasons it lists and nothing else. What is new is a refusal or a new question to a person.
create function sentinel.renew_permit(ask sentinel.guard_input, s sentinel.operation_states, moment timestamptz)
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
  if ask.verdict = 'DENY' then
    refusal := ask.reason_code;
  elsif s.once_key is not null and not s.once_live and exists (
      select from sentinel.operation_states other
      where other.tenant_id = s.tenant_id and other.once_key = s.once_key and other.once_live)
      and sentinel.release_expired_permits(s.tenant_id, null, s.once_key, 1) = 0 then
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
  update sentinel.operation_states set permit_id = ask.permit_id, once_live = once_key is not null,
    permit_expires_at = moment + make_interval(secs => ask.permit_seconds)
  where tenant_id = s.tenant_id and operation_id = s.operation_id;
end $$;

create function sentinel.expire_approval(tenant uuid, approval uuid, event uuid, moment timestamptz)
returns boolean language plpgsql as $$
declare
  a sentinel.approvals;
begin
  update sentinel.approvals set status = 'expired', decided_at = moment
  where tenant_id = tenant and approval_id = approval and status = 'pending' and expires_at <= moment returning * into a;
  if not found then return false; end if;
  update sentinel.operation_states set status = 'expired', reason_code = 'approval_expired', once_live = false
  where tenant_id = tenant and operation_id = a.operation_id and status = 'pending' and approval_id = approval;
  perform sentinel.append_event(tenant, event, 'approval_expired', a.operation_id, a.agent_id, moment,
    jsonb_build_object('approval_id', approval));
  return true;
end $$;

create function sentinel.replay(ask sentinel.guard_input, o sentinel.operations, moment timestamptz)
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
  if s.permit_id is not null and s.permit_expires_at <= moment then
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
create function sentinel.peek_decision(ask_json jsonb) returns table (decision text, reason_code text) language plpgsql stable as $$
declare
  ask sentinel.guard_input := jsonb_populate_record(null::sentinel.guard_input, ask_json);
  moment timestamptz := clock_timestamp();
begin
  decision := ask.verdict; reason_code := ask.reason_code;
  if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null then
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
  return next;
end $$;

-- Many questions at once; they do not see each other.
create function sentinel.peek_decisions(batch jsonb) returns table (seq integer, decision text, reason_code text)
language sql stable as $$
  select (question ->> 'seq')::integer, p.decision, p.reason_code
  from jsonb_array_elements(batch) as question cross join lateral sentinel.peek_decision(question) as p
$$;

-- result: started | duplicate | unknown | differs | already_started | not_startable | expired | halted
create type sentinel.receipt as (result text, field text, event_id uuid, hash text, operation_id uuid);

create type sentinel.start_input as (
  seq integer, tenant_id uuid, idempotency_key text, action text, agent_id text, resource text, risk_class text,
  permit_id uuid, digest text, start_id uuid, event_id uuid
);

-- result: received | duplicate | contradicts | unknown | differs | not_started
create type sentinel.report_input as (
  seq integer, tenant_id uuid, idempotency_key text, action text, agent_id text, resource text, risk_class text,
  permit_id uuid, outcome text, content_digest text, report_id uuid, event_id uuid
);

-- The partner of action/check: recorded once per request id. result: received | duplicate | contradicts
create function sentinel.record_check_report(
  tenant uuid, request text, content_digest text, event uuid, agent text, act text, told text
) returns sentinel.receipt language plpgsql as $$
declare
  moment timestamptz := clock_timestamp();
  event_hash text;
  earlier sentinel.check_reports;
begin
  insert into sentinel.check_reports (tenant_id, request_id, digest, event_id, received_at)
  values (tenant, request, content_digest, event, moment) on conflict do nothing;
  if found then
    event_hash := sentinel.append_event(tenant, event, 'check_report', null, agent, moment,
      jsonb_build_object('action', act, 'agent_id', agent, 'request_id', request, 'status', told));
    return row('received', null, event, event_hash, null)::sentinel.receipt;
  end if;
  select * into earlier from sentinel.check_reports where tenant_id = tenant and request_id = request;
  return row(case when earlier.digest = content_digest then 'duplicate' else 'contradicts' end, null, earlier.event_id,
    (select hash from sentinel.events e where e.tenant_id = tenant and e.event_id = earlier.event_id), null)::sentinel.receipt;
end $$;

-- result: resolved | unknown | not_in_doubt
create function sentinel.resolve_in_doubt(
  tenant uuid, operation uuid, executed boolean, who text, evidence text, event uuid
) returns text language plpgsql as $$
declare
  s sentinel.operation_states;
  moment timestamptz := clock_timestamp();
begin
  select * into s from sentinel.operation_states where tenant_id = tenant and operation_id = operation for update;
  if not found then return 'unknown'; end if;
  if s.status <> 'in_doubt' then return 'not_in_doubt'; end if;
  update sentinel.operation_states set status = 'completed', outcome = case when executed then 'success' else 'error' end,
    in_doubt_since = null, in_doubt_reason = null, once_live = once_live and executed
  where tenant_id = tenant and operation_id = operation and status = 'in_doubt';
  perform sentinel.settle_budget(tenant, s.permit_id, case when executed then 'captured' else 'released' end, moment);
  perform sentinel.append_event(tenant, event, 'in_doubt_resolved', operation, null, moment,
    jsonb_build_object('executed', executed, 'evidence', evidence, 'resolved_by', who));
  return 'resolved';
end $$;

-- Whether an operator answers for who asked: at the time of asking, or by owning any key of the same principal since.
create function sentinel.is_requester(a sentinel.approvals, operator uuid) returns boolean language sql stable as $$
  select operator is not distinct from a.requester_operator_id or exists (
    select from sentinel.agent_keys k
    where k.tenant_id = a.tenant_id and k.principal_id = a.principal_id and k.owner_operator_id = operator)
$$;

-- result: approved | rejected | recorded | unknown | not_pending | expired | requester | already_voted | role | changed
create function sentinel.resolve_approval(
  tenant uuid, approval uuid, operator uuid, vote text, why text, shown_digest text, how text, event uuid, second_event uuid
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
    when shown_digest is not null and shown_digest <> a.digest then 'changed' end;
  if result is not null then
    if result = 'expired' then perform sentinel.expire_approval(tenant, approval, event, moment); end if;
    return next; return;
  end if;
  insert into sentinel.approval_votes (tenant_id, approval_id, operator_id, verdict, reason, via, voted_at)
  values (tenant, approval, operator, vote, why, how, moment) on conflict do nothing;
  if not found then result := 'already_voted'; return next; return; end if;
  perform sentinel.append_event(tenant, event, 'approval_vote', a.operation_id, a.agent_id, moment,
    jsonb_build_object('approval_id', approval, 'digest', a.digest, 'operator', person.email, 'reason', why,
                       'verdict', vote, 'via', how));
  -- A voice counts while its person could still give it: active, in the role, and not become the requester since.
  select count(*) filter (where v.verdict = 'approve'), string_agg(p.email, ', ' order by v.voted_at)
    into given, names from sentinel.approval_votes v join sentinel.operators p using (tenant_id, operator_id)
    where v.tenant_id = tenant and v.approval_id = approval and v.verdict = vote
      and p.active and (p.role = 'admin' or p.role = a.required_role) and not sentinel.is_requester(a, p.operator_id);
  approvals_given := given;
  if vote = 'approve' and given < a.required_people then result := 'recorded'; return next; return; end if;
  result := case vote when 'approve' then 'approved' else 'rejected' end;
  update sentinel.approvals set status = resolve_approval.result, decided_at = moment, decided_by = names, reason = why
  where tenant_id = tenant and approval_id = approval and status = 'pending' and expires_at > moment;
  update sentinel.operation_states set status = case vote when 'approve' then 'approved' else 'denied' end,
    decision = case vote when 'approve' then decision else 'DENY' end,
    reason_code = case vote when 'approve' then reason_code else 'approval_rejected' end,
    once_live = once_live and vote = 'approve'
  where tenant_id = tenant and operation_id = a.operation_id and status = 'pending' and approval_id = approval;
  perform sentinel.append_event(tenant, second_event, 'approval_' || result, a.operation_id, a.agent_id, moment,
    jsonb_build_object('approval_id', approval, 'decided_by', names, 'digest', a.digest, 'reasons', a.reasons));
  return next;
end $$;

create function sentinel.set_halt(
  owner uuid, halt uuid, halt_scope text, halt_target text, halt_level text, why text, who text, event uuid
) returns table (halt_id uuid, already boolean) language plpgsql as $$
declare
  moment timestamptz;
  weaker sentinel.halts;
begin
  perform pg_advisory_xact_lock(sentinel.halt_lock());
  moment := clock_timestamp();
  -- A kill takes the place of a pause within this transaction, so that there is no moment without a halt.
  update sentinel.halts h set lifted_at = moment, lifted_by = who
  where h.tenant_id = owner and h.scope = halt_scope and h.target = halt_target and h.lifted_at is null
    and h.level = 'pause' and halt_level = 'kill' returning * into weaker;
  select h.halt_id, true into halt_id, already from sentinel.halts h
  where h.tenant_id = owner and h.scope = halt_scope and h.target = halt_target and h.lifted_at is null;
  if found then return next; return; end if;
  insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)
  values (owner, halt, halt_scope, halt_target, halt_level, why, who, moment);
  perform sentinel.append_event(owner, event, 'halt_set', null, null, moment, jsonb_build_object('halt_id', halt,
    'level', halt_level, 'reason', why, 'replaces', weaker.halt_id, 'scope', halt_scope, 'set_by', who,
    'target', halt_target));
  halt_id := halt; already := false;
  return next;
end $$;

create function sentinel.lift_halt(owner uuid, halt uuid, who text, why text, event uuid) returns boolean language plpgsql as $$
declare
  h sentinel.halts;
  moment timestamptz;
begin
  perform pg_advisory_xact_lock(sentinel.halt_lock());
  moment := clock_timestamp();
  update sentinel.halts set lifted_at = moment, lifted_by = who
  where tenant_id = owner and halt_id = halt and lifted_at is null returning * into h;
  if not found then return false; end if;
  perform sentinel.append_event(owner, event, 'halt_lifted', null, null, moment, jsonb_build_object('halt_id', halt,
    'lifted_by', who, 'reason', why, 'scope', h.scope, 'target', h.target));
  return true;
end $$;

-- What time does by itself: permits and approvals run out, silent operations fall in doubt. Small steps, skipping locked rows.
create function sentinel.keep_house(report_deadline_seconds integer, event_ids uuid[])
returns table (permits_expired integer, approvals_expired integer, fell_in_doubt integer) language plpgsql as $$
declare
  due record;
  used integer := 0;
  moment timestamptz := clock_timestamp();
begin
  permits_expired := sentinel.release_expired_permits(null, null, null, 200);
  approvals_expired := 0; fell_in_doubt := 0;
  for due in select tenant_id, approval_id from sentinel.approvals
             where status = 'pending' and expires_at <= moment
             order by expires_at limit cardinality(event_ids) / 2 for update skip locked loop
    used := used + 1;
    if sentinel.expire_approval(due.tenant_id, due.approval_id, event_ids[used], moment) then
      approvals_expired := approvals_expired + 1;
    end if;
  end loop;
  for due in select s.tenant_id, s.operation_id from sentinel.operation_states s
             where s.status = 'started' and s.started_at < moment - make_interval(secs => report_deadline_seconds)
             order by s.started_at limit cardinality(event_ids) / 2 for update skip locked loop
    used := used + 1;
    update sentinel.operation_states set status = 'in_doubt', in_doubt_since = moment, in_doubt_reason = 'no_report'
    where tenant_id = due.tenant_id and operation_id = due.operation_id and status = 'started';
    perform sentinel.append_event(due.tenant_id, event_ids[used], 'in_doubt', due.operation_id, null, moment,
      jsonb_build_object('reason', 'no_report'));
    fell_in_doubt := fell_in_doubt + 1;
  end loop;
  return next;
end $$;

-- Hands out feed positions to events whose transactions are all over, so that no position can appear late or be skipped.
-- Whole transactions at a time, so that the mark is one number and nothing before it is ever looked at again.
-- One sequencer at a time; whoever comes second leaves at once.
create function sentinel.sequence_events(most integer) returns integer language plpgsql as $$
declare
  seen xid8;
  last xid8;
  sequenced integer;
begin
  if not pg_try_advisory_xact_lock(7305013942711302) then return 0; end if;
  select transaction_id into seen from sentinel.sequencer;
  if seen > pg_snapshot_xmax(pg_current_snapshot()) then return sentinel.sequence_restored(); end if;
  select e.transaction_id into last from (
    select transaction_id from sentinel.events
    where transaction_id > seen and transaction_id < pg_snapshot_xmin(pg_current_snapshot())
    order by transaction_id limit most) e
  order by e.transaction_id desc limit 1;
  if last is null then return 0; end if;
  with fresh as materialized (
    select tenant_id, event_id,
           row_number() over (partition by tenant_id order by transaction_id, event_id) as nth,
           count(*) over (partition by tenant_id) as many
    from sentinel.events where transaction_id > seen and transaction_id <= last
  ), heads as (
    insert into sentinel.feed_heads as h (tenant_id, position) select distinct tenant_id, many from fresh
    on conflict (tenant_id) do update set position = h.position + excluded.position returning tenant_id, position
  ), placed as (
    insert into sentinel.feed (tenant_id, position, event_id)
    select f.tenant_id, h.position - f.many + f.nth, f.event_id from fresh f join heads h using (tenant_id) returning 1
  )
  select count(*) into sequenced from placed;
  update sentinel.sequencer set transaction_id = last;
  return sequenced;
end $$;

-- After a restore into a new cluster transaction ids begin again below the mark. The restored events that have no position
-- yet get theirs once, and the mark begins again with this cluster's ids.
create function sentinel.sequence_restored() returns integer language plpgsql as $$
declare
  sequenced integer;
begin
  with fresh as materialized (
    select e.tenant_id, e.event_id,
           row_number() over (partition by e.tenant_id order by e.transaction_id, e.event_id) as nth,
           count(*) over (partition by e.tenant_id) as many
    from sentinel.events e
    where (e.transaction_id < pg_snapshot_xmin(pg_current_snapshot()) or e.transaction_id > pg_snapshot_xmax(pg_current_snapshot()))
      and not exists (select from sentinel.feed f where f.tenant_id = e.tenant_id and f.event_id = e.event_id)
  ), heads as (
    insert into sentinel.feed_heads as h (tenant_id, position) select distinct tenant_id, many from fresh
    on conflict (tenant_id) do update set position = h.position + excluded.position returning tenant_id, position
  ), placed as (
    insert into sentinel.feed (tenant_id, position, event_id)
    select f.tenant_id, h.position - f.many + f.nth, f.event_id from fresh f join heads h using (tenant_id) returning 1
  )
  select count(*) into sequenced from placed;
  -- Just below the oldest transaction that may still write: what it writes is to come, what was before is placed.
  update sentinel.sequencer set transaction_id = (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8;
  return sequenced;
end $$;
