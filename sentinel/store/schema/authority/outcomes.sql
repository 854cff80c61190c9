-- Starts and outcomes: a permit is redeemed once, its outcome reported once; what nobody knows is in doubt.

-- A start under a start id, or, without one, of a caller for whom handing out the permit is the start.
create or replace function sentinel.start_event(
  tenant uuid, event uuid, operation uuid, agent text, act text, permit uuid, start uuid, moment timestamptz
) returns sentinel.events language plpgsql as $$
begin
  return sentinel.event_of(tenant, event, 'start', operation, agent, moment, format(
    '{"action":"%s","agent_id":"%s","event":"start","event_id":"%s","occurred_at":"%s","operation_id":"%s",%s}',
    act, agent, event, sentinel.utc_text(moment), operation,
    case when start is null then '"start_step":"none"' else format('"permit_id":"%s","start_id":"%s"', permit, start) end));
end $$;

-- A start or a report that leaves everything as it is.
create or replace function sentinel.unmoved(result text, field text, operation uuid, event uuid default null, hash text default null)
returns sentinel.moved language plpgsql as $$
begin
  return row(row(result, field, event, hash, operation)::sentinel.receipt, null, null)::sentinel.moved;
end $$;

-- Until when an answered start gives leave to act. A row without a time comes from a program of before: it gets plenty.
create or replace function sentinel.leave_until(seconds integer, moment timestamptz) returns timestamptz
language sql stable parallel safe as $$ select moment + make_interval(secs => coalesce(seconds, 900)) $$;

-- A start that was answered again: whoever is told so may act from now on, so nobody may say "not executed" before that time is
-- over. What ended in a success is not started again by this, and cannot be said not to be executed.
create or replace function sentinel.extend_leave(s sentinel.operation_states, seconds integer, moment timestamptz) returns void
language plpgsql as $$
begin
  if s.status not in ('started', 'in_doubt') then return; end if;
  update sentinel.operation_states t set act_until = greatest(t.act_until, sentinel.leave_until(seconds, moment))
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id;
end $$;

create or replace function sentinel.start_operation(ask sentinel.start_input) returns sentinel.moved language plpgsql as $$
declare
  o sentinel.operations;
  s sentinel.operation_states;
  e sentinel.events;
  moment timestamptz;
  differs text;
begin
  select * into o from sentinel.operations where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
  if not found then return sentinel.unmoved('unknown', null, null); end if;
  select * into s from sentinel.operation_states where tenant_id = o.tenant_id and operation_id = o.operation_id for update;
  moment := clock_timestamp();
  differs := case when o.action <> ask.action then 'action' when o.agent_id <> ask.agent_id then 'agent_id'
                  when o.resource <> ask.resource then 'resource' when o.risk_class <> ask.risk_class then 'risk_class'
                  when o.digest <> ask.digest then 'permit_token'
                  when sentinel.is_anothers(o, ask.principal_id, ask.bound_agent) then 'key' end;
  if differs is not null then return sentinel.unmoved('differs', differs, o.operation_id); end if;
  if s.not_executed_at is not null then return sentinel.unmoved('resolved_not_executed', null, o.operation_id); end if;
  if s.status in ('started', 'in_doubt', 'completed') then
    if s.start_id = ask.start_id and s.permit_id = ask.permit_id then
      perform sentinel.extend_leave(s, ask.act_seconds, moment);
      return sentinel.unmoved('duplicate', null, o.operation_id, s.start_event_id, s.start_hash);
    end if;
    return sentinel.unmoved('already_started', null, o.operation_id);
  end if;
  if s.status not in ('allowed', 'approved') then return sentinel.unmoved('not_startable', s.status, o.operation_id); end if;
  if s.permit_id <> ask.permit_id then return sentinel.unmoved('differs', 'permit_token', o.operation_id); end if;
  if s.permit_id is null or s.permit_expires_at <= moment then return sentinel.unmoved('expired', null, o.operation_id); end if;
  if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, o.scenario) is not null then
    return sentinel.unmoved('halted', null, o.operation_id);
  end if;
  e := sentinel.start_event(ask.tenant_id, ask.event_id, o.operation_id, ask.agent_id, ask.action, ask.permit_id, ask.start_id, moment);
  s.status := 'started'; s.started_at := moment; s.start_id := ask.start_id;
  s.start_event_id := ask.event_id; s.start_hash := e.hash; s.act_until := sentinel.leave_until(ask.act_seconds, moment);
  return row(row('started', null, ask.event_id, e.hash, o.operation_id)::sentinel.receipt, e, s)::sentinel.moved;
end $$;

create or replace function sentinel.write_starts(events sentinel.events[], states sentinel.operation_states[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.write_events(events);
  update sentinel.operation_states t set status = 'started', started_at = s.started_at, start_id = s.start_id,
    start_event_id = s.start_event_id, start_hash = s.start_hash, act_until = s.act_until
  from unnest(states) as s
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.status in ('allowed', 'approved');
end $$;

-- One or many starts in one transaction, in key order; each answer is the one it would have alone.
create or replace function sentinel.start_operations(batch jsonb, patience_ms integer default 2000)
returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$
declare
  deadline timestamptz := clock_timestamp() + make_interval(secs => patience_ms / 1000.0);
  ask sentinel.start_input;
  last_key text;
  one sentinel.moved;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
begin
  if patience_ms < 1900 then perform sentinel.wait_until(deadline); end if;
  perform pg_advisory_xact_lock_shared(sentinel.halt_lock());
  perform sentinel.take_locks(array(
    select sentinel.operation_lock((a ->> 'tenant_id')::uuid, a ->> 'idempotency_key') from jsonb_array_elements(batch) as a), deadline);
  for ask in select * from jsonb_populate_recordset(null::sentinel.start_input, batch) order by tenant_id, idempotency_key, seq loop
    if ask.idempotency_key = last_key then
      perform sentinel.write_starts(events, states);
      events := '{}'; states := '{}';
    end if;
    last_key := ask.idempotency_key;
    one := sentinel.start_operation(ask);
    seq := ask.seq; receipt := one.receipt;
    if receipt.result = 'started' then events := events || one.event; states := states || one.state; end if;
    return next;
  end loop;
  perform sentinel.write_starts(events, states);
end $$;

create or replace function sentinel.report_outcome(ask sentinel.report_input) returns sentinel.moved language plpgsql as $$
declare
  o sentinel.operations;
  s sentinel.operation_states;
  e sentinel.events;
  moment timestamptz;
  differs text;
begin
  select * into o from sentinel.operations where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
  if not found then return sentinel.unmoved('unknown', null, null); end if;
  select * into s from sentinel.operation_states where tenant_id = o.tenant_id and operation_id = o.operation_id for update;
  moment := clock_timestamp();
  differs := case when o.action <> ask.action then 'action' when o.agent_id <> ask.agent_id then 'agent_id'
                  when o.resource <> coalesce(ask.resource, o.resource) then 'resource'
                  when o.risk_class <> coalesce(ask.risk_class, o.risk_class) then 'risk_class'
                  when s.permit_id <> ask.permit_id then 'permit_token'
                  when sentinel.is_anothers(o, ask.principal_id, ask.bound_agent) then 'key' end;
  if differs is not null then return sentinel.unmoved('differs', differs, o.operation_id); end if;
  -- Not thrown away: `record_contradiction` takes it, with the locks that it needs.
  if s.not_executed_at is not null and ask.outcome = 'success' then
    return sentinel.unmoved('resolved_not_executed', null, o.operation_id);
  end if;
  if s.report_digest is not null then
    return sentinel.unmoved(case when s.report_digest = ask.content_digest then 'duplicate' else 'contradicts' end, null,
                            o.operation_id, s.report_event_id, s.report_hash);
  end if;
  if s.status = 'completed' and s.outcome is distinct from ask.outcome then
    return sentinel.unmoved('contradicts', null, o.operation_id);
  end if;
  if s.status not in ('started', 'in_doubt', 'completed') then
    return sentinel.unmoved('not_started', s.status, o.operation_id);
  end if;
  e := sentinel.event_of(ask.tenant_id, ask.event_id, 'outcome', o.operation_id, ask.agent_id, moment, format(
    '{"action":"%s","agent_id":"%s","event":"outcome","event_id":"%s","occurred_at":"%s","operation_id":"%s","outcome":"%s","report_id":"%s"}',
    ask.action, ask.agent_id, ask.event_id, sentinel.utc_text(moment), o.operation_id, ask.outcome, ask.report_id));
  if ask.outcome = 'success' or s.status = 'completed' then
    s.status := 'completed'; s.in_doubt_since := null; s.in_doubt_reason := null;
  else
    -- "error" after a start means unknown: the money may have moved, so budget and uniqueness stay held.
    s.status := 'in_doubt'; s.in_doubt_since := coalesce(s.in_doubt_since, moment); s.in_doubt_reason := 'error_reported';
    -- Who reports has ended its attempt: nobody acts under this start any more, unless it is answered once more.
    s.act_until := least(s.act_until, moment);
  end if;
  s.outcome := ask.outcome; s.report_digest := ask.content_digest; s.reported_at := moment;
  s.report_event_id := ask.event_id; s.report_hash := e.hash;
  return row(row('received', null, ask.event_id, e.hash, o.operation_id)::sentinel.receipt, e, s)::sentinel.moved;
end $$;

create or replace function sentinel.write_reports(events sentinel.events[], states sentinel.operation_states[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.write_events(events);
  update sentinel.operation_states t set status = s.status, outcome = s.outcome, report_digest = s.report_digest,
    reported_at = s.reported_at, report_event_id = s.report_event_id, report_hash = s.report_hash,
    in_doubt_since = s.in_doubt_since, in_doubt_reason = s.in_doubt_reason, act_until = s.act_until
  from unnest(states) as s
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.status in ('started', 'in_doubt', 'completed')
    and t.report_digest is null;
  perform sentinel.settle_budgets(array_agg(s.tenant_id), array_agg(s.permit_id), 'captured', max(s.reported_at))
  from unnest(states) as s where s.outcome = 'success' having count(*) > 0;
end $$;

-- One or many reports in one transaction, in key order.
create or replace function sentinel.report_outcomes(batch jsonb, patience_ms integer default 2000)
returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$
declare
  deadline timestamptz := clock_timestamp() + make_interval(secs => patience_ms / 1000.0);
  ask sentinel.report_input;
  last_key text;
  one sentinel.moved;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
begin
  if patience_ms < 1900 then perform sentinel.wait_until(deadline); end if;
  -- The budgets of what succeeded too, all at once and before any row: in the order in which guards take theirs.
  perform sentinel.take_locks(array_agg(sentinel.operation_lock(a.tenant_id, a.idempotency_key))
      || sentinel.locks_of_operations(array_agg(a.tenant_id) filter (where a.outcome = 'success'),
                                      array_agg(a.idempotency_key) filter (where a.outcome = 'success')), deadline)
  from jsonb_populate_recordset(null::sentinel.report_input, batch) a;
  for ask in select * from jsonb_populate_recordset(null::sentinel.report_input, batch) order by tenant_id, idempotency_key, seq loop
    if ask.idempotency_key = last_key then
      perform sentinel.write_reports(events, states);
      events := '{}'; states := '{}';
    end if;
    last_key := ask.idempotency_key;
    one := sentinel.report_outcome(ask);
    seq := ask.seq; receipt := one.receipt;
    if receipt.result = 'received' then events := events || one.event; states := states || one.state; end if;
    return next;
  end loop;
  perform sentinel.write_reports(events, states);
end $$;

-- The partner of action/check: recorded once per request id. result: received | duplicate | contradicts
create or replace function sentinel.record_check_report(
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

-- A success that is reported after a person said "not executed". One of the two is wrong and the money may have moved, so: it is
-- recorded, the budget and the once-key are held again, the operation is in doubt again, and this action of this agent is
-- halted until a person lifts it. With its owner's rights: no agent's program sets a halt by any other way.
-- The halt lock comes first and keeps every decision and start out, so that no other lock is needed.
create or replace function sentinel.record_contradiction(ask sentinel.report_input, halt uuid, halt_event uuid)
returns sentinel.receipt language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  found_one sentinel.contradictions;
  told sentinel.moved;
  s sentinel.operation_states;
  moment timestamptz;
  hash text;
  once_held boolean;
begin
  perform pg_advisory_xact_lock(sentinel.halt_lock());
  told := sentinel.report_outcome(ask);
  if (told.receipt).result <> 'resolved_not_executed' then return told.receipt; end if;
  select * into found_one from sentinel.contradictions c
  where c.tenant_id = ask.tenant_id and c.operation_id = (told.receipt).operation_id;
  if found then
    return row(case when found_one.report_digest = ask.content_digest then 'contradiction_repeated' else 'contradicts' end, null,
      found_one.event_id, (select e.hash from sentinel.events e where e.tenant_id = ask.tenant_id and e.event_id = found_one.event_id),
      found_one.operation_id)::sentinel.receipt;
  end if;
  select * into s from sentinel.operation_states t
  where t.tenant_id = ask.tenant_id and t.operation_id = (told.receipt).operation_id for update;
  moment := clock_timestamp();
  update sentinel.operation_states t set status = 'in_doubt', in_doubt_since = moment, in_doubt_reason = 'contradiction',
    outcome = 'success', report_digest = coalesce(t.report_digest, ask.content_digest), reported_at = coalesce(t.reported_at, moment),
    report_event_id = coalesce(t.report_event_id, ask.event_id)
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id;
  perform sentinel.hold_again(s.tenant_id, s.permit_id);
  once_held := sentinel.live_again(s.tenant_id, s.operation_id);
  select h.halt_id into halt from sentinel.put_halt(s.tenant_id, halt, 'agent_action', ask.agent_id || ' ' || ask.action, 'kill',
    'success reported after "not executed": operation ' || s.operation_id, 'sentinel', halt_event, moment) h;
  hash := sentinel.append_event(s.tenant_id, ask.event_id, 'contradiction', s.operation_id, ask.agent_id, moment,
    jsonb_build_object('action', ask.action, 'agent_id', ask.agent_id, 'halt_id', halt, 'not_executed_at',
      sentinel.utc_text(s.not_executed_at), 'once_held', once_held, 'outcome', 'success', 'report_id', ask.report_id));
  update sentinel.operation_states t set report_hash = hash
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.report_event_id = ask.event_id;
  insert into sentinel.contradictions values (s.tenant_id, s.operation_id, ask.event_id, ask.content_digest, halt, once_held, moment);
  return row('contradiction', null, ask.event_id, hash, s.operation_id)::sentinel.receipt;
end $$;

-- Live again under its once-key, unless another holds it by now; false then. True without a once-key: there is none to miss.
create or replace function sentinel.live_again(tenant uuid, operation uuid) returns boolean language plpgsql as $$
begin
  update sentinel.operation_states t set once_live = true
  where t.tenant_id = tenant and t.operation_id = operation and t.once_key is not null;
  return true;
exception when unique_violation then
  return false;
end $$;

-- What a person found out. "Not executed" is final, and can be said only when nobody may act under the start any more.
-- result: resolved | unknown | not_in_doubt | still_acting (until `act_until`)
create or replace function sentinel.resolve_in_doubt(
  tenant uuid, operation uuid, executed boolean, who text, evidence text, event uuid
) returns table (result text, act_until timestamptz) language plpgsql as $$
#variable_conflict use_column
declare
  s sentinel.operation_states;
  moment timestamptz;
begin
  perform sentinel.take_held_locks(tenant, operation);
  select * into s from sentinel.operation_states t where t.tenant_id = tenant and t.operation_id = operation for update;
  moment := clock_timestamp();
  act_until := s.act_until;
  result := case when s.operation_id is null then 'unknown' when s.status <> 'in_doubt' then 'not_in_doubt'
                 when not executed and s.act_until > moment then 'still_acting' else 'resolved' end;
  if result <> 'resolved' then return next; return; end if;
  update sentinel.operation_states t set status = 'completed', outcome = case when executed then 'success' else 'error' end,
    in_doubt_since = null, in_doubt_reason = null, once_live = t.once_live and executed,
    not_executed_at = case when executed then t.not_executed_at else coalesce(t.not_executed_at, moment) end
  where t.tenant_id = tenant and t.operation_id = operation and t.status = 'in_doubt';
  perform sentinel.settle_budget(tenant, s.permit_id, case when executed then 'captured' else 'released' end, moment);
  perform sentinel.append_event(tenant, event, 'in_doubt_resolved', operation, null, moment,
    jsonb_build_object('act_until', sentinel.utc_text(s.act_until), 'evidence', evidence, 'executed', executed, 'resolved_by', who));
  return next;
end $$;
