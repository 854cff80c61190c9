"""Schemas of the authority's requests and answers (marshmallow), from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields
from marshmallow.validate import Length, OneOf, Range

from sentinel.authority.halts import LEVELS, SCOPES
from sentinel.client.answers import MEMBERS, Member, optional_count, optional_moment
from sentinel.core.decision import Verdict
from sentinel.platform.http.bodies import ErrorText, Identifier, JsonObject, StrictSchema, Text

MONEY = {
    "description": "`{value, currency}`; value in major units as an integer or a decimal string, with at most the currency's digits.",
}

MOST_IN_BATCH = 64
_VERDICTS = [verdict.value for verdict in Verdict]

REPORTED = {"description": "Any JSON; the report is never refused because of it. Only its digest is stored."}


class ActWithin(fields.Integer):
    """For how many seconds the caller may act after a start."""

    def __init__(self) -> None:
        super().__init__(strict=True, validate=Range(min=1, max=86400), metadata={
            "description": "For how many seconds the caller may act after a start, counted from before it sends the request; a repeated"
            " start counts again. During this time nobody can resolve the operation as not executed, unless the caller"
            " reports `error`. Default: the authority's deadline for reports (SENTINEL_REPORT_DEADLINE_SECONDS); at most"
            " SENTINEL_LONGEST_ACT_SECONDS."
        })  # fmt: skip


class _Bound(StrictSchema):
    agent_id = Identifier(most=128, required=True)
    action = Identifier(most=128, required=True)
    tenant_id = Identifier(most=64)
    evidence_context = JsonObject(
        metadata={
            "description": "Sent with the operation but not part of it: correlation ids and, in a guard or check, facts that a policy "
            "may read only to tighten its answer (`escalation`: why a person must decide; `settlement_ready`)."
        }
    )


class GuardRequestSchema(_Bound):
    """A guard: one exact action under one idempotency key."""

    idempotency_key = Identifier(most=255, required=True)
    params = JsonObject(
        metadata={"description": "The action's parameters. `amount` is money; other numbers must be integers."}
    )
    context = JsonObject(metadata={"description": "Another name for `params`."})
    resource = Identifier(most=255)
    risk_class = Identifier(most=64)
    start_id = fields.UUID(
        metadata={
            "description": "For a caller that acts at once: if the operation is permitted, it is started under this id in the same"
            " commit, as by guard/start. Must be the same in every retry."
        }
    )
    act_within_seconds = ActWithin()


class CheckRequestSchema(_Bound):
    """A check: asks what would be decided, without any effect."""

    params = JsonObject()
    context = JsonObject()
    resource = Identifier(most=255)
    risk_class = Identifier(most=64)


class StartRequestSchema(_Bound):
    """A start: redeems a permit just before the side effect."""

    idempotency_key = Identifier(most=255, required=True)
    resource = Identifier(most=255)
    risk_class = Identifier(most=64)
    permit_token = Text(most=512, least=1, required=True)
    start_id = fields.UUID(required=True)
    act_within_seconds = ActWithin()


class ReportRequestSchema(_Bound):
    """The outcome of a started action."""

    idempotency_key = Identifier(most=255, required=True)
    outcome = fields.String(required=True, validate=OneOf(["success", "error"]))
    error = ErrorText(most=4000)
    result = fields.Raw(metadata=REPORTED)
    resource = Identifier(most=255)
    risk_class = Identifier(most=64)
    permit_token = Text(most=512, least=1)
    report_id = fields.UUID()


class CheckReportRequestSchema(_Bound):
    """The outcome of a checked action."""

    action = Identifier(
        most=128,
        least=0,
        means="The checked action; the released clients send an empty string if their caller names none.",
    )
    request_id = Identifier(most=128, required=True)
    status = fields.String(required=True, validate=OneOf(["success", "failure", "error"]))
    decision = fields.String(validate=OneOf(_VERDICTS))
    policy_id = Identifier(most=128)
    result = fields.Raw(metadata=REPORTED)


class BatchRequestSchema(StrictSchema):
    """Several requests of one route."""

    requests = fields.List(JsonObject(), required=True, validate=Length(min=1, max=MOST_IN_BATCH))


class AmountSchema(Schema):
    """Money: a value in major units, in its shortest exact form, and its currency."""

    value = fields.Raw(required=True, metadata={"oneOf": [{"type": "integer"}, {"type": "string"}]})
    currency = fields.String(required=True)


class ProofPackSchema(Schema):
    """The public, hash-only record of a decision."""

    proof_id = fields.String(required=True)
    ledger_entry_id = fields.String()
    refund_id = fields.String()
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    amount = fields.Nested(AmountSchema)
    decision = fields.String(required=True)
    policy_label = fields.String(required=True)
    policy_version = fields.String(required=True)
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


class StartReceiptSchema(Schema):
    """Proof that the start is recorded."""

    started = fields.Boolean(required=True)
    start_event_id = fields.String(required=True)
    start_hash = fields.String(required=True)
    duplicate = fields.Boolean(required=True)


def _answer_field(name: str, member: Member) -> fields.Field[Any]:
    """Return the schema field of a member of the guard's answer, for the OpenAPI document."""
    told: dict[str, Any] = {"required": member.required, "metadata": {"description": member.description}}
    if name in ("proof_pack", "start"):
        return fields.Nested(ProofPackSchema if name == "proof_pack" else StartReceiptSchema, **told)
    if member.read in (optional_count, optional_moment):
        return (fields.Integer if member.read is optional_count else fields.AwareDateTime)(**told)
    return fields.String(validate=OneOf(member.values) if member.values else None, **told)


GuardAnswerSchema = Schema.from_dict(
    {name: _answer_field(name, member) for name, member in MEMBERS.items()}, name="GuardAnswerSchema"
)
"""The committed decision, generated from the declaration of its members in `sentinel/client/answers.py`."""


class ReportReceiptSchema(Schema):
    """Proof that the outcome is recorded."""

    received = fields.Boolean(required=True)
    receipt_event_id = fields.String(required=True)
    receipt_hash = fields.String(required=True)
    duplicate = fields.Boolean(required=True)
    contradiction = fields.Boolean(
        metadata={
            "description": "True if a person had resolved the operation as not executed before. The report is recorded, the operation is"
            " in doubt again and holds its budget, and this action of this agent is halted until a person lifts the halt."
            " Do not send the report again."
        }
    )


class CheckAnswerSchema(Schema):
    """What would be decided now."""

    decision = fields.String(required=True, validate=OneOf(_VERDICTS))
    reason = fields.String(required=True)
    reason_code = fields.String(required=True)
    policy_id = fields.String(required=True)
    latency_ms = fields.Integer(required=True)


class LimitLeftSchema(Schema):
    """One limit, and what is left of it for the subject whose budget the action counts in."""

    limit = fields.String(required=True)
    reason_code = fields.String(required=True)
    fits = fields.Boolean(required=True)
    cap = fields.Nested(AmountSchema, required=True)
    left = fields.Nested(AmountSchema, required=True)


class HeadroomSchema(Schema):
    """What is left of the limits that an action would count in."""

    limits = fields.List(fields.Nested(LimitLeftSchema), required=True)


class ApprovalSchema(Schema):
    """An approval as the requesting agent sees it."""

    status = fields.String(required=True, validate=OneOf(["pending", "approved", "rejected", "expired"]))
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    expires_at = fields.String(required=True)
    approver = fields.String()
    reason = fields.String()
    decided_at = fields.String()


class ApprovalDecisionSchema(Schema):
    """One decided approval."""

    request_id = fields.String(required=True)
    status = fields.String(required=True, validate=OneOf(["approved", "rejected", "expired"]))
    approver = fields.Raw(required=True, metadata={"type": ["string", "null"]})
    reason = fields.Raw(required=True, metadata={"type": ["string", "null"]})
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    decided_at = fields.String(required=True)


class ApprovalDecisionsSchema(Schema):
    """Decided approvals, oldest first."""

    decisions = fields.List(fields.Nested(ApprovalDecisionSchema), required=True)


class HeartbeatSchema(Schema):
    """The strictest halt that covers an agent, for its information: guard and start refuse on their own."""

    status = fields.String(required=True, validate=OneOf(["OK", "PAUSE", "KILL"]))


class KeySchema(Schema):
    """A key's tenant and scopes, and the agent that it is bound to, if any."""

    tenant_id = fields.UUID(required=True)
    tenant = fields.String(required=True)
    agent_id = fields.String()
    scopes = fields.List(fields.String(), required=True)


class SwitchSchema(Schema):
    """The state of one switch: on for `canary_percent` of the accounts, or off with 0.

    `unproven` are the settlement systems that its launch gate did not try for real.
    """

    on = fields.Boolean(required=True)
    canary_percent = fields.Integer(required=True)
    unproven = fields.List(fields.String())


class HaltInForceSchema(Schema):
    """A halt in force, without its author and reason. `target` is empty for global and tenant, "AGENT ACTION" for agent_action."""

    scope = fields.String(required=True, validate=OneOf(SCOPES))
    target = fields.String(required=True)
    level = fields.String(required=True, validate=OneOf(LEVELS))


class SwitchesSchema(Schema):
    """Every declared switch by name, the halts in force, and the digest of each policy in force by its id."""

    switches = fields.Dict(keys=fields.String(), values=fields.Nested(SwitchSchema), required=True)
    halts = fields.List(fields.Nested(HaltInForceSchema), required=True)
    policies = fields.Dict(keys=fields.String(), values=fields.String(), required=True)


class SwitchOffRequestSchema(StrictSchema):
    """The switch to turn off, and the reason, which is recorded."""

    switch = Identifier(most=64, required=True)
    reason = Text(most=2000, least=1, required=True)


class SwitchOffReceiptSchema(Schema):
    """The switch is off; `already` is True if it had been turned off before."""

    switch = fields.String(required=True)
    on = fields.Boolean(required=True)
    already = fields.Boolean(required=True)
