"""Schemas of answers about what controls agents and tells others: halts, doubts, switches, webhooks, alerts, tokens, the board.

The OpenAPI document is made from these; no answer is checked against them but in tests.
"""

from __future__ import annotations

from marshmallow import Schema, fields
from marshmallow.validate import OneOf

from ops_console.api.case_schemas import AlertViewSchema, MoneySchema
from sentinel.authority.halts import LEVELS, SCOPES

_LIVE = ("halted", "degraded", "active", "idle")


class HaltViewSchema(Schema):
    """A halt; `target` is left out for the scopes global and tenant, `lifted_by` and `lifted_at` while it is in force."""

    halt_id = fields.UUID(required=True)
    scope = fields.String(required=True, validate=OneOf(SCOPES))
    target = fields.String()
    level = fields.String(required=True, validate=OneOf(LEVELS))
    reason = fields.String(required=True)
    set_by = fields.String(required=True)
    set_at = fields.DateTime(required=True)
    lifted_by = fields.String()
    lifted_at = fields.DateTime()


class HaltListSchema(Schema):
    """Halts, newest first."""

    halts = fields.List(fields.Nested(HaltViewSchema), required=True)
    left_out = fields.Boolean(metadata={"description": "With lifted=true: whether there are more lifted halts."})


class HaltSetSchema(Schema):
    """The halt that is in force now; `already`: it was in force before."""

    halt_id = fields.UUID(required=True)
    already = fields.Boolean(required=True)


class HaltLiftedSchema(Schema):
    """The halt that was lifted."""

    halt_id = fields.String(required=True)
    lifted = fields.Boolean(required=True)


class InDoubtViewSchema(Schema):
    """A started operation whose outcome is unknown. `act_until`: until then "not executed" cannot be recorded."""

    operation_id = fields.UUID(required=True)
    idempotency_key = fields.String(required=True)
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    resource = fields.String(required=True)
    amount = fields.Nested(MoneySchema)
    why = fields.String(required=True)
    started_at = fields.DateTime(required=True)
    in_doubt_since = fields.DateTime(required=True)
    in_doubt_reason = fields.String(required=True)
    act_until = fields.DateTime()


class InDoubtPageSchema(Schema):
    """Operations in doubt, the longest in doubt first."""

    in_doubt = fields.List(fields.Nested(InDoubtViewSchema), required=True)
    next_cursor = fields.String()


class InDoubtResolvedSchema(Schema):
    """What was recorded about the operation."""

    operation_id = fields.String(required=True)
    executed = fields.Boolean(required=True)


class GateViewSchema(Schema):
    """A switch's launch gate: whether it is open, or why not; the rest is of its newest report, where there is one."""

    scenario = fields.String(required=True)
    open = fields.Boolean(required=True)
    refusal = fields.String(metadata={"description": "Why it is not open, as a stable name."})
    why = fields.String(metadata={"description": "The same as a sentence."})
    digest_in_force = fields.String(metadata={"description": "The digest of its policy in force."})
    report_id = fields.UUID()
    passed = fields.Boolean()
    policy_digest = fields.String()
    cases = fields.Integer()
    correct = fields.Integer()
    lower_bound_ppm = fields.Integer()
    wrong_executions = fields.Integer()
    not_covered = fields.Integer()
    created_at = fields.DateTime()
    age_seconds = fields.Integer()
    recorded_by = fields.String()


class SwitchViewSchema(Schema):
    """A switch and its last change, if it was changed; `gate` is left out if it needs none."""

    name = fields.String(required=True)
    on = fields.Boolean(required=True)
    canary_percent = fields.Integer(required=True)
    about = fields.String(required=True)
    policy = fields.String()
    changed_at = fields.DateTime()
    changed_by = fields.String()
    reason = fields.String()
    first_canary = fields.Integer(required=True)
    gate = fields.Nested(GateViewSchema)


class SwitchListSchema(Schema):
    """Every declared switch; none, and a `fault`, where the file of switches cannot be used."""

    switches = fields.List(fields.Nested(SwitchViewSchema), required=True)
    fault = fields.String()


class SwitchChangeSchema(Schema):
    """The switch's state now; `already`: it was in that state before."""

    name = fields.String(required=True)
    on = fields.Boolean(required=True)
    canary_percent = fields.Integer(required=True)
    already = fields.Boolean(required=True)


class EndpointViewSchema(Schema):
    """A receiver of events. `behind`: events after its position; no `event_types` means every type."""

    endpoint_id = fields.UUID(required=True)
    kind = fields.String(required=True, validate=OneOf(["webhook", "decision_log", "slack", "mail"]))
    url = fields.String()
    event_types = fields.List(fields.String(), required=True)
    behind = fields.Integer(required=True)
    attempts = fields.Integer(required=True)
    failing_since = fields.DateTime()
    next_attempt_at = fields.DateTime()
    last_error = fields.String()
    delivered_at = fields.DateTime()
    disabled_at = fields.DateTime()
    disabled_reason = fields.String(validate=OneOf(["administrator", "gone", "setting"]))
    dead_letters = fields.Integer(required=True)
    created_at = fields.DateTime(required=True)


class EndpointListSchema(Schema):
    """Receivers of events, oldest first."""

    webhooks = fields.List(fields.Nested(EndpointViewSchema), required=True)


class EndpointDisabledSchema(Schema):
    """The webhook that nothing more is sent to."""

    endpoint_id = fields.String(required=True)
    disabled = fields.Boolean(required=True)


class DeadLetterViewSchema(Schema):
    """An event that its receiver did not accept in time. `resend_asked_at`: it is sent again, and that is not done yet."""

    endpoint_id = fields.UUID(required=True)
    url = fields.String()
    event_id = fields.UUID(required=True)
    event = fields.String(required=True)
    operation_id = fields.UUID()
    position = fields.Integer(required=True)
    attempts = fields.Integer(required=True)
    last_error = fields.String(required=True)
    died_at = fields.DateTime(required=True)
    resend_asked_at = fields.DateTime()


class DeadLetterPageSchema(Schema):
    """Dead letters, oldest first."""

    dead_letters = fields.List(fields.Nested(DeadLetterViewSchema), required=True)
    next_cursor = fields.String()


class ResendAskedSchema(Schema):
    """How many dead letters are sent again."""

    asked = fields.Integer(required=True)


class AlertPageSchema(Schema):
    """Alerts about orders, newest first."""

    alerts = fields.List(fields.Nested(AlertViewSchema), required=True)
    next_cursor = fields.String()


class LagSchema(Schema):
    """What waits: the oldest row that is NEW, and reports that the authority has not received."""

    oldest_new_seconds = fields.Float(required=True)
    open_reports = fields.Integer(required=True)
    oldest_report_seconds = fields.Float(required=True)


class AgentStatusSchema(Schema):
    """A refund agent: its worker, the strictest halt that covers it, its last decision, and its rows by status."""

    agent_id = fields.String(required=True)
    status = fields.String(required=True, validate=OneOf(["running", "authority_unreachable", "not_running"]))
    halt = fields.String(required=True, validate=OneOf(["OK", "PAUSE", "KILL"]))
    last_action = fields.String(required=True, allow_none=True)
    last_decision = fields.String(required=True, allow_none=True)
    redaction_status = fields.String(required=True)
    counts = fields.Dict(keys=fields.String(), values=fields.Integer(), required=True)
    at_least = fields.List(
        fields.String(), required=True, metadata={"description": "The statuses that have more rows than were searched."}
    )
    lag = fields.Nested(LagSchema, required=True)


class ProcessedSchema(Schema):
    """What the worker did: how many rows it processed, one or none, and the row, or why there was none."""

    processed = fields.Integer()
    ledger_entry_id = fields.String()
    refund_id = fields.String()
    amount = fields.Nested(MoneySchema)
    decision = fields.String(allow_none=True)
    reason_code = fields.String(allow_none=True)
    status = fields.String()
    next = fields.String(metadata={"description": "What happens to the row next, in words."})
    failed = fields.Boolean()
    detail = fields.String(allow_none=True)


class TokenMadeSchema(Schema):
    """A token that was just made; `token` is shown only this once."""

    token = fields.String(required=True)
    token_id = fields.UUID(required=True)
    label = fields.String(required=True)
    expires_at = fields.DateTime(required=True)


class TokenViewSchema(Schema):
    """A token without its secret; `revoked_at` is null while it is not revoked."""

    token_id = fields.UUID(required=True)
    label = fields.String(required=True)
    created_at = fields.DateTime(required=True)
    expires_at = fields.DateTime(required=True, allow_none=True)
    revoked_at = fields.DateTime(required=True, allow_none=True)


class TokenListSchema(Schema):
    """A person's tokens, oldest first."""

    tokens = fields.List(fields.Nested(TokenViewSchema), required=True)


class PublicPackSchema(Schema):
    """A public proof pack. `hash` is that of the pack without it (docs/CONTRACT.md §5)."""

    proof_id = fields.String(required=True)
    ledger_entry_id = fields.String()
    refund_id = fields.String()
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    amount = fields.Nested(MoneySchema)
    decision = fields.String(required=True)
    policy_label = fields.String()
    policy_version = fields.String()
    policy_digest = fields.String(required=True)
    reason_code = fields.String(required=True)
    operation_digest = fields.String(required=True)
    facts_commitment = fields.String(required=True)
    decided_at = fields.String(required=True)
    latency_ms = fields.Integer(required=True)
    proof_status = fields.String(required=True)
    signature_status = fields.String(required=True)
    redaction_status = fields.String(required=True)
    hash = fields.String(required=True)


LIVE_STATUS = {
    "type": "object",
    "required": ["tenant"],
    "properties": {"tenant": {"type": "string"}},
    "additionalProperties": {
        "type": "object",
        "required": ["status", "last_action", "last_decision"],
        "properties": {
            "status": {"enum": list(_LIVE)},
            "last_action": {"type": ["string", "null"]},
            "last_decision": {"type": ["string", "null"]},
        },
    },
}
"""The status of each public agent by its public name, beside the tenant's label."""
