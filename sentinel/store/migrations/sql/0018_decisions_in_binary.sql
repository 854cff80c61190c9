-- A batch of decisions arrives as arrays of row types; batches.sql has their meaning.
create type sentinel.guard_terms as (
  place integer, tenant_id uuid, principal_id uuid, owner_operator_id uuid, agent_id text, action text, risk_class text, scenario text,
  policy_id text, policy_version text, policy_label text, policy_digest text, currency text,
  verdict text, reason_code text, reasons text[], required_role text, required_people integer, approval_seconds integer,
  permit_seconds integer, hand_out_is_start boolean, approvable boolean, asks_person boolean, bound_agent text, shared integer
);
create type sentinel.guard_row as (
  seq integer, terms_place integer, idempotency_key text, once_key text, operation_id uuid, event_id uuid, second_event_id uuid,
  permit_id uuid, approval_id uuid, amount_minor bigint, elapsed_ms integer, start_id uuid, act_seconds integer,
  resource text, digest text, salt text, facts_commitment text, basis text, request text, part1 text, part2 text, part3 text
);
create type sentinel.limit_terms as (
  place integer, "window" text, window_seconds integer, bucket_seconds integer, zone text, cap_minor bigint, verdict text, reason_code text
);
create type sentinel.limit_leg as (seq integer, shared integer, limit_place integer, limit_key text, subject text);
create type sentinel.shared_breaker as (
  shared integer, breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer, most_operations integer,
  most_minor bigint, declared text
);

drop function if exists sentinel.record_decisions(jsonb, integer), sentinel.record_batch(jsonb, integer, boolean),
  sentinel.record_set(sentinel.guard_input[], jsonb, uuid[], timestamptz, timestamptz),
  sentinel.write_decisions(sentinel.events[], sentinel.operation_states[], sentinel.reservations[]),
  sentinel.locks_of_asks(sentinel.guard_input[], jsonb), sentinel.locks_of_limits(uuid, jsonb);

-- Totals are held by nearly every permit: in an index of what is held, each entry of theirs was written anew with every decision. What
-- was decided before names its totals among its budgets, and is found by them in the index of those that hold more than one.
alter table sentinel.operation_states add column total_holds bigint[];
drop index sentinel.operation_states_holds;
create index operation_states_budget on sentinel.operation_states ((holds[1]), permit_expires_at)
  where status in ('allowed', 'approved') and holds is not null;
create index operation_states_budgets on sentinel.operation_states using gin (holds) with (fastupdate = off)
  where status in ('allowed', 'approved') and holds[2] is not null;

create type sentinel.held_parts as (
  keys text[], buckets timestamptz[], since timestamptz[], caps bigint[], seconds integer[], locks bigint[], total_locks bigint[], subject text
);
