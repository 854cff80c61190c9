-- What many decisions have in common, kept once: rows name it by its number instead of saying it again.

-- Who asked for what, what the policy said, and the constant text of what is kept of it. Found by the hash of all that it says; who
-- bring the same for the first time at the same time put in a row each, so that nobody waits. Append-only.
create table sentinel.decision_terms (
  terms_id         bigint generated always as identity primary key,
  hash             bytea not null,                                         -- of all that it says
  policy_id        text not null,
  policy_version   text not null,
  policy_label     text not null,
  policy_digest    text not null,                                          -- of the text that decided
  -- Null in what follows: of decisions from before it was kept here.
  agent_id         text,
  action           text,
  risk_class       text,
  decision         text,                                                   -- as the policy said, as reason_code
  reason_code      text,
  request_template text,                                                   -- of the canonical operation: %1$s its params, %2$s its resource
  pack_template    text,                                                   -- of the proof pack, for sentinel.pack_text
  -- The keys of the limits that what is allowed counts in; the operation's owner belongs behind one that ends with "|". Null: none, or of
  -- several owners.
  limit_keys       text[],
  constraint terms_are_whole check (
    pack_template is null or (agent_id, action, risk_class, decision, reason_code, request_template) is not null)
);
create index decision_terms_by_hash on sentinel.decision_terms (hash, terms_id);
create trigger append_only before update or delete or truncate on sentinel.decision_terms
  for each statement execute function sentinel.refuse_change();

-- The parts of windows that are being filled at a time, kept once as terms are: those of a list of limits, in its order. Append-only.
create table sentinel.window_parts (
  parts_id bigint generated always as identity primary key,
  buckets  timestamptz[] not null                                          -- the beginning of each
);
create index window_parts_by_buckets on sentinel.window_parts (buckets, parts_id);
create trigger append_only before update or delete or truncate on sentinel.window_parts
  for each statement execute function sentinel.refuse_change();

-- The keys of limits with their owner where it belongs; null for null: a query may call it for a state beside terms that are not its own,
-- before it compares the two numbers.
create or replace function sentinel.owned_keys(limit_keys text[], owner text) returns text[] language plpgsql immutable parallel safe as $$
begin
  for place in 1 .. coalesce(cardinality(limit_keys), 0) loop
    if right(limit_keys[place], 1) = '|' then limit_keys[place] := limit_keys[place] || owner; end if;
  end loop;
  return limit_keys;
end $$;

-- A proof pack without its hash: the constant text of its terms, with the values of one decision in it.
-- %1$s is an amount's value as JSON, %4$s and %7$s are hexadecimal digits, %8$s those of the event's id.
create or replace function sentinel.pack_text(
  pack_template text, amount_value text, decided_at text, decision text, facts_commitment bytea, latency_ms integer, ledger_entry_id text,
  operation_commitment bytea, event uuid, reason_code text, refund_id text
) returns text language sql stable parallel safe as $$
  select format(pack_template, amount_value, decided_at, decision, encode(facts_commitment, 'hex'), latency_ms, ledger_entry_id,
                encode(operation_commitment, 'hex'), replace(event::text, '-', ''), reason_code, refund_id)
$$;
