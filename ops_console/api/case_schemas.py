"""Schemas of answers about cases: sign-in, approvals, the ledger, orders and the public feed (marshmallow).

The OpenAPI document is made from these; no answer is checked against them but in tests.
"""

from __future__ import annotations

from marshmallow import Schema, fields
from marshmallow.validate import OneOf


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
