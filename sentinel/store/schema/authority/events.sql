-- Evidence: append-only events with a canonical body and its hash, and their positions in the feed.

-- A moment as events write it: UTC with microseconds.
create or replace function sentinel.utc_text(moment timestamptz) returns text language sql stable parallel safe as
  $$ select to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

-- Evidence: one row per decision, start, outcome, approval and halt. Append-only. Programs read it as sentinel.events.
-- transaction_id lets the sequencer assign positions without gaps, outside the hot transaction.
-- Of a decision only the values are stored, not the body; pack_text makes the same bytes from them again.
create table sentinel.event_rows (
  tenant_id            uuid not null,
  event_id             uuid not null,
  operation_id         uuid,                                               -- null: not about an operation
  occurred_at          timestamptz not null,
  transaction_id       xid8 not null default pg_current_xact_id(),
  terms_id             bigint,                                             -- decision_terms; null: the whole body is stored
  latency_ms           integer,
  kind                 text not null,                                      -- decision, start, outcome, approval_…, halt_…, operator_…
  agent_id             text,                                               -- null: the terms' agent, or none
  hash                 bytea not null,                                     -- SHA-256 of the body
  body                 text,                                               -- canonical JSON (RFC 8785); null: from terms and values
  facts_commitment     bytea,
  operation_commitment bytea,
  amount_value         text,                                               -- as JSON
  ledger_entry_id      text,
  refund_id            text,
  decision             text,                                               -- null: the terms' decision; reason_code likewise
  reason_code          text,
  trace                bytea,                                              -- the guard's trace and span ids, 16 and 8 bytes; in no hash
  primary key (tenant_id, event_id),
  constraint body_is_told check (body is not null or terms_id is not null)
);
-- Finds the events of an operation after its decision, which the operation's state names (decision_event_id).
create index events_operation on sentinel.event_rows (operation_id) where kind <> 'decision';
create index events_transaction on sentinel.event_rows (transaction_id);
-- The log is read by its key; this index finds rare kinds without reading the events that every operation has.
create index events_seldom on sentinel.event_rows (event_id) where kind not in ('decision', 'start', 'outcome');
-- The same of one tenant, for statements that also name `occurred_at > '-infinity'`, which is true of every event.
create index events_seldom_of_tenant on sentinel.event_rows (tenant_id, event_id)
  where kind not in ('decision', 'start', 'outcome') and occurred_at > '-infinity';
create trigger append_only before update or delete or truncate on sentinel.event_rows
  for each statement execute function sentinel.refuse_change();

-- Events as programs read them, each with its body; the hash is "sha256:" and hexadecimal digits.
create view sentinel.events as
  select r.tenant_id, r.event_id, r.kind, r.operation_id, coalesce(r.agent_id, t.agent_id) as agent_id,
         coalesce(r.body, sentinel.pack_text(
           t.pack_template, r.amount_value, sentinel.utc_text(r.occurred_at), coalesce(r.decision, t.decision), r.facts_commitment, r.latency_ms,
           r.ledger_entry_id, r.operation_commitment, r.event_id, coalesce(r.reason_code, t.reason_code), r.refund_id)) as body,
         'sha256:' || encode(r.hash, 'hex') as hash, r.occurred_at, r.transaction_id
  from sentinel.event_rows r left join sentinel.decision_terms t on t.terms_id = r.terms_id;

-- Position of each event within its tenant, 1, 2, 3, … : readers poll by it, and streams resume from it.
create table sentinel.feed (
  tenant_id uuid not null,
  position  bigint not null check (position > 0),
  event_id  uuid not null,
  primary key (tenant_id, position),
  constraint feed_event_once unique (tenant_id, event_id)
);
create trigger append_only before update or delete or truncate on sentinel.feed
  for each statement execute function sentinel.refuse_change();

-- The last position that was assigned, by tenant.
create table sentinel.feed_heads (
  tenant_id uuid primary key,
  position  bigint not null
);

-- How far the sequencer is: all events of transactions up to this one have their positions.
create table sentinel.sequencer (
  only_row       boolean primary key default true check (only_row),
  transaction_id xid8 not null,
  -- While events restored into a new cluster get positions: the transaction id at which the sequencer continues afterwards, and how far
  -- that work is. Null: no such work is in progress.
  restart_at     xid8,
  restored_upto  xid8
);
insert into sentinel.sequencer (transaction_id) values ('0');

-- A UUIDv7 of a moment, for a row whose caller could not generate an id in advance.
create or replace function sentinel.id_at(moment timestamptz) returns uuid language plpgsql as $$
declare
  milliseconds text := lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0');
begin
  return (left(milliseconds, 8) || '-' || right(milliseconds, 4) || '-7' || substr(gen_random_uuid()::text, 16))::uuid;
end $$;

-- PL/pgSQL, because convert_to is not marked immutable: a SQL function would not be inlined and would start an executor at every call.
create or replace function sentinel.sha256_text(body text) returns text language plpgsql immutable parallel safe as $$
begin
  return 'sha256:' || encode(sha256(convert_to(body, 'UTF8')), 'hex');
end $$;

-- The stored bytes of a hash that is written as "sha256:" and hexadecimal digits.
create or replace function sentinel.hash_bytes(hash text) returns bytea language sql immutable parallel safe as
  $$ select decode(substr(hash, 8), 'hex') $$;

-- Canonical JSON for an event's body: jsonb keeps keys unique; this function writes them sorted and without spaces, and leaves out nulls.
create or replace function sentinel.canonical(fields jsonb) returns text language sql immutable parallel safe as $$
  select '{' || coalesce(string_agg(to_json(key)::text || ':' || value, ',' order by key collate "C"), '') || '}'
  from (select key, case jsonb_typeof(value) when 'object' then sentinel.canonical(value)
                                             when 'array' then replace(value::text, '", "', '","')
                                             else value::text end as value
        from jsonb_each(fields) where jsonb_typeof(value) <> 'null') as members
$$;

-- Inserts an event whose body the caller wrote; returns the body's hash.
create or replace function sentinel.append_body(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, body_text text
) returns text language plpgsql as $$
declare
  body_hash text := sentinel.sha256_text(body_text);
begin
  insert into sentinel.event_rows (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  values (tenant, event, event_kind, operation, agent, body_text, sentinel.hash_bytes(body_hash), moment);
  return body_hash;
end $$;

create or replace function sentinel.append_event(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, fields jsonb
) returns text language plpgsql as $$
begin
  return sentinel.append_body(tenant, event, event_kind, operation, agent, moment, sentinel.canonical(
    fields || jsonb_build_object(
      'event', event_kind, 'event_id', event, 'occurred_at', sentinel.utc_text(moment), 'operation_id', operation)));
end $$;

-- An event whose body the caller wrote, as a row that is not inserted yet.
create or replace function sentinel.event_of(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, body_text text
) returns sentinel.events language plpgsql as $$
begin
  return row(tenant, event, event_kind, operation, agent, body_text, sentinel.sha256_text(body_text), moment, null)::sentinel.events;
end $$;

create or replace function sentinel.write_events(events sentinel.events[]) returns void language plpgsql as $$
begin
  insert into sentinel.event_rows (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  select e.tenant_id, e.event_id, e.kind, e.operation_id, e.agent_id, e.body, sentinel.hash_bytes(e.hash), e.occurred_at from unnest(events) as e;
end $$;

-- Assigns positions to the events of these transactions, after all positions assigned so far; returns how many events it went through.
-- Events restored into this cluster may have a position already, under a transaction id that this cluster reaches only now.
create or replace function sentinel.place_events(above xid8, upto xid8) returns integer language plpgsql as $$
declare
  gone_through integer;
begin
  with span as materialized (
    select e.tenant_id, e.event_id, e.transaction_id, e.occurred_at,
           exists (select from sentinel.feed f where f.event_id = e.event_id and f.tenant_id = e.tenant_id offset 0) as is_placed
    from sentinel.event_rows e where e.transaction_id > above and e.transaction_id <= upto
  ), fresh as materialized (
    select e.tenant_id, e.event_id,
           row_number() over (partition by e.tenant_id order by e.transaction_id, e.occurred_at, e.event_id) as nth,
           count(*) over (partition by e.tenant_id) as many
    from span as e where not e.is_placed
  ), heads as (
    insert into sentinel.feed_heads as h (tenant_id, position) select distinct tenant_id, many from fresh
    on conflict (tenant_id) do update set position = h.position + excluded.position returning tenant_id, position
  ), placed as (
    insert into sentinel.feed (tenant_id, position, event_id)
    select f.tenant_id, h.position - f.many + f.nth, f.event_id from fresh f join heads h using (tenant_id)
  )
  select count(*) into gone_through from span;
  return gone_through;
end $$;

-- The transaction of the last of the next `most` events after `above` and up to `upto`; null if there is no event.
create or replace function sentinel.end_of_portion(above xid8, upto xid8, most integer) returns xid8 language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  return (
    select e.transaction_id from (
      select transaction_id from sentinel.event_rows
      where transaction_id > above and transaction_id <= upto order by transaction_id limit most) e
    order by e.transaction_id desc limit 1);
end $$;

create or replace function sentinel.transaction_before(following xid8) returns xid8 language sql immutable parallel safe as
  $$ select (following::text::numeric - 1)::text::xid8 $$;

-- Assigns feed positions to events up to the oldest transaction in progress, so that no position appears late or is skipped. Returns how
-- many events it went through: `most`, and the rest of the last one's transaction; a caller that gets `most` or more calls again.
-- It takes whole transactions, so that the mark is one number and no event before it is read again. Within a transaction, events are in the
-- order of their time; an event that came with a decision follows it, because its id was generated after the decision's.
-- One sequencer runs at a time; a second one returns 0 at once.
create or replace function sentinel.sequence_events(most integer) returns integer language plpgsql as $$
declare
  q sentinel.sequencer;
  last xid8;
begin
  if not pg_try_advisory_xact_lock(7305013942711302) then return 0; end if;
  select * into q from sentinel.sequencer;
  if q.restart_at is not null or q.transaction_id > pg_snapshot_xmax(pg_current_snapshot()) then
    return sentinel.sequence_restored(most);
  end if;
  last := sentinel.end_of_portion(q.transaction_id, sentinel.transaction_before(pg_snapshot_xmin(pg_current_snapshot())), most);
  if last is null then return 0; end if;
  update sentinel.sequencer set transaction_id = last;
  return sentinel.place_events(q.transaction_id, last);
end $$;

-- After a restore into a new cluster, transaction ids start again below the mark. This assigns positions to the restored events that have
-- none yet, a portion in each transaction; then the mark continues with this cluster's ids (restart_at). First come the events with an id
-- up to restart_at, then those with an id that this cluster has not reached yet; the ids between them are left to the normal rounds.
create or replace function sentinel.sequence_restored(most integer) returns integer language plpgsql as $$
declare
  -- One snapshot for the whole call: between two snapshots a transaction could end whose events neither this nor the next round reads.
  present pg_snapshot := pg_current_snapshot();
  newest xid8 := sentinel.transaction_before(pg_snapshot_xmax(present));
  q sentinel.sequencer;
  last xid8;
begin
  select * into q from sentinel.sequencer;
  if q.restart_at is null or q.restart_at > newest then                    -- the latter: begun before another restore
    -- Just below the oldest transaction that may still write: its events are left to the normal rounds, earlier ones get positions here.
    q.restart_at := sentinel.transaction_before(pg_snapshot_xmin(present)); q.restored_upto := '0';
  end if;
  if q.restored_upto < q.restart_at then last := sentinel.end_of_portion(q.restored_upto, q.restart_at, most); end if;
  if last is null then
    q.restored_upto := greatest(q.restored_upto, newest);
    last := sentinel.end_of_portion(q.restored_upto, '18446744073709551615', most);
  end if;
  if last is null then
    update sentinel.sequencer set transaction_id = q.restart_at, restart_at = null, restored_upto = null;
    return 0;
  end if;
  update sentinel.sequencer set restart_at = q.restart_at, restored_upto = last;
  return sentinel.place_events(q.restored_upto, last);
end $$;
