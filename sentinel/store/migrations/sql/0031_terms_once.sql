-- What many decisions have in common is kept once, and rows name it by its number (docs/decisions/0078-terms-once-values-in-rows.md). Events and
-- operations are views over narrower rows, whose hashes are bytes. What was decided before keeps its bodies, requests and limits whole.
create table sentinel.decision_terms (
  terms_id         bigint generated always as identity primary key,
  hash             bytea not null,
  policy_id        text not null,
  policy_version   text not null,
  policy_label     text not null,
  policy_digest    text not null,
  agent_id         text,
  action           text,
  risk_class       text,
  decision         text,
  reason_code      text,
  request_template text,
  pack_template    text,
  limit_keys       text[],
  constraint terms_are_whole check (
    pack_template is null or (agent_id, action, risk_class, decision, reason_code, request_template) is not null)
);
create index decision_terms_by_hash on sentinel.decision_terms (hash, terms_id);
create trigger append_only before update or delete or truncate on sentinel.decision_terms
  for each statement execute function sentinel.refuse_change();
create table sentinel.window_parts (
  parts_id bigint generated always as identity primary key,
  buckets  timestamptz[] not null
);
create index window_parts_by_buckets on sentinel.window_parts (buckets, parts_id);
create trigger append_only before update or delete or truncate on sentinel.window_parts
  for each statement execute function sentinel.refuse_change();

create table sentinel.event_rows (
  tenant_id            uuid not null,
  event_id             uuid not null,
  operation_id         uuid,
  occurred_at          timestamptz not null,
  transaction_id       xid8 not null default pg_current_xact_id(),
  terms_id             bigint,
  latency_ms           integer,
  kind                 text not null,
  agent_id             text,
  hash                 bytea not null,
  body                 text,
  facts_commitment     bytea,
  operation_commitment bytea,
  amount_value         text,
  ledger_entry_id      text,
  refund_id            text,
  decision             text,
  reason_code          text,
  primary key (tenant_id, event_id),
  constraint body_is_told check (body is not null or terms_id is not null)
);

insert into sentinel.event_rows (tenant_id, event_id, operation_id, occurred_at, transaction_id, kind, agent_id, hash, body)
select tenant_id, event_id, operation_id, occurred_at, transaction_id, kind, agent_id, decode(substr(hash, 8), 'hex'), body from sentinel.events;

alter table sentinel.operations rename constraint operations_key_once to operations_key_before;
create table sentinel.operation_rows (
  tenant_id       uuid not null,
  operation_id    uuid not null,
  principal_id    uuid not null,
  created_at      timestamptz not null,
  terms_id        bigint,
  amount_minor    bigint check (amount_minor between 1 and 1000000000000),
  idempotency_key text not null,
  agent_id        text,
  action          text,
  resource        text not null,
  risk_class      text,
  digest          bytea not null,
  params          text,
  request         text,
  salt            bytea not null,
  scenario        text,
  once_key        text,
  currency        text check ((currency is null) = (amount_minor is null)),
  basis           text,
  primary key (operation_id, tenant_id),
  constraint operations_key_once unique (idempotency_key, tenant_id)
);

-- A salt that is no digits opens no commitment.
insert into sentinel.operation_rows
  (tenant_id, operation_id, principal_id, created_at, amount_minor, idempotency_key, agent_id, action, resource, risk_class, digest, request, salt,
   scenario, once_key, currency, basis)
select tenant_id, operation_id, principal_id, created_at, amount_minor, idempotency_key, agent_id, action, resource, risk_class,
   decode(substr(digest, 8), 'hex'), request, case when salt ~ '^([0-9a-f]{2})*$' then decode(salt, 'hex') else '' end,
   scenario, once_key, currency, basis
from sentinel.operations;

-- The terms of what was decided before say its policy alone.
alter table sentinel.operation_states add column terms_id bigint, add column limit_owner text, add column parts_id bigint;
insert into sentinel.decision_terms (hash, policy_id, policy_version, policy_label, policy_digest)
select sha256(convert_to(jsonb_build_array(policy_id, policy_version, policy_label, policy_digest)::text, 'UTF8')),
       policy_id, policy_version, policy_label, policy_digest
from (select distinct policy_id, policy_version, policy_label, policy_digest from sentinel.operation_states) as p;
update sentinel.operation_states s set terms_id = t.terms_id from sentinel.decision_terms t
where (t.policy_id, t.policy_version, t.policy_label, t.policy_digest) = (s.policy_id, s.policy_version, s.policy_label, s.policy_digest);

-- What names the old tables' rows goes with them. Functions are made anew from their present text.
drop view sentinel.public_feed, sentinel.public_proofs, sentinel.reservations;
drop type sentinel.decided, sentinel.moved, sentinel.locked_operation, sentinel.guard_terms, sentinel.guard_row, sentinel.guard_input cascade;
drop function sentinel.facts_commitment(text, text, text, text[]);
drop table sentinel.events, sentinel.operations cascade;
drop index sentinel.operation_states_once;
alter table sentinel.operation_states
  alter column terms_id set not null,
  drop column policy_id, drop column policy_version, drop column policy_label, drop column policy_digest, drop column once_folded,
  drop constraint state_is_sound,
  add constraint state_is_sound check (
    (started_at is not null) = (status in ('started', 'in_doubt', 'completed')) and (permit_id is null) = (permit_expires_at is null)
    and (status <> 'in_doubt' or in_doubt_reason is not null) and (status <> 'started' or act_until is not null)
    and reservation in ('held', 'captured', 'released') and reserved_minor > 0 and (reservation is null) = (reserved_minor is null)
    and (reservation is null) = (limit_buckets is null and parts_id is null) and (reservation is null) = (limit_keys is null and limit_owner is null)
    and cardinality(limit_buckets) = cardinality(limit_keys));

-- Views and an index need these functions; the index is made from this one's present text, whatever the database has.
drop function sentinel.once_folded(text);
create function sentinel.once_folded(once text) returns text language sql immutable parallel safe as
  $$ select rtrim(lower(once collate "C"), '._:/@-~') $$;
create function sentinel.owned_keys(limit_keys text[], owner text) returns text[] language plpgsql immutable parallel safe as $$
begin
  for place in 1 .. cardinality(limit_keys) loop
    if right(limit_keys[place], 1) = '|' then limit_keys[place] := limit_keys[place] || owner; end if;
  end loop;
  return limit_keys;
end $$;
create function sentinel.pack_text(
  pack_template text, amount_value text, decided_at text, decision text, facts_commitment bytea, latency_ms integer, ledger_entry_id text,
  operation_commitment bytea, event uuid, reason_code text, refund_id text
) returns text language sql stable parallel safe as $$
  select format(pack_template, amount_value, decided_at, decision, encode(facts_commitment, 'hex'), latency_ms, ledger_entry_id,
                encode(operation_commitment, 'hex'), replace(event::text, '-', ''), reason_code, refund_id)
$$;

create index events_operation on sentinel.event_rows (operation_id) where kind <> 'decision';
create index events_transaction on sentinel.event_rows (transaction_id);
create index events_seldom on sentinel.event_rows (event_id) where kind not in ('decision', 'start', 'outcome');
create trigger append_only before update or delete or truncate on sentinel.event_rows
  for each statement execute function sentinel.refuse_change();
create trigger append_only before update or delete or truncate on sentinel.operation_rows
  for each statement execute function sentinel.refuse_change();
create unique index operation_states_once on sentinel.operation_states (tenant_id, sentinel.once_folded(once_key), once_key) where once_live;

create view sentinel.events as
  select r.tenant_id, r.event_id, r.kind, r.operation_id, coalesce(r.agent_id, t.agent_id) as agent_id,
         coalesce(r.body, sentinel.pack_text(
           t.pack_template, r.amount_value, sentinel.utc_text(r.occurred_at), coalesce(r.decision, t.decision), r.facts_commitment, r.latency_ms,
           r.ledger_entry_id, r.operation_commitment, r.event_id, coalesce(r.reason_code, t.reason_code), r.refund_id)) as body,
         'sha256:' || encode(r.hash, 'hex') as hash, r.occurred_at, r.transaction_id
  from sentinel.event_rows r left join sentinel.decision_terms t on t.terms_id = r.terms_id;
create view sentinel.operations as
  select r.tenant_id, r.operation_id, r.idempotency_key, r.principal_id, coalesce(r.agent_id, t.agent_id) as agent_id,
         coalesce(r.action, t.action) as action, r.resource, coalesce(r.risk_class, t.risk_class) as risk_class,
         'sha256:' || encode(r.digest, 'hex') as digest, coalesce(r.request, format(t.request_template, r.params, r.resource)) as request,
         encode(r.salt, 'hex') as salt, r.scenario, r.once_key, r.amount_minor, r.currency, r.created_at, r.basis
  from sentinel.operation_rows r left join sentinel.decision_terms t on t.terms_id = r.terms_id;
create view sentinel.reservations as
  select s.tenant_id, s.permit_id, s.operation_id, s.reserved_minor as amount_minor,
         coalesce(s.limit_keys, sentinel.owned_keys(t.limit_keys, s.limit_owner)) as limit_keys, coalesce(s.limit_buckets, w.buckets) as buckets,
         coalesce(s.limit_overrides, array_fill(false, array[cardinality(coalesce(s.limit_buckets, w.buckets))])) as overrides, s.reservation as state
  from sentinel.operation_states s join sentinel.decision_terms t using (terms_id) left join sentinel.window_parts w using (parts_id)
  where s.reservation is not null;
create view sentinel.public_proofs as
  select tenant_id, event_id, agent_id, body, hash, occurred_at,
    exists (select from sentinel.operations o join sentinel.agent_keys k using (tenant_id, principal_id)
            where o.tenant_id = e.tenant_id and o.operation_id = e.operation_id and k.agent_id = e.agent_id) as is_bound
  from sentinel.events e where kind = 'decision';
create view sentinel.public_feed as
  select f.tenant_id, f.position, e.event_id, e.agent_id, e.body, e.hash, e.occurred_at, e.is_bound
  from sentinel.feed f join sentinel.public_proofs e using (tenant_id, event_id);

create type sentinel.guard_input as (
  seq integer,
  tenant_id uuid, principal_id uuid, owner_operator_id uuid, idempotency_key text,
  operation_id uuid, event_id uuid, permit_id uuid, approval_id uuid, second_event_id uuid,
  agent_id text, action text, resource text, risk_class text, scenario text, digest text, request text, salt bytea, once_key text,
  amount_minor bigint, currency text,
  hand_out_is_start boolean,
  verdict text, reason_code text, reasons text[], policy_id text, policy_version text, policy_label text, policy_digest text,
  limits jsonb,
  required_role text, required_people integer, approval_seconds integer, permit_seconds integer,
  elapsed_ms integer,
  approvable boolean,
  asks_person boolean,
  start_id uuid,
  act_seconds integer,
  basis text,
  facts_commitment bytea,
  breakers jsonb,
  bound_agent text,
  shared integer,
  terms_id bigint, pack_template text, operation_commitment bytea, amount_value text, ledger_entry_id text, refund_id text,
  params text
);
create type sentinel.guard_terms as (
  place integer, tenant_id uuid, principal_id uuid, owner_operator_id uuid, agent_id text, action text, risk_class text, scenario text,
  policy_id text, policy_version text, policy_label text, policy_digest text, currency text,
  verdict text, reason_code text, reasons text[], required_role text, required_people integer, approval_seconds integer,
  permit_seconds integer, hand_out_is_start boolean, approvable boolean, asks_person boolean, bound_agent text,
  shared integer,
  limit_places integer[], total_keys text[], total_subjects text[],
  pack_template text, request_template text,
  own_keys text[],
  hash bytea,
  terms_id bigint
);
create type sentinel.guard_row as (
  seq integer, terms_place integer, idempotency_key text, once_key text, operation_id uuid, event_id uuid, second_event_id uuid,
  permit_id uuid, approval_id uuid, amount_minor bigint, elapsed_ms integer, start_id uuid, act_seconds integer,
  resource text, digest bytea, salt bytea, basis text, params text, request text, facts_commitment bytea, operation_commitment bytea,
  amount_value text, ledger_entry_id text, refund_id text,
  tenant_id uuid, limit_keys text[], subjects text[]
);
create type sentinel.moved as (receipt sentinel.receipt, event sentinel.events, state sentinel.operation_states);
create type sentinel.locked_operation as (o sentinel.operations, s sentinel.operation_states);
create type sentinel.decided as (
  answer sentinel.guard_output, event sentinel.event_rows, state sentinel.operation_states, start sentinel.events
);
