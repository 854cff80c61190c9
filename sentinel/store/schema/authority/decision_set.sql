-- Decisions recorded as one set: every table is written once for all of them (docs/decisions/0039-decisions-as-a-set.md).

-- Whether a total or a breaker of who asks is too tight for all of the batch.
create or replace function sentinel.is_rate_tight(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], breakers sentinel.shared_breaker[], moment timestamptz
) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  if cardinality(breakers) = 0 then return false; end if;
  return exists (
    select from (
      select o.tenant_id, b.breaker_key, o.currency, b.window_seconds, b.bucket_seconds, min(b.most_operations) as most_operations,
             min(b.most_minor) as most_minor, sum(o.minor) as minor,
             sum(sum(o.operations)) over (partition by o.tenant_id, b.breaker_key) as operations
      from (select t.tenant_id, t.shared, coalesce(t.currency, '') as currency, count(*) as operations, sum(r.amount_minor) as minor
            from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
            where t.shared is not null and t.verdict = 'ALLOW' group by 1, 2, 3) as o
      join unnest(breakers) as b on b.shared = o.shared
      group by 1, 2, 3, 4, 5) as r
    cross join lateral (
      select coalesce(sum(v.operations), 0) as operations, coalesce(sum(v.amount_minor) filter (where v.currency = r.currency), 0) as minor
      from sentinel.velocity v
      where v.tenant_id = r.tenant_id and v.breaker_key = r.breaker_key
        and v.bucket >= date_bin(make_interval(secs => r.bucket_seconds), moment - make_interval(secs => r.window_seconds), 'epoch')) as v
    where v.operations + r.operations > r.most_operations or v.minor + coalesce(r.minor, 0) > r.most_minor);
end $$;

-- Which rows of a batch are plain (their seqs): new rows whose order cannot matter. What is counted against a limit or a breaker is the
-- whole batch, as if every row took its amount: where that fits, no row's decision can change another's. A row is not plain where
-- its key is known or asked twice, where a halt covers it, where a limit of its own is too tight for all who ask for it, or where
-- what it may do only once is live or asked twice; none is where a total or a breaker of who asks is too tight. The caller holds the locks of
-- locks_of_batch, so what is read here is all there is.
create or replace function sentinel.plain_rows(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], legs sentinel.limit_leg[],
  breakers sentinel.shared_breaker[], crowded uuid[], moment timestamptz
) returns integer[] language plpgsql as $$
#variable_conflict use_column
declare
  any_halt boolean := exists (select from sentinel.halts where lifted_at is null);
begin
  if sentinel.is_rate_tight(terms, batch, breakers, moment) then return '{}'; end if;
  return array(
    with a as materialized (
      select r.seq, t.tenant_id, r.idempotency_key, case when t.verdict <> 'DENY' then sentinel.once_folded(r.once_key) end as once,
             case when t.verdict <> 'DENY' then r.amount_minor end as counted_minor, t.shared, t.agent_id, t.action, t.scenario,
             t.principal_id = any(crowded) and t.verdict = 'ALLOW' and r.start_id is null and not coalesce(t.hand_out_is_start, false) as is_crowded
      from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
    -- One line for each limit of a row (seq), and for each total (shared), with what all who share it ask for.
    ), asked as materialized (
      select a.seq, null::integer as shared, a.tenant_id, a.counted_minor, g.limit_key, g.limit_place
      from unnest(legs) as g join a on a.seq = g.seq where a.counted_minor is not null
      union all
      select null, o.shared, o.tenant_id, o.counted_minor, g.limit_key, g.limit_place
      from unnest(legs) as g
      join (select tenant_id, shared, sum(counted_minor)::bigint as counted_minor from a where shared is not null group by 1, 2) as o
        on o.shared = g.shared where o.counted_minor is not null
    ), tight as materialized (
      select k.tenant_id, k.limit_key, k.is_total
      from (select g.tenant_id, g.limit_key, sum(g.counted_minor) as asked_minor, min(l.cap_minor) as cap_minor, max(l.cap_minor) as most,
                   bool_or(g.shared is not null) as is_total,
                   min(sentinel.first_part_of(l."window", l.window_seconds, l.bucket_seconds, l.zone, moment)) as since
            from asked as g join unnest(limits) as l on l.place = g.limit_place group by 1, 2) as k
      cross join lateral (
        select coalesce(sum(u.held_minor + u.captured_minor), 0) as used_minor from sentinel.usage u
        where u.tenant_id = k.tenant_id and u.limit_key = k.limit_key and u.bucket >= k.since) as u
      where u.used_minor + k.asked_minor > k.cap_minor or k.cap_minor <> k.most)
    select a.seq from a
    where not exists (select from tight where is_total)
      -- Asked for each row by itself (offset 0): a join would read all that is there.
      and not exists (select from sentinel.operations o where o.idempotency_key = a.idempotency_key and o.tenant_id = a.tenant_id offset 0)
      and (a.tenant_id, a.idempotency_key) not in (select tenant_id, idempotency_key from a group by 1, 2 having count(*) > 1)
      and not a.is_crowded
      and not (any_halt and sentinel.halt_over(a.tenant_id, a.agent_id, a.action, a.scenario) is not null)
      and not a.seq = any(array(
        select g.seq from asked g join tight t on t.tenant_id = g.tenant_id and t.limit_key = g.limit_key where g.seq is not null))
      and (a.once is null or not exists (
             select from sentinel.operation_states s where s.tenant_id = a.tenant_id and s.once_folded = a.once and s.once_live offset 0)
           and (a.tenant_id, a.once) not in (select tenant_id, once from a where once is not null group by 1, 2 having count(*) > 1)));
end $$;

-- What is written only for some decisions of a set: starts that come with the answer, and questions to people. The starts are returned.
create or replace function sentinel.write_seldom(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], plain integer[], moment timestamptz
) returns sentinel.events[] language plpgsql as $$
#variable_conflict use_column
declare
  started sentinel.events[] := array(
    select sentinel.start_event(t.tenant_id, r.second_event_id, r.operation_id, t.agent_id, t.action, r.permit_id, r.start_id, moment)
    from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
    where t.verdict = 'ALLOW' and (r.start_id is not null or t.hand_out_is_start) and r.seq = any(plain));
begin
  if cardinality(started) > 0 then perform sentinel.write_events(started); end if;
  if exists (select from unnest(terms) as t where t.verdict = 'APPROVAL_REQUIRED') then
    insert into sentinel.approvals
      (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, amount_minor, currency,
       digest, reasons, policy_digest, required_role, required_people, offers_approve, created_at, expires_at)
    select t.tenant_id, r.approval_id, r.operation_id, t.principal_id, t.owner_operator_id, t.agent_id, t.action, r.resource, r.amount_minor, t.currency,
       r.digest, t.reasons, t.policy_digest, t.required_role, t.required_people, coalesce(t.approvable, true), moment,
       moment + make_interval(secs => t.approval_seconds)
    from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
    where t.verdict = 'APPROVAL_REQUIRED' and r.seq = any(plain);
  end if;
  return started;
end $$;

-- Counts what is allowed of a set against the breakers of who asks.
create or replace function sentinel.count_velocity_of_set(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], breakers sentinel.shared_breaker[], plain integer[], moment timestamptz
) returns void language plpgsql as $$
#variable_conflict use_column
begin
  if cardinality(breakers) = 0 then return; end if;
  insert into sentinel.velocity as v (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
  select o.tenant_id, b.breaker_key, date_bin(make_interval(secs => min(b.bucket_seconds)), moment, 'epoch'), o.currency,
         min(b.scope), min(b.target), sum(o.operations), sum(o.minor)
  from (select t.tenant_id, t.shared, coalesce(t.currency, '') as currency, count(*) as operations, coalesce(sum(r.amount_minor), 0) as minor
        from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
        where t.shared is not null and t.verdict = 'ALLOW' and r.seq = any(plain) group by 1, 2, 3) as o
  join unnest(breakers) as b on b.shared = o.shared
  group by o.tenant_id, b.breaker_key, o.currency order by 1, 2, 4
  on conflict (tenant_id, breaker_key, bucket, currency) do update set
    operations = v.operations + excluded.operations, amount_minor = v.amount_minor + excluded.amount_minor;
end $$;

-- One or many decisions in one transaction: what is plain as one set, the rest row by row in key order, which is exact.
-- Waits for others' locks for patience_ms in all. The settings are for all that it calls: the plans must not depend on how much there
-- was when they were made.
create or replace function sentinel.record_batch(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], legs sentinel.limit_leg[],
  breakers sentinel.shared_breaker[], patience_ms integer, alone boolean
) returns setof sentinel.guard_output language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  began timestamptz := clock_timestamp();
  deadline timestamptz := began + make_interval(secs => patience_ms / 1000.0);
  locks bigint[];
  crowded uuid[];
  plain integer[];                                                         -- seqs of what is recorded as a set
  started sentinel.events[];                                               -- of the set: starts that come with the answer
  moment timestamptz;
  decided_text text;
  took_ms integer;
  asks sentinel.guard_input[];
  one sentinel.guard_output;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'record_decisions needs READ COMMITTED' using errcode = 'invalid_transaction_state';
  end if;
  if patience_ms < 1900 then perform sentinel.wait_until(deadline); end if;
  if alone then perform pg_advisory_xact_lock(sentinel.halt_lock());
  else perform pg_advisory_xact_lock_shared(sentinel.halt_lock()); end if;

  crowded := array(select c.principal_id from sentinel.crowded_keys c where c.valid_until > began);
  locks := sentinel.locks_of_batch(terms, batch, legs, breakers);
  perform sentinel.take_locks(locks, deadline);

  moment := clock_timestamp();
  if cardinality(batch) = 1 then
    one := sentinel.record_one(terms[1], batch[1], limits, legs, breakers, crowded, began, moment);
    if one.seq is not null then return next one; return; end if;
  end if;
  plain := sentinel.plain_rows(terms, batch, limits, legs, breakers, crowded, moment);
  if cardinality(plain) > 0 then
    started := sentinel.write_seldom(terms, batch, plain, moment);
    perform sentinel.count_velocity_of_set(terms, batch, breakers, plain, moment);
    decided_text := sentinel.utc_text(moment);
    took_ms := ceil(extract(epoch from moment - began) * 1000);
    return query
    -- What is allowed takes its amount of each limit, in the part of the window that is being filled: of its own limits (seq), and of
    -- the totals that all who name `shared` have in common.
    with taking as materialized (
      select r.seq, t.shared, t.tenant_id, r.amount_minor from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
      where t.verdict = 'ALLOW' and r.amount_minor is not null and r.seq = any(plain)
    ), windows as materialized (
      select l.place, l.window_seconds, l.cap_minor, sentinel.part_of(l."window", l.bucket_seconds, l.zone, moment) as bucket from unnest(limits) as l
    ), parts as materialized (
      select g.seq, null::integer as shared, k.tenant_id, g.limit_key, g.subject, w.bucket, w.window_seconds, w.cap_minor, k.amount_minor
      from unnest(legs) as g join taking as k on k.seq = g.seq join windows as w on w.place = g.limit_place
      union all
      select null, g.shared, k.tenant_id, g.limit_key, g.subject, w.bucket, w.window_seconds, w.cap_minor, k.amount_minor
      from unnest(legs) as g
      join (select shared, tenant_id, sum(amount_minor)::bigint as amount_minor from taking where shared is not null group by 1, 2) as k on k.shared = g.shared
      join windows as w on w.place = g.limit_place
    ), holding as materialized (
      select seq, shared, array_agg(limit_key order by limit_key) as keys, array_agg(bucket order by limit_key) as buckets, array_agg(false) as besides,
             array_agg(distinct sentinel.budget_lock(tenant_id, subject)) as locks, min(subject) as subject
      from parts group by seq, shared
    ), decided as materialized (
      select r.*, t.*, t.verdict = 'ALLOW' as allowed, s.event_id as start_event_id, s.hash as start_hash,
             own.locks, common.locks as total_locks, coalesce(own.subject, common.subject) as subject, own.keys || common.keys as keys,
             own.buckets || common.buckets as buckets, own.besides || common.besides as besides,
             r.part1 || decided_text || '","decision":"' || t.verdict || '","facts_commitment":"' || r.facts_commitment
               || '","latency_ms":' || (r.elapsed_ms + took_ms) || r.part2 || t.reason_code || r.part3 as body
      from unnest(batch) as r join unnest(terms) as t on t.place = r.terms_place
      left join unnest(started) as s on s.event_id = r.second_event_id
      left join taking as k on k.seq = r.seq
      left join holding as own on own.seq = k.seq left join holding as common on common.shared = k.shared
      where r.seq = any(plain)
    ), write_operations as (
      insert into sentinel.operations
        (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request, basis, salt,
         scenario, once_key, amount_minor, currency, created_at)
      select tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request, basis, salt,
         scenario, once_key, amount_minor, currency, began from decided
    ), write_events as (
      insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
      select tenant_id, event_id, 'decision', operation_id, agent_id, body, 'sha256:' || encode(sha256(convert_to(body, 'UTF8')), 'hex'), moment from decided
    ), write_states as (
      insert into sentinel.operation_states
        (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest,
         decision_event_id, once_key, once_live, approval_id, permit_id, permit_expires_at, start_id, started_at, start_event_id,
         start_hash, principal_id, holds, total_holds, act_until)
      select d.tenant_id, d.operation_id,
         case when d.start_hash is not null then 'started' when d.allowed then 'allowed' when d.verdict = 'DENY' then 'denied' else 'pending' end,
         d.verdict, d.reason_code, d.policy_id, d.policy_version, d.policy_label, d.policy_digest, d.event_id, d.once_key,
         d.once_key is not null and d.verdict <> 'DENY',
         case when d.verdict = 'APPROVAL_REQUIRED' then d.approval_id end, case when d.allowed then d.permit_id end,
         case when d.allowed then moment + make_interval(secs => d.permit_seconds) end, case when d.allowed then d.start_id end,
         case when d.start_hash is not null then moment end, d.start_event_id, d.start_hash, case when d.allowed then d.principal_id end, d.locks, d.total_locks,
         case when d.start_hash is not null then sentinel.leave_until(d.act_seconds, moment) end
      from decided as d
    -- Under the locks of their budgets: nobody else puts in or moves these rows.
    ), used as materialized (
      select tenant_id, limit_key, bucket, min(window_seconds) as window_seconds, min(cap_minor) as cap_minor, sum(amount_minor)::bigint as amount_minor
      from parts group by 1, 2, 3
    ), write_usage as (
      update sentinel.usage u set held_minor = u.held_minor + o.amount_minor, cap_minor = o.cap_minor
      from used as o where u.tenant_id = o.tenant_id and u.limit_key = o.limit_key and u.bucket = o.bucket
      returning u.tenant_id, u.limit_key
    ), write_new_usage as (
      insert into sentinel.usage (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor)
      select o.tenant_id, o.limit_key, o.bucket, o.window_seconds, o.cap_minor, o.amount_minor from used as o
      where not exists (select from write_usage w where w.tenant_id = o.tenant_id and w.limit_key = o.limit_key)
    ), write_reservations as (
      insert into sentinel.reservations
      select tenant_id, permit_id, operation_id, subject, amount_minor, keys, buckets, besides, 'held', moment, null from decided where keys is not null
    )
    select d.seq, 'decided', d.operation_id, d.event_id, d.verdict, d.reason_code,
           case when d.allowed then 'allowed' when d.verdict = 'DENY' then 'denied' else 'pending' end,
           d.policy_id, d.policy_version, d.policy_label, d.resource, d.risk_class, d.digest, null::text,
           case when d.allowed then d.permit_id end, case when d.allowed then moment + make_interval(secs => d.permit_seconds) end,
           case when d.verdict = 'APPROVAL_REQUIRED' then d.approval_id end,
           case when d.verdict = 'APPROVAL_REQUIRED' then moment + make_interval(secs => d.approval_seconds) end,
           null::text, null::timestamptz, null::text, d.body, 'sha256:' || encode(sha256(convert_to(d.body, 'UTF8')), 'hex'), moment,
           case when d.start_id is not null then d.start_event_id end, case when d.start_id is not null then d.start_hash end,
           case when d.start_id is not null and d.start_hash is not null then false end
    from decided as d;
    if cardinality(plain) = cardinality(batch) then return; end if;
  end if;
  asks := sentinel.asks_of(terms, batch, limits, legs, breakers, plain);
  perform sentinel.take_late_locks(array(
    select unnest(sentinel.locks_of_operations(array_agg(a.tenant_id), array_agg(a.idempotency_key))) from unnest(asks) as a), locks);
  return query select * from sentinel.record_rows(asks, crowded, began);
end $$;

-- Decisions are made beside each other. Where one trips a breaker and so has to set a halt, all of the batch is undone, its
-- locks with it, and made again alone: then the halt comes after all that was under way and before all that comes later.
create or replace function sentinel.record_decisions(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], legs sentinel.limit_leg[],
  breakers sentinel.shared_breaker[], patience_ms integer default 2000
) returns setof sentinel.guard_output language plpgsql as $$
begin
  begin
    return query select * from sentinel.record_batch(terms, batch, limits, legs, breakers, patience_ms, false);
    return;
  exception when sqlstate 'SNTRP' then null;
  end;
  return query select * from sentinel.record_batch(terms, batch, limits, legs, breakers, patience_ms, true);
end $$;
