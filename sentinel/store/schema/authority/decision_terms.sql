-- Decision terms: what many decisions have in common, stored once; rows refer to it by number instead of repeating it.

-- Who asked for what, the policy's decision, and the constant text of the stored documents. Found by the hash of its whole content;
-- transactions that bring the same new terms at the same time insert a row each, so that none waits. Append-only.
create table sentinel.decision_terms (
  terms_id         bigint generated always as identity primary key,
  hash             bytea not null,                                         -- of the row's whole content
  policy_id        text not null,
  policy_version   text not null,
  policy_label     text not null,
  policy_digest    text not null,                                          -- of the policy text that decided
  -- Null in the following columns: terms of decisions from before these columns existed.
  agent_id         text,
  action           text,
  risk_class       text,
  decision         text,                                                   -- the policy's verdict; reason_code likewise
  reason_code      text,
  request_template text,                                                   -- of the canonical operation: %1$s its params, %2$s its resource
  pack_template    text,                                                   -- of the proof pack, for sentinel.pack_text
  -- The keys of the limits that an allowed operation counts in; the operation's owner is appended to a key that ends with "|". Null: no
  -- limits, or limits of several owners.
  limit_keys       text[],
  constraint terms_are_whole check (
    pack_template is null or (agent_id, action, risk_class, decision, reason_code, request_template) is not null)
);
create index decision_terms_by_hash on sentinel.decision_terms (hash, terms_id);
create trigger append_only before update or delete or truncate on sentinel.decision_terms
  for each statement execute function sentinel.refuse_change();

-- The current window parts of a list of limits, in its order, at some time; stored once, like terms. Append-only.
create table sentinel.window_parts (
  parts_id bigint generated always as identity primary key,
  buckets  timestamptz[] not null                                          -- the start of each part
);
create index window_parts_by_buckets on sentinel.window_parts (buckets, parts_id);
create trigger append_only before update or delete or truncate on sentinel.window_parts
  for each statement execute function sentinel.refuse_change();

-- Returns the limit keys with the owner appended where a key ends with "|". Null for null: a query may call it for a state joined to terms
-- that are not its own, before it compares their numbers.
create or replace function sentinel.owned_keys(limit_keys text[], owner text) returns text[] language plpgsql immutable parallel safe as $$
begin
  for place in 1 .. coalesce(cardinality(limit_keys), 0) loop
    if right(limit_keys[place], 1) = '|' then limit_keys[place] := limit_keys[place] || owner; end if;
  end loop;
  return limit_keys;
end $$;

-- A proof pack without its hash: the constant text of its terms with one decision's values filled in.
-- %1$s is an amount's value as JSON, %4$s and %7$s are hexadecimal digits, %8$s those of the event's id.
create or replace function sentinel.pack_text(
  pack_template text, amount_value text, decided_at text, decision text, facts_commitment bytea, latency_ms integer, ledger_entry_id text,
  operation_commitment bytea, event uuid, reason_code text, refund_id text
) returns text language sql stable parallel safe as $$
  select format(pack_template, amount_value, decided_at, decision, encode(facts_commitment, 'hex'), latency_ms, ledger_entry_id,
                encode(operation_commitment, 'hex'), replace(event::text, '-', ''), reason_code, refund_id)
$$;
