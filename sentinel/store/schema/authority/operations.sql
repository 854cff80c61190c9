-- Operations: one exact action under one idempotency key, and its state.

-- Identity of an operation. Append-only. Programs read it as sentinel.operations. A column that is null here has the terms' value.
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
  resource        text not null,                                           -- the object of the action, e.g. "refund/rf_1"
  risk_class      text,
  digest          bytea not null,                                          -- SHA-256 of the canonical operation
  params          text,                                                    -- of the canonical operation
  request         text,                                                    -- the canonical operation; null: made of terms, params, resource
  salt            bytea not null,                                          -- 32 random bytes, needed to open the commitments
  scenario        text,                                                    -- what a halt or a switch may name
  once_key        text,                                                    -- what may happen only once, e.g. "refund|rf_1"
  currency        text check ((currency is null) = (amount_minor is null)),
  -- What the decision was based on beside the operation (sentinel/core/proof.py, decision_basis), in the row of the salt that its
  -- commitment needs, so that erasing the row erases both. Null for decisions from before this column existed.
  basis           text,
  primary key (operation_id, tenant_id),
  constraint operations_key_once unique (idempotency_key, tenant_id)
);
create trigger append_only before update or delete or truncate on sentinel.operation_rows
  for each statement execute function sentinel.refuse_change();

-- Operations as programs read them: hashes are "sha256:" and hexadecimal digits, the salt is hexadecimal digits.
create view sentinel.operations as
  select r.tenant_id, r.operation_id, r.idempotency_key, r.principal_id, coalesce(r.agent_id, t.agent_id) as agent_id,
         coalesce(r.action, t.action) as action, r.resource, coalesce(r.risk_class, t.risk_class) as risk_class,
         'sha256:' || encode(r.digest, 'hex') as digest, coalesce(r.request, format(t.request_template, r.params, r.resource)) as request,
         encode(r.salt, 'hex') as salt, r.scenario, r.once_key, r.amount_minor, r.currency, r.created_at, r.basis
  from sentinel.operation_rows r left join sentinel.decision_terms t on t.terms_id = r.terms_id;

-- The allowed values of an operation's state. They are domains because PostgreSQL parses the text of a table's CHECK constraints again at
-- every statement, and a list of values makes that text long; it parses those of a domain once per connection.
create domain sentinel.operation_status as text check (value in
  ('allowed', 'pending', 'approved', 'expired', 'denied', 'started', 'in_doubt', 'completed'));
create domain sentinel.decision_word as text check (value in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY'));
create domain sentinel.outcome_word as text check (value in ('success', 'error'));

-- The state of an operation: the one row of it that is updated.
create table sentinel.operation_states (
  tenant_id         uuid not null,
  operation_id      uuid not null,
  status            sentinel.operation_status not null,
  decision          sentinel.decision_word not null,
  reason_code       text not null,                                         -- why it is in this state
  decision_event_id uuid not null,                                         -- the proof pack's event
  once_key          text,
  once_live         boolean not null default false,                        -- true: it holds its once-key
  approval_id       uuid,                                                  -- its latest approval
  permit_id         uuid,                                                  -- its latest permit
  permit_expires_at timestamptz,
  start_id          uuid,                                                  -- the caller's name of its one start
  started_at        timestamptz,
  start_event_id    uuid,
  start_hash        text,
  outcome           sentinel.outcome_word,                                 -- as reported; error: unknown whether it was executed
  report_digest     text,                                                  -- of the first report; one with another digest contradicts it
  reported_at       timestamptz,
  report_event_id   uuid,
  report_hash       text,
  in_doubt_since    timestamptz,
  in_doubt_reason   text,
  permit_for_person boolean not null default false,                        -- the permit was issued to a request that asked for a person
  -- Until when a caller that was answered "started" may act: extended by every answered start, ended by a report of "error".
  act_until         timestamptz,
  -- When a person resolved it as not executed. Set once; nothing starts after it.
  not_executed_at   timestamptz,
  -- What a permit holds, indexed so that an expired permit can be found by it: the key that asked, and the locks of its budgets without
  -- totals.
  principal_id      uuid,
  holds             bigint[],
  -- Ids of what tightened the decision in its own transaction: full limits, a halt, a once-key, a breaker. Null: nothing did.
  tightened         text[],
  total_holds       bigint[],                                              -- the locks of totals that a permit is counted in
  -- What the permit reserves: its amount in each of these limits, in the window part that was current. Null: nothing.
  reserved_minor    bigint,
  limit_keys        text[],                                                -- null where there is a limit_owner
  limit_buckets     timestamptz[],                                         -- null where there is a parts_id
  limit_overrides   boolean[],                                             -- true: held beside the cap, lifted by a person; null: none
  reservation       text,
  terms_id          bigint not null,                                       -- decision_terms: the policy that decided
  limit_owner       text,                                                  -- the limits are those of the terms, for this owner
  parts_id          bigint,                                                -- window_parts: the parts of its limits
  counted_at        jsonb,                                                 -- breaker key → when a renewal last counted it; null: none did
  primary key (operation_id, tenant_id),
  -- One constraint for all these conditions: every CHECK is set up again at every statement.
  constraint state_is_sound check (
    (started_at is not null) = (status in ('started', 'in_doubt', 'completed')) and (permit_id is null) = (permit_expires_at is null)
    and (status <> 'in_doubt' or in_doubt_reason is not null) and (status <> 'started' or act_until is not null)
    and reservation in ('held', 'captured', 'released') and reserved_minor > 0 and (reservation is null) = (reserved_minor is null)
    and (reservation is null) = (limit_buckets is null and parts_id is null) and (reservation is null) = (limit_keys is null and limit_owner is null)
    and cardinality(limit_buckets) = cardinality(limit_keys)),
  constraint not_executed_was_started check (not_executed_at is null or status in ('in_doubt', 'completed')),
  -- A function that answers a start must set act_until later than now. So with this constraint no answer can permit the action after "not
  -- executed", and "not executed" cannot be recorded while an answer still permits the action.
  constraint not_executed_is_final check (act_until <= not_executed_at)
) with (fillfactor = 60);

-- What permits reserve, one row per permit: for queries that sum it, and for people.
create view sentinel.reservations as
  select s.tenant_id, s.permit_id, s.operation_id, s.reserved_minor as amount_minor,
         coalesce(s.limit_keys, sentinel.owned_keys(t.limit_keys, s.limit_owner)) as limit_keys, coalesce(s.limit_buckets, w.buckets) as buckets,
         coalesce(s.limit_overrides, array_fill(false, array[cardinality(coalesce(s.limit_buckets, w.buckets))])) as overrides, s.reservation as state
  from sentinel.operation_states s join sentinel.decision_terms t using (terms_id) left join sentinel.window_parts w using (parts_id)
  where s.reservation is not null;

-- A once-key without differences that a person may overlook: case, and punctuation at the end. The alphabet of identifiers has no wide or
-- accented letters. It has no tilde either: one marks a second holder of a key, from before keys belonged to things.
create or replace function sentinel.once_folded(once text) returns text language sql immutable parallel safe as
  $$ select rtrim(lower(once collate "C"), '._:/@-~') $$;

-- One index for two purposes: the exact key is unique (it determines the folded one), and look-ups go by the folded key.
create unique index operation_states_once on sentinel.operation_states (tenant_id, sentinel.once_folded(once_key), once_key) where once_live;

-- Open permits, by the key that asked. A permit that is redeemed in the commit that issues it is in none of these three indexes.
create index operation_states_permits on sentinel.operation_states (principal_id, permit_expires_at)
  where status in ('allowed', 'approved') and permit_id is not null;
-- Open permits by the budget that they hold: nearly every permit holds one besides totals, a few hold more. Totals are in neither index:
-- permits counted in a total are found by the key that asked.
create index operation_states_budget on sentinel.operation_states ((holds[1]), permit_expires_at)
  where status in ('allowed', 'approved') and holds is not null;
create index operation_states_budgets on sentinel.operation_states using gin (holds) with (fastupdate = off)
  where status in ('allowed', 'approved') and holds[2] is not null;
create index operation_states_started on sentinel.operation_states (started_at) where status = 'started';
create index operation_states_in_doubt on sentinel.operation_states (tenant_id, in_doubt_since) where status = 'in_doubt';

-- One question to the authority as its caller passes it: the operation, the policy's decision, and ids generated in advance.
create type sentinel.guard_input as (
  seq integer,                                                             -- the row's number in the batch
  tenant_id uuid, principal_id uuid, owner_operator_id uuid, idempotency_key text,
  -- ids for the rows to be written; second_event_id is for an expiry, refusal, new approval, halt or start that comes with it
  operation_id uuid, event_id uuid, permit_id uuid, approval_id uuid, second_event_id uuid,
  -- the operation
  agent_id text, action text, resource text, risk_class text, scenario text, digest text, request text, salt bytea, once_key text,
  amount_minor bigint, currency text,
  hand_out_is_start boolean,                                               -- the caller has no start step
  -- what the policy said, before halts, once-keys and limits
  verdict text, reason_code text, reasons text[], policy_id text, policy_version text, policy_label text, policy_digest text,
  limits jsonb,                                                            -- [limit_ask…]
  required_role text, required_people integer, approval_seconds integer, permit_seconds integer,
  elapsed_ms integer,                                                      -- spent before the database was asked
  approvable boolean,                                                      -- null: true
  asks_person boolean,                                                     -- null: false
  start_id uuid,                                                           -- set: an ALLOW is redeemed (started) with the answer
  act_seconds integer,                                                     -- how long the caller may act after a start
  basis text,                                                              -- as operations.basis
  facts_commitment bytea,                                                  -- used if nothing tightens; else the database computes it
  breakers jsonb,                                                          -- [breaker_ask…]; null: none
  bound_agent text,                                                        -- the agent that the key is bound to
  shared integer,                                                          -- number of the values shared by rows of a batch; null: none
  -- the proof pack: its terms and constant text, and the values of this question that it contains
  terms_id bigint, pack_template text, operation_commitment bytea, amount_value text, ledger_entry_id text, refund_id text,
  params text,                                                             -- of the operation; null: the whole request is stored
  trace bytea                                                              -- as event_rows.trace
);

-- result: decided | replayed | not_executed, or without an answer key_reused | key_taken (another key asked) | another_key | too_many_open |
-- too_many_questions. decision and reason_code are the current ones; pack is the recorded one.
create type sentinel.guard_output as (
  seq integer, result text, operation_id uuid, decision_event_id uuid, decision text, reason_code text, status text,
  policy_id text, policy_version text, policy_label text, resource text, risk_class text, digest text, request text,
  permit_id uuid, permit_expires_at timestamptz, approval_id uuid, approval_expires_at timestamptz, approver text,
  approved_at timestamptz, outcome text, pack text, pack_hash text, decided_at timestamptz,
  -- the receipt of a start under the caller's own start id; start_duplicate: an earlier answer had this receipt already
  start_event_id uuid, start_hash text, start_duplicate boolean
);
