-- What a shop would have done, for an installation without one. One row per order: it is fulfilled once or held, never both.
create table orders.simulated_shop (
  tenant_id    uuid not null,
  source       text not null,
  order_id     text not null,
  status       text not null check (status in ('fulfilled', 'held')),
  operation_id uuid not null,
  told         jsonb not null,                                             -- the request as the shop received it
  done_at      timestamptz not null default clock_timestamp(),
  constraint simulated_shop_once primary key (order_id, source, tenant_id)
);
create trigger append_only before update or delete or truncate on orders.simulated_shop
  for each statement execute function refunds.refuse_change();
