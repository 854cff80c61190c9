"""What the forms of accounts may bring."""

from __future__ import annotations

from marshmallow import fields
from marshmallow.validate import OneOf

from sentinel.authority.actor import ROLES
from sentinel.platform.http.bodies import Identifier, StrictSchema, Text


class PasswordSchema(StrictSchema):
    """The old password, and the new one twice."""

    old = Text(most=256, least=1, required=True)
    new = Text(most=256, least=1, required=True)
    again = Text(most=256, least=1, required=True)


class ConfirmCodeSchema(StrictSchema):
    """A code of the second factor that is being set up."""

    code = Text(most=32, least=1, required=True)


class AddOperatorSchema(StrictSchema):
    """A new person; `operator_id` and the suggested password were made with the form."""

    operator_id = Identifier(most=36, required=True)
    email = Text(most=254, least=1, required=True)
    role = fields.String(required=True, validate=OneOf(ROLES))
    password = Text(most=256, least=1, required=True)


class SetRoleSchema(StrictSchema):
    """Another role; `seen` is the one that was shown."""

    role = fields.String(required=True, validate=OneOf(ROLES))
    seen = fields.String(required=True, validate=OneOf(ROLES))


class NewPasswordSchema(StrictSchema):
    """A password in the place of a lost one."""

    password = Text(most=256, least=1, required=True)
