-- What a batch asks of limits and breakers arrives summed up; batches.sql has the meaning of the types. Functions are made anew
-- from their present text.
drop type sentinel.limit_leg cascade;
drop type sentinel.shared_breaker cascade;
drop type sentinel.held_parts cascade;
alter type sentinel.guard_terms add attribute limit_places integer[] cascade, add attribute total_keys text[] cascade,
  add attribute total_subjects text[] cascade;
alter type sentinel.guard_row add attribute tenant_id uuid cascade, add attribute limit_keys text[] cascade, add attribute subjects text[] cascade;
create type sentinel.limit_sum as (
  tenant_id uuid, limit_place integer, limit_key text, subject text, is_total boolean, is_mixed boolean, asked_minor bigint, taken_minor bigint
);
create type sentinel.rate_sum as (
  tenant_id uuid, shared integer[], currency text, breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer,
  most_operations integer, most_minor bigint, declared text, is_mixed boolean, operations integer, all_operations integer, amount_minor bigint
);
create type sentinel.limit_parts as (buckets timestamptz[], since timestamptz[], seconds integer[], caps bigint[]);
