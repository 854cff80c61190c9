-- Totals of who asks, and the velocity breaker: what was allowed within minutes, counted where the decision is made.

-- One row per breaker, part of its window and currency. Counted once for each operation when it is allowed and never given
-- back: a rate is about what was set in motion. Lifting the halt takes the rows away, so that counting begins anew.
create table sentinel.velocity (
  tenant_id    uuid not null,
  breaker_key  text not null,
  bucket       timestamptz not null,
  currency     text not null,                                              -- empty for what is no money
  scope        text not null check (scope in ('agent', 'tenant')),
  target       text not null,
  operations   integer not null check (operations > 0),
  amount_minor bigint not null check (amount_minor >= 0),
  primary key (tenant_id, breaker_key, bucket, currency)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
create index velocity_bucket on sentinel.velocity (bucket);

create type sentinel.breaker_ask as (
  breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer, most_operations integer, most_minor bigint,
  declared text
);
create type sentinel.planned_total as (
  tenant_id uuid, limit_key text, bucket timestamptz, window_seconds integer, cap_minor bigint
);
-- Null means none: rows leave these out unless the policy declares them. totals are limits of who asks, shared by many rows
-- of a batch; planned is set by record_batch where all rows fit under them together.
alter type sentinel.guard_input add attribute breakers jsonb, add attribute totals jsonb, add attribute planned sentinel.limit_state[];

-- Which breaker set a halt; null where a person did.
alter table sentinel.halts add column breaker_key text;

-- Keys that our own worker and order intake use today: they gather the facts, so their word on them counts as before.
update sentinel.agent_keys set scopes = array_append(scopes, 'worker')
where agent_id in ('retail-refund-agent', 'order-review') and 'guard' = any(scopes) and not 'worker' = any(scopes);
