-- What a batch of questions is made of when it comes from a program: arrays of row types, sent in binary (sentinel/authority/batch_packing.py).
-- What repeats from row to row stands once and is named by its place: from 0, in the order of its array.

-- What many rows of a batch have in common: who asks, what the policy said and its terms.
create type sentinel.guard_terms as (
  place integer, tenant_id uuid, principal_id uuid, owner_operator_id uuid, agent_id text, action text, risk_class text, scenario text,
  policy_id text, policy_version text, policy_label text, policy_digest text, currency text,
  verdict text, reason_code text, reasons text[], required_role text, required_people integer, approval_seconds integer,
  permit_seconds integer, hand_out_is_start boolean, approvable boolean, asks_person boolean, bound_agent text,
  shared integer                                                           -- whose totals and breakers count; null: none
);

-- One question. `terms_place` is the place of its terms; the rest is as in guard_input.
create type sentinel.guard_row as (
  seq integer, terms_place integer, idempotency_key text, once_key text, operation_id uuid, event_id uuid, second_event_id uuid,
  permit_id uuid, approval_id uuid, amount_minor bigint, elapsed_ms integer, start_id uuid, act_seconds integer,
  resource text, digest text, salt text, facts_commitment text, basis text, request text, part1 text, part2 text, part3 text
);

-- A limit as policies declare it, without whose budget it is.
create type sentinel.limit_terms as (
  place integer, "window" text, window_seconds integer, bucket_seconds integer, zone text, cap_minor bigint, verdict text, reason_code text
);

-- One limit of a row (seq), or of all rows that name `shared`.
create type sentinel.limit_leg as (seq integer, shared integer, limit_place integer, limit_key text, subject text);

-- One breaker of all rows that name `shared`.
create type sentinel.shared_breaker as (
  shared integer, breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer, most_operations integer,
  most_minor bigint, declared text
);

-- Rows of a batch without those that a set has taken (their seqs), as the questions that are decided row by row, in the order of their keys.
create or replace function sentinel.asks_of(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], legs sentinel.limit_leg[],
  breakers sentinel.shared_breaker[], without integer[]
) returns sentinel.guard_input[] language plpgsql as $$
#variable_conflict use_column
begin
  return array(
    select (
      r.seq, t.tenant_id, t.principal_id, t.owner_operator_id, r.idempotency_key, r.operation_id, r.event_id, r.permit_id, r.approval_id,
      r.second_event_id, t.agent_id, t.action, r.resource, t.risk_class, t.scenario, r.digest, r.request, r.salt, r.once_key, r.amount_minor,
      t.currency, t.hand_out_is_start, t.verdict, t.reason_code, t.reasons, t.policy_id, t.policy_version, t.policy_label, t.policy_digest,
      (select coalesce(jsonb_agg(to_jsonb(l) || jsonb_build_object('limit_key', g.limit_key, 'subject', g.subject, 'is_total', g.shared is not null) order by g.shared nulls first, nth), '[]')
       from unnest(asks_of.legs) with ordinality as g (seq, shared, limit_place, limit_key, subject, nth) join unnest(asks_of.limits) as l on l.place = g.limit_place
       where g.seq = r.seq or g.shared = t.shared),
      t.required_role, t.required_people, t.approval_seconds, t.permit_seconds, array[r.part1, r.part2, r.part3], r.elapsed_ms, t.approvable,
      t.asks_person, r.start_id, r.act_seconds, r.basis, r.facts_commitment,
      (select jsonb_agg(b) from unnest(asks_of.breakers) as b where b.shared = t.shared),
      t.bound_agent, t.shared)::sentinel.guard_input
    from unnest(batch) as r join unnest(asks_of.terms) as t on t.place = r.terms_place
    where not r.seq = any(without) order by t.tenant_id, r.idempotency_key, r.seq);
end $$;
