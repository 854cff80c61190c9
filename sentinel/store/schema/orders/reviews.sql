-- Order review: one review per order for ever, its lanes and statuses, its trail, and the recorded answers to deliveries.
-- The intake proposes rows; these constraints and triggers decide what is accepted. The first file of the schema `orders`.

create schema orders;

-- The transitions of worker/orders/lanes.py as data; a test compares the two. Any other transition is refused, for every role.
-- An order has no lane ('-') until the authority has decided. A retired transition occurs only in older trails and is refused now.
create table orders.transitions (
  from_lane   text not null,
  from_status text not null,
  event       text not null,
  to_lane     text not null,
  to_status   text not null,
  retired     boolean not null default false,
  primary key (from_lane, from_status, event)
);
insert into orders.transitions (from_lane, from_status, event, to_lane, to_status, retired) values
  ('-', 'RECEIVED', 'scored', '-', 'SCORED', false),
  ('-', 'SCORED', 'allowed', 'low', 'DECIDED', false),
  ('-', 'SCORED', 'needs_analyst', 'medium', 'DECIDED', false),
  ('-', 'SCORED', 'denied', 'high', 'DECIDED', false),
  ('low', 'DECIDED', 'needs_analyst', 'medium', 'DECIDED', false),
  ('low', 'DECIDED', 'denied', 'high', 'DECIDED', false),
  ('low', 'DECIDED', 'started', 'low', 'STARTED', false),
  ('low', 'STARTED', 'start_refused', 'low', 'DECIDED', false),
  ('low', 'STARTED', 'fulfilled', 'low', 'FULFILLED', false),
  ('low', 'STARTED', 'shop_refused', 'low', 'SHOP_REFUSED', false),
  ('low', 'SHOP_REFUSED', 'retried', 'low', 'STARTED', false),
  ('low', 'SHOP_REFUSED', 'held', 'low', 'HELD', false),
  ('low', 'SHOP_REFUSED', 'refund_filed', 'low', 'REFUND_FILED', false),
  ('low', 'REFUND_FILED', 'refund_refused', 'low', 'REFUND_REFUSED', false),
  ('low', 'REFUND_REFUSED', 'refund_filed', 'low', 'REFUND_FILED', false),
  ('low', 'REFUND_REFUSED', 'held', 'low', 'HELD', false),
  ('medium', 'DECIDED', 'queued', 'medium', 'QUEUED', false),
  ('medium', 'QUEUED', 'started', 'medium', 'STARTED', false),
  ('medium', 'STARTED', 'start_refused', 'medium', 'QUEUED', false),
  ('medium', 'STARTED', 'fulfilled', 'medium', 'FULFILLED', false),
  ('medium', 'QUEUED', 'held', 'medium', 'HELD', false),
  ('medium', 'QUEUED', 'rejected', 'medium', 'HELD', false),
  ('medium', 'QUEUED', 'refund_filed', 'medium', 'REFUND_FILED', false),
  ('medium', 'STARTED', 'shop_refused', 'medium', 'SHOP_REFUSED', false),
  ('medium', 'SHOP_REFUSED', 'retried', 'medium', 'STARTED', false),
  ('medium', 'SHOP_REFUSED', 'held', 'medium', 'HELD', false),
  ('medium', 'SHOP_REFUSED', 'refund_filed', 'medium', 'REFUND_FILED', false),
  ('medium', 'REFUND_FILED', 'refund_refused', 'medium', 'REFUND_REFUSED', false),
  ('medium', 'REFUND_REFUSED', 'refund_filed', 'medium', 'REFUND_FILED', false),
  ('medium', 'REFUND_REFUSED', 'held', 'medium', 'HELD', false),
  ('high', 'DECIDED', 'held', 'high', 'HELD', false),
  ('low', 'STARTED', 'gave_up', 'low', 'HELD', true),
  ('low', 'HELD', 'reopened', 'low', 'SHOP_REFUSED', true),
  ('medium', 'STARTED', 'gave_up', 'medium', 'HELD', true),
  ('medium', 'HELD', 'reopened', 'medium', 'SHOP_REFUSED', true);

-- One order of a source, and the state of its review.
create table orders.reviews (
  tenant_id         uuid not null,
  review_id         uuid not null,
  source            text not null check (length(source) between 1 and 64 and source !~ '[^A-Za-z0-9._-]'),
  order_id          text not null check (length(order_id) between 1 and 128 and order_id !~ '[^A-Za-z0-9._:/@#-]'),
  body_sha256       bytea not null check (length(body_sha256) = 32),       -- of the first body; a different one is a conflict
  amount_minor      bigint not null check (amount_minor between 0 and 1000000000000), -- 0: nothing to pay
  currency          text not null check (currency ~ '^[A-Z]{3}$'),
  account_ref       text check (length(account_ref) <= 200),               -- the customer, as the source calls them
  order_facts       jsonb not null,                                        -- as parsed by the source's field map; never leaves this schema
  status            text not null default 'RECEIVED' check (status in
                      ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED', 'QUEUED', 'FULFILLED', 'HELD', 'REFUND_FILED',
                       'SHOP_REFUSED', 'REFUND_REFUSED')),
  lane              text check (lane in ('low', 'medium', 'high')),
  last_event        text,                                                  -- the latest event
  -- the process that works on it
  epoch             bigint not null default 1,                             -- each holder adds 1; writes of an older one are refused
  holder            uuid,                                                  -- the process that works on it
  lease_until       timestamptz,
  attempts          integer not null default 0,                            -- failed ones
  next_attempt_at   timestamptz not null default clock_timestamp(),
  last_error        text check (length(last_error) <= 500),
  -- the score
  band              text check (band in ('low', 'medium', 'high', 'unknown')),
  signals           jsonb,                                                 -- what scoring found
  model             text check (model in ('not_asked', 'agreed', 'raised', 'fell_back')),
  score_ms          integer,                                               -- milliseconds
  guard_params      jsonb,                                                 -- fixed when scored: a retry sends the same
  -- the authority's answer
  operation_id      uuid,                                                  -- the authority's, as the next five
  decision_event_id uuid,
  decision          text check (decision in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY')),
  reason_code       text,
  proof_id          text,
  approval_id       uuid,
  start_id          uuid,                                                  -- stored before the start request
  decided_at        timestamptz,
  due_at            timestamptz,                                           -- when an analyst should have decided by
  -- the analyst's last decision: all of them are in orders.analyst_decisions
  resolution        text check (resolution in ('fulfil', 'refund', 'hold')),
  resolved_by       text,
  resolution_reason text,
  resolved_at       timestamptz,
  received_at       timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  -- An index that a step may use starts with the column it is for, never with the tenant: on a new table without statistics the planner
  -- uses any index that starts with a column of the query, and keeps that plan.
  primary key (review_id, tenant_id),
  constraint reviews_order_once unique (order_id, source, tenant_id),
  constraint reviews_lane unique (review_id, tenant_id, lane),
  constraint reviews_lane_decided check ((lane is null) = (status in ('RECEIVED', 'SCORED'))),
  constraint reviews_lane_answer check (lane is null or (decision is not null and operation_id is not null)),
  constraint reviews_started check (status <> 'STARTED' or start_id is not null),
  constraint reviews_scored check (status = 'RECEIVED' or (band is not null and guard_params is not null)),
  constraint reviews_high_is_held check (lane <> 'high' or status in ('DECIDED', 'HELD')),
  constraint reviews_resolved check ((resolution is null) = (resolved_at is null)),
  -- Whatever a program writes: an order in the low lane has the authority's ALLOW, and one that is started or fulfilled was permitted.
  constraint reviews_low_is_allowed check (lane <> 'low' or decision = 'ALLOW'),
  constraint reviews_started_is_permitted check (status not in ('STARTED', 'FULFILLED') or decision in ('ALLOW', 'APPROVAL_REQUIRED'))
) with (fillfactor = 50);

-- Indexes no column that most steps change, so that most updates are cheap (heap-only); a finished review is never due (infinity).
create index reviews_due on orders.reviews (next_attempt_at, tenant_id) where next_attempt_at < 'infinity';
create index reviews_account on orders.reviews (account_ref, received_at) where account_ref is not null;
create index reviews_approval on orders.reviews (approval_id) where approval_id is not null;
-- By tenant, for pages only, whose queries repeat the condition: it is true of every row, and keeps other statements from using this index.
create index reviews_newest on orders.reviews (tenant_id, received_at desc, review_id desc) where received_at > '-infinity';
-- Those that were not simply let through: each HELD or REFUND_FILED order is one, because one of the low lane ends so only by an analyst's
-- decision. The condition is not about the status, which most steps change.
create index reviews_not_let_through on orders.reviews (tenant_id, received_at desc, review_id desc) where lane <> 'low' or resolution is not null;

-- The trail of a review: every change of lane or status, written by the trigger below and by nothing else. Append-only.
create table orders.events (
  tenant_id   uuid not null,
  event_id    bigint generated always as identity,
  review_id   uuid not null,
  from_lane   text,
  from_status text not null,
  event       text not null,
  to_lane     text,
  to_status   text not null,
  epoch       bigint not null,                                             -- of the holder that moved it
  reason_code text,
  occurred_at timestamptz not null default clock_timestamp(),
  primary key (review_id, event_id)
);
create trigger append_only before update or delete or truncate on orders.events
  for each statement execute function refunds.refuse_change();

-- The answer to a delivery, for repeats of it; deleted after a while. The order itself stays in reviews for ever.
create table orders.deliveries (
  tenant_id       uuid not null,
  source          text not null,
  order_id        text not null,
  review_id       uuid not null,
  response_status integer not null check (response_status between 200 and 299),
  response_body   text not null,
  is_final        boolean not null,                                        -- false: a repeat gets the order's current state
  recorded_at     timestamptz not null default clock_timestamp(),
  expires_at      timestamptz not null,                                    -- a repeat after this moment gets the order's current state
  primary key (order_id, source, tenant_id),
  foreign key (review_id, tenant_id) references orders.reviews
);
create index deliveries_expiry on orders.deliveries (expires_at);

-- The moment since which people's decisions on approvals may still matter to waiting orders; earlier ones have been handled.
create table orders.approval_cursors (
  tenant_id uuid primary key,
  since     timestamptz not null
);

create or replace function orders.check_review() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    raise exception 'a review begins as RECEIVED or SCORED, not %', new.status using errcode = 'check_violation', constraint = 'reviews_begin_received';
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
  -- A new approval was requested under stricter terms, and no person has decided it yet: clear the resolution.
  if old.resolution is not null and (old.status, new.status, new.last_event) = ('QUEUED', 'QUEUED', 'asked_again')
     and new.approval_id is distinct from old.approval_id then
    new.resolution := null; new.resolved_by := null; new.resolution_reason := null; new.resolved_at := null;
  elsif old.resolution is not null and old.status not in ('SHOP_REFUSED', 'REFUND_REFUSED')
     and (new.resolution, new.resolved_by, new.resolution_reason, new.resolved_at)
     is distinct from (old.resolution, old.resolved_by, old.resolution_reason, old.resolved_at) then
    raise exception 'an order is resolved once' using errcode = 'check_violation', constraint = 'reviews_resolved_once';
  end if;
  -- Each check that queries a table is a statement of its own behind the cheap condition: an expression that contains a query costs many
  -- times more even where the query is not run.
  if (new.status, new.lane) is distinct from (old.status, old.lane)
     -- 'shipped' is three declared transitions at once: allowed, started, fulfilled (plain_orders.sql).
     and not coalesce(new.last_event = 'shipped' and (old.status, new.lane, new.status) = ('SCORED', 'low', 'FULFILLED')
                      and new.start_id is not null, false) then
    if not exists (
       select from orders.transitions t
       where not t.retired and t.from_lane = coalesce(old.lane, '-') and t.from_status = old.status and t.event = new.last_event
         and t.to_lane = coalesce(new.lane, '-') and t.to_status = new.status) then
      raise exception 'no way from %/% to %/% by %', coalesce(old.lane, '-'), old.status, coalesce(new.lane, '-'), new.status, new.last_event
        using errcode = 'check_violation', constraint = 'reviews_transition';
    end if;
  end if;
  -- The intake may start an order that the authority permitted; retrying one that the shop refused needs a person's decision.
  if new.last_event = 'retried' and new.status <> old.status then
    if not exists (
       select from orders.analyst_decisions w where w.tenant_id = new.tenant_id and w.review_id = new.review_id and w.decision = 'retry'
         and w.from_status = old.status and w.decided_at >= old.updated_at) then
      raise exception 'nobody said to try again' using errcode = 'check_violation', constraint = 'reviews_retry_said';
    end if;
  end if;
  if new.status in ('FULFILLED', 'HELD', 'REFUND_FILED') then
    new.next_attempt_at := 'infinity';
  elsif new.status in ('SHOP_REFUSED', 'REFUND_REFUSED') then
    -- Not finished, but never due: only a person's decision changes it.
    new.next_attempt_at := '9999-12-31';
  end if;
  new.updated_at := clock_timestamp();
  return new;
end $$;

-- Writes the trail once per statement, for all reviews that it changed. Security definer: no program may write the trail itself.
-- An order that was shipped at once gets three events.
create or replace function orders.write_events() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into orders.events (tenant_id, review_id, from_lane, from_status, event, to_lane, to_status, epoch, reason_code)
  select n.tenant_id, n.review_id, s.from_lane, s.from_status, s.event, s.to_lane, s.to_status, n.epoch, n.reason_code
  from moved_from o join moved_to n on n.review_id = o.review_id and n.tenant_id = o.tenant_id
  cross join lateral (
    select 1 as step, o.lane as from_lane, o.status as from_status, n.last_event as event, n.lane as to_lane, n.status as to_status
    where n.last_event is distinct from 'shipped'
    union all
    select * from (values (1, null, 'SCORED', 'allowed', 'low', 'DECIDED'), (2, 'low', 'DECIDED', 'started', 'low', 'STARTED'),
      (3, 'low', 'STARTED', 'fulfilled', 'low', 'FULFILLED')) shipped where n.last_event = 'shipped') s
  where n.status <> o.status or n.lane is distinct from o.lane order by n.review_id, s.step;
  return null;
end $$;

create or replace function orders.write_first_events() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into orders.events (tenant_id, review_id, from_status, event, to_status, epoch)
  select n.tenant_id, n.review_id, 'RECEIVED', n.last_event, n.status, n.epoch from made n where n.status <> 'RECEIVED';
  return null;
end $$;

create trigger check_review before update on orders.reviews
  for each row execute function orders.check_review();
create trigger check_new_review before insert on orders.reviews
  for each row when (new.lane is not null or new.status <> 'RECEIVED' and (new.status, new.last_event) is distinct from ('SCORED', 'scored'))
  execute function orders.check_review();
create trigger write_first_events after insert on orders.reviews referencing new table as made
  for each statement execute function orders.write_first_events();
create trigger write_events after update on orders.reviews referencing old table as moved_from new table as moved_to
  for each statement execute function orders.write_events();
create trigger never_forgotten before delete or truncate on orders.reviews
  for each statement execute function refunds.refuse_change();
