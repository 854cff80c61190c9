-- The steps of order review: many orders per call, each call in one transaction. Every change names the epoch it expects: a row whose
-- holder changed meanwhile is left alone, and its id is not returned.
--
-- Every statement passes the ids of its rows as an array, so that it uses their index whatever the planner estimates: on a new table
-- without statistics the planner would read the whole table for a batch, and keep that plan.

-- What a process that works on an order needs to know of it. Values derived from the order (the account's age) are limited by received_at.
create type orders.work as (
  review_id uuid, source text, order_id text, amount_minor bigint, currency text, account_ref text, order_facts jsonb,
  status text, lane text, epoch bigint, attempts integer, band text, signals jsonb, model text, guard_params jsonb,
  operation_id uuid, decision_event_id uuid, decision text, reason_code text, approval_id uuid,
  start_id uuid, decided_at timestamptz, due_at timestamptz, resolution text, last_error text, tries integer,
  seconds_since_try double precision, received_at timestamptz
);

-- The answer to a delivery, as callers pass it with a step.
create type orders.delivery_response as (response_status integer, response_body text, is_final boolean, keep_seconds double precision);

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
    f.tries, case when f.review_id is not null then extract(epoch from clock_timestamp() - coalesce(f.tried_at, r.decided_at)) end,
    r.received_at)::orders.work;
end $$;

-- The number and the sum (in the order's currency) of the account's other orders from 24 hours before this one until now. Null if the order
-- names no account; an account belongs to its source. Used to score an order that was taken without a score.
create or replace function orders.account_velocity(r orders.reviews, out velocity_24h bigint, out amount_24h bigint)
language sql stable as $$
  select case when r.account_ref is not null then count(*) end,
    case when r.account_ref is not null then coalesce(sum(k.amount_minor) filter (where k.currency = r.currency), 0)::bigint end
  from (select o.amount_minor, o.currency from orders.reviews o
        where o.account_ref = r.account_ref and o.source = r.source and o.received_at > r.received_at - interval '24 hours'
          and o.tenant_id = r.tenant_id and o.review_id <> r.review_id limit 1000) k
$$;

-- The same for orders that an earlier holder left without a score.
create or replace function orders.account_velocities(batch jsonb) returns table (
  review_id uuid, velocity_24h bigint, amount_24h bigint
) language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.review_ids(batch);
begin
  return query
  select r.review_id, k.velocity_24h, k.amount_24h
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid)
  join orders.reviews r on r.review_id = any(ids) and r.review_id = i.review_id and r.tenant_id = i.tenant_id
  cross join lateral orders.account_velocity(r) k;
end $$;

-- Takes the orders of these deliveries: one of many equal deliveries takes its order, the others get its state. Outcomes:
--   taken      this caller holds the order: it is new, or its earlier holder's lease expired
--   recorded   the delivery was answered before; the answer is returned
--   standing   no holder works on it any more, and no answer is recorded
--   in_flight  another holder is working on it
--   conflict   the order came before with another body
create or replace function orders.take_deliveries(batch jsonb) returns table (
  seq integer, outcome text, response_status integer, response_body text, is_final boolean,
  velocity_24h bigint, amount_24h bigint, work orders.work
) language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  i record;
  r orders.reviews;
  d orders.deliveries;
begin
  perform orders.take_account_locks(batch);
  -- Inserted in one order by all callers, so that two batches never deadlock. Most repeats are ruled out by the look-up before the insert.
  insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256, amount_minor, currency, account_ref,
    order_facts, holder, lease_until, next_attempt_at)
  select x.tenant_id, x.token, x.source, x.order_id, decode(x.body_sha256, 'hex'), x.amount_minor, x.currency, x.account_ref,
    x.order_facts, x.token, clock_timestamp() + make_interval(secs => x.lease_seconds),
    clock_timestamp() + make_interval(secs => x.lease_seconds)
  from jsonb_to_recordset(batch) x(tenant_id uuid, token uuid, source text, order_id text, body_sha256 text,
    amount_minor bigint, currency text, account_ref text, order_facts jsonb, lease_seconds double precision)
  where (select true from orders.reviews v
         where v.order_id = x.order_id and v.source = x.source and v.tenant_id = x.tenant_id) is null
  order by x.order_id, x.source, x.tenant_id
  on conflict on constraint reviews_order_once do nothing;

  for i in
    select x.*, decode(x.body_sha256, 'hex') as digest, make_interval(secs => x.lease_seconds) as lease
    from jsonb_to_recordset(batch) x(seq integer, tenant_id uuid, token uuid, source text, order_id text, body_sha256 text,
      lease_seconds double precision)
    order by x.order_id, x.source, x.tenant_id, x.seq
  loop
    seq := i.seq; velocity_24h := null; amount_24h := null; work := null; d := null;
    select * into r from orders.reviews v where v.order_id = i.order_id and v.source = i.source and v.tenant_id = i.tenant_id;
    if r.holder is distinct from i.token and r.body_sha256 = i.digest then
      select * into d from orders.deliveries v where v.order_id = i.order_id and v.source = i.source and v.tenant_id = i.tenant_id;
      if d.review_id is null and r.status in ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED')
         and (r.lease_until is null or r.lease_until <= clock_timestamp()) then
        -- Checked again on the locked row; no row is returned if another process took it first.
        update orders.reviews v set epoch = v.epoch + 1, holder = i.token,
          lease_until = clock_timestamp() + i.lease, next_attempt_at = clock_timestamp() + i.lease
        where v.review_id = r.review_id and v.tenant_id = i.tenant_id and v.epoch = r.epoch and v.status = r.status
          and (v.lease_until is null or v.lease_until <= clock_timestamp()) returning * into r;
      end if;
    end if;
    outcome := case when r.review_id is null then 'in_flight'
      when r.body_sha256 <> i.digest then 'conflict'
      when d.review_id is not null then 'recorded'
      when r.holder = i.token then 'taken'
      when r.status in ('QUEUED', 'FULFILLED', 'HELD', 'REFUND_FILED', 'SHOP_REFUSED', 'REFUND_REFUSED') then 'standing'
      else 'in_flight' end;
    response_status := d.response_status; response_body := d.response_body; is_final := d.is_final;
    if outcome in ('taken', 'standing') or (outcome = 'recorded' and not d.is_final) then
      work := orders.as_work(r);
    end if;
    if outcome = 'taken' and r.status = 'RECEIVED' then
      select k.velocity_24h, k.amount_24h into velocity_24h, amount_24h from orders.account_velocity(r) k;
    end if;
    return next;
  end loop;
end $$;

create or replace function orders.review_ids(batch jsonb) returns uuid[] language sql immutable as $$
  select array_agg((b.value ->> 'review_id')::uuid) from jsonb_array_elements(batch) b
$$;

-- Stores band, signals and guard params, once per order; returns the ids of the orders that were updated.
create or replace function orders.score_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
  ids uuid[] := orders.review_ids(batch);
begin
  return query update orders.reviews r set status = 'SCORED', last_event = 'scored', band = i.band, signals = i.signals,
    model = i.model, score_ms = i.score_ms, guard_params = i.guard_params
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, epoch bigint, band text, signals jsonb, model text,
    score_ms integer, guard_params jsonb)
  where r.review_id = any(ids)
    and r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.epoch = i.epoch and r.status = 'RECEIVED'
  returning r.review_id;
end $$;

-- Stores the answers to the batch's deliveries, for rows that have one.
create or replace function orders.record_deliveries(batch jsonb) returns void language sql as $$
  insert into orders.deliveries (tenant_id, source, order_id, review_id, response_status, response_body, is_final, expires_at)
  select i.tenant_id, i.source, i.order_id, i.review_id, (i.answered).response_status, (i.answered).response_body,
    (i.answered).is_final, clock_timestamp() + make_interval(secs => (i.answered).keep_seconds)
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, source text, order_id text, answered orders.delivery_response)
  where i.answered is not null and (i.answered).response_status is not null
  on conflict (order_id, source, tenant_id) do nothing
$$;

-- Stores the answers to senders and the alerts of those of the batch's rows that are in `mine`.
create or replace function orders.record_responses(batch jsonb, mine uuid[]) returns void language plpgsql as $$
declare
  told jsonb;
begin
  if batch @? '$[*] ? (@.answered != null || @.alert != null)' then
    select jsonb_agg(b.value) into told from jsonb_array_elements(batch) b where (b.value ->> 'review_id')::uuid = any(mine);
    perform orders.record_deliveries(told);
    if told @? '$[*] ? (@.alert != null)' then
      perform orders.raise_alerts(told);
    end if;
  end if;
end $$;

-- Records the authority's answer and what follows from it at once: low is started, medium queued, high held.
-- Event: allowed, approved (by a person), needs_analyst, asked_again (a queued order has another approval and waits for that one),
-- denied, rejected (by a person, or expired).
create or replace function orders.decide_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.review_ids(batch);
  mine uuid[];
  started uuid[];
  held uuid[];
begin
  with moved as (
    update orders.reviews r set
      status = case when i.event in ('approved', 'asked_again') then 'QUEUED' when i.event = 'rejected' then 'HELD' else 'DECIDED' end,
      lane = case i.event when 'allowed' then 'low' when 'needs_analyst' then 'medium' when 'denied' then 'high' else r.lane end,
      last_event = i.event, operation_id = coalesce(r.operation_id, i.operation_id), decision_event_id = i.decision_event_id,
      decision = i.decision, reason_code = i.reason_code, proof_id = coalesce(i.proof_id, r.proof_id),
      approval_id = coalesce(i.approval_id, r.approval_id), start_id = coalesce(r.start_id, i.start_id),
      decided_at = clock_timestamp(), due_at = coalesce(i.due_at, r.due_at), last_error = null
    from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, epoch bigint, event text, operation_id uuid,
      decision_event_id uuid, decision text, reason_code text, proof_id text, approval_id uuid, start_id uuid,
      due_at timestamptz)
    where r.review_id = any(ids) and r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.epoch = i.epoch
      and case when i.event in ('approved', 'asked_again', 'rejected') then r.status = 'QUEUED'
               else r.status = 'SCORED' or (r.status = 'DECIDED' and r.lane = 'low') end
    returning r.review_id, i.event)
  select array_agg(review_id), array_agg(review_id) filter (where event in ('allowed', 'approved')),
    array_agg(review_id) filter (where event in ('denied', 'rejected'))
  into mine, started, held from moved;

  if started is not null then
    -- The attempts at the authority say nothing of the shop: its pauses and its alert begin anew.
    update orders.reviews r set status = 'STARTED', last_event = 'started', attempts = 0 where r.review_id = any(started);
    insert into orders.effects as f (tenant_id, review_id, kind, lane, operation_id)
    select r.tenant_id, r.review_id, 'fulfil', r.lane, r.operation_id from orders.reviews r where r.review_id = any(started)
    on conflict (review_id, kind, tenant_id) do update set state = 'intended' where f.state = 'cancelled';
  end if;
  if batch @? '$[*] ? (@.event == "needs_analyst" || @.event == "asked_again")' then
    -- A queued order always gets a due time, because waiting orders are found by it. One whose approval is decided by now is due at once.
    update orders.reviews r set status = 'QUEUED', last_event = 'queued', lease_until = null, holder = null, attempts = 0,
      next_attempt_at = case when i.at_once then clock_timestamp()
                             else coalesce(i.due_at, clock_timestamp() + interval '1 hour') + interval '1 second' end
    from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, event text, due_at timestamptz, at_once boolean)
    where r.review_id = any(mine) and r.review_id = i.review_id and r.tenant_id = i.tenant_id
      and i.event in ('needs_analyst', 'asked_again');
  end if;
  if held is not null then
    update orders.reviews r set status = 'HELD', last_event = 'held', lease_until = null, holder = null
    where r.review_id = any(held) and r.status = 'DECIDED';
    perform orders.hold_reviews(held);
  end if;
  perform orders.record_responses(batch, mine);
  return query select unnest(mine);
end $$;

-- Records refused starts: surely nothing happened, so the orders go back to the status in which the authority is asked again.
create or replace function orders.refuse_starts(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.review_ids(batch);
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

-- Postpones orders: a process takes them up again after a pause, or a second after `due_at`. An answer to the sender, if there is one, is
-- recorded; without one the sender delivers again.
create or replace function orders.put_off_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.review_ids(batch);
  mine uuid[];
begin
  with moved as (
    update orders.reviews r set lease_until = null, holder = null, attempts = r.attempts + 1, last_error = i.error,
      next_attempt_at = case when i.due_at is null then clock_timestamp() + make_interval(secs => i.pause_seconds)
                             else greatest(i.due_at, clock_timestamp()) + interval '1 second' end
    from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, epoch bigint, error text, pause_seconds double precision, due_at timestamptz)
    where r.review_id = any(ids) and r.review_id = i.review_id and r.tenant_id = i.tenant_id and r.epoch = i.epoch
      and r.status in ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED', 'QUEUED')
    returning r.review_id)
  select array_agg(review_id) into mine from moved;
  update orders.effects f set tries = f.tries + 1, tried_at = clock_timestamp(), last_error = i.error
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, error text, tried boolean)
  where i.tried and f.review_id = any(mine) and f.review_id = i.review_id and f.tenant_id = i.tenant_id and f.kind = 'fulfil'
    and f.state = 'intended';
  perform orders.record_responses(batch, mine);
  return query select unnest(mine);
end $$;

-- Claims orders whose holder is gone, postponed orders that are due, and queued orders that are due because of a decision.
create or replace function orders.claim_reviews(tenant uuid, most integer, token uuid, lease_seconds double precision)
returns setof orders.work language sql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
  with due as materialized (
    select r.tenant_id, r.review_id from orders.reviews r
    where r.tenant_id = tenant and r.status in ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED', 'QUEUED')
      and r.next_attempt_at <= statement_timestamp() and r.next_attempt_at < 'infinity' and (r.lease_until is null or r.lease_until <= statement_timestamp())
    order by r.next_attempt_at limit most for update skip locked),
  mine as (
    update orders.reviews r set epoch = r.epoch + 1, holder = token,
      lease_until = clock_timestamp() + make_interval(secs => lease_seconds),
      next_attempt_at = clock_timestamp() + make_interval(secs => lease_seconds)
    from due where r.tenant_id = due.tenant_id and r.review_id = due.review_id
    returning r.*)
  select (orders.as_work(m::orders.reviews)).* from mine m
$$;

-- Makes the queued orders of these approvals due, because people decided them; returns how many. A decision is read more than once: an order
-- that was postponed since it was queued has been asked about and keeps its pause, which is at most some minutes.
create or replace function orders.make_reviews_due(tenant uuid, approvals uuid[]) returns bigint language sql as $$
  with woken as (
    update orders.reviews r set next_attempt_at = clock_timestamp()
    where r.approval_id = any(approvals) and r.tenant_id = tenant and r.status = 'QUEUED'
      and (r.attempts = 0 or r.next_attempt_at > clock_timestamp() + interval '10 minutes') returning 1)
  select count(*) from woken
$$;

-- The decided approvals of the tenant's queued orders that no analyst decided here: a person decided them elsewhere, as with `sentinel
-- approvals`, and the orders wait for the intake. Security definer, because the intake's role may not read approvals.
create or replace function orders.decided_approvals(tenant uuid) returns setof uuid
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select a.approval_id from orders.reviews r
  join sentinel.approvals a on a.tenant_id = r.tenant_id and a.approval_id = r.approval_id and a.status in ('approved', 'rejected')
  where r.tenant_id = tenant and r.status = 'QUEUED' and r.resolution is null and r.next_attempt_at < 'infinity'
$$;
