"""The console's request and response schemas (marshmallow), from which its OpenAPI document is made."""

from __future__ import annotations

from marshmallow import Schema, fields
from marshmallow.validate import OneOf, Range

from sentinel.authority.halts import LEVELS, SCOPES
from sentinel.platform.http.bodies import Identifier, StrictBoolean, StrictSchema, Text, UtcMoment


class SignInSchema(StrictSchema):
    """An operator's address and password; a code if there is a second factor; the tenant if the address is in several."""

    email = Text(most=254, least=1, required=True)
    password = Text(most=256, least=1, required=True)
    code = Text(most=32)
    tenant = Identifier(most=64)


class StepUpSchema(StrictSchema):
    """Proof of who acts: the password, or a code of the second factor."""

    password = Text(most=256, least=1)
    code = Text(most=32, least=1)


class OwnPasswordSchema(StrictSchema):
    """A person's current password and the new one."""

    old = Text(most=256, least=1, required=True)
    new = Text(most=256, least=1, required=True)


class VoteSchema(StrictSchema):
    """A person's decision on an approval, bound to what was shown by its `digest`."""

    reason = Text(most=2000, least=1, required=True)
    digest = Identifier(
        most=80,
        required=True,
        means="The approval's digest as it was shown to the person; a digest other than the approval's is refused with 409.",
    )


class OrderVoteSchema(VoteSchema):
    """A person's decision on an order, bound to what was shown by the `digest` of the order's pending approval."""

    digest = Identifier(
        most=80,
        means="The digest of the order's approval as it was shown; another digest is refused with 409, a missing one with 400."
        " Omitted only if no approval is pending any more, as for an order that came back from the shop.",
    )
    status = Identifier(
        most=32,
        means="The order's status as it was shown; if the order has another status now, the decision is refused with 409."
        " Required for `retry`, whose meaning depends on the status.",
    )
    approval_id = fields.UUID(
        metadata={
            "description": "The approval that was shown; if a new approval has been requested since, the decision is refused"
            " with 409. Both have the same digest."
        }
    )


class HandledSchema(VoteSchema):
    """A person's vote that it was handled elsewhere; `reference` says where."""

    reference = Text(most=200, least=1, required=True)


class SetHaltSchema(StrictSchema):
    """What to stop; agent, action and scenario need a target."""

    scope = fields.String(
        required=True,
        validate=OneOf(SCOPES),
        metadata={"description": "`global` is refused here with 403: it is set on the machine itself."},
    )
    target = Text(most=257)  # for agent_action two names and a space; `set_halt` checks each name's length
    level = fields.String(validate=OneOf(LEVELS), metadata={"default": "kill"})
    reason = Text(most=2000, least=1, required=True)


class ResendSchema(StrictSchema):
    """Which dead letter of a receiver to send again; without an `event_id`, all of them."""

    event_id = Identifier(most=36)


class LiftHaltSchema(StrictSchema):
    """Why a halt is lifted."""

    reason = Text(most=2000, least=1, required=True)


class SwitchOnSchema(StrictSchema):
    """The percentage of accounts for which a switch is turned on, and why."""

    canary_percent = fields.Integer(strict=True, required=True, validate=Range(min=0, max=100))
    reason = Text(most=2000, least=1, required=True)


class SwitchOffSchema(StrictSchema):
    """Why a switch is turned off."""

    reason = Text(most=2000, least=1, required=True)


class ResolveInDoubtSchema(StrictSchema):
    """Whether an operation in doubt was executed, and the evidence for it."""

    executed = StrictBoolean(required=True)
    evidence = Text(most=4000, least=1, required=True)
    in_doubt_since = UtcMoment(
        means="The `in_doubt_since` that was shown; if the operation is in doubt since another time now, this is"
        ' refused with 409. If it is omitted, "not executed" is refused with 409 where the reason of the doubt is `contradiction`.'
    )


class CreateTokenSchema(StrictSchema):
    """A token for the operator's own scripts; 1 to 90 days."""

    label = Text(most=100)
    expires_days = fields.Integer(strict=True, validate=Range(min=1, max=90), metadata={"default": 30})


class MoneySchema(Schema):
    """Money with its value in the shortest exact form."""

    value = fields.Raw(required=True, metadata={"oneOf": [{"type": "integer"}, {"type": "string"}]})
    currency = fields.String(required=True)


class SessionSchema(Schema):
    """Who is signed in, and the CSRF token that unsafe requests must carry."""

    operator = fields.String(required=True)
    role = fields.String(required=True)
    tenant = fields.String(required=True)
    csrf_token = fields.String()
    expires_at = fields.String()
    must_set_password = fields.Boolean()


_OUTCOME = (
    "The outcome of an approved change: `done`, or the code of the reason why it was not done. Omitted while there is none: a"
    " password or key is created when its requester collects it."
)


class ReasonSchema(Schema):
    """A reason code, and its sentence."""

    code = fields.String(required=True)
    text = fields.String(required=True)


class VoteViewSchema(Schema):
    """One person's vote on an approval. `counts` is false if the person could no longer give it."""

    operator = fields.String(required=True)
    verdict = fields.String(required=True)
    reason = fields.String(required=True)
    via = fields.String(required=True)
    voted_at = fields.DateTime(required=True)
    counts = fields.Boolean(required=True)


class EarlierVoteSchema(VoteViewSchema):
    """A vote on an earlier approval of the same operation. `counts` says whether it counts on this one too."""

    approval_id = fields.UUID(required=True)
    required_role = fields.String(required=True)
    required_people = fields.Integer(required=True)


class ApprovalViewSchema(Schema):
    """An approval, and how it was decided."""

    approval_id = fields.String(required=True)
    operation_id = fields.String(required=True)
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    resource = fields.String(required=True)
    amount = fields.Nested(MoneySchema)
    digest = fields.String(required=True)
    reasons = fields.List(fields.Nested(ReasonSchema), required=True)
    required_role = fields.String(required=True)
    required_people = fields.Integer(required=True)
    approvals_given = fields.Integer(required=True)
    status = fields.String(required=True)
    created_at = fields.String(required=True)
    expires_at = fields.String(required=True)
    decided_at = fields.String()
    decided_by = fields.String()
    reason = fields.String()
    offers = fields.List(fields.String(validate=OneOf(["approve", "reject", "handled"])), required=True)
    handled_reference = fields.String()
    follows = fields.String()
    requested_by = fields.String(
        metadata={"description": "Who is responsible for the requesting key, or requested the change."}
    )
    change = fields.Dict(
        metadata={
            "description": "The exact change of people, keys or webhooks that is requested; the digest is that of its canonical form,"
            " in which only administrators read what follows the host in a webhook's address."
        }
    )
    change_text = fields.String(metadata={"description": "The change in a sentence."})
    outcome = fields.String(metadata={"description": _OUTCOME})
    outcome_text = fields.String(metadata={"description": "The outcome in a sentence."})
    votes = fields.List(fields.Nested(VoteViewSchema))
    earlier_votes = fields.List(fields.Nested(EarlierVoteSchema))


class ApprovalPageSchema(Schema):
    """Approvals, newest first."""

    approvals = fields.List(fields.Nested(ApprovalViewSchema), required=True)
    next_cursor = fields.String()


class ResolvedSchema(Schema):
    """The result of a vote on an approval."""

    result = fields.String(required=True, validate=OneOf(["approved", "rejected", "handled", "recorded"]))
    approvals_given = fields.Integer(required=True)
    people_required = fields.Integer(required=True)
    outcome = fields.String(metadata={"description": _OUTCOME})
    outcome_text = fields.String(metadata={"description": "The outcome in a sentence."})


class LiveEventSchema(Schema):
    """One decision as the public sees it."""

    schema = fields.String(required=True)
    event_id = fields.String(required=True)
    occurred_at = fields.String(required=True)
    agent_label = fields.String(required=True)
    source = fields.String(required=True)
    action = fields.String(required=True)
    decision = fields.String(required=True)
    amount = fields.Nested(MoneySchema)
    reason_code = fields.String(required=True)
    proof_status = fields.String(required=True)
    redaction_status = fields.String(required=True)
    latency_ms = fields.Integer(required=True)
    ledger_entry_id = fields.String()
    refund_id = fields.String()
    proof_id = fields.String(required=True)


class PublicIdSchema(Schema):
    """What a public id stands for, with the first decision that has it."""

    public_id = fields.String(required=True)
    kind = fields.String(required=True, validate=OneOf(["agent", "action", "ledger_entry", "refund", "proof"]))
    value = fields.String(required=True)
    operation_id = fields.UUID(required=True)
    proof_id = fields.String(required=True)
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    ledger_entry_id = fields.String()
    refund_id = fields.String()
    decided_at = fields.DateTime(required=True)


class LiveFeedSchema(Schema):
    """The latest decisions, newest first."""

    events = fields.List(fields.Nested(LiveEventSchema), required=True)


class LedgerEntrySchema(Schema):
    """A ledger row without customer data. `risk` has the flags and counts among the facts that were submitted."""

    ledger_entry_id = fields.String(required=True)
    refund_id = fields.String(required=True)
    agent_id = fields.String(required=True)
    action = fields.String(required=True)
    status = fields.String(required=True)
    amount = fields.Nested(MoneySchema, required=True)
    idempotency_key = fields.String(required=True)
    channel = fields.String(required=True)
    scenario = fields.String(required=True)
    requested_at = fields.String(required=True)
    risk = fields.Dict(required=True)
    decision = fields.String()
    reason_code = fields.String()
    proof_id = fields.String()
    operation_id = fields.String()
    approval_id = fields.String()
    waiting_for = fields.String()
    attempts = fields.Integer(required=True)
    last_error = fields.String()
    redaction_status = fields.String(required=True)
    created_at = fields.String(required=True)
    updated_at = fields.String(required=True)


class SignalSchema(Schema):
    """One sign of risk: a stable code, and what was seen."""

    code = fields.String(required=True)
    detail = fields.String(required=True)


class ShopEffectSchema(Schema):
    """What the shop was or is to be told of an order."""

    kind = fields.String(required=True, validate=OneOf(["fulfil", "hold"]))
    state = fields.String(required=True)
    tries = fields.Integer(required=True)
    tried_at = fields.DateTime()
    shop_reference = fields.String()
    last_error = fields.String()
    reported_at = fields.DateTime()
    report_error = fields.String()


class LaneEventSchema(Schema):
    """One change of an order's lane or status."""

    event = fields.String(required=True)
    from_lane = fields.String()
    from_status = fields.String(required=True)
    to_lane = fields.String()
    to_status = fields.String(required=True)
    occurred_at = fields.DateTime(required=True)


class AnalystDecisionSchema(Schema):
    """What a person decided about an order, and the order's status at that time."""

    decision = fields.String(required=True)
    from_status = fields.String(required=True)
    decided_by = fields.String(required=True)
    reason = fields.String(required=True)
    decided_at = fields.DateTime(required=True)


class AlertViewSchema(Schema):
    """An alert about an order; `next_attempt_at` is left out once it is delivered."""

    alert_id = fields.UUID(required=True)
    kind = fields.String(required=True)
    source = fields.String(required=True)
    order_id = fields.String(required=True)
    summary = fields.String(required=True)
    attempts = fields.Integer(required=True)
    last_error = fields.String()
    next_attempt_at = fields.DateTime()
    delivered_at = fields.DateTime()
    delivered_by = fields.String()
    created_at = fields.DateTime(required=True)


class OrderViewSchema(Schema):
    """An order under review without customer data. `offers` are the decisions an analyst may take now."""

    review_id = fields.String(required=True)
    source = fields.String(required=True)
    order_id = fields.String(required=True)
    amount = fields.Nested(MoneySchema, required=True)
    status = fields.String(required=True)
    lane = fields.String(validate=OneOf(["low", "medium", "high"]))
    band = fields.String(validate=OneOf(["low", "medium", "high", "unknown"]))
    signals = fields.List(fields.Nested(SignalSchema), required=True)
    model = fields.String()
    score_ms = fields.Integer()
    reason = fields.Nested(ReasonSchema, metadata={"description": "Why the authority decided so."})
    offers = fields.List(fields.String(validate=OneOf(["fulfil", "refund", "hold", "retry"])), required=True)
    operation_id = fields.String()
    proof_id = fields.String()
    approval_id = fields.String()
    approval_status = fields.String()
    digest = fields.String()
    due_at = fields.String()
    resolution = fields.String(validate=OneOf(["fulfil", "refund", "hold"]))
    resolved_by = fields.String()
    resolution_reason = fields.String()
    resolved_at = fields.String()
    ledger_entry_id = fields.String()
    refund_refused = fields.Nested(ReasonSchema, metadata={"description": "Why a refund would be denied."})
    refund_in_doubt = fields.String(
        metadata={
            "description": "The operation in doubt of a refund filed for this order; until it is resolved, no decision is offered."
        }
    )
    hold_state = fields.String(metadata={"description": "The state of a held order's hold in the shop."})
    attempts = fields.Integer(required=True)
    last_error = fields.String()
    received_at = fields.String(required=True)
    decided_at = fields.String()
    updated_at = fields.String(required=True)
    effects = fields.List(fields.Nested(ShopEffectSchema))
    events = fields.List(fields.Nested(LaneEventSchema))
    decisions = fields.List(fields.Nested(AnalystDecisionSchema))
    alerts = fields.List(fields.Nested(AlertViewSchema))


class QueueFiguresSchema(Schema):
    """How many orders wait for an analyst, how many of them for too long, and how many alerts are undelivered."""

    queued = fields.Integer(required=True)
    oldest_queued_seconds = fields.Float(required=True)
    overdue = fields.Integer(required=True)
    alerts_waiting = fields.Integer(required=True)
    oldest_alert_seconds = fields.Float(required=True)


class OrderPageSchema(Schema):
    """Orders, newest first, and how many wait."""

    orders = fields.List(fields.Nested(OrderViewSchema), required=True)
    waiting = fields.Nested(QueueFiguresSchema, required=True)
    next_cursor = fields.String()


class OrderResolvedSchema(Schema):
    """The result of an analyst's decision."""

    result = fields.String(required=True, validate=OneOf(["fulfil", "refund", "hold", "retry", "recorded"]))
    approvals_given = fields.Integer()
    people_required = fields.Integer()
    ledger_entry_id = fields.String()


class LedgerPageSchema(Schema):
    """Ledger rows, newest first."""

    entries = fields.List(fields.Nested(LedgerEntrySchema), required=True)
    next_cursor = fields.String()
