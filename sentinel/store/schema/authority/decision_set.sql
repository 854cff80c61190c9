-- Decisions recorded as one set: one statement, every table written once (docs/decisions/0039-decisions-as-a-set.md).

-- Records those new rows of a batch whose order cannot matter and answers them; the rest is left to be decided row by row
-- (record_batch), which is exact. What is counted against a limit or a breaker is the whole batch, as if every row took its amount:
-- where that fits, no row's decision can change another's. A row is left where a halt covers it, where a limit of its own is
-- too tight for all who ask for it, or where what it may do only once is live or asked twice; every row is left where a
-- total or a breaker of who asks is too tight. The caller holds the locks of locks_of_asks, so what is read here is all there is.
create or replace function sentinel.record_set(
  asks sentinel.guard_input[], shared_sets jsonb, fresh uuid[], began timestamptz, moment timestamptz
) returns setof sentinel.guard_output language plpgsql as $$
declare
  took_ms integer := ceil(extract(epoch from clock_timestamp() - began) * 1000);
  decided_text text := sentinel.utc_text(moment);
  any_halt boolean := exists (select from sentinel.halts where lifted_at is null);
begin
  return query
  with a as materialized (
    select *, case when verdict <> 'DENY' and once_key is not null then sentinel.once_folded(once_key) end as once,
           verdict = 'ALLOW' as allowed, verdict = 'ALLOW' and (start_id is not null or hand_out_is_start) as starts,
           verdict <> 'DENY' and amount_minor is not null as counts
    from unnest(asks)
  -- One line for each limit of a row (seq), and for each total of who asks (shared).
  ), limits as materialized (
    select l.*, a.seq, null::integer as shared, a.tenant_id, a.amount_minor as asked_minor
    from a cross join lateral jsonb_populate_recordset(null::sentinel.limit_ask, a.limits) as l where a.counts
    union all
    select l.*, null, o.shared, o.tenant_id, o.asked_minor
    from (select tenant_id, shared, sum(amount_minor)::bigint as asked_minor from a where shared is not null and counts group by 1, 2) as o
    cross join lateral jsonb_populate_recordset(null::sentinel.limit_ask, shared_sets -> o.shared -> 'totals') as l
  ), legs as materialized (
    select l.*, part.bucket, case l."window" when 'rolling'
             then date_bin(make_interval(secs => l.bucket_seconds), moment - make_interval(secs => l.window_seconds), 'epoch')
             else part.bucket end as since,
           sentinel.budget_lock(l.tenant_id, l.subject) as lock
    from limits as l
    cross join lateral (select case l."window" when 'calendar_day' then date_trunc('day', moment, l.zone)
                                               when 'calendar_month' then date_trunc('month', moment, l.zone)
                                               else date_bin(make_interval(secs => l.bucket_seconds), moment, 'epoch') end as bucket) as part
  ), tight as materialized (
    select k.tenant_id, k.limit_key, k.is_total
    from (select tenant_id, limit_key, min(since) as since, sum(asked_minor) as asked_minor, min(cap_minor) as cap_minor,
                 max(cap_minor) as most, bool_or(shared is not null) as is_total from legs group by 1, 2) as k
    cross join lateral (
      select coalesce(sum(u.held_minor + u.captured_minor), 0) as used_minor from sentinel.usage u
      where u.tenant_id = k.tenant_id and u.limit_key = k.limit_key and u.bucket >= k.since) as u
    where u.used_minor + k.asked_minor > k.cap_minor or k.cap_minor <> k.most
  ), is_roomy as materialized (
    select not exists (select from tight where is_total) and not exists (
      select from (
        select o.tenant_id, b.breaker_key, o.currency, b.window_seconds, b.bucket_seconds, min(b.most_operations) as most_operations,
               min(b.most_minor) as most_minor, sum(o.minor) as minor,
               sum(sum(o.operations)) over (partition by o.tenant_id, b.breaker_key) as operations
        from (select tenant_id, shared, coalesce(currency, '') as currency, count(*) as operations, sum(amount_minor) as minor
              from a where shared is not null and allowed group by 1, 2, 3) as o
        cross join lateral jsonb_populate_recordset(null::sentinel.breaker_ask, shared_sets -> o.shared -> 'breakers') as b
        group by 1, 2, 3, 4, 5) as r
      cross join lateral (
        select coalesce(sum(v.operations), 0) as operations, coalesce(sum(v.amount_minor) filter (where v.currency = r.currency), 0) as minor
        from sentinel.velocity v
        where v.tenant_id = r.tenant_id and v.breaker_key = r.breaker_key
          and v.bucket >= date_bin(make_interval(secs => r.bucket_seconds), moment - make_interval(secs => r.window_seconds), 'epoch')) as v
      where v.operations + r.operations > r.most_operations or v.minor + coalesce(r.minor, 0) > r.most_minor) as yes
  ), taken as materialized (
    select a.* from a join is_roomy on is_roomy.yes
    where a.operation_id = any(fresh)
      and not (any_halt and sentinel.halt_over(a.tenant_id, a.agent_id, a.action, a.scenario) is not null)
      and not exists (select from legs l join tight t on t.tenant_id = l.tenant_id and t.limit_key = l.limit_key where l.seq = a.seq)
      and (a.once is null or not exists (
             -- Asked for each row by itself: a join would read all that is live.
             select from sentinel.operation_states s where s.tenant_id = a.tenant_id and s.once_folded = a.once and s.once_live offset 0)
           and not exists (select from a as other where other.tenant_id = a.tenant_id and other.once = a.once and other.seq <> a.seq))
  ), own as (
    select seq, array_agg(limit_key order by limit_key) as keys, array_agg(bucket order by limit_key) as buckets,
           array_agg(false) as besides, array_agg(distinct lock) as locks
    from legs where seq is not null group by seq
  ), common as (
    select tenant_id, shared, array_agg(limit_key order by limit_key) as keys, array_agg(bucket order by limit_key) as buckets,
           array_agg(false) as besides, array_agg(distinct lock) as locks
    from legs where shared is not null group by tenant_id, shared
  ), decided as materialized (
    select d.*, sentinel.sha256_text(d.body) as hash
    from (
      select a.*, own.keys || common.keys as keys, own.buckets || common.buckets as buckets, own.besides || common.besides as besides,
             own.locks || common.locks as locks, a.pack_parts[1] || decided_text || '","decision":"' || a.verdict || '","facts_commitment":"'
               || a.facts_commitment || '","latency_ms":' || (a.elapsed_ms + took_ms) || a.pack_parts[2] || a.reason_code || a.pack_parts[3] as body
      from taken as a
      left join own on own.seq = a.seq and a.allowed
      left join common on common.tenant_id = a.tenant_id and common.shared = a.shared and a.allowed and a.amount_minor is not null
      offset 0) as d
  ), started as materialized (
    select d.seq, e.*
    from decided as d cross join lateral sentinel.start_event(
      d.tenant_id, d.second_event_id, d.operation_id, d.agent_id, d.action, d.permit_id, d.start_id, moment) as e
    where d.starts
  ), write_events as (
    insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
    select tenant_id, event_id, 'decision', operation_id, agent_id, body, hash, moment from decided
    union all
    select tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at from started
  ), write_approvals as (
    insert into sentinel.approvals
      (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, amount_minor, currency,
       digest, reasons, policy_digest, required_role, required_people, offers_approve, created_at, expires_at)
    select tenant_id, approval_id, operation_id, principal_id, owner_operator_id, agent_id, action, resource, amount_minor, currency,
       digest, reasons, policy_digest, required_role, required_people, coalesce(approvable, true), moment, moment + make_interval(secs => approval_seconds)
    from decided where verdict = 'APPROVAL_REQUIRED'
  ), write_states as (
    insert into sentinel.operation_states
      (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest,
       decision_event_id, once_key, once_live, approval_id, permit_id, permit_expires_at, start_id, started_at, start_event_id,
       start_hash, principal_id, holds, act_until)
    select d.tenant_id, d.operation_id,
       case when d.starts then 'started' when d.allowed then 'allowed' when d.verdict = 'DENY' then 'denied' else 'pending' end,
       d.verdict, d.reason_code, d.policy_id, d.policy_version, d.policy_label, d.policy_digest, d.event_id, d.once_key, d.once is not null,
       case when d.verdict = 'APPROVAL_REQUIRED' then d.approval_id end, case when d.allowed then d.permit_id end,
       case when d.allowed then moment + make_interval(secs => d.permit_seconds) end, case when d.starts then d.start_id end,
       case when d.starts then moment end, s.event_id, s.hash, case when d.allowed then d.principal_id end, d.locks,
       case when d.starts then sentinel.leave_until(d.act_seconds, moment) end
    from decided as d left join started as s on s.seq = d.seq
  ), write_usage as (
    insert into sentinel.usage as u (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor)
    select l.tenant_id, l.limit_key, l.bucket, min(l.window_seconds), min(l.cap_minor), sum(d.amount_minor)
    from (select tenant_id, seq, null::integer as shared, amount_minor from decided where allowed and amount_minor is not null
          union all
          select tenant_id, null, shared, sum(amount_minor)::bigint from decided where allowed and shared is not null group by 1, 3) as d
    join legs as l on l.seq = d.seq or l.shared = d.shared and l.tenant_id = d.tenant_id
    where d.amount_minor is not null group by 1, 2, 3 order by 1, 2, 3
    on conflict (tenant_id, limit_key, bucket) do update set held_minor = u.held_minor + excluded.held_minor, cap_minor = excluded.cap_minor
  ), write_velocity as (
    insert into sentinel.velocity as v (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
    select o.tenant_id, b.breaker_key, date_bin(make_interval(secs => min(b.bucket_seconds)), moment, 'epoch'), o.currency,
           min(b.scope), min(b.target), sum(o.operations), sum(o.minor)
    from (select tenant_id, shared, coalesce(currency, '') as currency, count(*) as operations, coalesce(sum(amount_minor), 0) as minor
          from decided where shared is not null and allowed group by 1, 2, 3) as o
    cross join lateral jsonb_populate_recordset(null::sentinel.breaker_ask, shared_sets -> o.shared -> 'breakers') as b
    group by o.tenant_id, b.breaker_key, o.currency order by 1, 2, 4
    on conflict (tenant_id, breaker_key, bucket, currency) do update set
      operations = v.operations + excluded.operations, amount_minor = v.amount_minor + excluded.amount_minor
  ), write_reservations as (
    insert into sentinel.reservations
    select d.tenant_id, d.permit_id, d.operation_id, coalesce(d.limits -> 0 ->> 'subject', shared_sets -> d.shared -> 'totals' -> 0 ->> 'subject'),
           d.amount_minor, d.keys, d.buckets, d.besides, 'held', moment, null
    from decided as d where d.keys is not null
  )
  select d.seq, 'decided', d.operation_id, d.event_id, d.verdict, d.reason_code,
         case when d.allowed then 'allowed' when d.verdict = 'DENY' then 'denied' else 'pending' end,
         d.policy_id, d.policy_version, d.policy_label, d.resource, d.risk_class, d.digest, null::text,
         case when d.allowed then d.permit_id end, case when d.allowed then moment + make_interval(secs => d.permit_seconds) end,
         case when d.verdict = 'APPROVAL_REQUIRED' then d.approval_id end,
         case when d.verdict = 'APPROVAL_REQUIRED' then moment + make_interval(secs => d.approval_seconds) end,
         null::text, null::timestamptz, null::text, d.body, d.hash, moment,
         case when d.start_id is not null then s.event_id end, case when d.start_id is not null then s.hash end,
         case when d.start_id is not null and d.starts then false end
  from decided as d left join started as s on s.seq = d.seq;
end $$;
