-- Orders as facts: a source's (shop's) order on a channel, what was paid for it, and the flags against it.

-- What is known of an order. Amounts in the minor unit of `currency`.
create table refunds.orders (
  tenant_id          uuid not null default refunds.default_tenant(),
  channel            text not null default 'retail',                       -- sales channel: retail, private, …
  order_ref          text not null,                                        -- the order's id at the source
  account_ref        text,                                                 -- the customer, as the source calls them
  ordered_at         timestamptz not null,                                 -- according to the source
  paid_minor         bigint not null check (paid_minor >= 0),              -- the total paid for it
  currency           text not null,
  recorded_at        timestamptz not null default clock_timestamp(),       -- this database's time
  delivered_at       timestamptz,                                          -- null: not delivered, or not known
  shipping_fee_minor bigint check (shipping_fee_minor >= 0),               -- included in paid_minor
  item_paid_minor    bigint check (item_paid_minor >= 0),                  -- what the item in question cost
  price_now_minor    bigint check (price_now_minor >= 0),                  -- what the item costs now
  note               text,                                                 -- the shop's or customer's words; never leave this schema
  source             text not null default '' check (length(source) <= 64 and source !~ '[^A-Za-z0-9._:/@-]'), -- '': no source was named
  payment_ref        text check (length(payment_ref) between 1 and 128 and payment_ref !~ '[^A-Za-z0-9._:/@-]'), -- at the settlement system
  primary key (tenant_id, channel, source, order_ref)
);
create index orders_account on refunds.orders (account_ref) where account_ref is not null;
-- Finds the order of a refund that a settlement system reports.
create index orders_payment on refunds.orders (payment_ref) where payment_ref is not null;

-- Flags against an order: an open complaint, a delayed shipment.
create table refunds.order_flags (
  tenant_id uuid not null default refunds.default_tenant(),
  channel   text not null,
  order_ref text not null,
  flag      text not null check (flag in ('open_complaint', 'delayed_shipment')),
  since     timestamptz not null default clock_timestamp(),
  closed_at timestamptz,                                                   -- null: still open
  source    text not null default '' check (length(source) <= 64 and source !~ '[^A-Za-z0-9._:/@-]'),
  primary key (tenant_id, channel, source, order_ref, flag)
);

-- Accounts that get no refund without a person's decision, per channel: accounts are never joined across channels.
create table refunds.blacklist (
  tenant_id   uuid not null default refunds.default_tenant(),
  channel     text not null,
  account_ref text not null,
  since       timestamptz not null default clock_timestamp(),
  primary key (tenant_id, channel, account_ref)
);
