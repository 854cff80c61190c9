"""The people of the tenant: adding one, their roles, and what they sign in with. For admins.

A first or new password is generated with the form and shown in it, so that a form that is sent twice sets the same one;
the answer shows it once more, and nothing is stored that could show it again.
"""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, request
from marshmallow import fields
from marshmallow.validate import OneOf

from ops_console.accounts import operator_changes as change
from ops_console.accounts import operators
from ops_console.accounts.operator_changes import add_person, checked_address
from ops_console.accounts.operators import PersonRow, list_people
from ops_console.accounts.passwords import make_password
from ops_console.api.rendering import path_id
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.step_up import prove
from sentinel.authority.actor import ROLES
from sentinel.authority.protected_changes import (
    CONFIRM,
    DEACTIVATE,
    END_ACCESS,
    REACTIVATE,
    RESET_SECOND_FACTOR,
    SET_ROLE,
    WaitsForAdministrator,
    is_change_pending,
)
from sentinel.core.errors import InvalidInput, NotFound, SentinelError
from sentinel.platform.http.bodies import Identifier, StrictSchema, Text, load
from sentinel.store.ids import new_id

ADDRESS = "/ops/operators"


class AddOperatorSchema(StrictSchema):
    """A new person; `operator_id` and the suggested password were generated with the form."""

    operator_id = Identifier(most=36, required=True)
    email = Text(most=254, least=1, required=True)
    role = fields.String(required=True, validate=OneOf(ROLES))
    password = Text(most=256, least=1, required=True)


class SetRoleSchema(StrictSchema):
    """A person's new role; `seen` is the role that the page showed."""

    role = fields.String(required=True, validate=OneOf(ROLES))
    seen = fields.String(required=True, validate=OneOf(ROLES))


class NewPasswordSchema(StrictSchema):
    """A password that replaces a lost one."""

    password = Text(most=256, least=1, required=True)


_ADD, _ROLE, _PASSWORD = AddOperatorSchema(), SetRoleSchema(), NewPasswordSchema()
# Word in the address → (action, message, message if it changed nothing).
_ACTS = {
    "deactivate": (DEACTIVATE, "is deactivated; sessions and tokens are revoked", "was already deactivated"),
    "reactivate": (REACTIVATE, "may sign in again", "was already active"),
    "end-sessions": (END_ACCESS, "is signed out everywhere; sessions and tokens are revoked", ""),
    "confirm": (CONFIRM, "is confirmed, and counts as a separate person", "does not wait for confirmation"),
    "reset-second-factor": (
        RESET_SECOND_FACTOR, "no longer has a second factor; sessions and tokens are revoked", "had no second factor",
    ),
}  # fmt: skip


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the list, a page per person, and their forms."""

    @pages.get("/operators")
    def operators() -> Response:
        return _list(context)

    @pages.post("/operators")
    @shell.shows(lambda refusal: _list(context, refusal, password=make_password()))
    def operators_add() -> Response:
        actor().must_be("admin")
        return _add(context)

    @pages.get("/operators/<operator_id>")
    def operators_one(operator_id: str) -> Response:
        return _one(context, operator_id)

    @pages.post("/operators/<operator_id>/role")
    @shell.shows(lambda refusal, operator_id: _one(context, operator_id, refusal, "role"))
    def operators_set_role(operator_id: str) -> Response:
        actor().must_be("admin")
        return _act(context, operator_id, "role", lambda: _set_role(context, operator_id))

    @pages.post("/operators/<operator_id>/password")
    @shell.shows(lambda refusal, operator_id: _one(context, operator_id, refusal, "password", password=make_password()))
    def operators_reset_password(operator_id: str) -> Response:
        actor().must_be("admin")
        return _reset_password(context, operator_id)

    for word in _ACTS:
        _add_act(pages, context, word)


def _add_act(pages: Blueprint, context: ConsoleContext, word: str) -> None:
    @pages.post(f"/operators/<operator_id>/{word}", endpoint=f"operators_{word.replace('-', '_')}")
    @shell.shows(lambda refusal, operator_id: _one(context, operator_id, refusal, word))
    def operators_change(operator_id: str) -> Response:
        actor().must_be("admin")
        return _act(context, operator_id, word, lambda: _change(context, operator_id, word))


def _list(context: ConsoleContext, refusal: shell.FormRefusal | None = None, *, password: str = "") -> Response:
    """The page with the people and the form; `password`, if given, is suggested instead of the one in the sent form."""
    # Checked here too: `shell.form_rerendered` shows a form again without calling its view.
    actor().must_be("admin")
    people = list_people(context.pool, actor().tenant_id, idle_seconds=context.settings.idle_seconds)
    return shell.page(
        context, "operators.html", title="Operators", refusal=refusal, people=people, most=operators.MOST_PEOPLE, waits=_waits(context),
        roles=ROLES, given=request.form, operator_id=request.form.get("operator_id") or new_id(),
        password=password or request.form.get("password") or make_password(),
    )  # fmt: skip


def _add(context: ConsoleContext) -> Response:
    try:
        prove(context)
        given = load(_ADD, {**shell.typed(), **_password(context)})
        checked_address(given["email"])
        is_new = add_person(
            context.pool, actor(), operator_id=path_id(given["operator_id"], "operator"), email=given["email"],
            password=given["password"], role=given["role"],
        )  # fmt: skip
    except WaitsForAdministrator as error:
        return shell.waits(context, error)
    except SentinelError as error:
        return _list(context, shell.form_refusal(error))
    about = f"{given['email'].lower()} is {given['role']}" + ("" if is_new else "; this form was sent before")
    return shell.page(context, "shown_once.html", title="Operator added", what="first password", about=about,
                      secret=given["password"], back=ADDRESS)  # fmt: skip


def _one(
    context: ConsoleContext,
    operator_id: str,
    refusal: shell.FormRefusal | None = None,
    about: str = "",
    *,
    password: str = "",
) -> Response:
    actor().must_be("admin")
    person = _person(context, operator_id)
    return shell.page(
        context, "operators_one.html", title=person.email, refusal=refusal, about=about, waits=_waits(context),
        person=person, roles=ROLES, given=request.form, is_self=person.operator_id == actor().operator_id,
        password=password or request.form.get("password") or make_password(),
    )  # fmt: skip


def _act(context: ConsoleContext, operator_id: str, about: str, do: Callable[[], str]) -> Response:
    def proved() -> str:
        prove(context)
        return do()

    return shell.attempt(
        context, proved, again=lambda refusal: _one(context, operator_id, refusal, about), then=f"{ADDRESS}/{path_id(operator_id, 'operator')}"
    )  # fmt: skip


def _set_role(context: ConsoleContext, operator_id: str) -> str:
    given = load(_ROLE, shell.typed())
    person = _person(context, operator_id)
    done = change.change_operator(
        context.pool, actor(), person.operator_id, SET_ROLE, role=given["role"], seen=given["seen"]
    )
    return f"{person.email} {'is' if done else 'was'} {given['role']}{'' if done else ' already'}."


def _change(context: ConsoleContext, operator_id: str, word: str) -> str:
    act, changed, changed_before = _ACTS[word]
    person = _person(context, operator_id)
    done = change.change_operator(context.pool, actor(), person.operator_id, act)
    return f"{person.email} {changed if done else changed_before}."


def _reset_password(context: ConsoleContext, operator_id: str) -> Response:
    try:
        prove(context)
        given = load(_PASSWORD, {**shell.typed(), **_password(context)})
        person = _person(context, operator_id)
        change.reset_password(context.pool, actor(), person.operator_id, given["password"])
    except NotFound:
        raise
    except WaitsForAdministrator as error:
        return shell.waits(context, error)
    except SentinelError as error:
        return _one(context, operator_id, shell.form_refusal(error), "password")
    return shell.page(context, "shown_once.html", title="Password reset", what="new password", secret=given["password"],
                      about=f"{person.email} is signed out everywhere", back=f"{ADDRESS}/{person.operator_id}")  # fmt: skip


def _person(context: ConsoleContext, operator_id: str) -> PersonRow:
    found = list_people(
        context.pool,
        actor().tenant_id,
        idle_seconds=context.settings.idle_seconds,
        operator_id=path_id(operator_id, "operator"),
    )
    if not found:
        raise NotFound("there is no operator with this id")
    return found[0]


def _waits(context: ConsoleContext) -> bool:
    """Whether changes that give somebody power have to be approved by a second administrator."""
    return is_change_pending(context.pool, actor().tenant_id, actor().operator_id)


def _password(context: ConsoleContext) -> dict[str, str]:
    """The form's password. If the change has to be approved first, the form has none, and this one is never used:
    another is made when the change is collected.
    """
    return {"password": make_password()} if "password" not in request.form and _waits(context) else _exactly("password")


def _exactly(name: str) -> dict[str, str]:
    # Taken as sent: spaces at the ends belong to a password, and `shell.typed` strips them.
    if len(request.form.getlist(name)) != 1:
        raise InvalidInput.of(name, "must be given exactly once")
    return {name: request.form[name]}
