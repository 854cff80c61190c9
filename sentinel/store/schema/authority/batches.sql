-- The row types of a batch of questions as a program sends it: arrays in binary format (sentinel/authority/batch_packing.py).
-- A value that repeats from row to row is sent once and referred to by its place: from 0, in the order of its array.

-- What many rows of a batch have in common: the requester, the policy's decision and its terms.
create type sentinel.guard_terms as (
  place integer, tenant_id uuid, principal_id uuid, owner_operator_id uuid, agent_id text, action text, risk_class text, scenario text,
  policy_id text, policy_version text, policy_label text, policy_digest text, currency text,
  verdict text, reason_code text, reasons text[], required_role text, required_people integer, approval_seconds integer,
  permit_seconds integer, hand_out_is_start boolean, approvable boolean, asks_person boolean, bound_agent text,
  shared integer,                                                          -- which shared totals and breakers count; null: none
  -- The places of the limits that its rows count in: first those of a row (its limit_keys), then the totals, whose keys are total_keys.
  limit_places integer[], total_keys text[], total_subjects text[],
  pack_template text, request_template text,
  own_keys text[],                                                         -- decision_terms.limit_keys; null: rows have several owners
  hash bytea,                                                              -- of everything that decision_terms stores of them
  terms_id bigint                                                          -- decision_terms; null: not looked up yet
);

-- One question. `terms_place` is the place of its terms, `limit_keys` are the keys of its limits without totals, `subjects` are the
-- subjects of those limits; the other columns are as in guard_input.
create type sentinel.guard_row as (
  seq integer, terms_place integer, idempotency_key text, once_key text, operation_id uuid, event_id uuid, second_event_id uuid,
  permit_id uuid, approval_id uuid, amount_minor bigint, elapsed_ms integer, start_id uuid, act_seconds integer,
  resource text, digest bytea, salt bytea, basis text, params text, request text, facts_commitment bytea, operation_commitment bytea,
  amount_value text, ledger_entry_id text, refund_id text,                 -- for pack_text
  tenant_id uuid, limit_keys text[], subjects text[],
  trace bytea                                                              -- as event_rows.trace
);

-- A limit as a policy declares it, without its subject.
create type sentinel.limit_terms as (
  place integer, "window" text, window_seconds integer, bucket_seconds integer, zone text, cap_minor bigint, verdict text, reason_code text
);

-- An owner's budget under one policy, with a slot for each of its limits that rows name: the minor units that all rows of the batch ask of
-- it (rows that are not denied) and take from it (rows that are allowed). `is_mixed`: rows disagree about a limit's terms; the limit then
-- has a slot for each of them.
create type sentinel.budget_sum as (
  tenant_id uuid, subject text, policy_id text, is_mixed boolean, limits text[], limit_places integer[], are_totals boolean[], asked bigint[],
  taken bigint[]
);

-- A limit that has no room for everything asked of it.
create type sentinel.tight_limit as (tenant_id uuid, limit_key text, is_total boolean);

-- One breaker of the rows whose `shared` is one of these, and what those rows add to it in one currency; `all_operations` counts those
-- in every currency.
create type sentinel.rate_sum as (
  tenant_id uuid, shared integer[], currency text, breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer,
  most_operations integer, most_minor bigint, declared text, is_mixed boolean, operations integer, all_operations integer, amount_minor bigint
);

-- Indexed by limit place: the current window part, the first part that still counts, the window in seconds and the cap.
create type sentinel.limit_parts as (buckets timestamptz[], since timestamptz[], seconds integer[], caps bigint[]);

create or replace function sentinel.parts_of(limits sentinel.limit_terms[], moment timestamptz) returns sentinel.limit_parts
language plpgsql stable as $$
declare
  p sentinel.limit_parts;
begin
  select array_agg(sentinel.part_of(l."window", l.bucket_seconds, l.zone, moment)),
         array_agg(sentinel.first_part_of(l."window", l.window_seconds, l.bucket_seconds, l.zone, moment)),
         array_agg(l.window_seconds), array_agg(l.cap_minor) into p from unnest(limits) as l;
  return p;
end $$;

-- The entries of these places only, in their order.
create or replace function sentinel.parts_at(parts sentinel.limit_parts, places integer[]) returns sentinel.limit_parts language plpgsql immutable as $$
declare
  p sentinel.limit_parts;
  place integer;
begin
  foreach place in array places loop
    p.buckets := p.buckets || parts.buckets[place + 1]; p.since := p.since || parts.since[place + 1];
    p.seconds := p.seconds || parts.seconds[place + 1]; p.caps := p.caps || parts.caps[place + 1];
  end loop;
  return p;
end $$;

-- The window parts of the limits at these places.
create or replace function sentinel.buckets_at(buckets timestamptz[], places integer[]) returns timestamptz[] language plpgsql immutable as $$
declare
  found timestamptz[];
  place integer;
begin
  foreach place in array places loop found := found || buckets[place + 1]; end loop;
  return found;
end $$;

-- Returns these terms with their terms_id from decision_terms; null for terms that are not stored yet. Called before the locks are taken.
create or replace function sentinel.known_terms(terms sentinel.guard_terms[]) returns sentinel.guard_terms[] language plpgsql stable as $$
declare
  one sentinel.guard_terms;
begin
  for place in 1 .. cardinality(terms) loop
    one := terms[place];
    one.terms_id := (select min(k.terms_id) from sentinel.decision_terms k where k.hash = one.hash);
    terms[place] := one;
  end loop;
  return terms;
end $$;

-- Inserts the terms that have no terms_id yet and returns them all with theirs; called under the locks, like everything a decision writes.
-- The insert waits for no other transaction, so two that bring the same new terms do not hold each other up.
create or replace function sentinel.put_in_terms(terms sentinel.guard_terms[]) returns sentinel.guard_terms[] language plpgsql as $$
declare
  one sentinel.guard_terms;
begin
  for place in 1 .. cardinality(terms) loop
    one := terms[place];
    continue when one.terms_id is not null;
    insert into sentinel.decision_terms
      (hash, policy_id, policy_version, policy_label, policy_digest, agent_id, decision, reason_code, pack_template, limit_keys,
       action, risk_class, request_template)
    values (one.hash, one.policy_id, one.policy_version, one.policy_label, one.policy_digest, one.agent_id, one.verdict, one.reason_code,
       one.pack_template, one.own_keys, one.action, one.risk_class, one.request_template)
    returning terms_id into one.terms_id;
    terms[place] := one;
  end loop;
  return terms;
end $$;

-- The parts_id of these parts in window_parts; inserts them if they are new.
create or replace function sentinel.number_of_parts(parts timestamptz[]) returns bigint language plpgsql as $$
declare
  found_id bigint := (select min(w.parts_id) from sentinel.window_parts w where w.buckets = parts);
begin
  if found_id is null then insert into sentinel.window_parts (buckets) values (parts) returning parts_id into found_id; end if;
  return found_id;
end $$;

-- The rows of a batch except those already recorded as a set (`without`: their seqs), as questions to be decided one by one, in key order.
create or replace function sentinel.asks_of(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], limits sentinel.limit_terms[], rates sentinel.rate_sum[], without integer[]
) returns sentinel.guard_input[] language plpgsql as $$
#variable_conflict use_column
begin
  return array(
    select (
      r.seq, t.tenant_id, t.principal_id, t.owner_operator_id, r.idempotency_key, r.operation_id, r.event_id, r.permit_id, r.approval_id,
      r.second_event_id, t.agent_id, t.action, r.resource, t.risk_class, t.scenario, 'sha256:' || encode(r.digest, 'hex'),
      coalesce(r.request, format(t.request_template, r.params, r.resource)), r.salt, r.once_key, r.amount_minor,
      t.currency, t.hand_out_is_start, t.verdict, t.reason_code, t.reasons, t.policy_id, t.policy_version, t.policy_label, t.policy_digest,
      (select coalesce(jsonb_agg(to_jsonb(l) || jsonb_build_object('limit_key', k.limit_key, 'subject', sentinel.subject_of(k.limit_key),
                                   'is_total', k.nth > coalesce(cardinality(r.limit_keys), 0)) order by k.nth), '[]')
       from unnest(r.limit_keys || t.total_keys, t.limit_places) with ordinality as k (limit_key, limit_place, nth)
       join unnest(asks_of.limits) as l on l.place = k.limit_place),
      t.required_role, t.required_people, t.approval_seconds, t.permit_seconds, r.elapsed_ms, t.approvable,
      t.asks_person, r.start_id, r.act_seconds, r.basis, r.facts_commitment,
      (select jsonb_agg(b) from unnest(asks_of.rates) as b where t.shared = any(b.shared) and b.currency = coalesce(t.currency, '')),
      t.bound_agent, t.shared, t.terms_id, t.pack_template, r.operation_commitment, r.amount_value, r.ledger_entry_id, r.refund_id,
      r.params, r.trace)::sentinel.guard_input
    from unnest(batch) as r join unnest(asks_of.terms) as t on t.place = r.terms_place
    where not r.seq = any(without) order by t.tenant_id, r.idempotency_key, r.seq);
end $$;
