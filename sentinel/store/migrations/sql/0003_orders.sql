-- Order review: one review per order for ever, the deliveries that were answered, and the effects in the shop.
-- The intake proposes; these constraints and triggers decide what can become a row.

create schema orders;

-- The table of worker/order_review/lanes.py as data: a test holds the two equal. Anything else is refused, whoever asks.
-- No lane ('-') until the authority has decided.
create table orders.transitions (
  from_lane   text not null,
  from_status text not null,
  event       text not null,
  to_lane     text not null,
  to_status   text not null,
  primary key (from_lane, from_status, event)
);
insert into orders.transitions (from_lane, from_status, event, to_lane, to_status) values
  ('-', 'RECEIVED', 'scored', '-', 'SCORED'),
  ('-', 'SCORED', 'allowed', 'low', 'DECIDED'),
  ('-', 'SCORED', 'needs_analyst', 'medium', 'DECIDED'),
  ('-', 'SCORED', 'denied', 'high', 'DECIDED'),
  ('low', 'DECIDED', 'needs_analyst', 'medium', 'DECIDED'),
  ('low', 'DECIDED', 'denied', 'high', 'DECIDED'),
  ('low', 'DECIDED', 'started', 'low', 'STARTED'),
  ('low', 'STARTED', 'start_refused', 'low', 'DECIDED'),
  ('low', 'STARTED', 'fulfilled', 'low', 'FULFILLED'),
  ('low', 'STARTED', 'gave_up', 'low', 'HELD'),
  ('medium', 'DECIDED', 'queued', 'medium', 'QUEUED'),
  ('medium', 'QUEUED', 'started', 'medium', 'STARTED'),
  ('medium', 'STARTED', 'start_refused', 'medium', 'QUEUED'),
  ('medium', 'STARTED', 'fulfilled', 'medium', 'FULFILLED'),
  ('medium', 'STARTED', 'gave_up', 'medium', 'HELD'),
  ('medium', 'QUEUED', 'held', 'medium', 'HELD'),
  ('medium', 'QUEUED', 'rejected', 'medium', 'HELD'),
  ('medium', 'QUEUED', 'refund_filed', 'medium', 'REFUND_FILED'),
  ('high', 'DECIDED', 'held', 'high', 'HELD');

create table orders.reviews (
  tenant_id         uuid not null,
  review_id         uuid not null,
  source            text not null check (source ~ '^[A-Za-z0-9._-]{1,64}$'),
  order_id          text not null check (order_id ~ '^[A-Za-z0-9._:/@#-]{1,128}$'),
  body_sha256       bytea not null check (length(body_sha256) = 32),       -- of the first body: another one is a conflict
  amount_minor      bigint not null check (amount_minor between 0 and 1000000000000),  -- 0: nothing to pay
  currency          text not null check (currency ~ '^[A-Z]{3}$'),
  account_ref       text check (length(account_ref) <= 200),
  order_facts       jsonb not null,                                        -- as the source's field map read it; never leaves this schema
  status            text not null default 'RECEIVED' check (status in
                      ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED', 'QUEUED', 'FULFILLED', 'HELD', 'REFUND_FILED')),
  lane              text check (lane in ('low', 'medium', 'high')),
  last_event        text,                                                  -- what brought it here
  -- who works on it
  epoch             bigint not null default 1,
  holder            uuid,
  lease_until       timestamptz,
  attempts          integer not null default 0,
  next_attempt_at   timestamptz not null default clock_timestamp(),
  last_error        text check (length(last_error) <= 500),
  -- the score
  band              text check (band in ('low', 'medium', 'high', 'unknown')),
  signals           jsonb,
  model             text check (model in ('not_asked', 'agreed', 'raised', 'fell_back')),
  score_ms          integer,
  guard_params      jsonb,                                                 -- fixed at the score: a retry asks the same
  -- the authority's answer
  operation_id      uuid,
  decision_event_id uuid,
  decision          text check (decision in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY')),
  reason_code       text,
  proof_id          text,
  approval_id       uuid,
  permit_token      text,
  start_id          uuid,                                                  -- stored before the start is asked
  decided_at        timestamptz,
  due_at            timestamptz,                                           -- until when an analyst should have answered
  -- the analyst's word
  resolution        text check (resolution in ('fulfil', 'refund', 'hold')),
  resolved_by       text,
  resolution_reason text,
  resolved_at       timestamptz,
  received_at       timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  -- Every index opens with what it is for, never with the tenant: a planner that knows nothing of a young table yet takes
  -- any index that opens with a column of the question, and keeps to it.
  primary key (review_id, tenant_id),
  constraint reviews_order_once unique (order_id, source, tenant_id),
  constraint reviews_lane unique (review_id, tenant_id, lane),
  constraint reviews_lane_decided check ((lane is null) = (status in ('RECEIVED', 'SCORED'))),
  constraint reviews_lane_answer check (lane is null or (decision is not null and operation_id is not null)),
  constraint reviews_started check (status <> 'STARTED' or (permit_token is not null and start_id is not null)),
  constraint reviews_scored check (status = 'RECEIVED' or (band is not null and guard_params is not null)),
  constraint reviews_high_is_held check (lane <> 'high' or status in ('DECIDED', 'HELD')),
  constraint reviews_resolved check ((resolution is null) = (resolved_at is null))
) with (fillfactor = 50);
-- Over no column that a step changes, so that most steps are cheap (heap-only) updates: a finished one is due never.
create index reviews_due on orders.reviews (next_attempt_at, tenant_id) where next_attempt_at < 'infinity';
create index reviews_account on orders.reviews (account_ref, received_at) where account_ref is not null;
create index reviews_approval on orders.reviews (approval_id) where approval_id is not null;
create index reviews_newest on orders.reviews (received_at desc, review_id);

create function orders.check_review() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.status <> 'RECEIVED' or new.lane is not null then
      raise exception 'a review begins as RECEIVED, not %', new.status using errcode = 'check_violation', constraint = 'reviews_begin_received';
    end if;
    return new;
  end if;
  if (new.tenant_id, new.review_id, new.source, new.order_id, new.body_sha256, new.amount_minor, new.currency, new.account_ref)
     is distinct from
     (old.tenant_id, old.review_id, old.source, old.order_id, old.body_sha256, old.amount_minor, old.currency, old.account_ref) then
    raise exception 'what is reviewed cannot change' using errcode = 'check_violation', constraint = 'reviews_terms_fixed';
  end if;
  if new.epoch < old.epoch then
    raise exception 'the epoch only grows' using errcode = 'check_violation', constraint = 'reviews_epoch_grows';
  end if;
  if old.guard_params is not null and new.guard_params is distinct from old.guard_params then
    raise exception 'what is asked is asked the same again' using errcode = 'check_violation', constraint = 'reviews_question_fixed';
  end if;
  if old.resolution is not null and (new.resolution, new.resolved_by, new.resolution_reason, new.resolved_at)
     is distinct from (old.resolution, old.resolved_by, old.resolution_reason, old.resolved_at) then
    raise exception 'an order is resolved once' using errcode = 'check_violation', constraint = 'reviews_resolved_once';
  end if;
  if (new.status, new.lane) is distinct from (old.status, old.lane) and not exists (
       select from orders.transitions t
       where t.from_lane = coalesce(old.lane, '-') and t.from_status = old.status and t.event = new.last_event
         and t.to_lane = coalesce(new.lane, '-') and t.to_status = new.status) then
    raise exception 'no way from %/% to %/% by %', coalesce(old.lane, '-'), old.status, coalesce(new.lane, '-'), new.status, new.last_event
      using errcode = 'check_violation', constraint = 'reviews_transition';
  end if;
  if new.status in ('FULFILLED', 'HELD', 'REFUND_FILED') then
    new.next_attempt_at := 'infinity';
  end if;
  new.updated_at := clock_timestamp();
  return new;
end $$;
create trigger check_review before insert or update on orders.reviews
  for each row execute function orders.check_review();

create trigger never_forgotten before delete or truncate on orders.reviews
  for each statement execute function refunds.refuse_change();

-- The trail of a review: every change of lane or status, written by the trigger below and by nothing else.
create table orders.events (
  tenant_id   uuid not null,
  event_id    bigint generated always as identity,
  review_id   uuid not null,
  from_lane   text,
  from_status text not null,
  event       text not null,
  to_lane     text,
  to_status   text not null,
  epoch       bigint not null,
  reason_code text,
  occurred_at timestamptz not null default clock_timestamp(),
  primary key (event_id)
);
create index events_review on orders.events (review_id, event_id);
create trigger append_only before update or delete or truncate on orders.events
  for each statement execute function refunds.refuse_change();

-- Once per statement: many orders move in one.
create function orders.write_events() returns trigger language plpgsql as $$
begin
  insert into orders.events (tenant_id, review_id, from_lane, from_status, event, to_lane, to_status, epoch, reason_code)
  select n.tenant_id, n.review_id, o.lane, o.status, n.last_event, n.lane, n.status, n.epoch, n.reason_code
  from moved_from o join moved_to n on n.review_id = o.review_id and n.tenant_id = o.tenant_id
  where n.status <> o.status or n.lane is distinct from o.lane;
  return null;
end $$;
create trigger write_events after update on orders.reviews referencing old table as moved_from new table as moved_to
  for each statement execute function orders.write_events();

-- What a delivery was answered, for its repeats; kept for a while. The order itself is in reviews, for ever.
create table orders.deliveries (
  tenant_id       uuid not null,
  source          text not null,
  order_id        text not null,
  review_id       uuid not null,
  response_status integer not null check (response_status between 200 and 299),
  response_body   text not null,
  is_final        boolean not null,                                        -- false: a repeat is told where the order stands now
  recorded_at     timestamptz not null default clock_timestamp(),
  expires_at      timestamptz not null,
  primary key (order_id, source, tenant_id),
  foreign key (review_id, tenant_id) references orders.reviews
);
create index deliveries_expiry on orders.deliveries (expires_at);

-- What is done to an order in the shop; on record before it is tried. The operation is the shop's idempotency key.
create table orders.effects (
  tenant_id       uuid not null,
  review_id       uuid not null,
  kind            text not null check (kind in ('fulfil', 'hold')),
  lane            text not null,
  operation_id    uuid not null,
  state           text not null default 'intended' check (state in ('intended', 'done', 'refused', 'cancelled')),
  tries           integer not null default 0,
  tried_at        timestamptz,
  next_attempt_at timestamptz not null default clock_timestamp(),
  shop_reference  text,
  last_error      text check (length(last_error) <= 500),
  -- what the authority is told of a fulfilment, until it has acknowledged it
  report_due_at   timestamptz,
  report_tries    integer not null default 0,
  reported_at     timestamptz,
  report_error    text check (length(report_error) <= 500),
  created_at      timestamptz not null default clock_timestamp(),
  updated_at      timestamptz not null default clock_timestamp(),
  primary key (review_id, kind, tenant_id),
  constraint effects_operation_once unique (operation_id, kind, tenant_id),
  -- The lane travels with the effect, so no code anywhere can fulfil what was denied.
  constraint effects_of_lane foreign key (review_id, tenant_id, lane)
    references orders.reviews (review_id, tenant_id, lane) on update cascade,
  constraint effects_no_fulfilment_of_high check (kind <> 'fulfil' or lane in ('low', 'medium') or state = 'cancelled')
) with (fillfactor = 70);
create index effects_due on orders.effects (next_attempt_at, tenant_id) where kind = 'hold' and state = 'intended';
create index effects_reports on orders.effects (report_due_at, tenant_id) where report_due_at is not null and reported_at is null;

create function orders.check_effect() returns trigger language plpgsql as $$
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
         (('intended', 'done'), ('intended', 'refused'), ('intended', 'cancelled'), ('cancelled', 'intended')) then
      raise exception 'no way from % to %', old.state, new.state using errcode = 'check_violation', constraint = 'effects_transition';
    end if;
    new.updated_at := clock_timestamp();
  end if;
  -- A fulfilment is intended or done only while its order is started, which nothing that was denied ever is.
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
create trigger check_effect before insert or update on orders.effects
  for each row execute function orders.check_effect();
create trigger never_forgotten before delete or truncate on orders.effects
  for each statement execute function refunds.refuse_change();

-- FULFILLED says that the shop did it; the effect must say so too.
create function orders.check_fulfilled() returns trigger language plpgsql as $$
begin
  if not exists (select from orders.effects f where f.tenant_id = new.tenant_id and f.review_id = new.review_id
                 and f.kind = 'fulfil' and f.state = 'done') then
    raise exception 'it is not fulfilled' using errcode = 'check_violation', constraint = 'reviews_fulfilled_effect';
  end if;
  return null;
end $$;
create constraint trigger check_fulfilled after update of status on orders.reviews deferrable initially deferred
  for each row when (new.status = 'FULFILLED' and old.status <> 'FULFILLED') execute function orders.check_fulfilled();

-- From when on approvals decided by people matter to orders that wait.
create table orders.approval_cursors (
  tenant_id uuid primary key,
  since     timestamptz not null
);
