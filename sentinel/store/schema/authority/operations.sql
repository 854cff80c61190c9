-- Operations: one exact action under one idempotency key, and how far it is.

-- Identity of an operation. Append-only. Programs read it as sentinel.operations. What is null here is as the terms say it.
create table sentinel.operation_rows (
  tenant_id       uuid not null,
  operation_id    uuid not null,
  principal_id    uuid not null,                                           -- whose key asked first
  created_at      timestamptz not null,
  terms_id        bigint,                                                  -- decision_terms
  amount_minor    bigint check (amount_minor between 1 and 1000000000000),
  idempotency_key text not null,
  agent_id        text,
  action          text,
  resource        text not null,                                           -- what it is about, e.g. "refund/rf_1"
  risk_class      text,
  digest          bytea not null,                                          -- SHA-256 of the canonical operation
  params          text,                                                    -- of the canonical operation
  request         text,                                                    -- the canonical operation itself; null: by terms, params and resource
  salt            bytea not null,                                          -- 32 random bytes: opens the commitments
  scenario        text,                                                    -- what a halt or a switch may name
  once_key        text,                                                    -- what may happen only once, e.g. "refund|rf_1"
  currency        text check ((currency is null) = (amount_minor is null)),
  -- What the decision looked at beside the operation (sentinel/core/proof.py, decision_basis), with the salt that its
  -- commitment needs: who erases the row takes both. Null for what was decided before it was kept.
  basis           text,
  primary key (operation_id, tenant_id),
  constraint operations_key_once unique (idempotency_key, tenant_id)
);
create trigger append_only before update or delete or truncate on sentinel.operation_rows
  for each statement execute function sentinel.refuse_change();

-- Operations as they are read: hashes are "sha256:" and hexadecimal digits, the salt is such digits.
create view sentinel.operations as
  select r.tenant_id, r.operation_id, r.idempotency_key, r.principal_id, coalesce(r.agent_id, t.agent_id) as agent_id,
         coalesce(r.action, t.action) as action, r.resource, coalesce(r.risk_class, t.risk_class) as risk_class,
         'sha256:' || encode(r.digest, 'hex') as digest, coalesce(r.request, format(t.request_template, r.params, r.resource)) as request,
         encode(r.salt, 'hex') as salt, r.scenario, r.once_key, r.amount_minor, r.currency, r.created_at, r.basis
  from sentinel.operation_rows r left join sentinel.decision_terms t on t.terms_id = r.terms_id;

-- The words of an operation's state. As domains, because PostgreSQL reads the text of a table's CHECKs anew at every statement, in which
-- a list of words is long; those of a domain it reads once a connection.
create domain sentinel.operation_status as text check (value in
  ('allowed', 'pending', 'approved', 'expired', 'denied', 'started', 'in_doubt', 'completed'));
create domain sentinel.decision_word as text check (value in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY'));
create domain sentinel.outcome_word as text check (value in ('success', 'error'));

-- The life of an operation: the one row that moves.
create table sentinel.operation_states (
  tenant_id         uuid not null,
  operation_id      uuid not null,
  status            sentinel.operation_status not null,
  decision          sentinel.decision_word not null,
  reason_code       text not null,                                         -- why it stands so
  decision_event_id uuid not null,                                         -- the proof pack's event
  once_key          text,
  once_live         boolean not null default false,                        -- holds what may happen only once
  approval_id       uuid,                                                  -- the question asked last
  permit_id         uuid,                                                  -- the permit handed out last
  permit_expires_at timestamptz,
  start_id          uuid,                                                  -- the caller's name of its one start
  started_at        timestamptz,
  start_event_id    uuid,
  start_hash        text,
  outcome           sentinel.outcome_word,                                 -- as reported; error: unknown whether it happened
  report_digest     text,                                                  -- of the first report: another one contradicts it
  reported_at       timestamptz,
  report_event_id   uuid,
  report_hash       text,
  in_doubt_since    timestamptz,
  in_doubt_reason   text,
  permit_for_person boolean not null default false,                        -- a permit that was got with a question to a person
  -- Until when whoever was told "started" may act: moved forward by every answered start, ended by a report of "error".
  act_until         timestamptz,
  -- When a person said that it was not executed. Set once; nothing starts after it.
  not_executed_at   timestamptz,
  -- What a permit holds, where whoever looks for it finds it: the key that asked, and the locks of its budgets, but for totals.
  principal_id      uuid,
  holds             bigint[],
  -- Ids of what tightened a decision in its own transaction: limits that were full, a halt, a once-key. Null: nothing did.
  tightened         text[],
  total_holds       bigint[],                                              -- the locks of totals that a permit is counted in
  -- What the permit reserves: its amount in each of these limits, in the part of each that was being filled. Null: nothing.
  reserved_minor    bigint,
  limit_keys        text[],                                                -- null where there is a limit_owner
  limit_buckets     timestamptz[],                                         -- null where there is a parts_id
  limit_overrides   boolean[],                                             -- a person lifted this limit: held beside the cap; null: none
  reservation       text,
  terms_id          bigint not null,                                       -- decision_terms: the policy that decided
  limit_owner       text,                                                  -- the limits are those of the terms, for this owner
  parts_id          bigint,                                                -- window_parts: the parts of its limits
  counted_at        jsonb,                                                 -- breaker key → when a renewal counted it again; null: none did
  primary key (operation_id, tenant_id),
  -- One for all of them: each CHECK is begun anew at every statement.
  constraint state_is_sound check (
    (started_at is not null) = (status in ('started', 'in_doubt', 'completed')) and (permit_id is null) = (permit_expires_at is null)
    and (status <> 'in_doubt' or in_doubt_reason is not null) and (status <> 'started' or act_until is not null)
    and reservation in ('held', 'captured', 'released') and reserved_minor > 0 and (reservation is null) = (reserved_minor is null)
    and (reservation is null) = (limit_buckets is null and parts_id is null) and (reservation is null) = (limit_keys is null and limit_owner is null)
    and cardinality(limit_buckets) = cardinality(limit_keys)),
  constraint not_executed_was_started check (not_executed_at is null or status in ('in_doubt', 'completed')),
  -- Whoever answers a start must move act_until past now: with this, no answer can say "go" after "not executed", nor can
  -- that be said while an answer still says "go".
  constraint not_executed_is_final check (act_until <= not_executed_at)
) with (fillfactor = 60);

-- What permits reserve, a line each: for who counts, and for people.
create view sentinel.reservations as
  select s.tenant_id, s.permit_id, s.operation_id, s.reserved_minor as amount_minor,
         coalesce(s.limit_keys, sentinel.owned_keys(t.limit_keys, s.limit_owner)) as limit_keys, coalesce(s.limit_buckets, w.buckets) as buckets,
         coalesce(s.limit_overrides, array_fill(false, array[cardinality(coalesce(s.limit_buckets, w.buckets))])) as overrides, s.reservation as state
  from sentinel.operation_states s join sentinel.decision_terms t using (terms_id) left join sentinel.window_parts w using (parts_id)
  where s.reservation is not null;

-- A once-key without what a person may take for the same: case, and punctuation at the end. The alphabet of identifiers has
-- no wide or accented letters; the tilde is no part of it and marks a second holder of one key, from before keys belonged to
-- things.
create or replace function sentinel.once_folded(once text) returns text language sql immutable parallel safe as
  $$ select rtrim(lower(once collate "C"), '._:/@-~') $$;

-- One index for both: unique by the exact key (the folded one follows from it), found by the folded one.
create unique index operation_states_once on sentinel.operation_states (tenant_id, sentinel.once_folded(once_key), once_key) where once_live;

-- Permits that are out; one that is redeemed in the commit that gives it is in neither of these two indexes.
create index operation_states_permits on sentinel.operation_states (principal_id, permit_expires_at)
  where status in ('allowed', 'approved') and permit_id is not null;
-- By the budget that they hold: nearly every permit holds one besides totals, a few hold more. Totals are in neither: who asks
-- for them finds their permits by the key that asked.
create index operation_states_budget on sentinel.operation_states ((holds[1]), permit_expires_at)
  where status in ('allowed', 'approved') and holds is not null;
create index operation_states_budgets on sentinel.operation_states using gin (holds) with (fastupdate = off)
  where status in ('allowed', 'approved') and holds[2] is not null;
create index operation_states_started on sentinel.operation_states (started_at) where status = 'started';
create index operation_states_in_doubt on sentinel.operation_states (tenant_id, in_doubt_since) where status = 'in_doubt';

-- One question to the authority, as its caller hands it over: the operation, what the policy said, and ids made in advance.
create type sentinel.guard_input as (
  seq integer,                                                             -- its place in the batch
  tenant_id uuid, principal_id uuid, owner_operator_id uuid, idempotency_key text,
  -- ids to be used for what is written; second_event_id for what runs out or starts with it
  operation_id uuid, event_id uuid, permit_id uuid, approval_id uuid, second_event_id uuid,
  -- the operation
  agent_id text, action text, resource text, risk_class text, scenario text, digest text, request text, salt bytea, once_key text,
  amount_minor bigint, currency text,
  hand_out_is_start boolean,                                               -- a caller without a start step
  -- what the policy said, before halts, once-keys and limits
  verdict text, reason_code text, reasons text[], policy_id text, policy_version text, policy_label text, policy_digest text,
  limits jsonb,                                                            -- [limit_ask…]
  required_role text, required_people integer, approval_seconds integer, permit_seconds integer,
  elapsed_ms integer,                                                      -- spent before the database was asked
  approvable boolean,                                                      -- null: true
  asks_person boolean,                                                     -- null: false
  start_id uuid,                                                           -- a permission is redeemed with the answer
  act_seconds integer,                                                     -- how long the caller may act after a start
  basis text,                                                              -- as operations.basis
  facts_commitment bytea,                                                  -- where nothing tightens; else the database makes its own
  breakers jsonb,                                                          -- [breaker_ask…]; null: none
  bound_agent text,                                                        -- the agent that the key is bound to
  shared integer,                                                          -- place of what rows of a batch share; null: nothing
  -- the proof pack: its terms and constant text, and the values that it takes from the question
  terms_id bigint, pack_template text, operation_commitment bytea, amount_value text, ledger_entry_id text, refund_id text,
  params text,                                                             -- of the operation; null: the request is kept whole
  trace bytea                                                              -- as event_rows.trace
);

-- result: decided | replayed | not_executed, or without an answer key_reused | key_taken (another key asked) | another_key | too_many_open |
-- too_many_questions. decision and reason_code are what holds now; pack is what was recorded.
create type sentinel.guard_output as (
  seq integer, result text, operation_id uuid, decision_event_id uuid, decision text, reason_code text, status text,
  policy_id text, policy_version text, policy_label text, resource text, risk_class text, digest text, request text,
  permit_id uuid, permit_expires_at timestamptz, approval_id uuid, approval_expires_at timestamptz, approver text,
  approved_at timestamptz, outcome text, pack text, pack_hash text, decided_at timestamptz,
  -- the receipt of a start under the caller's own start id; start_duplicate when an earlier answer had it already
  start_event_id uuid, start_hash text, start_duplicate boolean
);
