-- Who may do what, by table and column. One role per program; none of them owns anything.
--
--   sentinel_owner      owns every object; nobody connects as it, migrations SET ROLE to it
--   sentinel_authority  the authority API: decides and records; no access to customer text
--   sentinel_worker     the refund agent: its ledger; no access to the authority's tables
--   sentinel_orders     order review: reviews, deliveries, effects in the shop; no access to the authority's tables
--   sentinel_console    operators: approvals, halts, keys; reads what it shows; executes nothing
--   sentinel_exporter   the sender of events: reads them, stores how far each receiver is
--   sentinel_public     the public's listener: confirm cards and customers' answers; no access to operators' data
--   board_reader        the public board: four views, nothing else
--
-- `sentinel migrate` runs this file after each migration; it can be run any number of times. A login of yours can be used for a program
-- after `GRANT sentinel_authority TO your_login`; the program then connects with that login and does SET ROLE.

do $$
declare
  wanted text;
begin
  foreach wanted in array array['sentinel_owner', 'sentinel_authority', 'sentinel_worker', 'sentinel_orders', 'sentinel_console', 'sentinel_exporter', 'sentinel_public', 'board_reader'] loop
    if not exists (select from pg_roles where rolname = wanted) then
      begin
        execute format('create role %I nologin', wanted);
      exception when duplicate_object or unique_violation then null;       -- a concurrent migration created it
      end;
    end if;
  end loop;
end $$;

revoke all on schema sentinel, refunds, orders from public;
revoke all on all tables in schema sentinel, refunds, orders from public, sentinel_authority, sentinel_worker, sentinel_orders,
  sentinel_console, sentinel_exporter, sentinel_public, board_reader;
revoke execute on all functions in schema sentinel, refunds, orders from public, sentinel_authority, sentinel_worker, sentinel_orders,
  sentinel_console, sentinel_exporter, sentinel_public, board_reader;

-- every program checks that the schema is the one it was written for
grant select on public.schema_version to sentinel_authority, sentinel_worker, sentinel_orders, sentinel_console, sentinel_exporter,
  sentinel_public, board_reader;

-- authority ---------------------------------------------------------------------------------------------------------
grant usage on schema sentinel to sentinel_authority;
grant select on all tables in schema sentinel to sentinel_authority;
revoke select on sentinel.operator_sessions, sentinel.operator_tokens, sentinel.sign_in_attempts, sentinel.sign_in_gate, sentinel.second_factors,
  sentinel.known_devices from sentinel_authority;
revoke select on sentinel.operators from sentinel_authority;
grant select (tenant_id, operator_id, email, role, active, changed_by_another_at, changed_by) on sentinel.operators to sentinel_authority;
grant insert on sentinel.operation_rows, sentinel.operation_states, sentinel.budgets, sentinel.usage_parts, sentinel.approvals,
  sentinel.event_rows, sentinel.decision_terms, sentinel.window_parts, sentinel.feed, sentinel.feed_heads, sentinel.check_reports, sentinel.policies to sentinel_authority;
grant update (status, decision, reason_code, once_live, approval_id, permit_id, permit_expires_at, start_id, started_at,
  start_event_id, start_hash, outcome, report_digest, reported_at, report_event_id, report_hash, in_doubt_since,
  in_doubt_reason, principal_id, holds, total_holds, act_until, reserved_minor, limit_keys, limit_owner, limit_buckets, parts_id, limit_overrides, reservation, counted_at) on sentinel.operation_states to sentinel_authority;
grant update (limits, buckets, window_seconds, caps, held, captured) on sentinel.budgets to sentinel_authority;
grant update (window_seconds, cap_minor, held_minor, captured_minor, override_held_minor, override_captured_minor)
  on sentinel.usage_parts to sentinel_authority;
-- An authority can expire an approval; only the console can decide one.
grant update (status, decided_at) on sentinel.approvals to sentinel_authority;
grant update (position) on sentinel.feed_heads to sentinel_authority;
grant insert, delete, update (open_permits, open_questions, valid_until) on sentinel.keys_at_limit to sentinel_authority;
grant update (transaction_id, restart_at, restored_upto) on sentinel.sequencer to sentinel_authority;
-- An authority counts what it allowed within minutes, and sets halts by itself; only a person can lift one.
grant insert, update (operations, amount_minor), delete on sentinel.velocity to sentinel_authority;
grant insert (tenant_id, halt_id, scope, target, level, reason, set_by, set_at, breaker_key) on sentinel.halts to sentinel_authority;
grant execute on all functions in schema sentinel to sentinel_authority;
revoke execute on function sentinel.resolve_approval, sentinel.resolve_in_doubt, sentinel.set_halt, sentinel.lift_halt,
  sentinel.reset_velocity from sentinel_authority;

-- worker ------------------------------------------------------------------------------------------------------------
grant usage on schema refunds to sentinel_worker;
grant select on all tables in schema refunds to sentinel_worker;
grant insert on refunds.orders, refunds.ledger_entries, refunds.executions, refunds.outbox,
  refunds.workers, refunds.approval_cursors to sentinel_worker;
grant update (status, last_event, event_number, claim_epoch, claimed_by, lease_until, attempts, next_attempt_at, guard_request, operation_id,
  decision_event_id, decision, reason_code, proof_id, approval_id, waiting_for, permit_token, start_id, last_error, waits, act_until, budget_part)
  on refunds.ledger_entries to sentinel_worker;
grant update (account_ref, ordered_at, paid_minor, currency, recorded_at) on refunds.orders to sentinel_worker;
grant update (attempts, next_attempt_at, last_error, acknowledged_at) on refunds.outbox to sentinel_worker;
grant update on refunds.workers, refunds.approval_cursors to sentinel_worker;
grant delete on refunds.workers, refunds.process_requests to sentinel_worker;
grant update (claimed_by, lease_until, finished_at, result) on refunds.process_requests to sentinel_worker;
grant execute on all functions in schema refunds to sentinel_worker;
-- Security definer trigger functions: a role that may execute one could attach it to a table of its own and write any trail.
revoke execute on function refunds.write_ledger_events, refunds.update_order_budgets, refunds.open_order_budgets, refunds.update_order_paid
  from sentinel_worker;

-- worker: the refund workflow's facts and trails
grant insert on refunds.step_trails, refunds.shared_steps, refunds.order_flags, refunds.blacklist, refunds.proof_images, refunds.orders_taken
  to sentinel_worker;
grant update (since, closed_at) on refunds.order_flags to sentinel_worker;
grant update (recognised, recognised_by) on refunds.proof_images to sentinel_worker;
grant update (delivered_at, shipping_fee_minor, item_paid_minor, price_now_minor, note, payment_ref) on refunds.orders to sentinel_worker;

-- console -----------------------------------------------------------------------------------------------------------
grant usage on schema sentinel, refunds to sentinel_console;
grant select on all tables in schema sentinel to sentinel_console;
-- All columns but the permit token and the contact: the token is a bearer token, and the console only shows rows.
grant select (tenant_id, ledger_entry_id, refund_id, agent_id, action, status, last_event, event_number, amount_minor, currency, idempotency_key,
  channel, scenario, account_ref, source, order_ref, budget_part, requested_at, reason, risk, redaction_status, claim_epoch, claimed_by,
  lease_until, attempts, next_attempt_at, guard_request, operation_id, decision_event_id, decision, reason_code, proof_id,
  approval_id, waiting_for, start_id, last_error, created_at, updated_at, mode, language, waits) on refunds.ledger_entries to sentinel_console;
grant select on refunds.orders, refunds.order_budgets, refunds.executions, refunds.outbox, refunds.ledger_events, refunds.step_trails, refunds.shared_steps, refunds.trails,
  refunds.workers, refunds.process_requests, refunds.transitions, refunds.defaults to sentinel_console;
grant insert on refunds.process_requests, refunds.defaults to sentinel_console;
grant insert on sentinel.tenants, sentinel.operator_sessions, sentinel.operator_tokens,
  sentinel.sign_in_attempts, sentinel.approval_votes, sentinel.halts, sentinel.event_rows to sentinel_console;
-- For a person's change of their own password only; all other changes of people and keys go through the functions of protected_changes.sql.
grant update (password_hash, password_one_time, password_used_at) on sentinel.operators to sentinel_console;
grant update (last_seen_at, revoked_at, stepped_up_at, said), delete on sentinel.operator_sessions to sentinel_console;
grant update (revoked_at) on sentinel.operator_tokens to sentinel_console;
grant update (status, decided_at, decided_by, reason) on sentinel.approvals to sentinel_console;
grant update (lifted_at, lifted_by) on sentinel.halts to sentinel_console;
-- To withdraw a request that no worker has answered.
grant update (finished_at, result) on refunds.process_requests to sentinel_console;
-- Resolving changes an operation's state and its held budget, but the functions never change a permit or set a decision to ALLOW.
-- "Not executed" is a person's decision: the role of a program that answers starts can neither set it nor take it back.
grant update (status, decision, reason_code, once_live, outcome, in_doubt_since, in_doubt_reason, not_executed_at, reservation)
  on sentinel.operation_states to sentinel_console;
grant update (held, captured) on sentinel.budgets to sentinel_console;
grant update (held_minor, captured_minor, override_held_minor, override_captured_minor) on sentinel.usage_parts to sentinel_console;
grant update (succeeded, password_right), delete on sentinel.sign_in_attempts to sentinel_console;
grant update (only_row) on sentinel.sign_in_gate to sentinel_console;
grant execute on function sentinel.resolve_approval, sentinel.resolve_in_doubt, sentinel.set_halt, sentinel.lift_halt,
  sentinel.insert_halt, sentinel.holds_halt_lock, sentinel.append_event, sentinel.append_body, sentinel.canonical, sentinel.sha256_text,
  sentinel.hash_bytes, sentinel.pack_text, sentinel.owned_keys, sentinel.once_folded, sentinel.utc_text, sentinel.expire_approval, sentinel.settle_usage,
  sentinel.settle_slots, sentinel.slots_added, sentinel.is_within_caps, sentinel.policy_of, sentinel.limit_of, sentinel.subject_of,
  sentinel.halt_lock, sentinel.halt_over, sentinel.halted_agent, sentinel.is_requester, sentinel.counted_votes, sentinel.person_of,
  sentinel.asked_in_evidence to sentinel_console;
-- The console may take only the locks that its own work needs.
revoke execute on function sentinel.take_locks, sentinel.wait_for_lock, sentinel.wait_until, sentinel.operators_lock from sentinel_console;
revoke execute on function sentinel.take_operators_lock, sentinel.take_tenants_lock, sentinel.take_held_locks, sentinel.take_halt_lock
  from sentinel_authority;
grant execute on function sentinel.take_halt_lock, sentinel.take_held_locks, sentinel.take_operators_lock, sentinel.take_tenants_lock
  to sentinel_console;
grant execute on function refunds.default_tenant, refunds.retry_refusal to sentinel_console;

-- Lifting a halt deletes the breaker's counts.
grant delete on sentinel.velocity to sentinel_console;
grant execute on function sentinel.reset_velocity to sentinel_console;

-- Figures for the console's first page: it samples them, and deletes samples that are too old for any chart.
grant insert, delete on sentinel.gauge_samples to sentinel_console;

-- public board --------------------------------------------------------------------------------------------------------
grant usage on schema sentinel to board_reader;
grant select on sentinel.public_proofs, sentinel.public_feed, sentinel.public_halts, sentinel.public_tenants to board_reader;
grant execute on function sentinel.pack_text, sentinel.utc_text to board_reader;

-- confirm cards -------------------------------------------------------------------------------------------------------
-- A worker opens cards and sends links, by functions and delivery columns; it cannot answer for a customer.
revoke execute on function refunds.answer_confirmation from sentinel_worker;
grant update (delivered_at, delivery_attempts, next_delivery_at, last_delivery_error) on refunds.confirmations to sentinel_worker;
-- The console shows a card and whether its link was sent; it does not need the contact that the link was sent to.
grant select (tenant_id, confirmation_id, ledger_entry_id, digest, order_ref, channel, scenario, amount_minor, currency, language,
  status, created_at, expires_at, answered_at, delivered_at, delivery_attempts, last_delivery_error)
  on refunds.confirmations to sentinel_console;
grant execute on function refunds.answer_confirmation, refunds.entry_is_open to sentinel_console;
-- The public's listener does the same with a login of its own, without operators' rights: an attacker who takes that program over can
-- decide no approval.
grant usage on schema refunds, sentinel to sentinel_public;
grant select (tenant_id, confirmation_id, ledger_entry_id, digest, order_ref, channel, scenario, amount_minor, currency, language,
  status, created_at, expires_at, answered_at) on refunds.confirmations to sentinel_public;
grant execute on function refunds.answer_confirmation, refunds.entry_is_open to sentinel_public;
-- For the board that the listener serves: the secret of the public ids, and the actions that a policy names.
grant select on sentinel.public_id_secret to sentinel_public;
grant select (policy_digest, canonical) on sentinel.policies to sentinel_public;

-- questions to a person ------------------------------------------------------------------------------------------------
-- Where a person handled it by hand. No role can change what a question offers (offers_approve).
grant update (handled_reference) on sentinel.approvals to sentinel_console;
grant update (permit_for_person) on sentinel.operation_states to sentinel_authority;

-- switches ------------------------------------------------------------------------------------------------------------
-- Only operators turn switches on and record launch-gate reports. An authority may turn switches off, and records the policies in force.
revoke execute on function sentinel.turn_switch_on, sentinel.record_gate_report from sentinel_authority;
grant insert, delete, update (policy_digest, since) on sentinel.policies_in_force to sentinel_authority;
grant insert, update (is_on, canary_percent, changed_at, changed_by, reason, proven_after) on sentinel.switches to sentinel_authority, sentinel_console;
grant insert on sentinel.gate_reports to sentinel_console;
grant execute on function sentinel.turn_switch_on, sentinel.turn_switch_off, sentinel.record_gate_report, sentinel.gate_refusal,
  sentinel.gate_report_max_age to sentinel_console;

-- effects in outside systems --------------------------------------------------------------------------------------------
-- A worker records what it is about to do and what became of it; no role can change what an effect is, or delete one.
grant insert on refunds.effects to sentinel_worker;
grant update (state, system_reference, last_error, claim_epoch, tries, tried_at, next_attempt_at, updated_at, payment_ref)
  on refunds.effects to sentinel_worker;
grant select on refunds.effects, refunds.effect_transitions to sentinel_console;

-- wrong executions ------------------------------------------------------------------------------------------------------
-- A worker records what it finds, and cannot change or delete it.
grant insert on refunds.wrong_executions to sentinel_worker;
grant insert, update (looked_to) on refunds.reconcile_cursors to sentinel_worker;
grant select on refunds.wrong_executions to sentinel_console;

-- settlement systems afterwards -------------------------------------------------------------------------------------------
-- The intake stores signed events; the worker looks the payment up and records what it finds; no role can change or delete a finding.
grant update (looked_at) on refunds.settlement_events to sentinel_worker;
grant insert on refunds.settlement_findings to sentinel_worker;
grant select on refunds.settlement_findings to sentinel_console;

-- order review ----------------------------------------------------------------------------------------------------------
-- The intake records what it is about to do and what became of it. It can change neither the reviewed order nor an analyst's decision.
grant usage on schema orders, refunds to sentinel_orders;
grant select on refunds.defaults to sentinel_orders;
grant execute on function refunds.tenant_label, refunds.record_settlement_event to sentinel_orders;
grant select on all tables in schema orders to sentinel_orders;
grant insert on orders.reviews, orders.deliveries, orders.effects, orders.approval_cursors, orders.alerts,
  orders.simulated_shop to sentinel_orders;
grant update (status, lane, last_event, epoch, holder, lease_until, attempts, next_attempt_at, last_error, band, signals, model,
  score_ms, guard_params, operation_id, decision_event_id, decision, reason_code, proof_id, approval_id, start_id,
  decided_at, due_at) on orders.reviews to sentinel_orders;
grant delete on orders.deliveries to sentinel_orders;
grant update (state, tries, tried_at, next_attempt_at, shop_reference, last_error, report_due_at, report_tries, reported_at,
  report_error) on orders.effects to sentinel_orders;
grant update (attempts, next_attempt_at, last_error, delivered_at, delivered_by) on orders.alerts to sentinel_orders;
grant update (since) on orders.approval_cursors to sentinel_orders;
grant execute on all functions in schema orders to sentinel_orders;
revoke execute on function orders.write_events, orders.write_first_events from sentinel_orders; -- as refunds.write_ledger_events

-- order review: analysts ------------------------------------------------------------------------------------------------
-- The console sees the state and the signals of orders, but no customer and no start id; it can change them only through one function.
revoke execute on function orders.resolve_review, orders.file_refund, orders.resolve_returned, orders.refund_refusal,
  orders.record_analyst_decision, orders.request_hold, orders.abandon_fulfilment, orders.refund_is_live, orders.placed_at,
  orders.question_is_refused, orders.hold_unasked, orders.has_live_refund, orders.retry_refund, orders.refund_is_undecided,
  orders.has_undecided_refund, orders.refund_key_is_taken, orders.refund_operation, orders.refund_in_doubt,
  orders.try_that_holds_refund
  from sentinel_orders;
grant usage on schema orders to sentinel_console;
grant select (tenant_id, review_id, source, order_id, amount_minor, currency, status, lane, last_event, attempts, next_attempt_at,
  last_error, band, signals, model, score_ms, operation_id, decision_event_id, decision, reason_code, proof_id, approval_id,
  decided_at, due_at, resolution, resolved_by, resolution_reason, resolved_at, received_at, updated_at)
  on orders.reviews to sentinel_console;
grant select on orders.transitions, orders.events, orders.effects, orders.alerts, orders.analyst_decisions, orders.refunds to sentinel_console;
-- For the invariants; without the text of answers (response_body) and of requests to the shop (told).
grant select (tenant_id, source, order_id, review_id, response_status, is_final, recorded_at, expires_at) on orders.deliveries
  to sentinel_console;
grant select (tenant_id, source, order_id, status, operation_id, done_at) on orders.simulated_shop to sentinel_console;
grant execute on function orders.resolve_review, orders.refund_name, orders.has_live_refund, orders.has_undecided_refund,
  orders.refund_in_doubt to sentinel_console;

-- sign-in and the second factor -----------------------------------------------------------------------------------------
grant update (last_signed_in_at) on sentinel.operators to sentinel_console;
grant insert, delete, update (secret, last_step, created_at, confirmed_at) on sentinel.second_factors to sentinel_console;
revoke execute on function sentinel.operators_lock, sentinel.add_operator, sentinel.change_operator, sentinel.has_second_administrator,
  sentinel.add_key, sentinel.rotate_key, sentinel.revoke_key, sentinel.make_change, sentinel.make_approved_change, sentinel.request_change,
  sentinel.is_change_pending from sentinel_authority;
grant execute on function sentinel.request_change, sentinel.make_approved_change, sentinel.is_change_pending,
  sentinel.is_protected_change, sentinel.may_be_handled, sentinel.is_collectable, sentinel.makes_secret to sentinel_console;

-- approvals: in which order they are looked at, and how full the limits are that one would use ---------------------------
grant execute on function sentinel.risk_rank, sentinel.limit_states, sentinel.part_of, sentinel.first_part_of to sentinel_console;

-- requests of the Agent Approval Protocol ----------------------------------------------------------------------------------
-- The authority stores what a client submitted and what it did with it; operators see the agent's own words beside the question.
grant insert on sentinel.aap_requests to sentinel_authority;
grant update (operation_id, cancelled_at, consume_key, consumed_at, decided_at, expires_at, outcome, outcome_note, reported_at)
  on sentinel.aap_requests to sentinel_authority;
grant select (tenant_id, operation_id, reasoning, created_at) on sentinel.aap_requests to sentinel_console;

-- keys: when each was last used ------------------------------------------------------------------------------------------
-- The only column of a key that an authority writes.
grant update (last_used_at) on sentinel.agent_keys to sentinel_authority;

-- browsers that are known ------------------------------------------------------------------------------------------------
grant insert, delete, update (last_signed_in_at) on sentinel.known_devices to sentinel_console;

-- identifiers of the public ----------------------------------------------------------------------------------------------
-- The console generates public ids and stores what each stands for, and cannot change that. The authority needs none of these tables.
revoke select on sentinel.public_id_secret, sentinel.public_ids, sentinel.public_id_marks from sentinel_authority;
grant insert on sentinel.public_ids, sentinel.public_id_marks to sentinel_console;
grant update (position) on sentinel.public_id_marks to sentinel_console;

-- the sender of events -----------------------------------------------------------------------------------------------------
-- The sender reads what it sends: events, and of an approval what its card shows; no operation's request. It reads whole events, so also
-- what people wrote in them (reasons of votes, halts and switches, evidence for a resolution), of which it sends nothing (docs/events.md).
grant usage on schema sentinel to sentinel_exporter;
grant select on sentinel.tenants, sentinel.feed, sentinel.feed_heads, sentinel.events, sentinel.event_endpoints, sentinel.dead_letters
  to sentinel_exporter;
grant select (tenant_id, approval_id, operation_id, agent_id, action, amount_minor, currency, reasons, required_role, required_people,
  created_at, expires_at, decided_at) on sentinel.approvals to sentinel_exporter;
grant select (tenant_id, operation_id, not_executed_at) on sentinel.operation_states to sentinel_exporter;
grant select (policy_digest, policy_id) on sentinel.policies to sentinel_exporter;
grant select (tenant_id, event_id, trace) on sentinel.event_rows to sentinel_exporter;
grant update (position, global_position, epoch, lease_until, attempts, first_failed_at, next_attempt_at, last_error, delivered_at)
  on sentinel.event_endpoints to sentinel_exporter;
grant insert (tenant_id, endpoint_id, event_id, feed_tenant_id, position, attempts, last_error),
  update (attempts, last_error, resend_asked_at, lease_until, delivered_at) on sentinel.dead_letters to sentinel_exporter;
grant execute on function sentinel.open_endpoint, sentinel.keep_served, sentinel.disable_gone_endpoint, sentinel.pack_text, sentinel.utc_text to sentinel_exporter;
-- For operators who ask for a retry of a dead letter, or discard it; where events are sent is changed through request_change only.
grant update (resend_asked_at, resend_asked_by, discarded_at, discarded_by, discarded_reason) on sentinel.dead_letters to sentinel_console;
grant execute on function sentinel.feed_head, sentinel.discard_dead_letters to sentinel_console;
revoke execute on function sentinel.add_endpoint, sentinel.change_endpoint, sentinel.open_endpoint, sentinel.disable_gone_endpoint,
  sentinel.keep_served, sentinel.discard_dead_letters from sentinel_authority;

-- what the server itself gives to everybody ------------------------------------------------------------------------------
-- An attacker who takes a role over must not be able to stop the other programs: the role cannot take the authority's advisory locks
-- (anyone can guess their numbers), cannot store anything in large objects or temporary tables, and opens no more connections than its
-- program needs.
do $$
declare
  fn regprocedure;
begin
  execute format('revoke temporary, create on database %I from public', current_database());
  revoke create on schema public from public;
  for fn in select oid from pg_proc where pronamespace = 'pg_catalog'::regnamespace
      and proname ~ '^(pg_(try_)?advisory_|lo_|loread$|lowrite$)' loop
    -- Only if `public` has the privilege: otherwise a login that is no superuser would get an error. If `public` has it, such a login's
    -- revoke has no effect, and the doctor reports it.
    if has_function_privilege('public', fn, 'execute') then
      execute format('revoke execute on function %s from public', fn);
    end if;
    if fn::text ~ 'advisory' and not (has_function_privilege('sentinel_owner', fn, 'execute') and has_function_privilege('sentinel_authority', fn, 'execute')) then
      execute format('grant execute on function %s to sentinel_owner, sentinel_authority', fn);
    end if;
  end loop;
end $$;

-- Connection limits: a program's own pools and some connections for commands, in total less than the embedded server's 216. A role that was
-- taken over leaves the others their connections, also on a server with 100. Set once: a limit that you set with `alter role ... connection
-- limit` stays. A limit of -1 counts as not set and is set again; for no limit set a large number. A login of yours needs its own limit.
do $$
declare
  wanted record;
begin
  for wanted in select * from (values ('sentinel_authority', 96), ('sentinel_console', 24), ('sentinel_worker', 24),
                                      ('sentinel_orders', 40), ('board_reader', 12), ('sentinel_exporter', 8), ('sentinel_public', 8)) as w (role, connections)
                where exists (select from pg_roles where rolname = w.role and rolconnlimit = -1) loop
    begin
      execute format('alter role %I connection limit %s', wanted.role, wanted.connections);
    exception when internal_error then null;                         -- a concurrent migration set it
    end;
  end loop;
end $$;

-- The settings that a program sends at the start of a connection are set on its role too, because a transaction pooler does not pass them
-- on. A login of yours needs the same settings, and `alter role ... set role = sentinel_...` (docs/settings.md).
do $$
declare
  program text;
  wanted record;
begin
  foreach program in array array['sentinel_authority', 'sentinel_worker', 'sentinel_orders', 'sentinel_console', 'sentinel_exporter', 'sentinel_public', 'board_reader'] loop
    for wanted in
      select * from (values ('statement_timeout', '5s'), ('lock_timeout', '2s'), ('idle_in_transaction_session_timeout', '10s'),
                            ('default_transaction_isolation', 'read committed'), ('timezone', 'UTC')) as w (name, meant)
      where not exists (select from pg_db_role_setting s join pg_roles r on r.oid = s.setrole, unnest(s.setconfig) as one
                        where r.rolname = program and s.setdatabase = 0 and lower(split_part(one, '=', 1)) = w.name)
    loop
      begin
        execute format('alter role %I set %I = %L', program, wanted.name, wanted.meant);
      exception when internal_error or unique_violation then null;   -- a concurrent migration set it
      end;
    end loop;
  end loop;
end $$;
