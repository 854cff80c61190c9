-- Decisions: recorded once per idempotency key; replays.sql answers a repeated guard.

-- The result of deciding one new operation: the answer, and the rows that are still to be written.
create type sentinel.decided as (
  answer sentinel.guard_output, event sentinel.event_rows, state sentinel.operation_states, start sentinel.events
);

create or replace function sentinel.stricter(one text, other text) returns text language sql immutable parallel safe as $$
  select case when 'DENY' in (one, other) then 'DENY' when 'APPROVAL_REQUIRED' in (one, other) then 'APPROVAL_REQUIRED'
         else 'ALLOW' end
$$;

-- Returns the row with the values that it shares with other rows of its batch filled in, so that it can be decided alone: the shared
-- totals are appended to its limits, and the shared breakers are set.
create or replace function sentinel.with_shared(ask sentinel.guard_input, shared_sets jsonb) returns sentinel.guard_input language plpgsql immutable as $$
begin
  if ask.shared is not null then
    ask.limits := ask.limits || coalesce(shared_sets -> ask.shared -> 'totals', '[]');
    ask.breakers := shared_sets -> ask.shared -> 'breakers';
  end if;
  return ask;
end $$;

-- A dry run of one decision: checks the same halts, once-keys, limits and breakers as record_decisions and writes nothing.
create or replace function sentinel.peek_decision(ask_json jsonb, shared_sets jsonb) returns table (decision text, reason_code text) language plpgsql stable as $$
declare
  ask sentinel.guard_input := sentinel.with_shared(jsonb_populate_record(null::sentinel.guard_input, ask_json), shared_sets);
  moment timestamptz := clock_timestamp();
  halted boolean := sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null;
  held_as text := case when ask.verdict <> 'DENY' and ask.once_key is not null then sentinel.once_seen(ask.tenant_id, ask.once_key, null) end;
begin
  decision := ask.verdict; reason_code := ask.reason_code;
  if halted and (decision = 'DENY' or not coalesce(ask.asks_person, false)) then
    decision := 'DENY'; reason_code := 'halted';
  elsif held_as = 'same' then
    decision := 'DENY'; reason_code := 'duplicate_resource';
  elsif decision <> 'DENY' and ask.amount_minor is not null and jsonb_array_length(ask.limits) > 0 then
    select sentinel.stricter(decision, l.verdict), case when sentinel.stricter(decision, l.verdict) <> decision
             then l.reason_code else peek_decision.reason_code end
      into decision, reason_code
    from unnest(sentinel.limit_states(ask.tenant_id, ask.limits, ask.amount_minor, moment)) l
    where not l.fits order by l.verdict = 'DENY' desc, sentinel.limit_of(l.limit_key) collate "C" limit 1;
    decision := coalesce(decision, ask.verdict); reason_code := coalesce(reason_code, ask.reason_code);
  end if;
  if held_as = 'alike' and decision <> 'DENY' then decision := 'APPROVAL_REQUIRED'; reason_code := 'looks_like_duplicate'; end if;
  if halted and reason_code <> 'duplicate_resource' then
    decision := sentinel.stricter(decision, 'APPROVAL_REQUIRED'); reason_code := 'halted';
  elsif decision = 'ALLOW' and ask.breakers is not null and (sentinel.passed_breaker(ask, moment)).breaker_key is not null then
    decision := 'DENY'; reason_code := 'velocity_halted';
  end if;
  return next;
end $$;

-- Dry runs of many decisions; each is computed as if the others had not been asked.
create or replace function sentinel.peek_decisions(batch jsonb) returns table (seq integer, decision text, reason_code text)
language sql stable as $$
  select (question ->> 'seq')::integer, p.decision, p.reason_code
  from jsonb_array_elements(batch -> 'rows') as question cross join lateral sentinel.peek_decision(question, batch -> 'shared') as p
$$;

-- The facts_commitment of a proof pack; sentinel/core/proof.py hashes the same text.
create or replace function sentinel.facts_commitment(salt bytea, request text, basis text, tightened text[]) returns bytea
language sql immutable parallel safe as $$
  select sha256(convert_to('sentinel/facts', 'UTF8') || '\x00'::bytea || salt || convert_to(
    '{"basis":' || basis || ',"operation":' || request || ',"tightened":['
    || case when cardinality(tightened) > 0 then '"' || array_to_string(tightened, '","') || '"' else '' end || ']}', 'UTF8'))
$$;

-- Decides one new operation. Its reservation, velocity counts, approval or breaker halt are written here, its own rows by write_decisions.
-- When its key already has too many open permits or pending questions, returns too_many_open or too_many_questions and writes nothing.
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
  held_as text;
  tightened text[] := '{}';                                                -- ids of the limits and checks that tightened it here
  passed sentinel.breaker_ask;
  s sentinel.operation_states;
  e sentinel.event_rows;
  pack text;
  started sentinel.events;
  refused sentinel.guard_output;
begin
  halted := sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null;
  if verdict <> 'DENY' and ask.once_key is not null and exists (
      select from sentinel.operation_states other
      where other.tenant_id = ask.tenant_id and sentinel.once_folded(other.once_key) = sentinel.once_folded(ask.once_key) and other.once_live) then
    held_as := sentinel.once_held(ask.tenant_id, ask.once_key, ask.operation_id);
  end if;
  -- A request that asks for a person gets an approval even under a halt: the halt is one more reason, and no permit is given while it is
  -- in force.
  if halted and (verdict = 'DENY' or not coalesce(ask.asks_person, false)) then
    verdict := 'DENY'; code := 'halted'; why := array_prepend('halted'::text, array_remove(why, 'halted'));
    tightened := '{halted}';
  elsif held_as = 'same' then
    verdict := 'DENY'; code := 'duplicate_resource'; why := array_prepend('duplicate_resource'::text, why);
    tightened := '{duplicate_resource}';
  elsif verdict <> 'DENY' and ask.amount_minor is not null and jsonb_array_length(ask.limits) > 0 then
    states := sentinel.fitted_limits(ask, moment);
    for tight in select l.verdict, l.reason_code, sentinel.limit_of(l.limit_key) as limit_id
                 from unnest(states) as l where not l.fits order by l.verdict = 'DENY' desc, sentinel.limit_of(l.limit_key) collate "C" loop
      tightened := tightened || tight.limit_id;
      if sentinel.stricter(verdict, tight.verdict) <> verdict then
        verdict := tight.verdict; code := tight.reason_code;
      end if;
      if not tight.reason_code = any(why) then why := why || tight.reason_code; end if;
    end loop;
  end if;
  if held_as = 'alike' and verdict <> 'DENY' then
    verdict := 'APPROVAL_REQUIRED'; code := 'looks_like_duplicate'; why := array_prepend('looks_like_duplicate'::text, why);
    tightened := tightened || 'looks_like_duplicate'::text;
  end if;
  if halted and code <> 'halted' and code <> 'duplicate_resource' then
    verdict := sentinel.stricter(verdict, 'APPROVAL_REQUIRED'); code := 'halted';
    why := array_prepend('halted'::text, array_remove(why, 'halted'));
    tightened := tightened || 'halted'::text;
  end if;
  if verdict = 'ALLOW' and ask.breakers is not null then
    passed := sentinel.passed_breaker(ask, moment);
    if passed.breaker_key is not null then
      perform sentinel.trip_breaker(ask, passed, moment);
      verdict := 'DENY'; code := 'velocity_halted'; why := array_prepend('velocity_halted'::text, why);
      tightened := tightened || 'velocity_halted'::text;
    end if;
  end if;
  allowed := verdict = 'ALLOW';
  refused.result := case
    when allowed and sentinel.leaves_permit_out(ask) and sentinel.is_at_permit_limit(ask.principal_id, moment) then 'too_many_open'
    when verdict = 'APPROVAL_REQUIRED' and sentinel.is_at_question_limit(ask.principal_id, moment) then 'too_many_questions' end;
  if refused.result is not null then
    -- Nothing of this operation has been written, counted or held yet; counting and holding are only for an allowed operation.
    refused.seq := ask.seq;
    return row(refused, null, null, null)::sentinel.decided;
  end if;
  if allowed and ask.breakers is not null then perform sentinel.count_velocity(ask, moment); end if;

  latency := ask.elapsed_ms + ceil(extract(epoch from clock_timestamp() - began) * 1000)::integer;
  e.tenant_id := ask.tenant_id; e.event_id := ask.event_id; e.operation_id := ask.operation_id; e.occurred_at := moment;
  e.terms_id := ask.terms_id; e.latency_ms := latency; e.kind := 'decision';
  e.facts_commitment := case when tightened = '{}' then ask.facts_commitment
                             else sentinel.facts_commitment(ask.salt, ask.request, ask.basis, tightened) end;
  e.operation_commitment := ask.operation_commitment; e.amount_value := ask.amount_value;
  e.ledger_entry_id := ask.ledger_entry_id; e.refund_id := ask.refund_id; e.trace := ask.trace;
  e.decision := nullif(verdict, ask.verdict); e.reason_code := nullif(code, ask.reason_code);
  pack := sentinel.pack_text(ask.pack_template, e.amount_value, sentinel.utc_text(moment), verdict, e.facts_commitment, latency, e.ledger_entry_id,
    e.operation_commitment, ask.event_id, code, e.refund_id);
  e.hash := sha256(convert_to(pack, 'UTF8'));

  s.tenant_id := ask.tenant_id; s.operation_id := ask.operation_id;
  s.status := case verdict when 'ALLOW' then 'allowed' when 'DENY' then 'denied' else 'pending' end;
  s.decision := verdict; s.reason_code := code;
  s.terms_id := ask.terms_id; s.decision_event_id := ask.event_id;
  s.tightened := nullif(tightened, '{}');
  s.once_key := ask.once_key; s.once_live := ask.once_key is not null and verdict <> 'DENY';
  if allowed then
    s.permit_id := ask.permit_id; s.permit_expires_at := moment + make_interval(secs => ask.permit_seconds);
    s.principal_id := ask.principal_id;
    if cardinality(states) > 0 then perform sentinel.hold_usage(ask.tenant_id, ask.amount_minor, states); end if;
    if cardinality(states) > 0 then
      s.holds := sentinel.locks_of_limits(ask.tenant_id, ask.limits, false);
      s.total_holds := sentinel.locks_of_limits(ask.tenant_id, ask.limits, true);
      s := sentinel.with_reservation(s, ask.amount_minor, states);
    end if;
    if ask.hand_out_is_start or ask.start_id is not null then
      started := sentinel.start_event(ask.tenant_id, ask.second_event_id, ask.operation_id, ask.agent_id, ask.action,
                                      ask.permit_id, ask.start_id, moment);
      s.status := 'started'; s.started_at := moment; s.start_id := ask.start_id;
      s.start_event_id := ask.second_event_id; s.start_hash := started.hash;
      s.act_until := sentinel.leave_until(ask.act_seconds, moment);
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
      null, null, null, pack, 'sha256:' || encode(e.hash, 'hex'), moment, case when s.start_id is not null then s.start_event_id end,
      case when s.start_id is not null then s.start_hash end, case when s.start_id is not null then false end
      )::sentinel.guard_output,
    e, s, started)::sentinel.decided;
end $$;

-- Writes the rows of new operations that were decided row by row; `asks` are the questions that `states` answer, in any order.
create or replace function sentinel.write_decisions(
  asks sentinel.guard_input[], events sentinel.event_rows[], starts sentinel.events[], states sentinel.operation_states[], began timestamptz
) returns void language plpgsql as $$
begin
  if cardinality(states) = 0 then return; end if;
  insert into sentinel.operation_rows
    (tenant_id, operation_id, principal_id, created_at, terms_id, amount_minor, idempotency_key, resource, digest, params, request, salt,
     scenario, once_key, currency, basis)
  select a.tenant_id, a.operation_id, a.principal_id, began, a.terms_id, a.amount_minor, a.idempotency_key, a.resource, sentinel.hash_bytes(a.digest), a.params,
     case when a.params is null then a.request end, a.salt, a.scenario, a.once_key, a.currency, a.basis
  from unnest(asks) as a;
  insert into sentinel.event_rows
    (tenant_id, event_id, operation_id, occurred_at, terms_id, latency_ms, kind, hash, facts_commitment, operation_commitment, amount_value,
     ledger_entry_id, refund_id, decision, reason_code, trace)
  select e.tenant_id, e.event_id, e.operation_id, e.occurred_at, e.terms_id, e.latency_ms, e.kind, e.hash, e.facts_commitment,
     e.operation_commitment, e.amount_value, e.ledger_entry_id, e.refund_id, e.decision, e.reason_code, e.trace
  from unnest(events) as e;
  perform sentinel.write_events(starts);
  insert into sentinel.operation_states
    (tenant_id, operation_id, status, decision, reason_code, terms_id, decision_event_id, once_key, once_live, approval_id,
     permit_id, permit_expires_at, start_id, started_at, start_event_id, start_hash, principal_id, holds, total_holds, tightened, act_until, reserved_minor, limit_keys, limit_buckets, limit_overrides, reservation)
  select s.tenant_id, s.operation_id, s.status, s.decision, s.reason_code, s.terms_id, s.decision_event_id, s.once_key, s.once_live,
     s.approval_id, s.permit_id, s.permit_expires_at, s.start_id, s.started_at, s.start_event_id, s.start_hash, s.principal_id, s.holds, s.total_holds, s.tightened, s.act_until,
     s.reserved_minor, s.limit_keys, s.limit_buckets, s.limit_overrides, s.reservation
  from unnest(states) as s;
end $$;

-- Decides these questions one by one, in array order, which is that of their idempotency keys. Decisions are collected and written
-- together; they are written earlier only when the next question could look for them: it has a known or the same key, or the same
-- once-key. The caller holds the locks of the batch.
create or replace function sentinel.record_rows(asks sentinel.guard_input[], began timestamptz)
returns setof sentinel.guard_output language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  ask sentinel.guard_input;
  o sentinel.operations;
  one sentinel.decided;
  decided sentinel.guard_input[] := '{}';
  events sentinel.event_rows[] := '{}';
  starts sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
  once text[] := '{}';
  last_key text;
begin
  foreach ask in array asks loop
    select * into o from sentinel.operations where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
    if o.operation_id is not null or ask.idempotency_key = last_key or coalesce(sentinel.once_folded(ask.once_key) = any(once), false) then
      perform sentinel.write_decisions(decided, events, starts, states, began);
      decided := '{}'; events := '{}'; starts := '{}'; states := '{}'; once := '{}';
      select * into o from sentinel.operations where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
    end if;
    last_key := ask.idempotency_key;
    if o.operation_id is not null then
      return next sentinel.replay(ask, o);
      continue;
    end if;
    one := sentinel.decide_new(ask, began, clock_timestamp());
    if (one.answer).result <> 'decided' then
      return next one.answer;
      continue;
    end if;
    decided := decided || ask; events := events || one.event; states := states || one.state;
    if (one.start).event_id is not null then starts := starts || one.start; end if;
    if (one.state).once_live then once := once || sentinel.once_folded(ask.once_key); end if;
    return next one.answer;
  end loop;
  perform sentinel.write_decisions(decided, events, starts, states, began);
end $$;
