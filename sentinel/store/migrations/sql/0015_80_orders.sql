-- Order review: what the shop or the refund worker refuses goes back to a person, and every word a person said is kept.

-- A retired way is in trails of before; nothing goes it any more.
alter table orders.transitions add column retired boolean not null default false;
insert into orders.transitions (from_lane, from_status, event, to_lane, to_status)
select lane, step.from_status, step.event, lane, step.to_status
from unnest(array['low', 'medium']) lane cross join (values
  ('STARTED', 'shop_refused', 'SHOP_REFUSED'),
  ('SHOP_REFUSED', 'retried', 'STARTED'),
  ('SHOP_REFUSED', 'held', 'HELD'),
  ('SHOP_REFUSED', 'refund_filed', 'REFUND_FILED'),
  ('REFUND_FILED', 'refund_refused', 'REFUND_REFUSED'),
  ('REFUND_REFUSED', 'refund_filed', 'REFUND_FILED'),
  ('REFUND_REFUSED', 'held', 'HELD'),
  ('HELD', 'reopened', 'SHOP_REFUSED')) step(from_status, event, to_status);

alter table orders.reviews drop constraint reviews_status_check;
alter table orders.reviews add constraint reviews_status_check check (status in
  ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED', 'QUEUED', 'FULFILLED', 'HELD', 'REFUND_FILED', 'SHOP_REFUSED', 'REFUND_REFUSED'));

-- What people said of an order, every time: a review holds the last word only.
create table orders.words (
  tenant_id   uuid not null,
  review_id   uuid not null,
  word_id     bigint generated always as identity,
  from_status text not null,
  word        text not null check (word in ('fulfil', 'refund', 'hold', 'retry')),
  operator_id uuid not null,
  said_by     text not null,
  reason      text not null,
  via         text not null,
  said_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, review_id, word_id),
  foreign key (review_id, tenant_id) references orders.reviews
);
create trigger append_only before update or delete or truncate on orders.words
  for each statement execute function refunds.refuse_change();

-- Orders that gave up before there was a way out: those whose hold the shop has stay held; the others go to a person, and
-- every hold that a shop refused once is tried again.
alter table orders.effects disable trigger check_effect;
update orders.effects f set state = 'cancelled' from orders.reviews r
where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.kind = 'hold' and f.state in ('intended', 'refused')
  and r.status = 'HELD' and r.last_event = 'gave_up';
update orders.effects set state = 'intended', next_attempt_at = clock_timestamp() where kind = 'hold' and state = 'refused';
alter table orders.effects enable trigger check_effect;
update orders.reviews r set status = 'SHOP_REFUSED', last_event = 'reopened', next_attempt_at = '9999-12-31'
where r.status = 'HELD' and r.last_event = 'gave_up' and exists (
  select from orders.effects f where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.kind = 'hold' and f.state = 'cancelled');
update orders.transitions set retired = true where event in ('gave_up', 'reopened');
-- A filed refund is not the end of an order, and neither is what was reopened: a repeat is told where it stands.
update orders.deliveries d set is_final = false from orders.reviews r
where r.tenant_id = d.tenant_id and r.review_id = d.review_id and d.is_final and r.status in ('REFUND_FILED', 'SHOP_REFUSED');

-- What is derived of an order (the account's age) is bounded by when it came.
alter type orders.work add attribute received_at timestamptz;

-- Why a person is asked, where whoever filed the row says so; it can only tighten.
alter table refunds.ledger_entries add column escalation text check (escalation ~ '^[a-z_]{1,64}$');

-- The refunds that people filed of orders, each try of them, until its row has ended.
create table orders.refunds (
  tenant_id       uuid not null,
  review_id       uuid not null,
  attempt         integer not null check (attempt >= 1),
  ledger_entry_id text not null,
  filed_by        uuid,                                                    -- null: filed before who did was kept by id
  reason          text not null,
  via             text not null,
  state           text not null default 'filed' check (state in ('filed', 'paid', 'handled', 'refused', 'closed')),
  carried_to      uuid,                                                    -- the approval that the word was carried to
  carried_result  text,                                                    -- and what became of it there
  refused_code    text,
  filed_at        timestamptz not null default clock_timestamp(),
  ended_at        timestamptz,
  primary key (tenant_id, review_id, attempt),
  constraint refunds_row_once unique (tenant_id, ledger_entry_id),
  constraint refunds_ended check ((state = 'filed') = (ended_at is null)),
  foreign key (review_id, tenant_id) references orders.reviews
);
-- What is looked at again and again: as few as are open or back with a person.
create index refunds_followed on orders.refunds (tenant_id, filed_at) where state in ('filed', 'refused');
insert into orders.refunds (tenant_id, review_id, attempt, ledger_entry_id, reason, via, filed_at)
select r.tenant_id, r.review_id, 1, orders.refund_name(r.source, r.order_id), coalesce(r.resolution_reason, ''), 'console',
  coalesce(r.resolved_at, clock_timestamp())
from orders.reviews r where r.status = 'REFUND_FILED';
drop function orders.file_refund(orders.reviews);
