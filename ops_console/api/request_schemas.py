"""The schemas that the console's requests are checked against (marshmallow); its OpenAPI document is made from them too."""

from __future__ import annotations

from marshmallow import fields
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
