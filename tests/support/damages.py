"""Damage as somebody with all rights over the database does it, and what must be said of it: a table, a line each.

The SQL runs as the superuser with triggers and foreign keys off. `{names}` are ids of `honest_world`, by what they are of.
"""

from __future__ import annotations

from dataclasses import dataclass

PAID = "from refunds.executions e where e.ledger_entry_id = 'paid'"
LIVE_BUDGET = """update sentinel.budgets u set held = sentinel.slots_added(u.held, array_fill(-r.amount_minor, array[cardinality(u.held)]))
  from sentinel.reservations r
  where r.permit_id = '{live_permit}' and u.policy_id || '/' || u.limits[1] || '|' || u.subject = any (r.limit_keys) and u.buckets[1] = any (r.buckets);"""
PAID_BUDGET = """update sentinel.budgets u set captured = sentinel.slots_added(u.captured, array_fill(-r.amount_minor, array[cardinality(u.held)]))
  from sentinel.reservations r
  where r.operation_id = '{paid}' and u.policy_id || '/' || u.limits[1] || '|' || u.subject = any (r.limit_keys) and u.buckets[1] = any (r.buckets);"""
NO_RESERVATION = """update sentinel.operation_states set reservation = null, reserved_minor = null, limit_keys = null, limit_owner = null, limit_buckets = null, parts_id = null
  where """
TEN_TIMES = """update refunds.ledger_entries set amount_minor = amount_minor * 10 where ledger_entry_id = 'paid';
  update refunds.executions set amount_minor = amount_minor * 10 where ledger_entry_id = 'paid';"""
ALSO_THERE = "update sentinel.operation_rows set amount_minor = amount_minor * 10 where operation_id = '{paid}';"
BACK_TO_NEW = """delete from refunds.executions where ledger_entry_id = 'paid'; delete from refunds.outbox where ledger_entry_id = 'paid';
  update refunds.ledger_entries set status = 'NEW', last_event = null, event_number = 0, claim_epoch = 0, start_id = null
  where ledger_entry_id = 'paid';"""
NO_TRAIL = "delete from refunds.ledger_events where ledger_entry_id = '{entry}';"
NO_ROW = "delete from refunds.ledger_entries where ledger_entry_id = 'waits';"
NEWEST = """delete from sentinel.feed where event_id = '{newest}'; delete from sentinel.event_rows where event_id = '{newest}';"""
REHASHED = "update sentinel.event_rows set hash = sha256(convert_to(body, 'UTF8')) where event_id = '{event}';"


def rewritten(event: str, was: str, becomes: str) -> str:
    """Body and hash of an event, changed together."""
    there = "'{" + event + "}'"
    return (
        f"update sentinel.event_rows r set body = regexp_replace(e.body, '{was}', '{becomes}') from sentinel.events e"
        f" where e.event_id = {there} and r.event_id = {there};" + REHASHED.replace("'{event}'", there)
    )


RECEIVER = """insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, url, position, global_position)
  select '{tenant}', '{approval}', 'webhook', 'https://siem.example', position, 0 from sentinel.feed_heads where tenant_id = '{tenant}';"""
DEAD = """insert into sentinel.dead_letters (tenant_id, endpoint_id, event_id, feed_tenant_id, position, attempts, last_error)
  select tenant_id, '{approval}', event_id, tenant_id, position, 3, 'http_500' from sentinel.feed where event_id = '{paid_event}';"""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done, and which check must name which id; "checkpoints" is the comparison with the file outside."""

    name: str
    sql: str
    check: str
    names: str


SEVENTEEN = [
    Damage("a budget freed consistently", LIVE_BUDGET + "update sentinel.operation_states set reservation = 'released' where permit_id = '{live_permit}'", "reservation_freed", "{live_permit}"),
    Damage("a reservation deleted", LIVE_BUDGET + NO_RESERVATION + "permit_id = '{live_permit}'", "reservation_missing", "{live}"),
    Damage("a cap raised", "update sentinel.budgets set caps[1] = caps[1] * 10 where policy_id || '/' || limits[1] || '|' || subject = '{limit_key}'", "cap_other_than_policy", "{limit_key}"),
    Damage("an execution deleted and its row NEW again", BACK_TO_NEW, "ledger_trail_differs", "ledger entry paid"),
    Damage("an amount times ten on both sides", TEN_TIMES + ALSO_THERE, "request_differs", "{paid}"),
    Damage("an execution before its start", "update refunds.executions set executed_at = executed_at - interval '1 hour' where execution_id = '{execution}'", "execution_before_start", "{execution}"),
    Damage("a foreign start id", "update refunds.executions set start_id = '{other_start}' where execution_id = '{execution}';"
           "update refunds.ledger_entries set start_id = '{other_start}' where ledger_entry_id = 'paid'", "execution_of_another", "{execution}"),
    Damage("a state that contradicts its pack", "update sentinel.operation_states set status = 'allowed', decision = 'ALLOW', reason_code = 'within_limits' where operation_id = '{denied}'", "decision_differs", "{denied}"),
    Damage("a request's text altered", "update sentinel.operation_rows set params = replace(params, 'acct_', 'acct-') where operation_id = '{paid}'", "request_altered", "{paid}"),
    Damage("once_live cleared", "update sentinel.operation_states set once_live = false where operation_id = '{paid}'", "once_cleared", "{paid}"),
    Damage("an approval by a viewer", "update sentinel.approval_votes set operator_id = '{viewer}' where approval_id = '{approval}'", "vote_beyond_role", "{approval}"),
    Damage("the newest event and its position deleted", NEWEST, "position_gaps", "{tenant}"),
    Damage("body and hash rewritten together", rewritten("paid_event", '"latency_ms":\\d+', '"latency_ms":77777'), "checkpoints", "{paid_event}"),
    Damage("the trail of a row deleted", NO_TRAIL.replace("{entry}", "paid"), "ledger_trail_differs", "ledger entry paid"),
    Damage("a row of the ledger deleted", NO_ROW, "ledger_entry_missing", "ledger entry waits"),
    Damage("a report parked for ever", "update refunds.outbox set acknowledged_at = null, next_attempt_at = 'infinity' where ledger_entry_id = 'paid'", "report_parked", "ledger entry paid"),
    Damage("an order over-refunded", "update refunds.orders set paid_minor = 1 where order_ref = 'ord_paid'", "order_over_refunded", "order ord_paid"),
]  # fmt: skip
"""What went unseen when somebody tried."""

SIX = [
    Damage("budget held that nobody holds", "update sentinel.budgets set held[1] = held[1] + 1 where policy_id || '/' || limits[1] || '|' || subject = '{limit_key}'", "held_differs", "{limit_key}"),
    Damage("captured budget lowered", PAID_BUDGET, "captured_differs", "account_day"),
    Damage("a body altered", "update sentinel.event_rows r set body = replace(e.body, 'ALLOW', 'DENY') from sentinel.events e where e.event_id = r.event_id and r.event_id = '{paid_event}'", "proof_altered", "{paid_event}"),
    Damage("a hole in the feed", "delete from sentinel.feed where event_id = '{paid_event}'", "feed_without_position", "{paid_event}"),
    Damage("an execution deleted", "delete from refunds.executions where ledger_entry_id = 'paid'", "executed_without_execution", "ledger entry paid"),
    Damage("an execution nobody started", "update sentinel.operation_states set start_event_id = gen_random_uuid() where operation_id = '{paid}'", "executions_without_start", "{execution}"),
]  # fmt: skip
"""What was seen then too."""

BEYOND = [
    Damage("a budget deleted of which nothing is held", "delete from sentinel.budgets where 0 = all (held)", "captured_differs", "account_day"),
    Damage("a value of a body altered", "update sentinel.event_rows set decision = 'DENY' where event_id = '{paid_event}'", "proof_altered", "{paid_event}"),
    Damage("the words that bodies share altered", "update sentinel.decision_terms set pack_template = replace(pack_template, 'hash-only proof', 'signed proof')", "proof_altered", "{paid_event}"),
    Damage("the policy that terms name altered", "update sentinel.decision_terms set policy_digest = 'sha256:' || repeat('0', 64)", "decision_differs", "{paid}"),
    Damage("the limits that states share altered", "update sentinel.decision_terms set limit_keys = limit_keys[2:] where limit_keys[2] is not null", "captured_differs", "account_24h"),
    Damage("the window parts that states share altered", "update sentinel.window_parts set buckets[1] = buckets[1] - interval '1 day'", "held_differs", "account_day"),
    Damage("the action that terms name altered", "update sentinel.decision_terms set action = 'refund.other'", "request_differs", "{paid}"),
    Damage("the words that bodies share deleted", "delete from sentinel.decision_terms", "proof_altered", "{paid_event}"),
    Damage("a captured reservation deleted with its budget", PAID_BUDGET + NO_RESERVATION + "operation_id = '{paid}'", "reservation_missing", "{paid}"),
    Damage("a reservation of a smaller amount", LIVE_BUDGET.replace("- r.amount_minor", "- r.amount_minor + 1") + "update sentinel.operation_states set reserved_minor = 1 where permit_id = '{live_permit}'", "reservation_missing", "{live}"),
    Damage("an execution, its row's start and its trail deleted", BACK_TO_NEW + NO_TRAIL.replace("{entry}", "paid"), "execution_missing", "ledger entry paid"),
    Damage("an amount times ten in the ledger and its execution", TEN_TIMES, "executions_other_than_permitted", "{execution}"),
    Damage("an amount times ten and the request with its digest", TEN_TIMES + ALSO_THERE + "update sentinel.operation_rows set params = replace(params, '400', '4000') where operation_id = '{paid}';"
           "update sentinel.operation_rows r set digest = sha256(convert_to(o.request, 'UTF8')) from sentinel.operations o where o.operation_id = r.operation_id and r.operation_id = '{paid}'", "request_altered", "{paid}"),
    Damage("a status that its decision does not give", "update sentinel.operation_states set status = 'allowed' where operation_id = '{denied}'", "status_differs", "{denied}"),
    Damage("a denial rewritten to an ALLOW, pack and all", "update sentinel.operation_states set status = 'allowed', decision = 'ALLOW' where operation_id = '{denied}';"
           + rewritten("denied_event", '"DENY"', '"ALLOW"'), "checkpoints", "{denied_event}"),
    Damage("an outcome turned round", "update sentinel.operation_states set outcome = 'error' where operation_id = '{paid}'", "outcome_without_event", "{paid}"),
    Damage("the event of a start deleted", "delete from sentinel.event_rows where event_id = (select start_event_id from sentinel.operation_states where operation_id = '{paid}')", "start_without_event", "{paid}"),
    Damage("an operation deleted", "delete from sentinel.operation_rows where operation_id = '{live}'", "operation_without_state", "{live}"),
    Damage("a voice that nobody gave", "insert into sentinel.approval_votes select tenant_id, approval_id, '{admin}', 'approve', reason, via, clock_timestamp() from sentinel.approval_votes where approval_id = '{approval}'", "vote_without_event", "{approval}"),
    Damage("an approval nobody gave", "update sentinel.approvals set status = 'approved', decided_at = clock_timestamp() where approval_id = '{open_approval}'", "approval_without_quorum", "{open_approval}"),
    Damage("a change of people done that nobody approved", "insert into sentinel.protected_changes select tenant_id, approval_id, '-', null, now(), 'done'"
           " from sentinel.approvals where approval_id = '{open_approval}'", "change_without_approval", "{open_approval}"),
    Damage("a tool call consumed that was never started", "insert into sentinel.aap_requests (tenant_id, request_id, principal_id, idempotency_key, agent_id, submission, question,"
           " operation_id, created_at, deadline_at, consume_key, consumed_at, decided_at, expires_at) select tenant_id, approval_id, principal_id, 'k', agent_id, '{{}}', '{{}}', operation_id,"
           " created_at, expires_at, 'c', created_at, created_at, expires_at from sentinel.approvals where approval_id = '{open_approval}'", "aap_consumed_not_started", "{open_approval}"),
    Damage("a question about another amount", "update sentinel.approvals set amount_minor = 1 where approval_id = '{open_approval}'", "approval_of_another", "{open_approval}"),
    Damage("a velocity breaker's count lowered", "update sentinel.velocity set amount_minor = amount_minor - 1", "velocity_differs", "retail-refund/agent_velocity"),
    Damage("a velocity breaker's counts deleted", "delete from sentinel.velocity", "velocity_differs", "retail-refund/agent_velocity"),
    Damage("more let pass than a velocity breaker declares", "update sentinel.velocity set operations = operations + 300", "velocity_exceeded", "retail-refund/agent_velocity"),
    Damage("a halt lifted by nobody", "update sentinel.halts set lifted_at = clock_timestamp(), lifted_by = 'x' where lifted_at is null", "halts_in_evidence", "halt "),
    Damage("a halt deleted", "delete from sentinel.halts", "halts_in_evidence", "halt "),
    Damage("a halt that covers another agent than was said", "update sentinel.halts set target = 'somebody' where halt_id = '{halt}'", "halts_in_evidence", "{halt}"),
    Damage("a halt that only pauses", "update sentinel.halts set level = 'pause' where halt_id = '{halt}'", "halts_in_evidence", "{halt}"),
    Damage("a switch for more accounts than was said", "update sentinel.switches set canary_percent = 100 where name = 'retail.quality'", "flips_in_evidence", "retail.quality"),
    Damage("a switch as it is by default again", "delete from sentinel.switches where name = 'retail.quality'", "flips_in_evidence", "retail.quality"),
    Damage("a person who was deactivated and is active again by nobody", "update sentinel.operators set active = true where operator_id = '{deactivated}'", "deactivations_in_evidence", "{deactivated}"),
    Damage("a key that was revoked and works again", "update sentinel.agent_keys set revoked_at = null where key_id = '{revoked_key}'", "keys_in_evidence", "{revoked_key}"),
    Damage("a key that does not run out as was said", "update sentinel.agent_keys set expires_at = null where key_id = '{rotated_key}'", "keys_in_evidence", "{rotated_key}"),
    Damage("a key that nobody issued", "insert into sentinel.agent_keys (tenant_id, key_id, principal_id, key_hash, hint, scopes) select tenant_id, '{execution}', '{execution}', '', hint, scopes"
           " from sentinel.agent_keys where key_id = '{revoked_key}'", "keys_in_evidence", "{execution}"),
    Damage("a webhook with another address", "update sentinel.event_endpoints set url = 'https://siem.example.net' where endpoint_id = '{webhook}'", "webhooks_in_evidence", "{webhook}"),
    Damage("a webhook that gets more than was said", "update sentinel.event_endpoints set event_types = '{}' where endpoint_id = '{webhook}'", "webhooks_in_evidence", "{webhook}"),
    Damage("a webhook that was disabled and gets events again", "update sentinel.event_endpoints set disabled_at = null, disabled_reason = null where endpoint_id = '{webhook}'", "webhooks_in_evidence", "{webhook}"),
    Damage("a webhook that nobody added", RECEIVER, "webhooks_in_evidence", "{approval}"),
    Damage("a person given another role by nobody", "update sentinel.operators set role = 'viewer' where operator_id = '{added}'", "roles_in_evidence", "{added}"),
    Damage("a key that may more than was said", "update sentinel.agent_keys set scopes = scopes || 'invented'::text", "keys_in_evidence", "key "),
    Damage("a key that is another agent's", "update sentinel.agent_keys set agent_id = 'another'", "keys_in_evidence", "key "),
    Damage("a policy's text altered", "update sentinel.policies set canonical = replace(canonical, '30000', '90000') where policy_id = 'retail-refund'", "policy_altered", "retail-refund"),
    Damage("a trail whose shared steps are not there", "update refunds.step_trails set shared_id = 0 where ledger_entry_id = 'paid'", "shared_steps_missing", "ledger entry paid"),
    Damage("a row deleted with all that speaks of it", NO_ROW + NO_TRAIL.replace("{entry}", "waits") + "delete from refunds.step_trails where ledger_entry_id = 'waits'", "operation_without_entry", "ledger entry waits"),
    Damage("a receiver's cursor put beyond the feed", RECEIVER + "update sentinel.event_endpoints set position = position + 1", "export_cursor_beyond_feed", "{approval}"),
    Damage("a receiver's cursor put back before its dead letter", RECEIVER + DEAD + "update sentinel.event_endpoints set position = 0", "dead_letter_not_passed", "{paid_event}"),
    Damage("a dead letter of an event that was never there", RECEIVER + DEAD + "update sentinel.dead_letters set event_id = '{execution}'", "dead_letter_not_passed", "{execution}"),
    Damage("a receiver deleted with its dead letter kept", RECEIVER + DEAD + "delete from sentinel.event_endpoints", "dead_letter_not_passed", "{paid_event}"),
    Damage("the newest event deleted and the count set back", NEWEST + "update sentinel.feed_heads set position = position - 1", "checkpoints", "{newest}"),
    Damage("the event at a position put in another's place", "update sentinel.feed f set position = -f.position where false; update sentinel.feed set event_id = gen_random_uuid() where event_id = '{newest}'", "checkpoints", "{newest}"),
]  # fmt: skip
"""What a person who knows the seventeen would try next."""

DAMAGES = [*SEVENTEEN, *SIX, *BEYOND]
