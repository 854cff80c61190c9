-- A batch is decided row by row and written together: what a statement costs by itself is paid once per batch and table.
-- A row that would read what an earlier one of its batch has still to write is preceded by that writing.

-- Budget ---------------------------------------------------------------------------------------------------------------

-- Adds the amount to every limit's current part. Rows in key order, as everywhere; what does not fit is held beside the
-- cap, because a person lifted it.
create or replace function sentinel.hold_usage(tenant uuid, amount bigint, states sentinel.limit_state[]) returns void language plpgsql as $$
begin
  insert into sentinel.usage as u (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor, override_held_minor)
    select tenant, leg.limit_key, leg.bucket, leg.window_seconds, leg.cap_minor,
           case when leg.fits then amount else 0 end, case when leg.fits then 0 else amount end
    from unnest(states) as leg order by leg.limit_key, leg.bucket
  on conflict (tenant_id, limit_key, bucket) do update set
    held_minor = u.held_minor + excluded.held_minor,
    override_held_minor = u.override_held_minor + excluded.override_held_minor,
    -- A lowered cap counts from the next reservation that fits; one that was within the old cap stays within it.
    cap_minor = case when excluded.held_minor > 0 then excluded.cap_minor else u.cap_minor end;
end $$;

-- The row that says what a permit holds.
create or replace function sentinel.reservation_of(
  tenant uuid, permit uuid, operation uuid, budget_subject text, amount bigint, states sentinel.limit_state[], moment timestamptz
) returns sentinel.reservations language plpgsql as $$
begin
  return row(tenant, permit, operation, budget_subject, amount,
    array(select leg.limit_key from unnest(states) as leg), array(select leg.bucket from unnest(states) as leg),
    array(select not leg.fits from unnest(states) as leg), 'held', moment, null)::sentinel.reservations;
end $$;

create or replace function sentinel.hold_budget(
  tenant uuid, permit uuid, operation uuid, budget_subject text, amount bigint, states sentinel.limit_state[], moment timestamptz
) returns void language plpgsql as $$
declare
  held sentinel.reservations;
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.hold_usage(tenant, amount, states);
  held := sentinel.reservation_of(tenant, permit, operation, budget_subject, amount, states, moment);
  insert into sentinel.reservations values (held.*);
end $$;

-- Held budget becomes captured (success) or free again (not executed, expired); a permit that holds nothing is passed over.
-- The plan must not depend on how much was held when it was made: a scan of all that is held is never the way.
create function sentinel.settle_budgets(tenants uuid[], permits uuid[], settlement text, moment timestamptz)
returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  with settled as (
    update sentinel.reservations r set state = settlement, settled_at = moment
    from unnest(tenants, permits) as p (tenant_id, permit_id)
    where r.tenant_id = p.tenant_id and r.permit_id = p.permit_id and r.state not in ('captured', 'released')
    returning r.tenant_id, r.amount_minor, r.limit_keys, r.buckets, r.overrides
  ), legs as (
    select s.tenant_id, leg.limit_key, leg.bucket,
           coalesce(sum(s.amount_minor) filter (where not leg.beside), 0)::bigint as within_minor,
           coalesce(sum(s.amount_minor) filter (where leg.beside), 0)::bigint as beside_minor
    from settled s cross join lateral unnest(s.limit_keys, s.buckets, s.overrides) as leg (limit_key, bucket, beside)
    group by s.tenant_id, leg.limit_key, leg.bucket
  )
  update sentinel.usage u set
    held_minor = u.held_minor - l.within_minor, override_held_minor = u.override_held_minor - l.beside_minor,
    captured_minor = u.captured_minor + case when settlement = 'captured' then l.within_minor else 0 end,
    override_captured_minor = u.override_captured_minor + case when settlement = 'captured' then l.beside_minor else 0 end
  from legs l where u.tenant_id = l.tenant_id and u.limit_key = l.limit_key and u.bucket = l.bucket;
end $$;

create or replace function sentinel.settle_budget(tenant uuid, permit uuid, settlement text, moment timestamptz)
returns void language plpgsql as $$
begin
  perform sentinel.settle_budgets(array[tenant], array[permit], settlement, moment);
end $$;

-- Writing ---------------------------------------------------------------------------------------------------------------

create function sentinel.write_events(events sentinel.events[]) returns void language plpgsql as $$
begin
  insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  select e.tenant_id, e.event_id, e.kind, e.operation_id, e.agent_id, e.body, e.hash, e.occurred_at from unnest(events) as e;
end $$;

-- An event whose body the caller wrote.
create function sentinel.event_of(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, body_text text
) returns sentinel.events language plpgsql as $$
begin
  return row(tenant, event, event_kind, operation, agent, body_text, sentinel.sha256_text(body_text), moment, null)::sentinel.events;
end $$;

-- Decisions -------------------------------------------------------------------------------------------------------------

-- What one new operation came to: the answer, and the rows that are still to be written.
create type sentinel.decided as (
  answer sentinel.guard_output, event sentinel.events, state sentinel.operation_states, reservation sentinel.reservations
);

drop function if exists sentinel.decide_new;
create function sentinel.decide_new(ask sentinel.guard_input, began timestamptz, moment timestamptz)
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
  elsif verdict = 'APPROVAL_REQUIRED' then
    s.approval_id := ask.approval_id;
    perform sentinel.new_approval(ask, ask.operation_id, why, moment);
  end if;

  return row(
    row(ask.seq, 'decided', ask.operation_id, ask.event_id, verdict, code, s.status, ask.policy_id, ask.policy_version,
      ask.policy_label, ask.resource, ask.risk_class, ask.digest, null, s.permit_id, s.permit_expires_at, s.approval_id,
      case when s.approval_id is not null then moment + make_interval(secs => ask.approval_seconds) end,
      null, null, null, e.body, e.hash, moment)::sentinel.guard_output,
    e, s, held)::sentinel.decided;
end $$;

create function sentinel.write_decisions(
  events sentinel.events[], states sentinel.operation_states[], held sentinel.reservations[]
) returns void language plpgsql as $$
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.write_events(events);
  insert into sentinel.operation_states
    (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest,
     decision_event_id, once_key, once_live, approval_id, permit_id, permit_expires_at)
  select s.tenant_id, s.operation_id, s.status, s.decision, s.reason_code, s.policy_id, s.policy_version, s.policy_label,
     s.policy_digest, s.decision_event_id, s.once_key, s.once_live, s.approval_id, s.permit_id, s.permit_expires_at
  from unnest(states) as s;
  if cardinality(held) > 0 then insert into sentinel.reservations select * from unnest(held); end if;
end $$;

-- The one way a decision is recorded: {"locks": [text…], "rows": [guard_input…]}, one or many rows, one transaction, each
-- with exactly the outcome it would have alone. Locks are taken in one order for the whole batch: halts, then what the
-- batch names (its budgets and once-keys) by hash, then keys by name.
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
    if ask.operation_id = any(fresh) and not coalesce(ask.once_key = any(once), false) then
      one := sentinel.decide_new(ask, began, clock_timestamp());
    else
      perform sentinel.write_decisions(events, states, held);
      events := '{}'; states := '{}'; held := '{}'; once := '{}';
      if not ask.operation_id = any(fresh) then
        select * into o from sentinel.operations
        where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
        return next sentinel.replay(ask, o, clock_timestamp());
        continue;
      end if;
      one := sentinel.decide_new(ask, began, clock_timestamp());
    end if;
    events := events || one.event; states := states || one.state;
    if (one.reservation).permit_id is not null then held := held || one.reservation; end if;
    if (one.state).once_live then once := once || ask.once_key; end if;
    if ask.hand_out_is_start and (one.state).permit_id is not null then
      perform sentinel.write_decisions(events, states, held);
      events := '{}'; states := '{}'; held := '{}'; once := '{}';
      perform sentinel.start_on_hand_out(ask, ask.operation_id, (one.answer).decided_at);
    end if;
    return next one.answer;
  end loop;
  perform sentinel.write_decisions(events, states, held);
end $$;

-- Starts and reports -----------------------------------------------------------------------------------------------------

-- What one start or report came to: the receipt, and the rows still to be written when it counts.
create type sentinel.moved as (receipt sentinel.receipt, event sentinel.events, state sentinel.operation_states);

drop function if exists sentinel.start_operation;
create function sentinel.start_operation(ask sentinel.start_input) returns sentinel.moved language plpgsql as $$
declare
  o sentinel.operations;
  s sentinel.operation_states;
  e sentinel.events;
  moment timestamptz;
  differs text;
begin
  select * into o from sentinel.operations where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
  if not found then return row(row('unknown', null, null, null, null)::sentinel.receipt, null, null)::sentinel.moved; end if;
  select * into s from sentinel.operation_states where tenant_id = o.tenant_id and operation_id = o.operation_id for update;
  moment := clock_timestamp();
  differs := case when o.action <> ask.action then 'action' when o.agent_id <> ask.agent_id then 'agent_id'
                  when o.resource <> ask.resource then 'resource' when o.risk_class <> ask.risk_class then 'risk_class'
                  when o.digest <> ask.digest then 'permit_token' end;
  if differs is not null then
    return row(row('differs', differs, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.status in ('started', 'in_doubt', 'completed') then
    if s.start_id = ask.start_id and s.permit_id = ask.permit_id then
      return row(row('duplicate', null, s.start_event_id, s.start_hash, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
    end if;
    return row(row('already_started', null, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.status not in ('allowed', 'approved') then
    return row(row('not_startable', s.status, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.permit_id <> ask.permit_id then
    return row(row('differs', 'permit_token', null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.permit_id is null or s.permit_expires_at <= moment then
    return row(row('expired', null, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, o.scenario) is not null then
    return row(row('halted', null, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  e := sentinel.event_of(ask.tenant_id, ask.event_id, 'start', o.operation_id, ask.agent_id, moment, format(
    '{"action":"%s","agent_id":"%s","event":"start","event_id":"%s","occurred_at":"%s","operation_id":"%s","permit_id":"%s","start_id":"%s"}',
    ask.action, ask.agent_id, ask.event_id, sentinel.utc_text(moment), o.operation_id, ask.permit_id, ask.start_id));
  s.status := 'started'; s.started_at := moment; s.start_id := ask.start_id;
  s.start_event_id := ask.event_id; s.start_hash := e.hash;
  return row(row('started', null, ask.event_id, e.hash, o.operation_id)::sentinel.receipt, e, s)::sentinel.moved;
end $$;

create function sentinel.write_starts(events sentinel.events[], states sentinel.operation_states[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.write_events(events);
  update sentinel.operation_states t set status = 'started', started_at = s.started_at, start_id = s.start_id,
    start_event_id = s.start_event_id, start_hash = s.start_hash
  from unnest(states) as s
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.status in ('allowed', 'approved');
end $$;

-- One or many starts in one transaction, in key order; each answer is the one it would have alone.
create or replace function sentinel.start_operations(batch jsonb) returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$
declare
  ask sentinel.start_input;
  last_key text;
  one sentinel.moved;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
begin
  perform pg_advisory_xact_lock_shared(sentinel.halt_lock());
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

drop function if exists sentinel.report_outcome;
create function sentinel.report_outcome(ask sentinel.report_input) returns sentinel.moved language plpgsql as $$
declare
  o sentinel.operations;
  s sentinel.operation_states;
  e sentinel.events;
  moment timestamptz;
  differs text;
begin
  select * into o from sentinel.operations where tenant_id = ask.tenant_id and idempotency_key = ask.idempotency_key;
  if not found then return row(row('unknown', null, null, null, null)::sentinel.receipt, null, null)::sentinel.moved; end if;
  select * into s from sentinel.operation_states where tenant_id = o.tenant_id and operation_id = o.operation_id for update;
  moment := clock_timestamp();
  differs := case when o.action <> ask.action then 'action' when o.agent_id <> ask.agent_id then 'agent_id'
                  when o.resource <> coalesce(ask.resource, o.resource) then 'resource'
                  when o.risk_class <> coalesce(ask.risk_class, o.risk_class) then 'risk_class'
                  when s.permit_id <> ask.permit_id then 'permit_token' end;
  if differs is not null then
    return row(row('differs', differs, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.report_digest is not null then
    return row(row(case when s.report_digest = ask.content_digest then 'duplicate' else 'contradicts' end, null,
               s.report_event_id, s.report_hash, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.status = 'completed' and s.outcome is distinct from ask.outcome then
    return row(row('contradicts', null, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
  end if;
  if s.status not in ('started', 'in_doubt', 'completed') then
    return row(row('not_started', s.status, null, null, o.operation_id)::sentinel.receipt, null, null)::sentinel.moved;
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

create function sentinel.write_reports(events sentinel.events[], states sentinel.operation_states[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.write_events(events);
  update sentinel.operation_states t set status = s.status, outcome = s.outcome, report_digest = s.report_digest,
    reported_at = s.reported_at, report_event_id = s.report_event_id, report_hash = s.report_hash,
    in_doubt_since = s.in_doubt_since, in_doubt_reason = s.in_doubt_reason
  from unnest(states) as s
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.status in ('started', 'in_doubt', 'completed')
    and t.report_digest is null;
  perform sentinel.settle_budgets(array_agg(s.tenant_id), array_agg(s.permit_id), 'captured', max(s.reported_at))
  from unnest(states) as s where s.outcome = 'success' having count(*) > 0;
end $$;

-- One or many reports in one transaction, in key order.
create or replace function sentinel.report_outcomes(batch jsonb) returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$
declare
  ask sentinel.report_input;
  last_key text;
  one sentinel.moved;
  events sentinel.events[] := '{}';
  states sentinel.operation_states[] := '{}';
begin
  -- Several budgets are touched in the order of keys: hold them all first, in the order in which guards hold theirs.
  if jsonb_array_length(batch) > 1 then
    perform pg_advisory_xact_lock(lock) from (
      select distinct sentinel.budget_lock(r.tenant_id, r.subject) as lock
      from jsonb_populate_recordset(null::sentinel.report_input, batch) a
      join sentinel.operations o on o.tenant_id = a.tenant_id and o.idempotency_key = a.idempotency_key
      join sentinel.reservations r on r.tenant_id = o.tenant_id and r.operation_id = o.operation_id and r.state = 'held'
      where a.outcome = 'success' order by 1) as locks;
  end if;
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

-- Tables ----------------------------------------------------------------------------------------------------------------

-- The same rules, said so that they cost little: a counted repetition in a pattern is unrolled and walked at every update.
do $$
declare
  rule record;
begin
  for rule in select * from (values
      ('refunds.ledger_entries', 'ledger_entry_id', 1, 120, 'A-Za-z0-9._:/@-'),
      ('refunds.ledger_entries', 'refund_id',       1, 128, 'A-Za-z0-9._:/@-'),
      ('refunds.ledger_entries', 'mode',            1,  40, 'a-z_'),
      ('refunds.ledger_entries', 'language',        2,  35, 'A-Za-z0-9-'),
      ('refunds.effects',        'system',          1,  40, 'a-z_'),
      ('orders.reviews',         'source',          1,  64, 'A-Za-z0-9._-'),
      ('orders.reviews',         'order_id',        1, 128, 'A-Za-z0-9._:/@#-'),
      ('orders.alerts',          'kind',            1,  40, 'a-z_')) as v (place, name, least, most, of_what)
  loop
    execute format('alter table %1$s drop constraint %2$I, add constraint %2$I check (length(%3$I) between %4$s and %5$s and %3$I !~ %6$L)',
      rule.place, split_part(rule.place, '.', 2) || '_' || rule.name || '_check', rule.name, rule.least, rule.most,
      '[^' || rule.of_what || ']');
  end loop;
end $$;
alter table refunds.confirmations drop constraint confirmations_digest_check,
  add constraint confirmations_digest_check check (length(digest) = 71 and digest ~ '^sha256:[0-9a-f]+$');

-- The trail of a ledger entry is written once per statement: many rows move in one. What may move is checked row by row.
create or replace function refunds.check_transition() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.status <> 'NEW' then
      raise exception 'a ledger entry begins as NEW, not %', new.status using errcode = 'check_violation', constraint = 'ledger_begins_new';
    end if;
    return new;
  end if;
  if (new.tenant_id, new.ledger_entry_id, new.refund_id, new.amount_minor, new.currency, new.action, new.agent_id)
     is distinct from (old.tenant_id, old.ledger_entry_id, old.refund_id, old.amount_minor, old.currency, old.action, old.agent_id) then
    raise exception 'what a ledger entry asks for cannot change' using errcode = 'check_violation', constraint = 'ledger_terms_fixed';
  end if;
  if new.claim_epoch < old.claim_epoch then
    raise exception 'the claim epoch only grows' using errcode = 'check_violation', constraint = 'ledger_epoch_grows';
  end if;
  if old.guard_request is not null and new.guard_request is distinct from old.guard_request then
    raise exception 'the question to the authority is fixed' using errcode = 'check_violation', constraint = 'ledger_question_fixed';
  end if;
  if old.start_id is not null and new.start_id is distinct from old.start_id then
    raise exception 'a start id is chosen once' using errcode = 'check_violation', constraint = 'ledger_start_fixed';
  end if;
  new.updated_at := clock_timestamp();
  if new.event_number = old.event_number and (new.status, new.claim_epoch) = (old.status, old.claim_epoch)
     and new.last_event is not distinct from old.last_event then
    return new;                                                            -- no event: a lease, a question, a note
  end if;
  if new.event_number <> old.event_number + 1 or not exists (select from refunds.transitions t
                 where t.from_status = old.status and t.event = new.last_event and t.to_status = new.status) then
    raise exception 'no way from % to % by %', old.status, new.status, coalesce(new.last_event, 'nothing')
      using errcode = 'check_violation', constraint = 'ledger_transition';
  end if;
  -- Taking a row is the one thing that grows the epoch, by one, and nobody takes what another still holds.
  if new.claim_epoch <> old.claim_epoch + (new.last_event in ('claimed', 'reclaimed'))::int
     or new.last_event = 'reclaimed' and old.lease_until > clock_timestamp() then
    raise exception 'a claim needs a free or lapsed row' using errcode = 'check_violation', constraint = 'ledger_claim';
  end if;
  if new.status = 'EXECUTED' and not exists (select from refunds.executions e
       where e.tenant_id = new.tenant_id and e.ledger_entry_id = new.ledger_entry_id) then
    raise exception 'EXECUTED needs its execution' using errcode = 'check_violation', constraint = 'ledger_executed_has_execution';
  end if;
  return new;
end $$;
create or replace trigger check_transition before insert or update on refunds.ledger_entries
  for each row execute function refunds.check_transition();

create function refunds.write_ledger_events() returns trigger language plpgsql as $$
begin
  insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch, worker, reason_code)
  select n.tenant_id, n.ledger_entry_id, o.status, n.last_event, n.status, n.claim_epoch, coalesce(n.claimed_by, o.claimed_by), n.reason_code
  from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
  where n.event_number <> o.event_number;
  return null;
end $$;
create trigger write_ledger_events after update on refunds.ledger_entries
  referencing old table as moved_from new table as moved_to for each statement execute function refunds.write_ledger_events();
