-- The schema as it was at revision 0016, written from schema/ once. It never changes: what is now stands in schema/.
-- Functions are here by name, parameters and result alone.
set local check_function_bodies = off;

create schema sentinel;
create table sentinel.tenants (
  tenant_id   uuid primary key,
  label       text not null check (label ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  created_at  timestamptz not null default clock_timestamp()
);
create or replace function sentinel.refuse_change() returns trigger language plpgsql as $$ $$;
create table sentinel.events (
  tenant_id      uuid not null,
  event_id       uuid not null,
  kind           text not null,
  operation_id   uuid,
  agent_id       text,
  body           text not null,
  hash           text not null,
  occurred_at    timestamptz not null,
  transaction_id xid8 not null default pg_current_xact_id(),
  primary key (tenant_id, event_id)
);
create index events_operation on sentinel.events (operation_id);
create index events_transaction on sentinel.events (transaction_id, event_id);
create index events_seldom on sentinel.events (event_id) where kind not in ('decision', 'start', 'outcome');
create trigger append_only before update or delete or truncate on sentinel.events
  for each statement execute function sentinel.refuse_change();
create table sentinel.feed (
  tenant_id uuid not null,
  position  bigint not null check (position > 0),
  event_id  uuid not null,
  primary key (tenant_id, position),
  constraint feed_event_once unique (tenant_id, event_id)
);
create trigger append_only before update or delete or truncate on sentinel.feed
  for each statement execute function sentinel.refuse_change();
create table sentinel.feed_heads (
  tenant_id uuid primary key,
  position  bigint not null
);
create table sentinel.sequencer (
  only_row       boolean primary key default true check (only_row),
  transaction_id xid8 not null
);
insert into sentinel.sequencer (transaction_id) values ('0');
create or replace function sentinel.utc_text(moment timestamptz) returns text language sql stable parallel safe as
  $$ $$;
create or replace function sentinel.sha256_text(body text) returns text language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.canonical(fields jsonb) returns text language sql immutable parallel safe as $$ $$;
create or replace function sentinel.append_body(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, body_text text
) returns text language plpgsql as $$ $$;
create or replace function sentinel.append_event(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, fields jsonb
) returns text language plpgsql as $$ $$;
create or replace function sentinel.event_of(
  tenant uuid, event uuid, event_kind text, operation uuid, agent text, moment timestamptz, body_text text
) returns sentinel.events language plpgsql as $$ $$;
create or replace function sentinel.write_events(events sentinel.events[]) returns void language plpgsql as $$ $$;
create or replace function sentinel.sequence_events(most integer) returns integer language plpgsql as $$ $$;
create or replace function sentinel.sequence_restored() returns integer language plpgsql as $$ $$;
create table sentinel.operators (
  tenant_id     uuid not null references sentinel.tenants,
  operator_id   uuid not null,
  email         text not null check (email = lower(email)),
  password_hash text not null,
  role          text not null check (role in ('viewer', 'approver', 'admin')),
  active        boolean not null default true,
  created_at    timestamptz not null default clock_timestamp(),
  last_signed_in_at timestamptz,
  changed_by_another_at timestamptz not null default clock_timestamp(),
  password_one_time boolean not null default false,
  password_used_at  timestamptz,
  changed_by    uuid,
  primary key (tenant_id, operator_id),
  constraint operators_email_once unique (tenant_id, email),
  constraint operators_only_one_time_used check (password_one_time or password_used_at is null),
  constraint operators_changed_by_another foreign key (tenant_id, changed_by) references sentinel.operators,
  constraint operators_change_others check (changed_by <> operator_id)
);
create index operators_by_email on sentinel.operators (email);
create or replace function sentinel.operators_lock(tenant uuid) returns bigint language sql immutable as $$ $$;
create or replace function sentinel.has_second_administrator(tenant uuid, first_id uuid, besides uuid) returns boolean language sql stable as $$ $$;
create or replace function sentinel.add_operator(
  tenant uuid, person uuid, address text, first_password_hash text, first_role text, one_time boolean, by_id uuid, who text, event uuid
) returns text language plpgsql as $$ $$;
create or replace function sentinel.change_operator(
  tenant uuid, person uuid, act text, given text, seen text, by_id uuid, who text, event uuid
) returns text language plpgsql as $$ $$;
create table sentinel.agent_keys (
  tenant_id         uuid not null references sentinel.tenants,
  key_id            uuid not null,
  principal_id      uuid not null,
  key_hash          bytea not null,
  hint              text not null,
  label             text not null default '',
  agent_id          text,
  scopes            text[] not null,
  owner_operator_id uuid,
  created_at        timestamptz not null default clock_timestamp(),
  expires_at        timestamptz,
  revoked_at        timestamptz,
  last_used_at      timestamptz,
  maker_ids         uuid[] not null default '{}',
  primary key (tenant_id, key_id),
  constraint agent_keys_hash_once unique (tenant_id, key_hash)
);
create index agent_keys_by_hash on sentinel.agent_keys (key_hash);
create index agent_keys_principal on sentinel.agent_keys (tenant_id, principal_id);
create table sentinel.policies (
  policy_digest  text primary key check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  policy_id      text not null,
  policy_version text not null,
  canonical      text not null,
  first_seen_at  timestamptz not null default clock_timestamp()
);
create trigger append_only before update or delete or truncate on sentinel.policies
  for each statement execute function sentinel.refuse_change();
create table sentinel.policies_in_force (
  policy_id     text primary key,
  policy_digest text not null check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  since         timestamptz not null default clock_timestamp()
);
create table sentinel.operations (
  tenant_id       uuid not null,
  operation_id    uuid not null,
  idempotency_key text not null,
  principal_id    uuid not null,
  agent_id        text not null,
  action          text not null,
  resource        text not null,
  risk_class      text not null,
  digest          text not null,
  request         text not null,
  salt            text not null,
  scenario        text,
  once_key        text,
  amount_minor    bigint check (amount_minor between 1 and 1000000000000),
  currency        text check ((currency is null) = (amount_minor is null)),
  created_at      timestamptz not null,
  basis           text,
  primary key (operation_id, tenant_id),
  constraint operations_key_once unique (idempotency_key, tenant_id)
);
create trigger append_only before update or delete or truncate on sentinel.operations
  for each statement execute function sentinel.refuse_change();
create table sentinel.operation_states (
  tenant_id         uuid not null,
  operation_id      uuid not null,
  status            text not null check (status in
                      ('allowed', 'pending', 'approved', 'expired', 'denied', 'started', 'in_doubt', 'completed')),
  decision          text not null check (decision in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY')),
  reason_code       text not null,
  policy_id         text not null,
  policy_version    text not null,
  policy_label      text not null,
  policy_digest     text not null,
  decision_event_id uuid not null,
  once_key          text,
  once_live         boolean not null default false,
  approval_id       uuid,
  permit_id         uuid,
  permit_expires_at timestamptz,
  start_id          uuid,
  started_at        timestamptz,
  start_event_id    uuid,
  start_hash        text,
  outcome           text check (outcome in ('success', 'error')),
  report_digest     text,
  reported_at       timestamptz,
  report_event_id   uuid,
  report_hash       text,
  in_doubt_since    timestamptz,
  in_doubt_reason   text,
  permit_for_person boolean not null default false,
  act_until         timestamptz,
  not_executed_at   timestamptz,
  principal_id      uuid,
  holds             bigint[],
  once_folded       text generated always as (rtrim(lower(once_key collate "C"), '._:/@-~')) stored,
  tightened         text[],
  primary key (operation_id, tenant_id),
  constraint started_has_time check ((started_at is not null) = (status in ('started', 'in_doubt', 'completed'))),
  constraint permit_has_end check ((permit_id is null) = (permit_expires_at is null)),
  constraint doubt_has_reason check (status <> 'in_doubt' or in_doubt_reason is not null),
  constraint started_may_act check (status <> 'started' or act_until is not null),
  constraint not_executed_was_started check (not_executed_at is null or status in ('in_doubt', 'completed')),
  constraint not_executed_is_final check (act_until <= not_executed_at)
) with (fillfactor = 60);
create unique index operation_states_once on sentinel.operation_states (tenant_id, once_folded, once_key) where once_live;
create index operation_states_permits on sentinel.operation_states (principal_id, permit_expires_at)
  where status in ('allowed', 'approved') and permit_id is not null;
create index operation_states_holds on sentinel.operation_states using gin (holds) with (fastupdate = off)
  where status in ('allowed', 'approved') and holds is not null;
create index operation_states_started on sentinel.operation_states (started_at) where status = 'started';
create index operation_states_in_doubt on sentinel.operation_states (tenant_id, in_doubt_since) where status = 'in_doubt';
create type sentinel.guard_input as (
  seq integer,
  tenant_id uuid, principal_id uuid, owner_operator_id uuid, idempotency_key text,
  operation_id uuid, event_id uuid, permit_id uuid, approval_id uuid, second_event_id uuid,
  agent_id text, action text, resource text, risk_class text, scenario text, digest text, request text, salt text, once_key text,
  amount_minor bigint, currency text,
  hand_out_is_start boolean,
  verdict text, reason_code text, reasons text[], policy_id text, policy_version text, policy_label text, policy_digest text,
  limits jsonb,
  required_role text, required_people integer, approval_seconds integer, permit_seconds integer,
  pack_parts text[],
  elapsed_ms integer,
  approvable boolean,
  asks_person boolean,
  start_id uuid,
  act_seconds integer,
  basis text,
  facts_commitment text,
  breakers jsonb,
  bound_agent text,
  shared integer
);
create type sentinel.guard_output as (
  seq integer, result text, operation_id uuid, decision_event_id uuid, decision text, reason_code text, status text,
  policy_id text, policy_version text, policy_label text, resource text, risk_class text, digest text, request text,
  permit_id uuid, permit_expires_at timestamptz, approval_id uuid, approval_expires_at timestamptz, approver text,
  approved_at timestamptz, outcome text, pack text, pack_hash text, decided_at timestamptz,
  start_event_id uuid, start_hash text, start_duplicate boolean
);
create table sentinel.usage (
  tenant_id               uuid not null,
  limit_key               text not null,
  bucket                  timestamptz not null,
  window_seconds          integer not null,
  cap_minor               bigint not null,
  held_minor              bigint not null default 0 check (held_minor >= 0),
  captured_minor          bigint not null default 0 check (captured_minor >= 0),
  override_held_minor     bigint not null default 0 check (override_held_minor >= 0),
  override_captured_minor bigint not null default 0 check (override_captured_minor >= 0),
  primary key (tenant_id, limit_key, bucket),
  constraint usage_within_cap check (held_minor + captured_minor <= cap_minor)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
create table sentinel.reservations (
  tenant_id    uuid not null,
  permit_id    uuid not null,
  operation_id uuid not null,
  subject      text not null,
  amount_minor bigint not null check (amount_minor > 0),
  limit_keys   text[] not null,
  buckets      timestamptz[] not null,
  overrides    boolean[] not null,
  state        text not null check (state in ('held', 'captured', 'released')),
  created_at   timestamptz not null,
  settled_at   timestamptz,
  primary key (tenant_id, permit_id)
) with (fillfactor = 70);
create type sentinel.limit_ask as (
  limit_key text, subject text, "window" text, window_seconds integer, bucket_seconds integer, zone text,
  cap_minor bigint, verdict text, reason_code text
);
create type sentinel.limit_state as (
  limit_key text, bucket timestamptz, window_seconds integer, cap_minor bigint, used_minor bigint, fits boolean,
  verdict text, reason_code text
);
create or replace function sentinel.limit_states(tenant uuid, asks jsonb, amount bigint, moment timestamptz)
returns sentinel.limit_state[] language plpgsql stable as $$ $$;
create or replace function sentinel.fitted_limits(ask sentinel.guard_input, moment timestamptz)
returns sentinel.limit_state[] language plpgsql as $$ $$;
create or replace function sentinel.hold_usage(tenant uuid, amount bigint, states sentinel.limit_state[]) returns void language plpgsql as $$ $$;
create or replace function sentinel.reservation_of(
  tenant uuid, permit uuid, operation uuid, budget_subject text, amount bigint, states sentinel.limit_state[], moment timestamptz
) returns sentinel.reservations language plpgsql as $$ $$;
create or replace function sentinel.hold_budget(
  tenant uuid, permit uuid, operation uuid, budget_subject text, amount bigint, states sentinel.limit_state[], moment timestamptz
) returns void language plpgsql as $$ $$;
create or replace function sentinel.settle_budgets(tenants uuid[], permits uuid[], settlement text, moment timestamptz)
returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$ $$;
create or replace function sentinel.hold_again(tenant uuid, permit uuid) returns void language plpgsql as $$ $$;
create or replace function sentinel.settle_budget(tenant uuid, permit uuid, settlement text, moment timestamptz)
returns void language plpgsql as $$ $$;
create table sentinel.approvals (
  tenant_id     uuid not null,
  approval_id   uuid not null,
  operation_id  uuid not null,
  principal_id  uuid not null,
  requester_operator_id uuid,
  agent_id      text not null,
  action        text not null,
  resource      text not null,
  amount_minor  bigint,
  currency      text,
  digest        text not null,
  reasons       text[] not null,
  policy_digest text not null,
  required_role text not null check (required_role in ('approver', 'admin')),
  required_people integer not null check (required_people between 1 and 5),
  status        text not null default 'pending' check (status in ('pending', 'approved', 'rejected', 'expired')),
  created_at    timestamptz not null,
  expires_at    timestamptz not null,
  decided_at    timestamptz,
  decided_by    text,
  reason        text,
  offers_approve boolean not null default true,
  handled_reference text,
  follows       uuid,
  primary key (tenant_id, approval_id),
  constraint decided_has_time check ((status = 'pending') = (decided_at is null)),
  constraint approved_in_time check (status <> 'approved' or decided_at <= expires_at),
  constraint handled_is_rejected check (handled_reference is null or status = 'rejected'),
  constraint handled_reference_length check (length(handled_reference) between 1 and 200)
);
create index approvals_pending on sentinel.approvals (tenant_id, expires_at) where status = 'pending';
create index approvals_decided on sentinel.approvals (tenant_id, decided_at) where decided_at is not null;
create index approvals_operation on sentinel.approvals (operation_id);
create table sentinel.approval_votes (
  tenant_id   uuid not null,
  approval_id uuid not null,
  operator_id uuid not null,
  verdict     text not null check (verdict in ('approve', 'reject', 'handled')),
  reason      text not null,
  via         text not null check (via in ('console', 'local_administrator')),
  voted_at    timestamptz not null,
  primary key (tenant_id, approval_id, operator_id),
  foreign key (tenant_id, approval_id) references sentinel.approvals
);
create trigger append_only before update or delete or truncate on sentinel.approval_votes
  for each statement execute function sentinel.refuse_change();
create or replace function sentinel.check_approval() returns trigger language plpgsql as $$ $$;
create or replace function sentinel.voices_for(a sentinel.approvals, role_wanted text)
returns table (operator_id uuid, email text, voted_at timestamptz) language sql stable as $$ $$;
create or replace function sentinel.approval_suffices(a sentinel.approvals, ask sentinel.guard_input) returns boolean
language plpgsql stable as $$ $$;
create or replace function sentinel.new_approval(
  ask sentinel.guard_input, operation uuid, why text[], moment timestamptz, earlier uuid default null
) returns void language sql as $$ $$;
create or replace function sentinel.expire_approval(tenant uuid, approval uuid, event uuid, moment timestamptz)
returns boolean language plpgsql as $$ $$;
create or replace function sentinel.is_requester(a sentinel.approvals, operator uuid) returns boolean language sql stable as $$ $$;
create or replace function sentinel.resolve_approval(
  tenant uuid, approval uuid, operator uuid, vote text, why text, shown_digest text, how text, event uuid, second_event uuid,
  elsewhere text default null
) returns table (result text, approvals_given integer, people_required integer) language plpgsql as $$ $$;
create or replace function sentinel.risk_rank(required_people integer, reasons text[]) returns integer
language sql immutable parallel safe as $$ $$;
create or replace function sentinel.asks_for_person(ask sentinel.guard_input, s sentinel.operation_states)
returns boolean language plpgsql stable as $$ $$;
create trigger check_approval before insert or update on sentinel.approvals
  for each row execute function sentinel.check_approval();
create index approvals_queue on sentinel.approvals (sentinel.risk_rank(required_people, reasons), expires_at, approval_id)
  where status = 'pending';
create table sentinel.crowded_keys (
  principal_id uuid primary key,
  tenant_id    uuid not null,
  open_permits integer not null,
  valid_until  timestamptz not null
);
create or replace function sentinel.once_folded(once text) returns text language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.once_seen(tenant uuid, once text, own uuid) returns text language sql stable as $$ $$;
create or replace function sentinel.once_held(tenant uuid, once text, own uuid) returns text language plpgsql as $$ $$;
create or replace function sentinel.release_expired(tenants uuid[], operations uuid[]) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$ $$;
create or replace function sentinel.release_expired_holding(budgets bigint[], most integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$ $$;
create or replace function sentinel.keys_with_open_permits() returns table (tenant_id uuid, principal_id uuid) language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$ $$;
create or replace function sentinel.release_run_out(most integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$ $$;
create or replace function sentinel.mark_crowded_keys(most integer, valid_seconds integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$ $$;
create or replace function sentinel.is_anothers(o sentinel.operations, principal uuid, bound_agent text) returns boolean language plpgsql immutable as $$ $$;
create or replace function sentinel.leaves_permit_out(ask sentinel.guard_input) returns boolean language plpgsql immutable as $$ $$;
create or replace function sentinel.renew_permit(ask sentinel.guard_input, s sentinel.operation_states, moment timestamptz)
returns void language plpgsql as $$ $$;
create or replace function sentinel.start_on_hand_out(ask sentinel.guard_input, operation uuid, permit uuid, moment timestamptz)
returns text language plpgsql as $$ $$;
create table sentinel.halts (
  tenant_id uuid not null,
  halt_id   uuid not null,
  scope     text not null check (scope in ('global', 'tenant', 'agent', 'action', 'scenario', 'agent_action')),
  target    text not null default '',
  level     text not null default 'kill' check (level in ('pause', 'kill')),
  reason    text not null,
  set_by    text not null,
  set_at    timestamptz not null,
  lifted_by text,
  lifted_at timestamptz,
  breaker_key text,
  primary key (tenant_id, halt_id),
  constraint lifted_by_someone check ((lifted_at is null) = (lifted_by is null)),
  constraint target_fits_scope check ((target = '') = (scope in ('global', 'tenant'))),
  constraint halts_pair_target check ((scope = 'agent_action') = (strpos(target, ' ') > 0))
);
create unique index halts_in_force on sentinel.halts (tenant_id, scope, target) where lifted_at is null;
create or replace function sentinel.halt_lock() returns bigint language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.halt_over(tenant uuid, agent text, act text, scene text) returns uuid language plpgsql stable as $$ $$;
create or replace function sentinel.is_alone() returns boolean language sql stable as $$ $$;
create or replace function sentinel.put_halt(
  owner uuid, halt uuid, halt_scope text, halt_target text, halt_level text, why text, who text, event uuid, moment timestamptz,
  breaker text default null
) returns table (halt_id uuid, already boolean) language plpgsql as $$ $$;
create or replace function sentinel.set_halt(
  owner uuid, halt uuid, halt_scope text, halt_target text, halt_level text, why text, who text, event uuid
) returns table (halt_id uuid, already boolean) language plpgsql as $$ $$;
create or replace function sentinel.lift_halt(owner uuid, halt uuid, who text, why text, event uuid) returns boolean language plpgsql as $$ $$;
create table sentinel.velocity (
  tenant_id    uuid not null,
  breaker_key  text not null,
  bucket       timestamptz not null,
  currency     text not null,
  scope        text not null check (scope in ('agent', 'tenant')),
  target       text not null,
  operations   integer not null check (operations > 0),
  amount_minor bigint not null check (amount_minor >= 0),
  primary key (tenant_id, breaker_key, bucket, currency)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
create index velocity_bucket on sentinel.velocity (bucket);
create type sentinel.breaker_ask as (
  breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer, most_operations integer, most_minor bigint,
  declared text
);
create or replace function sentinel.passed_breaker(ask sentinel.guard_input, moment timestamptz)
returns sentinel.breaker_ask language plpgsql stable as $$ $$;
create or replace function sentinel.count_velocity(ask sentinel.guard_input, moment timestamptz) returns void language plpgsql as $$ $$;
create or replace function sentinel.trip_breaker(ask sentinel.guard_input, b sentinel.breaker_ask, moment timestamptz)
returns void language plpgsql as $$ $$;
create or replace function sentinel.count_anew(owner uuid, halt_scope text, halt_target text) returns void language sql as $$ $$;
create table sentinel.contradictions (
  tenant_id     uuid not null,
  operation_id  uuid not null,
  event_id      uuid not null,
  report_digest text not null,
  halt_id       uuid not null,
  once_held     boolean not null,
  reported_at   timestamptz not null,
  primary key (tenant_id, operation_id)
);
create trigger append_only before update or delete or truncate on sentinel.contradictions
  for each statement execute function sentinel.refuse_change();
create table sentinel.check_reports (
  tenant_id   uuid not null,
  request_id  text not null,
  digest      text not null,
  event_id    uuid not null,
  received_at timestamptz not null,
  primary key (tenant_id, request_id)
);
create trigger append_only before update or delete or truncate on sentinel.check_reports
  for each statement execute function sentinel.refuse_change();
create type sentinel.receipt as (result text, field text, event_id uuid, hash text, operation_id uuid);
create type sentinel.start_input as (
  seq integer, tenant_id uuid, idempotency_key text, action text, agent_id text, resource text, risk_class text,
  permit_id uuid, digest text, start_id uuid, event_id uuid, act_seconds integer, principal_id uuid, bound_agent text
);
create type sentinel.report_input as (
  seq integer, tenant_id uuid, idempotency_key text, action text, agent_id text, resource text, risk_class text,
  permit_id uuid, outcome text, content_digest text, report_id uuid, event_id uuid, principal_id uuid, bound_agent text
);
create type sentinel.moved as (receipt sentinel.receipt, event sentinel.events, state sentinel.operation_states);
create or replace function sentinel.start_event(
  tenant uuid, event uuid, operation uuid, agent text, act text, permit uuid, start uuid, moment timestamptz
) returns sentinel.events language plpgsql as $$ $$;
create or replace function sentinel.unmoved(result text, field text, operation uuid, event uuid default null, hash text default null)
returns sentinel.moved language plpgsql as $$ $$;
create or replace function sentinel.leave_until(seconds integer, moment timestamptz) returns timestamptz
language sql stable parallel safe as $$ $$;
create or replace function sentinel.extend_leave(s sentinel.operation_states, seconds integer, moment timestamptz) returns void
language plpgsql as $$ $$;
create or replace function sentinel.start_operation(ask sentinel.start_input) returns sentinel.moved language plpgsql as $$ $$;
create or replace function sentinel.write_starts(events sentinel.events[], states sentinel.operation_states[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$ $$;
create or replace function sentinel.start_operations(batch jsonb, patience_ms integer default 2000)
returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$ $$;
create or replace function sentinel.report_outcome(ask sentinel.report_input) returns sentinel.moved language plpgsql as $$ $$;
create or replace function sentinel.write_reports(events sentinel.events[], states sentinel.operation_states[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$ $$;
create or replace function sentinel.report_outcomes(batch jsonb, patience_ms integer default 2000)
returns table (seq integer, receipt sentinel.receipt) language plpgsql as $$ $$;
create or replace function sentinel.record_check_report(
  tenant uuid, request text, content_digest text, event uuid, agent text, act text, told text
) returns sentinel.receipt language plpgsql as $$ $$;
create or replace function sentinel.record_contradiction(ask sentinel.report_input, halt uuid, halt_event uuid)
returns sentinel.receipt language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function sentinel.live_again(tenant uuid, operation uuid) returns boolean language plpgsql as $$ $$;
create or replace function sentinel.resolve_in_doubt(
  tenant uuid, operation uuid, executed boolean, who text, evidence text, event uuid
) returns table (result text, act_until timestamptz) language plpgsql as $$ $$;
create type sentinel.decided as (
  answer sentinel.guard_output, event sentinel.events, state sentinel.operation_states, reservation sentinel.reservations,
  start sentinel.events
);
create or replace function sentinel.stricter(one text, other text) returns text language sql immutable parallel safe as $$ $$;
create or replace function sentinel.guard_view(ask sentinel.guard_input, found_operation uuid, result text)
returns sentinel.guard_output language sql stable as $$ $$;
create or replace function sentinel.replay(ask sentinel.guard_input, o sentinel.operations, moment timestamptz)
returns sentinel.guard_output language plpgsql as $$ $$;
create or replace function sentinel.with_shared(ask sentinel.guard_input, shared_sets jsonb) returns sentinel.guard_input language plpgsql immutable as $$ $$;
create or replace function sentinel.peek_decision(ask_json jsonb, shared_sets jsonb) returns table (decision text, reason_code text) language plpgsql stable as $$ $$;
create or replace function sentinel.peek_decisions(batch jsonb) returns table (seq integer, decision text, reason_code text)
language sql stable as $$ $$;
create or replace function sentinel.facts_commitment(salt text, request text, basis text, tightened text[]) returns text
language sql immutable parallel safe as $$ $$;
create or replace function sentinel.decide_new(ask sentinel.guard_input, began timestamptz, moment timestamptz)
returns sentinel.decided language plpgsql as $$ $$;
create or replace function sentinel.write_decisions(
  events sentinel.events[], states sentinel.operation_states[], held sentinel.reservations[]
) returns void language plpgsql as $$ $$;
create or replace function sentinel.record_batch(batch jsonb, patience_ms integer, alone boolean)
returns setof sentinel.guard_output language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$ $$;
create or replace function sentinel.record_decisions(batch jsonb, patience_ms integer default 2000)
returns setof sentinel.guard_output language plpgsql as $$ $$;
create or replace function sentinel.record_set(
  asks sentinel.guard_input[], shared_sets jsonb, fresh uuid[], began timestamptz, moment timestamptz
) returns setof sentinel.guard_output language plpgsql as $$ $$;
create table sentinel.switches (
  tenant_id      uuid not null references sentinel.tenants,
  name           text not null check (name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$' and length(name) <= 64),
  is_on          boolean not null,
  canary_percent integer not null check (canary_percent between 0 and 100),
  changed_at     timestamptz not null,
  changed_by     text not null,
  reason         text not null,
  proven_after   timestamptz,
  primary key (tenant_id, name),
  constraint off_is_for_nobody check (is_on or canary_percent = 0)
);
create table sentinel.gate_reports (
  tenant_id        uuid not null references sentinel.tenants,
  report_id        uuid not null,
  scenario         text not null,
  switch           text not null,
  policy_digest    text not null check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  passed           boolean not null,
  cases            integer not null check (cases > 0),
  correct          integer not null check (correct >= 0),
  lower_bound_ppm  integer not null check (lower_bound_ppm between 0 and 1000000),
  wrong_executions integer not null check (wrong_executions >= 0),
  not_covered      integer not null check (not_covered >= 0),
  report           jsonb not null,
  created_at       timestamptz not null,
  recorded_by      text not null,
  primary key (tenant_id, report_id),
  constraint counts_add_up check (correct + not_covered <= cases),
  constraint passed_means_proven check (not passed or wrong_executions = 0 and correct > 0 and lower_bound_ppm >= 950000)
);
create index gate_reports_newest on sentinel.gate_reports (switch, created_at);
create trigger append_only before update or delete or truncate on sentinel.gate_reports
  for each statement execute function sentinel.refuse_change();
create or replace function sentinel.gate_report_lasts() returns interval language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.gate_refusal(tenant uuid, switch_name text, gate text, policy text) returns text
language sql stable as $$ $$;
create or replace function sentinel.flip_switch(
  tenant uuid, switch_name text, gate text, policy text, percent integer, first_percent integer, who text, why text, event uuid
) returns text language plpgsql as $$ $$;
create or replace function sentinel.turn_switch_off(tenant uuid, switch_name text, who text, why text, event uuid, went_wrong boolean default false)
returns boolean language plpgsql as $$ $$;
create or replace function sentinel.check_switch() returns trigger language plpgsql as $$ $$;
create or replace function sentinel.record_gate_report(
  tenant uuid, report_id uuid, scenario text, switch_name text, digest text, has_passed boolean, case_count integer,
  correct_count integer, bound_ppm integer, wrong_count integer, uncovered_count integer, document jsonb, who text, event uuid
) returns void language plpgsql as $$ $$;
create trigger check_switch before insert or update on sentinel.switches
  for each row execute function sentinel.check_switch();
create or replace function sentinel.budget_lock(tenant uuid, subject text) returns bigint language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.once_lock(tenant uuid, once text) returns bigint language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.operation_lock(tenant uuid, key text) returns bigint language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.velocity_lock(tenant uuid, breaker text) returns bigint language sql immutable parallel safe as
  $$ $$;
create or replace function sentinel.locks_of_limits(tenant uuid, asks jsonb) returns bigint[] language plpgsql immutable as $$ $$;
create or replace function sentinel.locks_of_asks(asks sentinel.guard_input[], shared_sets jsonb) returns bigint[] language plpgsql immutable as $$ $$;
create or replace function sentinel.locks_of_operations(tenants uuid[], keys text[]) returns bigint[] language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$ $$;
create or replace function sentinel.wait_until(moment timestamptz) returns void language plpgsql as $$ $$;
create or replace function sentinel.wait_for_lock(wanted bigint, moment timestamptz) returns boolean language plpgsql as $$ $$;
create or replace function sentinel.take_locks(wanted bigint[], moment timestamptz) returns void language plpgsql as $$ $$;
create or replace function sentinel.take_halt_lock() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function sentinel.take_held_locks(tenant uuid, operation uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function sentinel.take_operators_lock(tenant uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function sentinel.take_tenants_lock() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function sentinel.keep_house(report_deadline_seconds integer, event_ids uuid[])
returns table (permits_expired integer, approvals_expired integer, fell_in_doubt integer) language plpgsql as $$ $$;
create table sentinel.operator_sessions (
  tenant_id    uuid not null,
  session_hash bytea not null,
  operator_id  uuid not null,
  csrf_token   text not null,
  created_at   timestamptz not null default clock_timestamp(),
  last_seen_at timestamptz not null default clock_timestamp(),
  expires_at   timestamptz not null,
  revoked_at   timestamptz,
  session_id   uuid not null default gen_random_uuid(),
  kind         text not null default 'api' check (kind in ('api', 'page')),
  stepped_up_at timestamptz,
  address      text not null default '',
  user_agent   text not null default '',
  said         jsonb,
  primary key (tenant_id, session_hash),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create index operator_sessions_by_hash on sentinel.operator_sessions (session_hash);
create index operator_sessions_of on sentinel.operator_sessions (operator_id) where revoked_at is null;
create table sentinel.operator_tokens (
  tenant_id   uuid not null,
  token_id    uuid not null,
  token_hash  bytea not null,
  operator_id uuid not null,
  label       text not null default '',
  created_at  timestamptz not null default clock_timestamp(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  primary key (tenant_id, token_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create index operator_tokens_by_hash on sentinel.operator_tokens (token_hash);
create table sentinel.sign_in_attempts (
  attempt_id   bigint generated always as identity primary key,
  account_hash bytea not null,
  address      text not null,
  succeeded    boolean not null,
  attempted_at timestamptz not null default clock_timestamp(),
  device_hash  bytea,
  network      text not null default '',
  with_code    boolean not null default false,
  password_right boolean not null default false
);
create index sign_in_attempts_recent on sentinel.sign_in_attempts (attempted_at);
create table sentinel.sign_in_gate (only_row boolean primary key default true check (only_row));
insert into sentinel.sign_in_gate default values;
create table sentinel.second_factors (
  tenant_id    uuid not null,
  operator_id  uuid not null,
  secret       text not null,
  last_step    bigint not null default 0,
  created_at   timestamptz not null default clock_timestamp(),
  confirmed_at timestamptz,
  primary key (tenant_id, operator_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create table sentinel.known_devices (
  device_hash       bytea primary key,
  account_hash      bytea not null,
  last_signed_in_at timestamptz not null default clock_timestamp()
);
create index known_devices_by_age on sentinel.known_devices (last_signed_in_at);
create table sentinel.gauge_samples (
  tenant_id              uuid not null,
  taken_at               timestamptz not null,
  oldest_waiting_seconds double precision not null check (oldest_waiting_seconds >= 0),
  in_doubt               integer not null check (in_doubt >= 0),
  halts                  integer not null check (halts >= 0),
  worker_lag_seconds     double precision check (worker_lag_seconds >= 0),
  primary key (tenant_id, taken_at)
);
create table sentinel.public_id_secret (
  only_row boolean primary key default true check (only_row),
  secret   text not null check (length(secret) >= 64)
);
insert into sentinel.public_id_secret (secret)
values (encode(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')), 'hex'));
create table sentinel.public_ids (
  tenant_id uuid not null,
  public_id text not null,
  kind      text not null check (kind in ('agent', 'action', 'ledger_entry', 'refund')),
  value     text not null,
  event_id  uuid not null,
  primary key (tenant_id, public_id)
);
create table sentinel.public_id_marks (
  tenant_id uuid not null,
  key_id    text not null,
  position  bigint not null check (position >= 0),
  primary key (tenant_id, key_id)
);
create view sentinel.public_proofs as
  select tenant_id, event_id, agent_id, body, hash, occurred_at,
    exists (select from sentinel.operations o join sentinel.agent_keys k using (tenant_id, principal_id)
            where o.tenant_id = e.tenant_id and o.operation_id = e.operation_id and k.agent_id = e.agent_id) as is_bound
  from sentinel.events e where kind = 'decision';
create view sentinel.public_feed as
  select f.tenant_id, f.position, e.event_id, e.agent_id, e.body, e.hash, e.occurred_at, e.is_bound
  from sentinel.feed f join sentinel.public_proofs e using (tenant_id, event_id);
create view sentinel.public_tenants as select tenant_id, label from sentinel.tenants;
create view sentinel.public_halts as select tenant_id, scope, target from sentinel.halts where lifted_at is null;
create schema refunds;
create table refunds.defaults (
  only_row  boolean primary key default true check (only_row),
  tenant_id uuid not null
);
create or replace function refunds.default_tenant() returns uuid language sql stable as
  $$ $$;
create or replace function refunds.refuse_change() returns trigger language plpgsql as $$ $$;
create or replace function refunds.tenant_label(tenant uuid) returns text language sql stable security definer
  set search_path = pg_catalog, pg_temp as $$ $$;
create table refunds.transitions (
  from_status text not null,
  event       text not null,
  to_status   text not null,
  primary key (from_status, event)
);
insert into refunds.transitions (from_status, event, to_status) values
  ('NEW', 'claimed', 'GUARDING'),
  ('APPROVAL_REQUIRED', 'claimed', 'GUARDING'),
  ('GUARDING', 'reclaimed', 'GUARDING'),
  ('ALLOWED', 'reclaimed', 'GUARDING'),
  ('GUARDING', 'allowed', 'ALLOWED'),
  ('GUARDING', 'approval_required', 'APPROVAL_REQUIRED'),
  ('GUARDING', 'awaiting_customer', 'APPROVAL_REQUIRED'),
  ('GUARDING', 'customer_ended', 'DENIED'),
  ('GUARDING', 'denied', 'DENIED'),
  ('GUARDING', 'put_back', 'NEW'),
  ('GUARDING', 'gave_up', 'ERROR'),
  ('ALLOWED', 'executed', 'EXECUTED'),
  ('ALLOWED', 'start_refused', 'GUARDING'),
  ('ALLOWED', 'settlement_refused', 'ERROR'),
  ('ALLOWED', 'not_executed', 'ERROR'),
  ('ERROR', 'retried', 'NEW');
create or replace function refunds.text_key(words text) returns text language sql immutable parallel safe as
  $$ $$;
create table refunds.ledger_entries (
  tenant_id         uuid not null default refunds.default_tenant(),
  ledger_entry_id   text not null check (length(ledger_entry_id) between 1 and 120 and ledger_entry_id !~ '[^A-Za-z0-9._:/@-]'),
  refund_id         text not null check (length(refund_id) between 1 and 128 and refund_id !~ '[^A-Za-z0-9._:/@-]'),
  agent_id          text not null default 'retail-refund-agent',
  action            text not null default 'refund.create',
  status            text not null default 'NEW' check (status in
                      ('NEW', 'GUARDING', 'ALLOWED', 'APPROVAL_REQUIRED', 'DENIED', 'EXECUTED', 'ERROR')),
  last_event        text,
  event_number      bigint not null default 0,
  amount_minor      bigint not null check (amount_minor between 1 and 1000000000000),
  currency          text not null check (currency ~ '^[A-Z]{3}$'),
  idempotency_key   text not null generated always as ('refund:' || ledger_entry_id) stored,
  channel           text not null default 'retail',
  scenario          text not null default 'standard',
  account_ref       text,
  order_ref         text,
  requested_at      timestamptz not null default clock_timestamp(),
  reason            text,
  risk              jsonb not null default '{}',
  redaction_status  text not null default 'customer data hidden',
  claim_epoch       bigint not null default 0,
  claimed_by        text,
  lease_until       timestamptz,
  attempts          integer not null default 0,
  next_attempt_at   timestamptz not null default clock_timestamp(),
  guard_request     jsonb,
  operation_id      uuid,
  decision_event_id uuid,
  decision          text,
  reason_code       text,
  proof_id          text,
  approval_id       uuid,
  waiting_for       text check (waiting_for in ('operator', 'customer')),
  permit_token      text,
  start_id          uuid,
  last_error        text,
  created_at        timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  mode              text check (length(mode) between 1 and 40 and mode !~ '[^a-z_]'),
  language          text check (length(language) between 2 and 35 and language !~ '[^A-Za-z0-9-]'),
  contact           text check (length(contact) <= 320),
  source            text not null default '' check (source ~ '^[A-Za-z0-9._:/@-]{0,64}$'),
  budget_part       text check (budget_part in ('reserved', 'executed', 'handled', 'in_doubt')),
  act_until         timestamptz,
  waits             integer not null default 0,
  escalation        text check (escalation ~ '^[a-z_]{1,64}$'),
  primary key (tenant_id, ledger_entry_id),
  constraint guarding_has_lease check (status not in ('GUARDING', 'ALLOWED') or lease_until is not null),
  constraint waiting_has_someone check ((status = 'APPROVAL_REQUIRED') = (waiting_for is not null)),
  constraint error_has_text check (status <> 'ERROR' or last_error is not null),
  constraint allowed_has_permit check (status <> 'ALLOWED' or (operation_id is not null and decision_event_id is not null
                                       and permit_token is not null and start_id is not null)),
  constraint ledger_permitted_holds_budget
    check (order_ref is null or status not in ('ALLOWED', 'EXECUTED') or budget_part is not null)
) with (fillfactor = 60);
create index ledger_due on refunds.ledger_entries (tenant_id, next_attempt_at, ledger_entry_id)
  where status in ('NEW', 'APPROVAL_REQUIRED');
create index ledger_leased on refunds.ledger_entries (tenant_id, lease_until) where status in ('GUARDING', 'ALLOWED');
create index ledger_refund on refunds.ledger_entries (refund_id);
create index ledger_order on refunds.ledger_entries (order_ref, channel) where order_ref is not null;
create index ledger_account on refunds.ledger_entries (account_ref, requested_at) where account_ref is not null;
create index ledger_approval on refunds.ledger_entries (approval_id) where approval_id is not null;
create index ledger_text on refunds.ledger_entries (refunds.text_key(reason)) where length(reason) >= 40;
create index ledger_newest on refunds.ledger_entries (created_at desc, ledger_entry_id);
create index ledger_failed on refunds.ledger_entries (updated_at) where status = 'ERROR';
create index ledger_denied on refunds.ledger_entries (created_at desc, ledger_entry_id) where status = 'DENIED';
create index ledger_in_doubt on refunds.ledger_entries (tenant_id, updated_at) where budget_part = 'in_doubt';
create table refunds.ledger_events (
  tenant_id       uuid not null,
  event_id        bigint generated always as identity,
  ledger_entry_id text not null,
  from_status     text not null,
  event           text not null,
  to_status       text not null,
  claim_epoch     bigint not null,
  worker          text,
  reason_code     text,
  occurred_at     timestamptz not null default clock_timestamp(),
  note            text,
  primary key (tenant_id, event_id)
);
create index ledger_events_entry on refunds.ledger_events (tenant_id, ledger_entry_id, event_id);
create trigger append_only before update or delete or truncate on refunds.ledger_events
  for each statement execute function refunds.refuse_change();
create table refunds.step_trails (
  tenant_id       uuid not null,
  ledger_entry_id text not null,
  trail_id        bigint generated always as identity,
  claim_epoch     bigint not null,
  steps           jsonb not null,
  occurred_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, ledger_entry_id, trail_id)
);
create trigger append_only before update or delete or truncate on refunds.step_trails
  for each statement execute function refunds.refuse_change();
create or replace function refunds.check_transition() returns trigger language plpgsql as $$ $$;
create or replace function refunds.write_ledger_events() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create trigger check_transition before insert or update on refunds.ledger_entries
  for each row execute function refunds.check_transition();
create trigger write_ledger_events after update on refunds.ledger_entries
  referencing old table as moved_from new table as moved_to for each statement execute function refunds.write_ledger_events();
create table refunds.orders (
  tenant_id   uuid not null default refunds.default_tenant(),
  channel     text not null default 'retail',
  order_ref   text not null,
  account_ref text,
  ordered_at  timestamptz not null,
  paid_minor  bigint not null check (paid_minor >= 0),
  currency    text not null,
  recorded_at timestamptz not null default clock_timestamp(),
  delivered_at timestamptz,
  shipping_fee_minor bigint check (shipping_fee_minor >= 0),
  item_paid_minor bigint check (item_paid_minor >= 0),
  price_now_minor bigint check (price_now_minor >= 0),
  note        text,
  source      text not null default '' check (source ~ '^[A-Za-z0-9._:/@-]{0,64}$'),
  primary key (tenant_id, channel, source, order_ref)
);
create index orders_account on refunds.orders (account_ref) where account_ref is not null;
create table refunds.order_flags (
  tenant_id uuid not null default refunds.default_tenant(),
  channel   text not null,
  order_ref text not null,
  flag      text not null check (flag in ('open_complaint', 'delayed_shipment')),
  since     timestamptz not null default clock_timestamp(),
  closed_at timestamptz,
  source    text not null default '' check (source ~ '^[A-Za-z0-9._:/@-]{0,64}$'),
  primary key (tenant_id, channel, source, order_ref, flag)
);
create table refunds.blacklist (
  tenant_id   uuid not null default refunds.default_tenant(),
  channel     text not null,
  account_ref text not null,
  since       timestamptz not null default clock_timestamp(),
  primary key (tenant_id, channel, account_ref)
);
create table refunds.order_budgets (
  tenant_id         uuid not null,
  channel           text not null,
  source            text not null,
  order_ref         text not null,
  currency          text not null,
  paid_minor        bigint check (paid_minor >= 0),
  reserved_minor    bigint not null default 0 check (reserved_minor >= 0),
  executed_minor    bigint not null default 0 check (executed_minor >= 0),
  handled_minor     bigint not null default 0 check (handled_minor >= 0),
  in_doubt_minor    bigint not null default 0 check (in_doubt_minor >= 0),
  beyond_minor      bigint not null default 0 check (beyond_minor >= 0),
  uncounted_entries integer not null default 0 check (uncounted_entries >= 0),
  primary key (tenant_id, channel, source, order_ref),
  constraint order_budget_not_exceeded
    check (reserved_minor + executed_minor + handled_minor + in_doubt_minor - beyond_minor <= paid_minor)
) with (fillfactor = 70);
create table refunds.orders_taken (
  tenant_id       uuid not null,
  channel         text not null,
  order_ref       text not null,
  ledger_entry_id text not null,
  taken_at        timestamptz not null default clock_timestamp(),
  source          text not null default '',
  primary key (order_ref, channel, source, tenant_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
create or replace function refunds.room_in_budgets(tenant uuid, changes jsonb) returns table (ledger_entry_id text, fits boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.place_in_budget() returns trigger language plpgsql as $$ $$;
create or replace function refunds.keep_order_budgets() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.open_order_budgets() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.keep_order_paid() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.settle_doubts(tenant uuid, words jsonb) returns setof text language sql as $$ $$;
create trigger place_in_budget before update on refunds.ledger_entries for each row
  when (new.order_ref is not null and (new.status is distinct from old.status or new.budget_part is distinct from old.budget_part))
  execute function refunds.place_in_budget();
create trigger keep_order_budgets after update on refunds.ledger_entries
  referencing old table as moved_from new table as moved_to for each statement execute function refunds.keep_order_budgets();
create trigger open_order_budgets after insert on refunds.ledger_entries
  referencing new table as entered for each statement execute function refunds.open_order_budgets();
create trigger keep_order_paid_entered after insert on refunds.orders
  referencing new table as written for each statement execute function refunds.keep_order_paid();
create trigger keep_order_paid_corrected after update on refunds.orders
  referencing new table as written for each statement execute function refunds.keep_order_paid();
create table refunds.executions (
  tenant_id       uuid not null default refunds.default_tenant(),
  execution_id    uuid not null,
  ledger_entry_id text not null,
  refund_id       text not null,
  amount_minor    bigint not null check (amount_minor > 0),
  currency        text not null,
  system          text not null default 'simulated_refund',
  operation_id    uuid not null,
  start_id        uuid not null,
  start_event_id  uuid not null,
  claim_epoch     bigint not null,
  executed_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, execution_id),
  constraint executions_entry_once unique (tenant_id, ledger_entry_id),
  constraint executions_operation_once unique (tenant_id, operation_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
create unique index executions_refund_once on refunds.executions (tenant_id, refund_id);
create index executions_by_time on refunds.executions (tenant_id, executed_at);
create trigger append_only before update or delete or truncate on refunds.executions
  for each statement execute function refunds.refuse_change();
create table refunds.outbox (
  tenant_id       uuid not null default refunds.default_tenant(),
  outbox_id       uuid not null,
  ledger_entry_id text not null,
  payload         jsonb not null,
  attempts        integer not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  last_error      text,
  acknowledged_at timestamptz,
  created_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, outbox_id)
) with (fillfactor = 70);
create index outbox_open on refunds.outbox (tenant_id, next_attempt_at) where acknowledged_at is null;
create or replace function refunds.check_execution() returns trigger language plpgsql as $$ $$;
create or replace function refunds.record_executions(tenant uuid, settled jsonb) returns setof text language plpgsql as $$ $$;
create trigger check_execution before insert on refunds.executions
  for each row execute function refunds.check_execution();
create table refunds.effect_transitions (
  from_state text not null,
  to_state   text not null,
  primary key (from_state, to_state)
);
insert into refunds.effect_transitions (from_state, to_state) values
  ('intended', 'done'),
  ('intended', 'refused'),
  ('intended', 'in_doubt'),
  ('in_doubt', 'intended'),
  ('in_doubt', 'done'),
  ('in_doubt', 'refused'),
  ('in_doubt', 'compensating'),
  ('done', 'compensating'),
  ('compensating', 'compensated'),
  ('compensating', 'in_doubt');
create table refunds.effects (
  tenant_id           uuid not null default refunds.default_tenant(),
  ledger_entry_id     text not null,
  effect_number       smallint not null check (effect_number between 1 and 20),
  operation_reference uuid not null,
  system              text not null check (length(system) between 1 and 40 and system !~ '[^a-z_]'),
  reference           uuid not null,
  best_effort         boolean not null default false,
  must_total          smallint not null check (must_total between 0 and 20),
  state               text not null default 'intended',
  system_reference    text check (length(system_reference) <= 200),
  last_error          text check (length(last_error) <= 500),
  claim_epoch         bigint not null,
  tries               integer not null default 1,
  tried_at            timestamptz not null default clock_timestamp(),
  next_attempt_at     timestamptz not null default clock_timestamp(),
  created_at          timestamptz not null default clock_timestamp(),
  updated_at          timestamptz not null default clock_timestamp(),
  constraint effects_once primary key (tenant_id, ledger_entry_id, effect_number),
  constraint effects_reference_once unique (tenant_id, system, reference),
  constraint effects_state check (state in ('intended', 'done', 'refused', 'compensating', 'compensated', 'in_doubt')),
  constraint effects_done_has_reference check (state <> 'done' or system_reference is not null),
  constraint effects_trouble_has_text check (state not in ('refused', 'in_doubt') or last_error is not null),
  constraint effects_notice_stays check (not best_effort or state not in ('compensating', 'compensated')),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
) with (fillfactor = 70);
create index effects_operation on refunds.effects (tenant_id, operation_reference);
create index effects_later on refunds.effects (tenant_id, next_attempt_at)
  where best_effort and state in ('intended', 'in_doubt');
create index effects_open on refunds.effects (tenant_id, updated_at) where state in ('compensating', 'in_doubt');
create or replace function refunds.check_effect() returns trigger language plpgsql as $$ $$;
create or replace function refunds.check_effects_done() returns trigger language plpgsql as $$ $$;
create or replace function refunds.doubt_effects() returns trigger language plpgsql as $$ $$;
create trigger check_effect before insert or update on refunds.effects
  for each row execute function refunds.check_effect();
create trigger never_forgotten before delete or truncate on refunds.effects
  for each statement execute function refunds.refuse_change();
create trigger check_effects_done before insert on refunds.executions
  for each row execute function refunds.check_effects_done();
create trigger doubt_effects after update of status on refunds.ledger_entries
  for each row when (new.status in ('ERROR', 'DENIED') and old.status <> new.status)
  execute function refunds.doubt_effects();
create table refunds.confirmations (
  tenant_id           uuid not null default refunds.default_tenant(),
  confirmation_id     uuid not null default gen_random_uuid(),
  ledger_entry_id     text not null,
  refund_id           text not null,
  digest              text not null check (length(digest) = 71 and digest ~ '^sha256:[0-9a-f]+$'),
  order_ref           text,
  channel             text not null,
  scenario            text not null,
  amount_minor        bigint not null check (amount_minor between 1 and 1000000000000),
  currency            text not null check (currency ~ '^[A-Z]{3}$'),
  language            text check (language ~ '^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$'),
  contact             text check (length(contact) between 1 and 320),
  status              text not null default 'pending' check (status in
                        ('pending', 'confirmed', 'declined', 'expired', 'superseded')),
  created_at          timestamptz not null default clock_timestamp(),
  expires_at          timestamptz not null,
  answered_at         timestamptz,
  delivered_at        timestamptz,
  delivery_attempts   integer not null default 0,
  next_delivery_at    timestamptz not null default clock_timestamp(),
  last_delivery_error text,
  primary key (tenant_id, confirmation_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries,
  constraint confirmation_has_time check (expires_at > created_at),
  constraint confirmation_answer_has_moment check ((status in ('confirmed', 'declined')) = (answered_at is not null)),
  constraint confirmation_answered_in_time check (answered_at < expires_at)
) with (fillfactor = 80);
create unique index confirmations_pending_once on refunds.confirmations (tenant_id, ledger_entry_id) where status = 'pending';
create unique index confirmations_digest_once on refunds.confirmations (tenant_id, ledger_entry_id, digest)
  where status <> 'superseded';
create index confirmations_entry on refunds.confirmations (tenant_id, ledger_entry_id, created_at);
create index confirmations_undelivered on refunds.confirmations (tenant_id, next_delivery_at)
  where status = 'pending' and delivered_at is null;
create index confirmations_answered on refunds.confirmations (tenant_id, answered_at) where answered_at is not null;
create or replace function refunds.check_confirmation() returns trigger language plpgsql as $$ $$;
create or replace function refunds.refuse_confirmation_removal() returns trigger language plpgsql as $$ $$;
create or replace function refunds.entry_is_open(tenant uuid, entry text) returns boolean language sql stable
  set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.open_confirmations(tenant uuid, asks jsonb, expires_seconds double precision) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.latest_confirmations(tenant uuid, entries text[])
returns table (ledger_entry_id text, confirmation_id uuid, digest text, status text, expires_at timestamptz,
               answered_at timestamptz, delivered_at timestamptz, delivery_attempts integer, last_delivery_error text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.answer_confirmation(tenant uuid, confirmation uuid, shown_digest text, answer text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create trigger check_confirmation before insert or update on refunds.confirmations
  for each row execute function refunds.check_confirmation();
create trigger stays before delete or truncate on refunds.confirmations
  for each statement execute function refunds.refuse_confirmation_removal();
create table refunds.retries (
  tenant_id       uuid not null,
  ledger_entry_id text not null,
  event_number    bigint not null,
  retried_by      text not null,
  login           text not null,
  reason          text not null,
  error_before    text not null,
  retried_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, ledger_entry_id, event_number),
  constraint retries_who_and_why check (btrim(retried_by) <> '' and btrim(reason) <> ''),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
create trigger append_only before update or delete or truncate on refunds.retries
  for each statement execute function refunds.refuse_change();
create or replace function refunds.may_have_been_paid(e refunds.ledger_entries) returns text language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.retry_of(tenant uuid, entry text, number bigint) returns jsonb language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function refunds.retry_entries(tenant uuid, entries text[], who text, why text)
returns table (ledger_entry_id text, refusal text) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create table refunds.proof_images (
  tenant_id       uuid not null default refunds.default_tenant(),
  ledger_entry_id text not null,
  sha256          text not null check (sha256 ~ '^[0-9a-f]{64}$'),
  media_type      text not null,
  content         bytea not null check (octet_length(content) <= 5242880),
  received_at     timestamptz not null default clock_timestamp(),
  recognised      jsonb,
  recognised_by   text,
  primary key (tenant_id, ledger_entry_id, sha256)
);
create table refunds.wrong_executions (
  tenant_id       uuid not null,
  execution_id    uuid not null,
  finding         text not null check (finding ~ '^[a-z_]{1,60}$'),
  ledger_entry_id text not null,
  channel         text not null,
  scenario        text not null,
  switch          text not null,
  found_at        timestamptz not null default clock_timestamp(),
  primary key (tenant_id, execution_id, finding),
  foreign key (tenant_id, execution_id) references refunds.executions
);
create index wrong_executions_newest on refunds.wrong_executions (found_at);
create trigger append_only before update or delete or truncate on refunds.wrong_executions
  for each statement execute function refunds.refuse_change();
create table refunds.reconcile_cursors (
  tenant_id uuid primary key,
  looked_to timestamptz not null
);
create table refunds.workers (
  tenant_id        uuid not null default refunds.default_tenant(),
  worker_id        text not null,
  agent_id         text not null,
  mode             text not null check (mode in ('loop', 'once')),
  status           text not null check (status in ('running', 'stopped', 'authority_unreachable')),
  last_action      text,
  last_decision    text,
  last_seen_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, worker_id)
);
create table refunds.approval_cursors (
  tenant_id uuid not null,
  agent_id  text not null,
  since     timestamptz not null,
  primary key (tenant_id, agent_id)
);
create table refunds.process_requests (
  tenant_id    uuid not null,
  request_id   uuid not null,
  requested_by text not null,
  requested_at timestamptz not null default clock_timestamp(),
  claimed_by   text,
  lease_until  timestamptz,
  finished_at  timestamptz,
  result       jsonb,
  primary key (tenant_id, request_id)
);
create index process_requests_open on refunds.process_requests (tenant_id, requested_at) where finished_at is null;
create schema orders;
create table orders.transitions (
  from_lane   text not null,
  from_status text not null,
  event       text not null,
  to_lane     text not null,
  to_status   text not null,
  retired     boolean not null default false,
  primary key (from_lane, from_status, event)
);
insert into orders.transitions (from_lane, from_status, event, to_lane, to_status, retired) values
  ('-', 'RECEIVED', 'scored', '-', 'SCORED', false),
  ('-', 'SCORED', 'allowed', 'low', 'DECIDED', false),
  ('-', 'SCORED', 'needs_analyst', 'medium', 'DECIDED', false),
  ('-', 'SCORED', 'denied', 'high', 'DECIDED', false),
  ('low', 'DECIDED', 'needs_analyst', 'medium', 'DECIDED', false),
  ('low', 'DECIDED', 'denied', 'high', 'DECIDED', false),
  ('low', 'DECIDED', 'started', 'low', 'STARTED', false),
  ('low', 'STARTED', 'start_refused', 'low', 'DECIDED', false),
  ('low', 'STARTED', 'fulfilled', 'low', 'FULFILLED', false),
  ('low', 'STARTED', 'shop_refused', 'low', 'SHOP_REFUSED', false),
  ('low', 'SHOP_REFUSED', 'retried', 'low', 'STARTED', false),
  ('low', 'SHOP_REFUSED', 'held', 'low', 'HELD', false),
  ('low', 'SHOP_REFUSED', 'refund_filed', 'low', 'REFUND_FILED', false),
  ('low', 'REFUND_FILED', 'refund_refused', 'low', 'REFUND_REFUSED', false),
  ('low', 'REFUND_REFUSED', 'refund_filed', 'low', 'REFUND_FILED', false),
  ('low', 'REFUND_REFUSED', 'held', 'low', 'HELD', false),
  ('medium', 'DECIDED', 'queued', 'medium', 'QUEUED', false),
  ('medium', 'QUEUED', 'started', 'medium', 'STARTED', false),
  ('medium', 'STARTED', 'start_refused', 'medium', 'QUEUED', false),
  ('medium', 'STARTED', 'fulfilled', 'medium', 'FULFILLED', false),
  ('medium', 'QUEUED', 'held', 'medium', 'HELD', false),
  ('medium', 'QUEUED', 'rejected', 'medium', 'HELD', false),
  ('medium', 'QUEUED', 'refund_filed', 'medium', 'REFUND_FILED', false),
  ('medium', 'STARTED', 'shop_refused', 'medium', 'SHOP_REFUSED', false),
  ('medium', 'SHOP_REFUSED', 'retried', 'medium', 'STARTED', false),
  ('medium', 'SHOP_REFUSED', 'held', 'medium', 'HELD', false),
  ('medium', 'SHOP_REFUSED', 'refund_filed', 'medium', 'REFUND_FILED', false),
  ('medium', 'REFUND_FILED', 'refund_refused', 'medium', 'REFUND_REFUSED', false),
  ('medium', 'REFUND_REFUSED', 'refund_filed', 'medium', 'REFUND_FILED', false),
  ('medium', 'REFUND_REFUSED', 'held', 'medium', 'HELD', false),
  ('high', 'DECIDED', 'held', 'high', 'HELD', false),
  ('low', 'STARTED', 'gave_up', 'low', 'HELD', true),
  ('low', 'HELD', 'reopened', 'low', 'SHOP_REFUSED', true),
  ('medium', 'STARTED', 'gave_up', 'medium', 'HELD', true),
  ('medium', 'HELD', 'reopened', 'medium', 'SHOP_REFUSED', true);
create table orders.reviews (
  tenant_id         uuid not null,
  review_id         uuid not null,
  source            text not null check (length(source) between 1 and 64 and source !~ '[^A-Za-z0-9._-]'),
  order_id          text not null check (length(order_id) between 1 and 128 and order_id !~ '[^A-Za-z0-9._:/@#-]'),
  body_sha256       bytea not null check (length(body_sha256) = 32),
  amount_minor      bigint not null check (amount_minor between 0 and 1000000000000),
  currency          text not null check (currency ~ '^[A-Z]{3}$'),
  account_ref       text check (length(account_ref) <= 200),
  order_facts       jsonb not null,
  status            text not null default 'RECEIVED' check (status in
                      ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED', 'QUEUED', 'FULFILLED', 'HELD', 'REFUND_FILED',
                       'SHOP_REFUSED', 'REFUND_REFUSED')),
  lane              text check (lane in ('low', 'medium', 'high')),
  last_event        text,
  epoch             bigint not null default 1,
  holder            uuid,
  lease_until       timestamptz,
  attempts          integer not null default 0,
  next_attempt_at   timestamptz not null default clock_timestamp(),
  last_error        text check (length(last_error) <= 500),
  band              text check (band in ('low', 'medium', 'high', 'unknown')),
  signals           jsonb,
  model             text check (model in ('not_asked', 'agreed', 'raised', 'fell_back')),
  score_ms          integer,
  guard_params      jsonb,
  operation_id      uuid,
  decision_event_id uuid,
  decision          text check (decision in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY')),
  reason_code       text,
  proof_id          text,
  approval_id       uuid,
  start_id          uuid,
  decided_at        timestamptz,
  due_at            timestamptz,
  resolution        text check (resolution in ('fulfil', 'refund', 'hold')),
  resolved_by       text,
  resolution_reason text,
  resolved_at       timestamptz,
  received_at       timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  primary key (review_id, tenant_id),
  constraint reviews_order_once unique (order_id, source, tenant_id),
  constraint reviews_lane unique (review_id, tenant_id, lane),
  constraint reviews_lane_decided check ((lane is null) = (status in ('RECEIVED', 'SCORED'))),
  constraint reviews_lane_answer check (lane is null or (decision is not null and operation_id is not null)),
  constraint reviews_started check (status <> 'STARTED' or start_id is not null),
  constraint reviews_scored check (status = 'RECEIVED' or (band is not null and guard_params is not null)),
  constraint reviews_high_is_held check (lane <> 'high' or status in ('DECIDED', 'HELD')),
  constraint reviews_resolved check ((resolution is null) = (resolved_at is null)),
  constraint reviews_low_is_allowed check (lane <> 'low' or decision = 'ALLOW'),
  constraint reviews_started_is_permitted check (status not in ('STARTED', 'FULFILLED') or decision in ('ALLOW', 'APPROVAL_REQUIRED'))
) with (fillfactor = 50);
create index reviews_due on orders.reviews (next_attempt_at, tenant_id) where next_attempt_at < 'infinity';
create index reviews_account on orders.reviews (account_ref, received_at) where account_ref is not null;
create index reviews_approval on orders.reviews (approval_id) where approval_id is not null;
create index reviews_newest on orders.reviews (received_at desc, review_id);
create table orders.events (
  tenant_id   uuid not null,
  event_id    bigint generated always as identity,
  review_id   uuid not null,
  from_lane   text,
  from_status text not null,
  event       text not null,
  to_lane     text,
  to_status   text not null,
  epoch       bigint not null,
  reason_code text,
  occurred_at timestamptz not null default clock_timestamp(),
  primary key (event_id)
);
create index events_review on orders.events (review_id, event_id);
create trigger append_only before update or delete or truncate on orders.events
  for each statement execute function refunds.refuse_change();
create table orders.deliveries (
  tenant_id       uuid not null,
  source          text not null,
  order_id        text not null,
  review_id       uuid not null,
  response_status integer not null check (response_status between 200 and 299),
  response_body   text not null,
  is_final        boolean not null,
  recorded_at     timestamptz not null default clock_timestamp(),
  expires_at      timestamptz not null,
  primary key (order_id, source, tenant_id),
  foreign key (review_id, tenant_id) references orders.reviews
);
create index deliveries_expiry on orders.deliveries (expires_at);
create table orders.approval_cursors (
  tenant_id uuid primary key,
  since     timestamptz not null
);
create or replace function orders.check_review() returns trigger language plpgsql as $$ $$;
create or replace function orders.write_events() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create trigger check_review before insert or update on orders.reviews
  for each row execute function orders.check_review();
create trigger write_events after update on orders.reviews referencing old table as moved_from new table as moved_to
  for each statement execute function orders.write_events();
create trigger never_forgotten before delete or truncate on orders.reviews
  for each statement execute function refunds.refuse_change();
create type orders.work as (
  review_id uuid, source text, order_id text, amount_minor bigint, currency text, account_ref text, order_facts jsonb,
  status text, lane text, epoch bigint, attempts integer, band text, signals jsonb, model text, guard_params jsonb,
  operation_id uuid, decision_event_id uuid, decision text, reason_code text, approval_id uuid,
  start_id uuid, decided_at timestamptz, due_at timestamptz, resolution text, last_error text, tries integer,
  seconds_since_try double precision, received_at timestamptz
);
create type orders.answered as (response_status integer, response_body text, is_final boolean, keep_seconds double precision);
create or replace function orders.as_work(r orders.reviews) returns orders.work language plpgsql stable as $$ $$;
create or replace function orders.take_deliveries(batch jsonb) returns table (
  seq integer, outcome text, response_status integer, response_body text, is_final boolean,
  velocity_24h bigint, amount_24h bigint, work orders.work
) language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.ids_of(batch jsonb) returns uuid[] language sql immutable as $$ $$;
create or replace function orders.score_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.record_deliveries(batch jsonb) returns void language sql as $$ $$;
create or replace function orders.record_told(batch jsonb, mine uuid[]) returns void language plpgsql as $$ $$;
create or replace function orders.decide_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.refuse_starts(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.put_off_reviews(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.claim_reviews(tenant uuid, most integer, token uuid, lease_seconds double precision)
returns setof orders.work language sql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.wake_reviews(tenant uuid, approvals uuid[]) returns bigint language sql as $$ $$;
create or replace function orders.ship_reviews(decisions jsonb, settlements jsonb) returns table (review_id uuid, settled boolean)
language plpgsql as $$ $$;
create table orders.effects (
  tenant_id       uuid not null,
  review_id       uuid not null,
  kind            text not null check (kind in ('fulfil', 'hold')),
  lane            text not null,
  operation_id    uuid not null,
  state           text not null default 'intended' check (state in ('intended', 'done', 'refused', 'cancelled')),
  tries           integer not null default 0,
  tried_at        timestamptz,
  next_attempt_at timestamptz not null default clock_timestamp(),
  shop_reference  text,
  last_error      text check (length(last_error) <= 500),
  report_due_at   timestamptz,
  report_tries    integer not null default 0,
  reported_at     timestamptz,
  report_error    text check (length(report_error) <= 500),
  created_at      timestamptz not null default clock_timestamp(),
  updated_at      timestamptz not null default clock_timestamp(),
  primary key (review_id, kind, tenant_id),
  constraint effects_operation_once unique (operation_id, kind, tenant_id),
  constraint effects_of_lane foreign key (review_id, tenant_id, lane)
    references orders.reviews (review_id, tenant_id, lane) on update cascade,
  constraint effects_no_fulfilment_of_high check (kind <> 'fulfil' or lane in ('low', 'medium') or state = 'cancelled')
) with (fillfactor = 70);
create index effects_due on orders.effects (next_attempt_at, tenant_id) where kind = 'hold' and state = 'intended';
create index effects_reports on orders.effects (report_due_at, tenant_id) where report_due_at is not null and reported_at is null;
create or replace function orders.check_effect() returns trigger language plpgsql as $$ $$;
create or replace function orders.check_fulfilled() returns trigger language plpgsql as $$ $$;
create or replace function orders.hold_reviews(ids uuid[]) returns void language sql as $$ $$;
create or replace function orders.settle_fulfilments(batch jsonb) returns setof uuid language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.settle_holds(batch jsonb) returns void language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.claim_holds(tenant uuid, most integer, hold_seconds double precision)
returns table (tries integer, seconds_ago double precision, work orders.work) language sql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$ $$;
create or replace function orders.take_reports(tenant uuid, most integer, retry_seconds double precision)
returns table (review_id uuid, source text, order_id text, done boolean, operation_id uuid, shop_reference text, error text,
  amount_minor bigint, currency text, tries integer) language sql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan as $$ $$;
create trigger check_effect before insert or update on orders.effects
  for each row execute function orders.check_effect();
create trigger never_forgotten before delete or truncate on orders.effects
  for each statement execute function refunds.refuse_change();
create constraint trigger check_fulfilled after update of status on orders.reviews deferrable initially deferred
  for each row when (new.status = 'FULFILLED' and old.status <> 'FULFILLED') execute function orders.check_fulfilled();
create table orders.simulated_shop (
  tenant_id    uuid not null,
  source       text not null,
  order_id     text not null,
  status       text not null check (status in ('fulfilled', 'held')),
  operation_id uuid not null,
  told         jsonb not null,
  done_at      timestamptz not null default clock_timestamp(),
  constraint simulated_shop_once primary key (order_id, source, tenant_id)
);
create trigger append_only before update or delete or truncate on orders.simulated_shop
  for each statement execute function refunds.refuse_change();
create table orders.alerts (
  tenant_id       uuid not null,
  alert_id        uuid not null default gen_random_uuid(),
  kind            text not null check (length(kind) between 1 and 40 and kind !~ '[^a-z_]'),
  source          text not null,
  order_id        text not null,
  occasion        text not null default '' check (length(occasion) <= 100),
  summary         text not null check (length(summary) between 1 and 500),
  details         jsonb not null default '{}',
  attempts        integer not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  last_error      text check (length(last_error) <= 500),
  delivered_at    timestamptz,
  delivered_by    text,
  created_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, alert_id),
  constraint alerts_once unique (order_id, source, kind, occasion, tenant_id),
  constraint alerts_delivered_by check ((delivered_at is null) = (delivered_by is null))
) with (fillfactor = 70);
create index alerts_open on orders.alerts (tenant_id, next_attempt_at) where delivered_at is null;
create index alerts_newest on orders.alerts (tenant_id, created_at desc, alert_id);
create or replace function orders.check_alert() returns trigger language plpgsql as $$ $$;
create or replace function orders.raise_alerts(batch jsonb) returns void language sql as $$ $$;
create trigger check_alert before update on orders.alerts for each row execute function orders.check_alert();
create trigger never_forgotten before delete or truncate on orders.alerts
  for each statement execute function refunds.refuse_change();
create table orders.words (
  tenant_id   uuid not null,
  review_id   uuid not null,
  word_id     bigint generated always as identity,
  from_status text not null,
  word        text not null check (word in ('fulfil', 'refund', 'hold', 'retry')),
  operator_id uuid not null,
  said_by     text not null,
  reason      text not null,
  via         text not null,
  said_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, review_id, word_id),
  foreign key (review_id, tenant_id) references orders.reviews
);
create trigger append_only before update or delete or truncate on orders.words
  for each statement execute function refunds.refuse_change();
create table orders.refunds (
  tenant_id       uuid not null,
  review_id       uuid not null,
  attempt         integer not null check (attempt >= 1),
  ledger_entry_id text not null,
  filed_by        uuid,
  reason          text not null,
  via             text not null,
  state           text not null default 'filed' check (state in ('filed', 'paid', 'handled', 'refused', 'closed')),
  carried_to      uuid,
  carried_result  text,
  refused_code    text,
  filed_at        timestamptz not null default clock_timestamp(),
  ended_at        timestamptz,
  primary key (tenant_id, review_id, attempt),
  constraint refunds_row_once unique (tenant_id, ledger_entry_id),
  constraint refunds_ended check ((state = 'filed') = (ended_at is null)),
  foreign key (review_id, tenant_id) references orders.reviews
);
create index refunds_followed on orders.refunds (tenant_id, filed_at) where state in ('filed', 'refused');
create or replace function orders.refund_name(source text, order_id text) returns text language sql immutable parallel safe as $$ $$;
create or replace function orders.file_refund(r orders.reviews, operator uuid, why text, how text) returns text language plpgsql as $$ $$;
create or replace function orders.keep_word(r orders.reviews, word text, operator uuid, person text, why text, how text)
returns void language sql as $$ $$;
create or replace function orders.want_hold(r orders.reviews) returns void language sql as $$ $$;
create or replace function orders.end_fulfilment(r orders.reviews) returns void language sql as $$ $$;
create or replace function orders.resolve_returned(r orders.reviews, operator uuid, word text, why text, how text)
returns table (result text, approvals_given integer, people_required integer, ledger_entry_id text) language plpgsql as $$ $$;
create or replace function orders.refund_is_live(r orders.reviews) returns boolean language sql stable as $$ $$;
create or replace function orders.refund_refusal(r orders.reviews) returns text language sql stable as $$ $$;
create or replace function orders.resolve_review(
  tenant uuid, src text, ord text, operator uuid, word text, why text, shown_digest text, how text, event uuid, second_event uuid
) returns table (result text, approvals_given integer, people_required integer, ledger_entry_id text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
create or replace function orders.follow_refunds(tenant uuid, most integer, events uuid[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ $$;
