-- The fast path for plain orders, many per call in a few statements: new, scored without outside calls, allowed at once, fulfilled by the
-- simulated shop. Other orders go through the steps (steps.sql), with the same result.

-- The orders of one account of one source in the last 24 hours, and their sum in one currency.
create or replace function orders.account_day(tenant uuid, src text, account text, money text)
returns table (orders bigint, minor bigint) language sql stable as $$
  select count(*), coalesce(sum(o.amount_minor) filter (where o.currency = money), 0)::bigint
  from (select v.amount_minor, v.currency from orders.reviews v
        where v.account_ref = account and v.source = src and v.received_at > clock_timestamp() - interval '24 hours'
          and v.tenant_id = tenant limit 1000) o
$$;

-- Locks these accounts until the transaction ends: no other transaction takes an order of them, so a count made under the lock includes all
-- orders taken before. Security definer: no program but the authority may take other advisory locks. The locks are taken in ascending
-- order, as everywhere, and before anything is written.
create or replace function orders.take_account_locks(batch jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform pg_advisory_xact_lock(w.lock) from (
    select distinct hashtextextended('order account/' || i.tenant_id || '/' || i.source || '/' || i.account_ref, 1) as lock
    from jsonb_to_recordset(batch) i(tenant_id uuid, source text, account_ref text) where i.account_ref is not null order by 1) w;
end $$;

-- The state of deliveries before anything is written: new, with the figures of their account; recorded, with the final answer; or known,
-- and then take_deliveries decides. Other orders of the same account in the batch are not counted here.
create or replace function orders.delivery_states(batch jsonb) returns table (
  seq integer, outcome text, response_status integer, response_body text, velocity_24h bigint, amount_24h bigint, seen_at timestamptz
) language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
  select i.seq, case when r.review_id is null then 'new' when d.review_id is not null then 'recorded' else 'known' end,
    d.response_status, d.response_body, k.orders, k.minor, clock_timestamp()
  from jsonb_to_recordset(batch) i(seq integer, tenant_id uuid, source text, order_id text, body_sha256 text, account_ref text,
    currency text)
  left join orders.reviews r on r.order_id = i.order_id and r.source = i.source and r.tenant_id = i.tenant_id
  left join orders.deliveries d on d.order_id = r.order_id and d.source = r.source and d.tenant_id = r.tenant_id
    and d.is_final and r.body_sha256 = decode(i.body_sha256, 'hex')
  left join lateral orders.account_day(i.tenant_id, i.source, i.account_ref, i.currency) k
    on r.review_id is null and i.account_ref is not null;
end $$;

-- Takes new orders with their scores in one insert. An order that is not returned was taken by another process, or its account has more
-- orders by now than it was scored with; the latter are taken by take_deliveries and scored with its count.
create or replace function orders.take_scored(batch jsonb) returns table (review_id uuid, received_at timestamptz)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  perform orders.take_account_locks(batch);
  return query
  insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256, amount_minor, currency, account_ref,
    order_facts, holder, lease_until, next_attempt_at, status, last_event, band, signals, model, score_ms, guard_params)
  select i.tenant_id, i.review_id, i.source, i.order_id, decode(i.body_sha256, 'hex'), i.amount_minor, i.currency, i.account_ref,
    i.order_facts, i.review_id, clock_timestamp() + make_interval(secs => i.lease_seconds),
    clock_timestamp() + make_interval(secs => i.lease_seconds), 'SCORED', 'scored', i.band, i.signals, i.model, i.score_ms,
    i.guard_params
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, source text, order_id text, body_sha256 text,
    amount_minor bigint, currency text, account_ref text, order_facts jsonb, lease_seconds double precision, band text,
    signals jsonb, model text, score_ms integer, guard_params jsonb, counted_orders bigint, counted_minor bigint)
  left join lateral orders.account_day(i.tenant_id, i.source, i.account_ref, i.currency) k on i.account_ref is not null
  where i.account_ref is null or (k.orders <= i.counted_orders and k.minor <= i.counted_minor)
  -- In one order by all callers, so that two batches never deadlock.
  order by i.order_id, i.source, i.tenant_id
  on conflict on constraint reviews_order_once do nothing
  returning reviews.review_id, reviews.received_at;
end $$;

-- Records the ALLOW of scored orders and their fulfilment by the simulated shop: one conditional update takes each from SCORED to
-- FULFILLED, with the shop's row, the effect and the answer to the sender. An order that the caller no longer holds, or that the shop
-- already has a row for, is left as it is and not returned.
-- Index scans are off, so a review can be found only by its key, through a bitmap: on a new table the planner estimates a scan of a whole
-- index as cheaper, and a session keeps that plan while the table grows.
create or replace function orders.ship_scored(batch jsonb) returns setof uuid language plpgsql set enable_seqscan = off
  set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
  with asked as materialized (
    select * from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, source text, order_id text, epoch bigint,
      operation_id uuid, decision_event_id uuid, reason_code text, proof_id text, start_id uuid, told jsonb,
      response_status integer, response_body text, keep_seconds double precision)
    -- In one order by all callers, so that two batches never deadlock.
    order by i.order_id, i.source, i.tenant_id),
  ready as materialized (
    select i.* from asked i cross join lateral (
      select from orders.reviews r where r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.source = i.source
        -- The lease began before the authority was asked, and ends before the time to act that the start declared.
        and r.order_id = i.order_id and r.epoch = i.epoch and r.status = 'SCORED' and r.lease_until > clock_timestamp()
      for update) mine),
  shop as (
    insert into orders.simulated_shop (tenant_id, source, order_id, status, operation_id, told)
    select tenant_id, source, order_id, 'fulfilled', operation_id, told from ready
    on conflict on constraint simulated_shop_once do nothing returning operation_id),
  moved as (
    update orders.reviews r set status = 'FULFILLED', lane = 'low', last_event = 'shipped', decision = 'ALLOW',
      operation_id = i.operation_id, decision_event_id = i.decision_event_id, reason_code = i.reason_code, proof_id = i.proof_id,
      start_id = i.start_id, decided_at = clock_timestamp(), lease_until = null, holder = null, last_error = null
    from shop s join ready i using (operation_id)
    where r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.epoch = i.epoch and r.status = 'SCORED'
    returning r.tenant_id, r.review_id, r.source, r.order_id, i.operation_id, i.response_status, i.response_body, i.keep_seconds),
  effects as (
    insert into orders.effects (tenant_id, review_id, kind, lane, operation_id, state, tries, tried_at, shop_reference, report_due_at)
    select tenant_id, review_id, 'fulfil', 'low', operation_id, 'done', 1, clock_timestamp(), operation_id::text,
      clock_timestamp() + interval '10 seconds' from moved),
  answered as (
    insert into orders.deliveries (tenant_id, source, order_id, review_id, response_status, response_body, is_final, expires_at)
    select tenant_id, source, order_id, review_id, response_status, response_body, true,
      clock_timestamp() + make_interval(secs => keep_seconds) from moved
    on conflict (order_id, source, tenant_id) do nothing)
  select review_id from moved;
end $$;
