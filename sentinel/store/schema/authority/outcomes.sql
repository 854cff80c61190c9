-- Starts and outcomes: a permit is redeemed once, its outcome reported once.

-- Reports of actions that were only checked (action/check), not guarded. Append-only.
create table sentinel.check_reports (
  tenant_id   uuid not null,
  request_id  text not null,                                               -- the caller's
  digest      text not null,                                               -- of the report; a report with another digest contradicts it
  event_id    uuid not null,
  received_at timestamptz not null,
  primary key (tenant_id, request_id)
);
create trigger append_only before update or delete or truncate on sentinel.check_reports
  for each statement execute function sentinel.refuse_change();

-- The answer to a start or a report; `field` names the field that differs, or the state that does not allow it.
-- A start: started | duplicate | unknown | differs | already_started | not_startable | expired | halted | resolved_not_executed.
-- A report: received | duplicate | contradicts | unknown | differs | not_started | resolved_not_executed; of a success after a person's
--   "not executed": contradiction | contradiction_repeated.
create type sentinel.receipt as (result text, field text, event_id uuid, hash text, operation_id uuid);

-- One start or one report; both include the principal of the caller's key and the agent that the key is bound to.
create type sentinel.start_input as (
  seq integer, tenant_id uuid, idempotency_key text, action text, agent_id text, resource text, risk_class text,
  permit_id uuid, digest text, start_id uuid, event_id uuid, act_seconds integer, principal_id uuid, bound_agent text
);

create type sentinel.report_input as (
  seq integer, tenant_id uuid, idempotency_key text, action text, agent_id text, resource text, risk_class text,
  permit_id uuid, outcome text, content_digest text, report_id uuid, event_id uuid, principal_id uuid, bound_agent text
);

-- The result of one start or report: the receipt, and the rows still to be written if it was accepted.
create type sentinel.moved as (receipt sentinel.receipt, event sentinel.events, state sentinel.operation_states);

-- The body of a start's event: under a start id, or without one for a caller that has no start step (handing out the permit is the start).
create or replace function sentinel.start_text(event uuid, operation uuid, agent text, act text, permit uuid, start uuid, moment_text text)
returns text language plpgsql stable as $$
begin
  return '{"action":"' || act || '","agent_id":"' || agent || '","event":"start","event_id":"' || event || '","occurred_at":"' || moment_text
    || '","operation_id":"' || operation || '",'
    || case when start is null then '"start_step":"none"}' else '"permit_id":"' || permit || '","start_id":"' || start || '"}' end;
end $$;

create or replace function sentinel.start_event(
  tenant uuid, event uuid, operation uuid, agent text, act text, permit uuid, start uuid, moment timestamptz
) returns sentinel.events language plpgsql as $$
begin
  return sentinel.event_of(tenant, event, 'start', operation, agent, moment,
    sentinel.start_text(event, operation, agent, act, permit, start, sentinel.utc_text(moment)));
end $$;

-- The result of a start or report that changes nothing.
create or replace function sentinel.unmoved(result text, field text, operation uuid, event uuid default null, hash text default null)
returns sentinel.moved language plpgsql as $$
begin
  return row(row(result, field, event, hash, operation)::sentinel.receipt, null, null)::sentinel.moved;
end $$;

-- Until when the caller may act after an answered start. A row without a duration comes from an older program and gets 900 seconds.
create or replace function sentinel.leave_until(seconds integer, moment timestamptz) returns timestamptz
language sql stable parallel safe as $$ select moment + make_interval(secs => coalesce(seconds, 900)) $$;

-- Extends act_until when a start is answered again: the caller may act from now on, so "not executed" must not be recorded before that time
-- is over. A completed operation is left alone: it is not started again by this, and cannot become "not executed".
create or replace function sentinel.extend_leave(s sentinel.operation_states, seconds integer, moment timestamptz) returns void
language plpgsql as $$
begin
  if s.status not in ('started', 'in_doubt') then return; end if;
  update sentinel.operation_states t set act_until = greatest(t.act_until, sentinel.leave_until(seconds, moment))
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id;
end $$;

-- An operation and its state; the state's row is locked.
create type sentinel.locked_operation as (o sentinel.operations, s sentinel.operation_states);

-- Locks and returns the operations of these keys, each at its key's position; null for an unknown key. Two statements for all keys instead
-- of two for each. Request, salt and basis are left out (null): they cost the most to compose, and no start or report needs them.
-- The keys are in ascending order, and the caller holds their locks. The plan must not depend on the table sizes at the
-- time it was made.
create or replace function sentinel.lock_operations(tenants uuid[], keys text[]) returns sentinel.locked_operation[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  perform from unnest(tenants, keys) with ordinality as k (tenant_id, idempotency_key, nth)
  join sentinel.operations o on o.idempotency_key = k.idempotency_key and o.tenant_id = k.tenant_id
  join sentinel.operation_states s on s.operation_id = o.operation_id and s.tenant_id = o.tenant_id
  order by k.nth for update of s;
  return array(
    select (case when o.operation_id is not null then row(o.tenant_id, o.operation_id, o.idempotency_key, o.principal_id, o.agent_id, o.action,
        o.resource, o.risk_class, o.digest, null, null, o.scenario, o.once_key, o.amount_minor, o.currency, o.created_at,
        null)::sentinel.operations end, s)::sentinel.locked_operation
    from unnest(tenants, keys) with ordinality as k (tenant_id, idempotency_key, nth)
    left join sentinel.operations o on o.idempotency_key = k.idempotency_key and o.tenant_id = k.tenant_id
    left join sentinel.operation_states s on s.operation_id = o.operation_id and s.tenant_id = o.tenant_id
    order by k.nth);
end $$;

-- Decides one start of an operation that the caller has locked; writes nothing but an extended act_until.
create or replace function sentinel.judge_start(ask sentinel.start_input, known sentinel.locked_operation, any_halt boolean)
returns sentinel.moved language plpgsql as $$
declare
  o sentinel.operations := known.o;
  s sentinel.operation_states := known.s;
  e sentinel.events;
  moment timestamptz := clock_timestamp();
  differs text;
begin
  if o.operation_id is null then return sentinel.unmoved('unknown', null, null); end if;
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
  if any_halt and sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, o.scenario) is not null then
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

-- Records one or many starts in one transaction, in key order; each gets the answer that it would get alone.
create or replace function sentinel.start_operations(batch jsonb, patience_ms integer default 2000)
returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$
declare
  deadline timestamptz := clock_timestamp() + make_interval(secs => patience_ms / 1000.0);
  asks sentinel.start_input[] := array(
    select a from jsonb_populate_recordset(null::sentinel.start_input, batch) as a order by a.tenant_id, a.idempotency_key, a.seq);
  ask sentinel.start_input;
  known sentinel.locked_operation[];
  place integer := 0;
  any_halt boolean;
  last_key text;
  one sentinel.moved;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
begin
  if patience_ms < 1900 then perform sentinel.wait_until(deadline); end if;
  perform pg_advisory_xact_lock_shared(sentinel.halt_lock());
  perform sentinel.take_locks(array(select sentinel.operation_lock(a.tenant_id, a.idempotency_key) from unnest(asks) as a), deadline);
  any_halt := exists (select from sentinel.halts where lifted_at is null);
  known := sentinel.lock_operations(array(select a.tenant_id from unnest(asks) as a), array(select a.idempotency_key from unnest(asks) as a));
  foreach ask in array asks loop
    place := place + 1;
    if ask.idempotency_key = last_key then
      perform sentinel.write_starts(events, states);
      events := '{}'; states := '{}';
      known[place] := (sentinel.lock_operations(array[ask.tenant_id], array[ask.idempotency_key]))[1];
    end if;
    last_key := ask.idempotency_key;
    one := sentinel.judge_start(ask, known[place], any_halt);
    seq := ask.seq; receipt := one.receipt;
    if receipt.result = 'started' then events := events || one.event; states := states || one.state; end if;
    return next;
  end loop;
  perform sentinel.write_starts(events, states);
end $$;

-- Decides one report on an operation that the caller has locked; writes nothing.
create or replace function sentinel.judge_report(ask sentinel.report_input, known sentinel.locked_operation)
returns sentinel.moved language plpgsql as $$
declare
  o sentinel.operations := known.o;
  s sentinel.operation_states := known.s;
  e sentinel.events;
  moment timestamptz := clock_timestamp();
  differs text;
begin
  if o.operation_id is null then return sentinel.unmoved('unknown', null, null); end if;
  differs := case when o.action <> ask.action then 'action' when o.agent_id <> ask.agent_id then 'agent_id'
                  when o.resource <> coalesce(ask.resource, o.resource) then 'resource'
                  when o.risk_class <> coalesce(ask.risk_class, o.risk_class) then 'risk_class'
                  when s.permit_id <> ask.permit_id then 'permit_token'
                  when sentinel.is_anothers(o, ask.principal_id, ask.bound_agent) then 'key' end;
  if differs is not null then return sentinel.unmoved('differs', differs, o.operation_id); end if;
  -- The report is not discarded: `record_contradiction` records it, with the locks that it needs.
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
    '{"action":"%s","agent_id":"%s","event":"outcome","event_id":"%s","occurred_at":"%s","operation_id":"%s","outcome":"%s"%s}',
    ask.action, ask.agent_id, ask.event_id, sentinel.utc_text(moment), o.operation_id, ask.outcome,
    ',"report_id":"' || ask.report_id || '"'));
  if ask.outcome = 'success' or s.status = 'completed' then
    s.status := 'completed'; s.in_doubt_since := null; s.in_doubt_reason := null;
  else
    -- "error" after a start means unknown: the money may have moved, so budget and uniqueness stay held.
    s.status := 'in_doubt'; s.in_doubt_since := coalesce(s.in_doubt_since, moment); s.in_doubt_reason := 'error_reported';
    -- A caller that reports has ended its attempt: no caller acts under this start any more, unless it is answered again.
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
    in_doubt_since = s.in_doubt_since, in_doubt_reason = s.in_doubt_reason, act_until = s.act_until,
    reservation = case when s.outcome = 'success' and t.reservation = 'held' then 'captured' else t.reservation end
  from unnest(states) as s
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.status in ('started', 'in_doubt', 'completed')
    and t.report_digest is null;
  perform sentinel.settle_usage(array(select s from unnest(states) as s where s.outcome = 'success' and s.reservation = 'held'), 'captured');
end $$;

-- Records one or many reports in one transaction, in key order.
create or replace function sentinel.report_outcomes(batch jsonb, patience_ms integer default 2000)
returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$
declare
  deadline timestamptz := clock_timestamp() + make_interval(secs => patience_ms / 1000.0);
  asks sentinel.report_input[] := array(
    select a from jsonb_populate_recordset(null::sentinel.report_input, batch) as a order by a.tenant_id, a.idempotency_key, a.seq);
  ask sentinel.report_input;
  known sentinel.locked_operation[];
  place integer := 0;
  last_key text;
  one sentinel.moved;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
begin
  if patience_ms < 1900 then perform sentinel.wait_until(deadline); end if;
  -- Also the locks of the budgets of successful operations: all at once, before any row, in the order in which guards take theirs.
  perform sentinel.take_locks(array_agg(sentinel.operation_lock(a.tenant_id, a.idempotency_key))
      || sentinel.locks_of_operations(array_agg(a.tenant_id) filter (where a.outcome = 'success'),
                                      array_agg(a.idempotency_key) filter (where a.outcome = 'success')), deadline)
  from unnest(asks) as a;
  known := sentinel.lock_operations(array(select a.tenant_id from unnest(asks) as a), array(select a.idempotency_key from unnest(asks) as a));
  foreach ask in array asks loop
    place := place + 1;
    if ask.idempotency_key = last_key then
      perform sentinel.write_reports(events, states);
      events := '{}'; states := '{}';
      known[place] := (sentinel.lock_operations(array[ask.tenant_id], array[ask.idempotency_key]))[1];
    end if;
    last_key := ask.idempotency_key;
    one := sentinel.judge_report(ask, known[place]);
    seq := ask.seq; receipt := one.receipt;
    if receipt.result = 'received' then events := events || one.event; states := states || one.state; end if;
    return next;
  end loop;
  perform sentinel.write_reports(events, states);
end $$;

-- Records the report of an action that was only checked (action/check), once per request id; `act` is null when the caller named none.
-- result: received | duplicate | contradicts
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
