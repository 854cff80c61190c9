-- Decisions recorded as one set: every table is written once for all of them (docs/decisions/0039-decisions-as-a-set.md).

-- Whether a breaker has too little room for all rows of the batch together, or the rows disagree about its terms.
create or replace function sentinel.is_rate_tight(rates sentinel.rate_sum[], moment timestamptz) returns boolean language plpgsql as $$
begin
  return exists (
    select from unnest(rates) as r cross join lateral (
      select coalesce(sum(v.operations), 0) as operations, coalesce(sum(v.amount_minor) filter (where v.currency = r.currency), 0) as minor
      from sentinel.velocity v
      where v.tenant_id = r.tenant_id and v.breaker_key = r.breaker_key
        and v.bucket >= date_bin(make_interval(secs => r.bucket_seconds), moment - make_interval(secs => r.window_seconds), 'epoch')) as v
    where r.is_mixed or v.operations + r.all_operations > r.most_operations or v.minor + r.amount_minor > r.most_minor);
end $$;

-- Counts the allowed rows of a batch against their requesters' breakers.
create or replace function sentinel.count_rates(rates sentinel.rate_sum[], moment timestamptz) returns void language plpgsql as $$
declare
  r sentinel.rate_sum;
begin
  foreach r in array rates loop
    continue when r.operations = 0;
    insert into sentinel.velocity as v (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
    values (r.tenant_id, r.breaker_key, date_bin(make_interval(secs => r.bucket_seconds), moment, 'epoch'), r.currency, r.scope, r.target,
      r.operations, r.amount_minor)
    on conflict (tenant_id, breaker_key, bucket, currency) do update set
      operations = v.operations + excluded.operations, amount_minor = v.amount_minor + excluded.amount_minor;
  end loop;
end $$;

-- The limits of these sums that have no room for everything asked of them, or about whose terms the rows disagree. The caller holds the
-- locks of the budgets. Parts in usage_parts, which a slot has left behind, are read for a rolling window, and when the clock went back.
create or replace function sentinel.tight_sums(sums sentinel.budget_sum[], parts sentinel.limit_parts) returns sentinel.tight_limit[]
language plpgsql as $$
#variable_conflict use_column
begin
  return array(
    select (k.tenant_id, leg.limit_key, leg.is_total)::sentinel.tight_limit
    from unnest(sums) as k left join lateral (
      select one.limits, one.buckets, one.held, one.captured from sentinel.budgets one
      where one.tenant_id = k.tenant_id and one.subject = k.subject and one.policy_id = k.policy_id offset 0) as b on true
    cross join lateral (
      select l.place, l.is_total, l.asked, k.policy_id || '/' || l.name || '|' || k.subject as limit_key, array_position(b.limits, l.name) as slot
      from unnest(k.limits, k.limit_places, k.are_totals, k.asked) as l (name, place, is_total, asked) offset 0) as leg
    where k.is_mixed or leg.asked
      + case when b.buckets[leg.slot] >= parts.since[leg.place + 1] then b.held[leg.slot] + b.captured[leg.slot] else 0 end
      + case when parts.since[leg.place + 1] < parts.buckets[leg.place + 1] or b.buckets[leg.slot] > parts.buckets[leg.place + 1] then (
          select coalesce(sum(p.held_minor + p.captured_minor), 0) from sentinel.usage_parts p
          where p.tenant_id = k.tenant_id and p.limit_key = leg.limit_key and p.bucket >= parts.since[leg.place + 1]) else 0 end
      > parts.caps[leg.place + 1]);
end $$;

-- Adds the amounts taken to each limit's current part. The caller holds the locks of the budgets, so no other transaction inserts or moves
-- these rows. Each row is looked up by its key and then updated by its ctid, because a join may read the whole table; a row that moved in
-- between raises deadlock_detected. A row that has other slots, or whose parts are over, is brought up to date limit by limit (`late`,
-- whose rows are counted because a WITH query that nothing reads is not run).
create or replace function sentinel.hold_sums(sums sentinel.budget_sum[], parts sentinel.limit_parts) returns void language plpgsql as $$
#variable_conflict use_column
declare
  is_lost boolean;
  is_left boolean;
begin
  with placed as materialized (
    select k.limit_places, sentinel.parts_at(parts, k.limit_places) as at from (select distinct limit_places from unnest(sums)) as k
  ), found as materialized (
    select k.tenant_id, k.subject, k.policy_id, k.limits, k.taken, (p.at).buckets, (p.at).seconds as window_seconds, (p.at).caps, b.found_at,
           case when k.is_mixed or 0 = any(k.taken) then 'late' when b.found_at is null then 'new'
                when b.buckets = (p.at).buckets and b.limits = k.limits then 'same' else 'late' end as slots
    from unnest(sums) as k join placed as p on p.limit_places = k.limit_places left join lateral (
      select one.ctid as found_at, one.buckets, one.limits from sentinel.budgets one
      where one.tenant_id = k.tenant_id and one.subject = k.subject and one.policy_id = k.policy_id offset 0) as b on true
    where 0 < any(k.taken)
  ), moved as (
    update sentinel.budgets u set held = sentinel.slots_added(u.held, f.taken), caps = f.caps from found as f where u.ctid = f.found_at and f.slots = 'same' returning 1
  ), added as (
    insert into sentinel.budgets (tenant_id, subject, policy_id, limits, buckets, window_seconds, caps, held, captured)
    select f.tenant_id, f.subject, f.policy_id, f.limits, f.buckets, f.window_seconds, f.caps, f.taken, array_fill(0::bigint, array[cardinality(f.taken)])
    from found as f where f.slots = 'new' returning 1
  ), late as (
    select sentinel.hold_part(f.tenant_id, f.policy_id || '/' || leg.name || '|' || f.subject, leg.bucket, leg.seconds, leg.cap, leg.minor)
    from found as f cross join lateral unnest(f.limits, f.buckets, f.window_seconds, f.caps, f.taken) as leg (name, bucket, seconds, cap, minor)
    where f.slots = 'late' and leg.minor > 0
  )
  select (select count(*) from moved) + (select count(*) from added) <> count(*) filter (where f.slots <> 'late'), (select count(*) from late) > 0
    into is_lost, is_left from found as f;
  if is_lost then raise exception 'a budget moved without its lock' using errcode = 'deadlock_detected'; end if;
end $$;

-- The seqs of all rows of a batch if every one is plain as plain_rows defines it, else null. This check is cheap, because it asks once for
-- all rows what plain_rows asks for each. The caller holds the locks of locks_of_batch.
create or replace function sentinel.all_plain(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], sums sentinel.budget_sum[], rates sentinel.rate_sum[], parts sentinel.limit_parts,
  at_limit uuid[], moment timestamptz
) returns integer[] language plpgsql as $$
#variable_conflict use_column
begin
  if cardinality(rates) > 0 and sentinel.is_rate_tight(rates, moment) then return null; end if;
  if cardinality(at_limit) > 0 and exists (select from unnest(terms) as t where t.principal_id = any(at_limit)) then return null; end if;
  if exists (select from sentinel.halts where lifted_at is null) and exists (
      select from unnest(terms) as t where sentinel.halt_over(t.tenant_id, t.agent_id, t.action, t.scenario) is not null) then
    return null;
  end if;
  if cardinality(sums) > 0 and cardinality(sentinel.tight_sums(sums, parts)) > 0 then return null; end if;
  return (
    select case when bool_and(
        -- A subquery for each row (offset 0): a join would read the whole table.
        not exists (select from sentinel.operations o where o.idempotency_key = r.idempotency_key and o.tenant_id = r.tenant_id offset 0)
        and (r.once_key is null or not exists (
          select from sentinel.operation_states s
          where s.tenant_id = r.tenant_id and sentinel.once_folded(s.once_key) = sentinel.once_folded(r.once_key) and s.once_live offset 0)))
      and count(distinct r.idempotency_key collate "C") = count(*)
      and count(distinct sentinel.once_folded(r.once_key)) = count(r.once_key)
      then array_agg(r.seq) end
    from unnest(batch) as r);
end $$;

-- The seqs of the plain rows of a batch: new rows whose order cannot matter. The whole batch is counted against a limit or a breaker, as
-- if every row took its amount: if that fits, no row's decision can change another's. A row is not plain if its key is known or occurs
-- twice, if a halt covers it, if its key is at a permit or question limit, if one of its own limits has no room for all rows that ask for
-- it, or if its once-key is live or occurs twice. No row is plain if a total or a breaker has no room for the batch. The caller holds the
-- locks of locks_of_batch, so what is read here is complete.
create or replace function sentinel.plain_rows(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], sums sentinel.budget_sum[], rates sentinel.rate_sum[], parts sentinel.limit_parts,
  at_limit uuid[], moment timestamptz
) returns integer[] language plpgsql as $$
#variable_conflict use_column
declare
  any_halt boolean := exists (select from sentinel.halts where lifted_at is null);
begin
  if sentinel.is_rate_tight(rates, moment) then return '{}'; end if;
  return array(
    with a as materialized (
      select r.seq, t.tenant_id, r.idempotency_key, case when t.verdict <> 'DENY' then sentinel.once_folded(r.once_key) end as once,
             case when t.verdict <> 'DENY' and r.amount_minor is not null then r.limit_keys end as limit_keys, t.agent_id, t.action, t.scenario,
             t.principal_id = any(at_limit) and (t.verdict = 'APPROVAL_REQUIRED'
               or t.verdict = 'ALLOW' and r.start_id is null and not coalesce(t.hand_out_is_start, false)) as is_at_limit
      from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
    ), tight as materialized (
      select k.tenant_id, k.limit_key, k.is_total from unnest(sentinel.tight_sums(sums, parts)) as k)
    select a.seq from a
    where not exists (select from tight where is_total)
      and not exists (select from sentinel.operations o where o.idempotency_key = a.idempotency_key and o.tenant_id = a.tenant_id offset 0)
      and (a.tenant_id, a.idempotency_key) not in (select tenant_id, idempotency_key from a group by 1, 2 having count(*) > 1)
      and not a.is_at_limit
      and not (any_halt and sentinel.halt_over(a.tenant_id, a.agent_id, a.action, a.scenario) is not null)
      and not exists (select from tight t where t.tenant_id = a.tenant_id and t.limit_key = any(a.limit_keys) offset 0)
      and (a.once is null or not exists (
             select from sentinel.operation_states s where s.tenant_id = a.tenant_id and sentinel.once_folded(s.once_key) = a.once and s.once_live offset 0)
           and (a.tenant_id, a.once) not in (select tenant_id, once from a where once is not null group by 1, 2 having count(*) > 1)));
end $$;

-- The same sums with `taken` counted over the chosen rows of the batch only (their seqs).
create or replace function sentinel.budget_sums_of(
  sums sentinel.budget_sum[], terms sentinel.guard_terms[], batch sentinel.guard_row[], chosen integer[]
) returns sentinel.budget_sum[] language plpgsql as $$
#variable_conflict use_column
begin
  return array(
    with taken as materialized (
      select r.tenant_id, k.limit_key, k.limit_place, sum(r.amount_minor)::bigint as minor
      from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
      cross join lateral unnest(r.limit_keys || t.total_keys, t.limit_places) as k (limit_key, limit_place)
      where r.seq = any(chosen) and t.verdict = 'ALLOW' and r.amount_minor is not null group by 1, 2, 3)
    select (k.tenant_id, k.subject, k.policy_id, k.is_mixed, k.limits, k.limit_places, k.are_totals, k.asked, array(
        select coalesce(t.minor, 0) from unnest(k.limits, k.limit_places) with ordinality as leg (name, place, nth)
        left join taken t on t.tenant_id = k.tenant_id and t.limit_place = leg.place and t.limit_key = k.policy_id || '/' || leg.name || '|' || k.subject
        order by leg.nth))::sentinel.budget_sum
    from unnest(sums) as k);
end $$;

create or replace function sentinel.rate_sums_of(
  rates sentinel.rate_sum[], terms sentinel.guard_terms[], batch sentinel.guard_row[], chosen integer[]
) returns sentinel.rate_sum[] language plpgsql as $$
#variable_conflict use_column
begin
  return array(
    select (b.tenant_id, b.shared, b.currency, b.breaker_key, b.scope, b.target, b.window_seconds, b.bucket_seconds, b.most_operations,
            b.most_minor, b.declared, b.is_mixed, o.operations, b.all_operations, o.minor)::sentinel.rate_sum
    from unnest(rates) as b cross join lateral (
      select count(*)::integer as operations, coalesce(sum(r.amount_minor), 0)::bigint as minor
      from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
      where r.seq = any(chosen) and t.verdict = 'ALLOW' and t.shared = any(b.shared) and coalesce(t.currency, '') = b.currency) as o);
end $$;

-- Writes the approvals that the plain rows of a set need.
create or replace function sentinel.write_approvals(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], plain integer[], moment timestamptz
) returns void language plpgsql as $$
#variable_conflict use_column
begin
  insert into sentinel.approvals
    (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, amount_minor, currency,
     digest, reasons, policy_digest, required_role, required_people, offers_approve, created_at, expires_at)
  select t.tenant_id, r.approval_id, r.operation_id, t.principal_id, t.owner_operator_id, t.agent_id, t.action, r.resource, r.amount_minor, t.currency,
     'sha256:' || encode(r.digest, 'hex'), t.reasons, t.policy_digest, t.required_role, t.required_people, coalesce(t.approvable, true), moment,
     moment + make_interval(secs => t.approval_seconds)
  from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
  where t.verdict = 'APPROVAL_REQUIRED' and r.seq = any(plain);
end $$;

-- Records one or many decisions in one transaction: the plain rows as one set, the others one by one in key order, which is exact.
-- Waits at most patience_ms in total for locks that other transactions hold.
create or replace function sentinel.record_batch(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], sums sentinel.budget_sum[],
  rates sentinel.rate_sum[], patience_ms integer, alone boolean
) returns setof sentinel.guard_output language plpgsql as $$
#variable_conflict use_column
declare
  began timestamptz := clock_timestamp();
  deadline timestamptz := began + make_interval(secs => patience_ms / 1000.0);
  locks bigint[];
  at_limit uuid[];
  plain integer[];                                                         -- seqs of the rows recorded as a set
  parts sentinel.limit_parts;
  moment timestamptz;
  decided_text text;
  took_ms integer;
  asks sentinel.guard_input[];
begin
  if patience_ms < 1900 then perform sentinel.wait_until(deadline); end if;
  if alone then perform pg_advisory_xact_lock(sentinel.halt_lock());
  else perform pg_advisory_xact_lock_shared(sentinel.halt_lock()); end if;

  at_limit := array(select c.principal_id from sentinel.keys_at_limit c where c.valid_until > began);
  locks := sentinel.locks_of_batch(terms, batch, rates);
  perform sentinel.take_locks(locks, deadline);
  if exists (select from unnest(terms) as t where t.terms_id is null) then terms := sentinel.put_in_terms(terms); end if;

  moment := clock_timestamp();
  parts := sentinel.parts_of(limits, moment);
  if cardinality(batch) = 1 then
    if exists (select from sentinel.operations o where o.idempotency_key = batch[1].idempotency_key and o.tenant_id = batch[1].tenant_id) then
      plain := '{}';                                                       -- the only row is a replay: nothing else to check
    end if;
  end if;
  if plain is null then plain := sentinel.all_plain(terms, batch, sums, rates, parts, at_limit, moment); end if;
  if plain is null then
    plain := sentinel.plain_rows(terms, batch, sums, rates, parts, at_limit, moment);
    if cardinality(plain) > 0 then
      sums := sentinel.budget_sums_of(sums, terms, batch, plain);
      rates := sentinel.rate_sums_of(rates, terms, batch, plain);
    end if;
  end if;
  if cardinality(plain) > 0 then
    if exists (select from unnest(terms) as t where t.verdict = 'APPROVAL_REQUIRED') then
      perform sentinel.write_approvals(terms, batch, plain, moment);
    end if;
    perform sentinel.count_rates(rates, moment);
    if cardinality(sums) > 0 then perform sentinel.hold_sums(sums, parts); end if;
    decided_text := sentinel.utc_text(moment);
    took_ms := ceil(extract(epoch from moment - began) * 1000);
    return query
    -- An allowed row takes its amount from each of its limits, in the current window part.
    with common as materialized (
      select t.*, t.verdict = 'ALLOW' as allowed,
             case when t.verdict = 'ALLOW' and t.limit_places <> '{}' then
               sentinel.number_of_parts(sentinel.buckets_at(parts.buckets, t.limit_places)) end as parts_id,
             sentinel.budget_locks(t.tenant_id, t.total_subjects) as total_locks
      from unnest(terms) as t
    ), decided as materialized (
      select d.*, sha256(convert_to(d.body, 'UTF8')) as hash, sha256(convert_to(d.start_body, 'UTF8')) as start_hash
      from (
        select r.seq, r.tenant_id, r.operation_id, r.event_id, r.idempotency_key, r.once_key, r.resource, r.digest, r.salt, r.params, r.request, r.basis,
               r.amount_minor, r.act_seconds, r.elapsed_ms + took_ms as latency_ms, r.facts_commitment, r.operation_commitment, r.amount_value,
               r.ledger_entry_id, r.refund_id, r.trace, t.terms_id, t.principal_id, t.agent_id, t.risk_class, t.scenario, t.policy_id,
               t.policy_version, t.policy_label, t.currency, t.verdict, t.reason_code, t.allowed,
               case when t.verdict = 'APPROVAL_REQUIRED' then r.approval_id end as approval_id,
               case when t.verdict = 'APPROVAL_REQUIRED' then moment + make_interval(secs => t.approval_seconds) end as approval_end,
               case when t.allowed then r.permit_id end as permit_id,
               case when t.allowed then moment + make_interval(secs => t.permit_seconds) end as permit_end,
               case when t.allowed then r.start_id end as start_id,
               case when t.allowed and (r.start_id is not null or t.hand_out_is_start) then r.second_event_id end as start_event_id,
               case when t.allowed and (r.start_id is not null or t.hand_out_is_start) then
                 sentinel.start_text(r.second_event_id, r.operation_id, t.agent_id, t.action, r.permit_id, r.start_id, decided_text) end as start_body,
               t.allowed and r.amount_minor is not null and t.limit_places <> '{}' as is_reserved, t.parts_id,
               case when t.own_keys is null then r.limit_keys || t.total_keys end as keys,
               case when t.own_keys is not null then coalesce(r.subjects[1], '') end as limit_owner,
               case when t.allowed and r.amount_minor is not null then sentinel.budget_locks(r.tenant_id, r.subjects) end as locks,
               case when t.allowed and r.amount_minor is not null then t.total_locks end as total_locks,
               sentinel.pack_text(t.pack_template, r.amount_value, decided_text, t.verdict, r.facts_commitment, r.elapsed_ms + took_ms,
                 r.ledger_entry_id, r.operation_commitment, r.event_id, t.reason_code, r.refund_id) as body
        from unnest(batch) as r join common as t on t.place = r.terms_place
        where r.seq = any(plain) offset 0) as d                            -- offset 0: a body is built once
    ), write_operations as (
      insert into sentinel.operation_rows
        (tenant_id, operation_id, principal_id, created_at, terms_id, amount_minor, idempotency_key, resource, digest, params, request, salt,
         scenario, once_key, currency, basis)
      select tenant_id, operation_id, principal_id, began, terms_id, amount_minor, idempotency_key, resource, digest, params, request, salt,
         scenario, once_key, currency, basis
      from decided
    ), write_events as (
      insert into sentinel.event_rows
        (tenant_id, event_id, operation_id, occurred_at, terms_id, latency_ms, kind, hash, facts_commitment, operation_commitment, amount_value,
         ledger_entry_id, refund_id, trace)
      select tenant_id, event_id, operation_id, moment, terms_id, latency_ms, 'decision', hash, facts_commitment, operation_commitment,
         amount_value, ledger_entry_id, refund_id, trace
      from decided
    ), write_starts as (
      insert into sentinel.event_rows (tenant_id, event_id, operation_id, occurred_at, kind, agent_id, hash, body)
      select tenant_id, start_event_id, operation_id, moment, 'start', agent_id, start_hash, start_body from decided where start_body is not null
    ), write_states as (
      insert into sentinel.operation_states
        (tenant_id, operation_id, status, decision, reason_code, terms_id, decision_event_id, once_key, once_live, approval_id,
         permit_id, permit_expires_at, start_id, started_at, start_event_id, start_hash, principal_id, holds, total_holds, act_until, reserved_minor, limit_keys, limit_owner, parts_id, reservation)
      select d.tenant_id, d.operation_id,
         case when d.start_body is not null then 'started' when d.allowed then 'allowed' when d.verdict = 'DENY' then 'denied' else 'pending' end,
         d.verdict, d.reason_code, d.terms_id, d.event_id, d.once_key,
         d.once_key is not null and d.verdict <> 'DENY', d.approval_id, d.permit_id, d.permit_end, d.start_id,
         case when d.start_body is not null then moment end, d.start_event_id, 'sha256:' || encode(d.start_hash, 'hex'),
         case when d.allowed then d.principal_id end, d.locks, d.total_locks, case when d.start_body is not null then sentinel.leave_until(d.act_seconds, moment) end,
         case when d.is_reserved then d.amount_minor end, case when d.is_reserved then d.keys end, case when d.is_reserved then d.limit_owner end,
         case when d.is_reserved then d.parts_id end, case when d.is_reserved then 'held' end
      from decided as d
    )
    select d.seq, 'decided', d.operation_id, d.event_id, d.verdict, d.reason_code,
           case when d.allowed then 'allowed' when d.verdict = 'DENY' then 'denied' else 'pending' end,
           d.policy_id, d.policy_version, d.policy_label, d.resource, d.risk_class, 'sha256:' || encode(d.digest, 'hex'), null::text,
           d.permit_id, d.permit_end, d.approval_id, d.approval_end, null::text, null::timestamptz, null::text, d.body, 'sha256:' || encode(d.hash, 'hex'), moment,
           case when d.start_id is not null then d.start_event_id end, case when d.start_id is not null then 'sha256:' || encode(d.start_hash, 'hex') end,
           case when d.start_id is not null then false end
    from decided as d;
    if cardinality(plain) = cardinality(batch) then return; end if;
  end if;
  asks := sentinel.asks_of(terms, batch, limits, rates, plain);
  perform sentinel.take_late_locks(array(
    select unnest(sentinel.locks_of_operations(array_agg(a.tenant_id), array_agg(a.idempotency_key))) from unnest(asks) as a), locks);
  return query select * from sentinel.record_rows(asks, began);
end $$;

-- Raises unless the transaction is READ COMMITTED: what is read after taking a lock must be what its last holder committed.
create or replace function sentinel.require_read_committed() returns void language plpgsql as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'decisions need READ COMMITTED' using errcode = 'invalid_transaction_state';
  end if;
end $$;

-- Records decisions beside other transactions that decide. A single row is tried with record_one; if that is not enough, everything it did
-- is rolled back, its locks too except the halt lock, and the row is recorded as a batch. When a decision trips a breaker and so must set
-- a halt, this raises SQLSTATE SNTRP, and the caller calls record_decisions_alone.
-- The settings apply to every function called from here: a plan must not depend on the table sizes at the time it was made.
create or replace function sentinel.record_decisions(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], sums sentinel.budget_sum[],
  rates sentinel.rate_sum[], patience_ms integer default 2000
) returns setof sentinel.guard_output language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_mergejoin = off as $$
declare
  began timestamptz := clock_timestamp();
  one sentinel.guard_output;
begin
  perform sentinel.require_read_committed();
  terms := sentinel.known_terms(terms);
  if cardinality(batch) = 1 and terms[1].verdict = 'ALLOW' then
    -- Outside the block below, whose rollback would release the lock: by then this transaction has its place in the log, and one that waits
    -- to hold the lock alone would come in between.
    if patience_ms < 1900 then perform sentinel.wait_until(began + make_interval(secs => patience_ms / 1000.0)); end if;
    perform pg_advisory_xact_lock_shared(sentinel.halt_lock());
    begin
      one := sentinel.record_one(terms[1], batch[1], limits, sums, rates, began, patience_ms);
      if one.seq is not null then return next one; return; end if;
      raise exception 'something stands against it' using errcode = 'SNONE';
    exception when sqlstate 'SNONE' then null;
    end;
    patience_ms := greatest(1, patience_ms - ceil(extract(epoch from clock_timestamp() - began) * 1000)::integer);
  end if;
  return query select * from sentinel.record_batch(terms, batch, limits, sums, rates, patience_ms, false);
end $$;

-- The same while no other transaction decides or starts, in a transaction of its own. A halt that it sets comes after everything that was
-- in progress and before everything later, in time and, because this transaction wrote nothing before, in the log.
create or replace function sentinel.record_decisions_alone(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], sums sentinel.budget_sum[],
  rates sentinel.rate_sum[], patience_ms integer default 2000
) returns setof sentinel.guard_output language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_mergejoin = off as $$
begin
  perform sentinel.require_read_committed();
  return query select * from sentinel.record_batch(sentinel.known_terms(terms), batch, limits, sums, rates, patience_ms, true);
end $$;
