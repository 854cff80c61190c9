-- Effects in the shop: fulfilments and holds, and the reports of fulfilments to the authority.

-- What the shop is asked to do with an order, recorded before it is tried. The operation id is the idempotency key sent to the shop.
create table orders.effects (
  tenant_id       uuid not null,
  review_id       uuid not null,
  kind            text not null check (kind in ('fulfil', 'hold')),
  lane            text not null,                                           -- the review's
  operation_id    uuid not null,
  state           text not null default 'intended' check (state in ('intended', 'done', 'refused', 'cancelled')),
  tries           integer not null default 0,
  tried_at        timestamptz,
  next_attempt_at timestamptz not null default clock_timestamp(),
  shop_reference  text,                                                    -- the shop's id of what it did
  last_error      text check (length(last_error) <= 500),
  -- the report of a fulfilment to the authority, to be sent until acknowledged
  report_due_at   timestamptz,
  report_tries    integer not null default 0,
  reported_at     timestamptz,
  report_error    text check (length(report_error) <= 500),                -- beside a reported_at: discarded by a person
  created_at      timestamptz not null default clock_timestamp(),
  updated_at      timestamptz not null default clock_timestamp(),
  primary key (review_id, kind, tenant_id),
  constraint effects_operation_once unique (operation_id, kind, tenant_id),
  -- The effect has a copy of the review's lane, so no code can fulfil an order that was denied.
  constraint effects_of_lane foreign key (review_id, tenant_id, lane)
    references orders.reviews (review_id, tenant_id, lane) on update cascade,
  constraint effects_no_fulfilment_of_high check (kind <> 'fulfil' or lane in ('low', 'medium') or state = 'cancelled')
) with (fillfactor = 70);
create index effects_due on orders.effects (next_attempt_at, tenant_id) where kind = 'hold' and state = 'intended';
create index effects_reports on orders.effects (report_due_at, tenant_id) where report_due_at is not null and reported_at is null;

create or replace function orders.check_effect() returns trigger language plpgsql as $$
declare
  review orders.reviews;
begin
  if tg_op = 'INSERT' and new.state <> 'intended' then
    raise exception 'an effect begins as intended, not %', new.state using errcode = 'check_violation', constraint = 'effects_begin_intended';
  end if;
  if tg_op = 'UPDATE' then
    if (new.tenant_id, new.review_id, new.kind, new.operation_id) is distinct from (old.tenant_id, old.review_id, old.kind, old.operation_id) then
      raise exception 'what an effect is cannot change' using errcode = 'check_violation', constraint = 'effects_terms_fixed';
    end if;
    if new.state <> old.state and (old.state, new.state) not in
         (('intended', 'done'), ('intended', 'refused'), ('intended', 'cancelled'), ('cancelled', 'intended'), ('refused', 'intended')) then
      raise exception 'no way from % to %', old.state, new.state using errcode = 'check_violation', constraint = 'effects_transition';
    end if;
    new.updated_at := clock_timestamp();
  end if;
  -- A fulfilment is intended or done only while its order is STARTED, which a denied order never is.
  if new.kind = 'fulfil' and new.state in ('intended', 'done') and (tg_op = 'INSERT' or new.state <> old.state) then
    select * into review from orders.reviews r where r.tenant_id = new.tenant_id and r.review_id = new.review_id;
    if review.status is distinct from 'STARTED' or review.operation_id is distinct from new.operation_id then
      raise exception 'nothing is fulfilled that is not started' using errcode = 'check_violation', constraint = 'effects_fulfil_started';
    end if;
  end if;
  if new.kind = 'hold' and tg_op = 'INSERT' and not exists (
       select from orders.reviews r where r.tenant_id = new.tenant_id and r.review_id = new.review_id and r.status = 'HELD') then
    raise exception 'nothing is held that is not to be held' using errcode = 'check_violation', constraint = 'effects_hold_held';
  end if;
  return new;
end $$;

-- Allows an effect to be inserted as done only with the simulated shop's row, for an order that is shipped in the same statement.
create or replace function orders.check_shipped() returns trigger language plpgsql as $$
begin
  if exists (
    select from made f where f.state = 'done' and not exists (
      select from orders.reviews r join orders.simulated_shop s on s.order_id = r.order_id and s.source = r.source and s.tenant_id = r.tenant_id
      where r.review_id = f.review_id and r.tenant_id = f.tenant_id and r.status = 'FULFILLED' and r.last_event = 'shipped'
        and r.operation_id = f.operation_id and s.operation_id = f.operation_id and s.status = 'fulfilled')) then
    raise exception 'nothing is fulfilled that is not started' using errcode = 'check_violation', constraint = 'effects_fulfil_started';
  end if;
  return null;
end $$;

-- Checks that a review that becomes FULFILLED has a fulfilment that is done.
create or replace function orders.check_fulfilled() returns trigger language plpgsql as $$
begin
  if not exists (select from orders.effects f where f.tenant_id = new.tenant_id and f.review_id = new.review_id
                 and f.kind = 'fulfil' and f.state = 'done') then
    raise exception 'it is not fulfilled' using errcode = 'check_violation', constraint = 'reviews_fulfilled_effect';
  end if;
  return null;
end $$;

-- Inserts the holds of reviews that are now HELD; due a little later, because the process that inserts them tries at once itself.
create or replace function orders.hold_reviews(ids uuid[]) returns void language sql as $$
  insert into orders.effects (tenant_id, review_id, kind, lane, operation_id, next_attempt_at)
  select r.tenant_id, r.review_id, 'hold', r.lane, r.operation_id, clock_timestamp() + interval '30 seconds'
  from orders.reviews r where r.review_id = any(ids) and r.status = 'HELD'
  on conflict (review_id, kind, tenant_id) do nothing
$$;

-- Records the shop's answer to fulfilments: done, or refused, which needs a person and is reported only when it will not be retried.
create or replace function orders.settle_fulfilments(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids uuid[] := orders.review_ids(batch);
  mine uuid[];
begin
  with locked as (
    select r.review_id from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, epoch bigint)
    join orders.reviews r on r.review_id = any(ids) and r.review_id = i.review_id and r.tenant_id = i.tenant_id
    where r.epoch = i.epoch and r.status = 'STARTED' order by r.review_id for update of r)
  select array_agg(review_id) into mine from locked;

  update orders.effects f set state = case when i.done then 'done' else 'refused' end, tries = f.tries + 1,
    tried_at = clock_timestamp(), shop_reference = i.reference, last_error = i.error,
    report_due_at = case when i.done then clock_timestamp() + interval '10 seconds' end
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, done boolean, reference text, error text)
  where f.review_id = any(mine) and f.review_id = i.review_id and f.tenant_id = i.tenant_id and f.kind = 'fulfil'
    and f.state = 'intended';
  update orders.reviews r set status = case when i.done then 'FULFILLED' else 'SHOP_REFUSED' end,
    last_event = case when i.done then 'fulfilled' else 'shop_refused' end, lease_until = null, holder = null, last_error = i.error
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, done boolean, error text)
  where r.review_id = any(mine) and r.review_id = i.review_id and r.tenant_id = i.tenant_id;
  perform orders.record_responses(batch, mine);
  return query select unnest(mine);
end $$;

-- Records a try of each hold: done, refused, or to be tried again. One without a call (`tried` false) leaves the time of the last call as it is.
create or replace function orders.settle_holds(batch jsonb) returns void language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
  ids uuid[] := orders.review_ids(batch);
begin
  update orders.effects f set state = i.state, tries = f.tries + 1, last_error = i.error, shop_reference = i.reference,
    tried_at = case when i.tried is not false then clock_timestamp() else f.tried_at end,
    next_attempt_at = coalesce(clock_timestamp() + make_interval(secs => i.pause_seconds), f.next_attempt_at)
  from jsonb_to_recordset(batch) i(tenant_id uuid, review_id uuid, state text, reference text, error text,
    pause_seconds double precision, tried boolean)
  where f.review_id = any(ids) and f.review_id = i.review_id and f.tenant_id = i.tenant_id and f.kind = 'hold'
    and f.state = 'intended';
  perform orders.raise_alerts(batch);
end $$;

-- Claims holds that are due, for one try each; they are due again after `hold_seconds`.
create or replace function orders.claim_holds(tenant uuid, most integer, hold_seconds double precision)
returns table (tries integer, seconds_ago double precision, work orders.work) language sql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
  with due as materialized (
    select f.tenant_id, f.review_id, f.tries, f.tried_at from orders.effects f
    where f.tenant_id = tenant and f.kind = 'hold' and f.state = 'intended' and f.next_attempt_at <= statement_timestamp()
    order by f.next_attempt_at limit most for update skip locked),
  taken as (
    update orders.effects f set next_attempt_at = clock_timestamp() + make_interval(secs => hold_seconds)
    from due where f.tenant_id = due.tenant_id and f.review_id = due.review_id and f.kind = 'hold'
    returning f.review_id)
  select d.tries, coalesce(extract(epoch from clock_timestamp() - d.tried_at), 3600), orders.as_work(r)
  from due d join orders.reviews r on r.tenant_id = d.tenant_id and r.review_id = d.review_id
  where d.review_id in (select review_id from taken)
$$;

-- Takes reports that the authority has not acknowledged, for one try each; they are due again after `retry_seconds`.
create or replace function orders.take_reports(tenant uuid, most integer, retry_seconds double precision)
returns table (review_id uuid, source text, order_id text, done boolean, operation_id uuid, shop_reference text, error text,
  amount_minor bigint, currency text, tries integer) language sql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$
  with due as materialized (
    select f.tenant_id, f.review_id from orders.effects f
    where f.tenant_id = tenant and f.kind = 'fulfil' and f.reported_at is null and f.report_due_at <= statement_timestamp()
    order by f.report_due_at limit most for update skip locked),
  taken as (
    update orders.effects f set report_tries = f.report_tries + 1,
      report_due_at = clock_timestamp() + make_interval(secs => retry_seconds)
    from due where f.tenant_id = due.tenant_id and f.review_id = due.review_id and f.kind = 'fulfil'
    returning f.*)
  select t.review_id, r.source, r.order_id, t.state = 'done', t.operation_id, t.shop_reference, t.last_error, r.amount_minor,
    r.currency, t.report_tries
  from taken t join orders.reviews r on r.tenant_id = t.tenant_id and r.review_id = t.review_id
$$;

create trigger check_effect before update on orders.effects
  for each row when (new.state <> old.state or (new.tenant_id, new.review_id, new.kind, new.operation_id)
    is distinct from (old.tenant_id, old.review_id, old.kind, old.operation_id)) execute function orders.check_effect();
create trigger check_new_effect before insert on orders.effects
  for each row when (not (new.kind = 'fulfil' and new.state = 'done')) execute function orders.check_effect();
create trigger check_shipped after insert on orders.effects referencing new table as made
  for each statement execute function orders.check_shipped();
create trigger never_forgotten before delete or truncate on orders.effects
  for each statement execute function refunds.refuse_change();
create constraint trigger check_fulfilled after update of status on orders.reviews deferrable initially deferred
  for each row when (new.status = 'FULFILLED' and old.status <> 'FULFILLED') execute function orders.check_fulfilled();
