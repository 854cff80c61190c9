-- A caller that acts at once says under which start id: a permission it gets is then redeemed in the commit that gives it.
-- One round trip and one commit instead of two; the events, the permit and the receipt are those of a separate start.

alter type sentinel.guard_input add attribute start_id uuid;
-- The receipt of a start under the caller's own start id; `start_duplicate` when an earlier answer had it already.
alter type sentinel.guard_output add attribute start_event_id uuid, add attribute start_hash text,
  add attribute start_duplicate boolean;
alter type sentinel.decided add attribute start sentinel.events;

-- Starts ----------------------------------------------------------------------------------------------------------------

-- A start under a start id, or, without one, of a caller for whom handing out the permit is the start.
create function sentinel.start_event(
  tenant uuid, event uuid, operation uuid, agent text, act text, permit uuid, start uuid, moment timestamptz
) returns sentinel.events language plpgsql as $$
begin
  return sentinel.event_of(tenant, event, 'start', operation, agent, moment, format(
    '{"action":"%s","agent_id":"%s","event":"start","event_id":"%s","occurred_at":"%s","operation_id":"%s",%s}',
    act, agent, event, sentinel.utc_text(moment), operation,
    case when start is null then '"start_step":"none"' else format('"permit_id":"%s","start_id":"%s"', permit, start) end));
end $$;

-- A start or a report that leaves everything as it is.
create function sentinel.unmoved(result text, field text, operation uuid, event uuid default null, hash text default null)
returns sentinel.moved language plpgsql as $$
begin
  return row(row(result, field, event, hash, operation)::sentinel.receipt, null, null)::sentinel.moved;
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
                  when o.digest <> ask.digest then 'permit_token' end;
  if differs is not null then return sentinel.unmoved('differs', differs, o.operation_id); end if;
  if s.status in ('started', 'in_doubt', 'completed') then
    if s.start_id = ask.start_id and s.permit_id = ask.permit_id then
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
  s.start_event_id := ask.event_id; s.start_hash := e.hash;
  return row(row('started', null, ask.event_id, e.hash, o.operation_id)::sentinel.receipt, e, s)::sentinel.moved;
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
                  when s.permit_id <> ask.permit_id then 'permit_token' end;
  if differs is not null then return sentinel.unmoved('differs', differs, o.operation_id); end if;
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
  end if;
  s.outcome := ask.outcome; s.report_digest := ask.content_digest; s.reported_at := moment;
  s.report_event_id := ask.event_id; s.report_hash := e.hash;
  return row(row('received', null, ask.event_id, e.hash, o.operation_id)::sentinel.receipt, e, s)::sentinel.moved;
end $$;

-- Decisions -------------------------------------------------------------------------------------------------------------

create or replace function sentinel.decide_new(ask sentinel.guard_input, began timestamptz, moment timestamptz)
returns sentinel.decided language plpgsql as $$
declare
  verdict text := ask.verdict;
  code text := ask.reason_code;
  why text[] := ask.reasons;
  states sentinel.limit_state[] := '{}';
  tight record;
  latency integer;
  allowed boolean;
  halted boolean;
  s sentinel.operation_states;
  e sentinel.events;
  started sentinel.events;
  held sentinel.reservations;
begin
  halted := sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null;
  -- Who asks for a person gets one, halted or not: the halt is one more reason, and stops the permit until it is lifted.
  if halted and (verdict = 'DENY' or not coalesce(ask.asks_person, false)) then
    verdict := 'DENY'; code := 'halted'; why := array_prepend('halted'::text, array_remove(why, 'halted'));
  elsif verdict <> 'DENY' and ask.once_key is not null and exists (
      select from sentinel.operation_states other
      where other.tenant_id = ask.tenant_id and other.once_key = ask.once_key and other.once_live)
      and sentinel.once_taken(ask.tenant_id, ask.once_key) then
    verdict := 'DENY'; code := 'duplicate_resource'; why := array_prepend('duplicate_resource'::text, why);
  elsif verdict <> 'DENY' and ask.amount_minor is not null and jsonb_array_length(ask.limits) > 0 then
    states := sentinel.fitted_limits(ask, moment);
    for tight in select l.verdict, l.reason_code from unnest(states) as l where not l.fits
                 order by l.verdict = 'DENY' desc, l.limit_key loop
      if sentinel.stricter(verdict, tight.verdict) <> verdict then
        verdict := tight.verdict; code := tight.reason_code;
      end if;
      if not tight.reason_code = any(why) then why := why || tight.reason_code; end if;
    end loop;
  end if;
  if halted and code <> 'halted' and code <> 'duplicate_resource' then
    verdict := sentinel.stricter(verdict, 'APPROVAL_REQUIRED'); code := 'halted';
    why := array_prepend('halted'::text, array_remove(why, 'halted'));
  end if;
  allowed := verdict = 'ALLOW';

  latency := ask.elapsed_ms + ceil(extract(epoch from clock_timestamp() - began) * 1000)::integer;
  e := sentinel.event_of(ask.tenant_id, ask.event_id, 'decision', ask.operation_id, ask.agent_id, moment,
    ask.pack_parts[1] || sentinel.utc_text(moment) || '","decision":"' || verdict || '"' || ask.pack_parts[2]
    || latency || ask.pack_parts[3] || code || ask.pack_parts[4]);

  s.tenant_id := ask.tenant_id; s.operation_id := ask.operation_id;
  s.status := case verdict when 'ALLOW' then 'allowed' when 'DENY' then 'denied' else 'pending' end;
  s.decision := verdict; s.reason_code := code;
  s.policy_id := ask.policy_id; s.policy_version := ask.policy_version; s.policy_label := ask.policy_label;
  s.policy_digest := ask.policy_digest; s.decision_event_id := ask.event_id;
  s.once_key := ask.once_key; s.once_live := ask.once_key is not null and verdict <> 'DENY';
  if allowed then
    s.permit_id := ask.permit_id; s.permit_expires_at := moment + make_interval(secs => ask.permit_seconds);
    if cardinality(states) > 0 then
      perform sentinel.hold_usage(ask.tenant_id, ask.amount_minor, states);
      held := sentinel.reservation_of(ask.tenant_id, ask.permit_id, ask.operation_id, ask.limits -> 0 ->> 'subject',
                                      ask.amount_minor, states, moment);
    end if;
    if ask.hand_out_is_start or ask.start_id is not null then
      started := sentinel.start_event(ask.tenant_id, ask.second_event_id, ask.operation_id, ask.agent_id, ask.action,
                                      ask.permit_id, ask.start_id, moment);
      s.status := 'started'; s.started_at := moment; s.start_id := ask.start_id;
      s.start_event_id := ask.second_event_id; s.start_hash := started.hash;
    end if;
  elsif verdict = 'APPROVAL_REQUIRED' then
    s.approval_id := ask.approval_id;
    perform sentinel.new_approval(ask, ask.operation_id, why, moment);
  end if;

  return row(
    row(ask.seq, 'decided', ask.operation_id, ask.event_id, verdict, code,
      case when allowed then 'allowed' else s.status end, ask.policy_id, ask.policy_version,
      ask.policy_label, ask.resource, ask.risk_class, ask.digest, null, s.permit_id, s.permit_expires_at, s.approval_id,
      case when s.approval_id is not null then moment + make_interval(secs => ask.approval_seconds) end,
      null, null, null, e.body, e.hash, moment, case when s.start_id is not null then s.start_event_id end,
      case when s.start_id is not null then s.start_hash end, case when s.start_id is not null then false end
      )::sentinel.guard_output,
    e, s, held, started)::sentinel.decided;
end $$;

create or replace function sentinel.write_decisions(
  events sentinel.events[], states sentinel.operation_states[], held sentinel.reservations[]
) returns void language plpgsql as $$
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.write_events(events);
  insert into sentinel.operation_states
    (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest,
     decision_event_id, once_key, once_live, approval_id, permit_id, permit_expires_at, start_id, started_at, start_event_id,
     start_hash)
  select s.tenant_id, s.operation_id, s.status, s.decision, s.reason_code, s.policy_id, s.policy_version, s.policy_label,
     s.policy_digest, s.decision_event_id, s.once_key, s.once_live, s.approval_id, s.permit_id, s.permit_expires_at,
     s.start_id, s.started_at, s.start_event_id, s.start_hash
  from unnest(states) as s;
  if cardinality(held) > 0 then insert into sentinel.reservations select * from unnest(held); end if;
end $$;

-- As in 0005; a permission that counts as started is written as such.
create or replace function sentinel.record_decisions(batch jsonb) returns setof sentinel.guard_output language plpgsql
set plan_cache_mode = force_generic_plan as $$
declare
  asks sentinel.guard_input[];
  ask sentinel.guard_input;
  fresh uuid[];
  o sentinel.operations;
  one sentinel.decided;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
  held sentinel.reservations[] := '{}';
  once text[] := '{}';
  began timestamptz := clock_timestamp();
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'record_decisions needs READ COMMITTED' using errcode = 'invalid_transaction_state';
  end if;
  perform pg_advisory_xact_lock_shared(sentinel.halt_lock());
  perform pg_advisory_xact_lock(lock) from (
    select distinct hashtextextended(name, 1) as lock from jsonb_array_elements_text(batch -> 'locks') as name order by 1) as locks;

  asks := array(select a from jsonb_populate_recordset(null::sentinel.guard_input, batch -> 'rows') as a
                order by a.tenant_id, a.idempotency_key, a.seq);
  with new as (
    insert into sentinel.operations
      (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request, salt,
       scenario, once_key, amount_minor, currency, created_at)
    select a.tenant_id, a.operation_id, a.idempotency_key, a.principal_id, a.agent_id, a.action, a.resource, a.risk_class,
       a.digest, a.request, a.salt, a.scenario, a.once_key, a.amount_minor, a.currency, began
    from unnest(asks) as a
    on conflict (tenant_id, idempotency_key) do nothing returning operation_id)
  select coalesce(array_agg(operation_id), '{}') into fresh from new;

  foreach ask in array asks loop
    if not ask.operation_id = any(fresh) or coalesce(ask.once_key = any(once), false) then
      perform sentinel.write_decisions(events, states, held);
      events := '{}'; states := '{}'; held := '{}'; once := '{}';
    end if;
    if not ask.operation_id = any(fresh) then
      select * into o from sentinel.operations
      where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
      return next sentinel.replay(ask, o, clock_timestamp());
      continue;
    end if;
    one := sentinel.decide_new(ask, began, clock_timestamp());
    events := events || one.event; states := states || one.state;
    if (one.start).event_id is not null then events := events || one.start; end if;
    if (one.reservation).permit_id is not null then held := held || one.reservation; end if;
    if (one.state).once_live then once := once || ask.once_key; end if;
    return next one.answer;
  end loop;
  perform sentinel.write_decisions(events, states, held);
end $$;

-- Replays ---------------------------------------------------------------------------------------------------------------

create or replace function sentinel.guard_view(ask sentinel.guard_input, found_operation uuid, result text)
returns sentinel.guard_output language sql stable as $$
  select (ask.seq, result, o.operation_id, s.decision_event_id, s.decision, s.reason_code,
          case when s.status in ('started', 'in_doubt') and s.outcome is null then 'already_started'
               when s.status in ('started', 'in_doubt', 'completed') then 'completed' else s.status end,
          s.policy_id, s.policy_version, s.policy_label, o.resource, o.risk_class, o.digest, null,
          case when s.status in ('allowed', 'approved') then s.permit_id end,
          case when s.status in ('allowed', 'approved') then s.permit_expires_at end,
          s.approval_id, a.expires_at, case when a.status = 'approved' then a.decided_by end,
          case when a.status = 'approved' then a.decided_at end, s.outcome, e.body, e.hash, e.occurred_at,
          case when s.start_id = ask.start_id then s.start_event_id end, case when s.start_id = ask.start_id then s.start_hash end,
          case when s.start_id = ask.start_id then true end
         )::sentinel.guard_output
  from sentinel.operations o
  join sentinel.operation_states s using (tenant_id, operation_id)
  join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
  left join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
  where o.tenant_id = ask.tenant_id and o.operation_id = found_operation
$$;

-- Redeems the permit that a replay hands out; the event's hash.
drop function sentinel.start_on_hand_out;
create function sentinel.start_on_hand_out(ask sentinel.guard_input, operation uuid, permit uuid, moment timestamptz)
returns text language plpgsql as $$
declare
  e sentinel.events := sentinel.start_event(ask.tenant_id, ask.second_event_id, operation, ask.agent_id, ask.action, permit,
                                            ask.start_id, moment);
begin
  perform sentinel.write_events(array[e]);
  update sentinel.operation_states set status = 'started', started_at = moment, start_id = ask.start_id,
    start_event_id = e.event_id, start_hash = e.hash
  where tenant_id = ask.tenant_id and operation_id = operation and status in ('allowed', 'approved');
  return e.hash;
end $$;

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
  if (ask.hand_out_is_start or ask.start_id is not null) and out.permit_id is not null then
    -- renew_permit may have used second_event_id only on the ways that hand out no permit.
    out.start_hash := sentinel.start_on_hand_out(ask, o.operation_id, out.permit_id, moment);
    if ask.start_id is null then out.start_hash := null;
    else out.start_event_id := ask.second_event_id; out.start_duplicate := false; end if;
  end if;
  return out;
end $$;

-- Order review ----------------------------------------------------------------------------------------------------------
-- An order's start id is made of its review's id and asked with the decision, so no permit is kept any more; and where the
-- simulated shop ships, the answer and what follows from it are one commit.

alter table orders.reviews drop constraint reviews_started,
  add constraint reviews_started check (status <> 'STARTED' or start_id is not null);
alter table orders.reviews drop column permit_token;
alter type orders.work drop attribute permit_token;

create or replace function orders.as_work(r orders.reviews) returns orders.work language plpgsql stable as $$
declare
  f orders.effects;
begin
  if r.status = 'STARTED' then
    select * into f from orders.effects e where e.review_id = r.review_id and e.kind = 'fulfil' and e.tenant_id = r.tenant_id;
  end if;
  return row(r.review_id, r.source, r.order_id, r.amount_minor, r.currency, r.account_ref, r.order_facts, r.status, r.lane,
    r.epoch, r.attempts, r.band, r.signals, r.model, r.guard_params, r.operation_id, r.decision_event_id, r.decision,
    r.reason_code, r.approval_id, r.start_id, r.decided_at, r.due_at, r.resolution, r.last_error,
    f.tries, case when f.review_id is not null then extract(epoch from clock_timestamp() - coalesce(f.tried_at, r.decided_at)) end
    )::orders.work;
end $$;

create or replace function orders.decide_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.ids_of(batch);
  mine uuid[];
  started uuid[];
  held uuid[];
begin
  with moved as (
    update orders.reviews r set
      status = case when i.event = 'approved' then 'QUEUED' when i.event = 'rejected' then 'HELD' else 'DECIDED' end,
      lane = case i.event when 'allowed' then 'low' when 'needs_analyst' then 'medium' when 'denied' then 'high' else r.lane end,
      last_event = i.event, operation_id = coalesce(r.operation_id, i.operation_id), decision_event_id = i.decision_event_id,
      decision = i.decision, reason_code = i.reason_code, proof_id = coalesce(i.proof_id, r.proof_id),
      approval_id = coalesce(i.approval_id, r.approval_id), start_id = coalesce(r.start_id, i.start_id),
      decided_at = clock_timestamp(), due_at = coalesce(i.due_at, r.due_at), last_error = null
    from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, epoch bigint, event text, operation_id uuid,
      decision_event_id uuid, decision text, reason_code text, proof_id text, approval_id uuid, start_id uuid,
      due_at timestamptz)
    where r.review_id = any(ids) and r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.epoch = i.epoch
      and case when i.event in ('approved', 'rejected') then r.status = 'QUEUED'
               else r.status = 'SCORED' or (r.status = 'DECIDED' and r.lane = 'low') end
    returning r.review_id, i.event)
  select array_agg(review_id), array_agg(review_id) filter (where event in ('allowed', 'approved')),
    array_agg(review_id) filter (where event in ('denied', 'rejected'))
  into mine, started, held from moved;

  if started is not null then
    update orders.reviews r set status = 'STARTED', last_event = 'started' where r.review_id = any(started);
    insert into orders.effects as f (tenant_id, review_id, kind, lane, operation_id)
    select r.tenant_id, r.review_id, 'fulfil', r.lane, r.operation_id from orders.reviews r where r.review_id = any(started)
    on conflict (review_id, kind, tenant_id) do update set state = 'intended' where f.state = 'cancelled';
  end if;
  if batch @? '$[*] ? (@.event == "needs_analyst")' then
    -- Due at some time in any case: what waits is found by when it is due. What somebody has approved by now is due at once.
    update orders.reviews r set status = 'QUEUED', last_event = 'queued', lease_until = null, holder = null, attempts = 0,
      next_attempt_at = case when i.at_once then clock_timestamp()
                             else coalesce(i.due_at, clock_timestamp() + interval '1 hour') + interval '1 second' end
    from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, event text, due_at timestamptz, at_once boolean)
    where r.review_id = any(mine) and r.review_id = i.review_id and r.tenant_id = i.tenant_id and i.event = 'needs_analyst';
  end if;
  if held is not null then
    update orders.reviews r set status = 'HELD', last_event = 'held', lease_until = null, holder = null
    where r.review_id = any(held) and r.status = 'DECIDED';
    perform orders.hold_reviews(held);
  end if;
  perform orders.record_told(batch, mine);
  return query select unnest(mine);
end $$;

create or replace function orders.refuse_starts(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.ids_of(batch);
  mine uuid[];
begin
  with moved as (
    update orders.reviews r set status = case r.lane when 'low' then 'DECIDED' else 'QUEUED' end, last_event = 'start_refused',
      last_error = i.error
    from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, epoch bigint, error text)
    where r.review_id = any(ids) and r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.epoch = i.epoch
      and r.status = 'STARTED'
    returning r.review_id)
  select array_agg(review_id) into mine from moved;
  update orders.effects f set state = 'cancelled', last_error = 'the start was refused'
  where f.review_id = any(mine) and f.kind = 'fulfil' and f.state = 'intended';
  return query select unnest(mine);
end $$;

-- Permissions and their fulfilment by the simulated shop, in one commit: the answers as for decide_reviews, the shop's word
-- as for settle_fulfilments. An order that stands otherwise in the shop is started and not settled.
create function orders.ship_reviews(decisions jsonb, settlements jsonb) returns table (review_id uuid, settled boolean)
language plpgsql as $$
declare
  mine uuid[] := array(select orders.decide_reviews(decisions));
  done uuid[] := array(select orders.settle_fulfilments(settlements));
begin
  return query select m, m = any(done) from unnest(mine) m;
end $$;
