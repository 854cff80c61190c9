"""The page of agent keys: their agents, scopes and owners; creating a key, shown once; rotating and revoking one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request
from marshmallow import fields
from marshmallow.validate import OneOf

from ops_console.accounts.operators import list_operators
from ops_console.api.rendering import path_id
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.step_up import prove
from sentinel.authority.halts import known_targets
from sentinel.authority.keys import (
    DEFAULT_SCOPES,
    MOST_DAYS,
    OVERLAP_SECONDS,
    SCOPES,
    IssuedKey,
    MadeBefore,
    issue_key,
    newest_keys,
    revoke_key,
    rotate_key,
)
from sentinel.authority.protected_changes import WaitsForAdministrator, is_change_pending
from sentinel.core.errors import InvalidInput, SentinelError
from sentinel.platform.http.bodies import Identifier, StrictSchema, Text, load
from sentinel.store.ids import new_id, uuid_or_none

ADDRESS = "/ops/keys"
MOST_OVERLAP_HOURS = 24 * 90
MOST_SHOWN = 50
"""How many usable and how many expired or revoked keys the page lists; a search finds the others."""
SCOPE_WORDS = {
    "guard": "request decisions, start and report", "check": "check without effect", "report": "report checked actions",
    "approvals:read": "read its own approvals", "approvals:read_all": "read every agent's approvals",
    "heartbeat": "read whether it is halted",
    "worker": "vouch for the facts of a case, as the program that gathers them; not for agents",
}  # fmt: skip
"""What a scope lets a key do, in words; a scope that is not here is shown by its name."""


class CreateKeySchema(StrictSchema):
    """A new key. `key_id` was generated with the form, so that a form that is sent twice makes one key."""

    key_id = Identifier(most=36, required=True)
    label = Text(most=100)
    agent_id = Identifier(most=128)
    scopes = fields.List(fields.String(validate=OneOf(SCOPES)), required=True)
    owner = Text(most=254)
    expires_days = Text(most=4)
    test = fields.String(validate=OneOf(["yes"]))


class RotateKeySchema(StrictSchema):
    """The rotation of a key: how many hours the old one still works, and in how many days the new one expires."""

    key_id = Identifier(most=36, required=True)
    overlap_hours = Text(most=4, required=True)
    expires_days = Text(most=4)


_CREATE, _ROTATE = CreateKeySchema(), RotateKeySchema()


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the page and its three forms; all of it is for administrators."""

    @pages.get("/keys")
    def keys() -> Response:
        return _page(context)

    @pages.post("/keys")
    @shell.shows(lambda refusal: _page(context, refusal))
    def keys_create() -> Response:
        actor().must_be("admin")
        return _shown_once(context, lambda: _create(context))

    @pages.get("/keys/<key_id>/rotate")
    def keys_rotate(key_id: str) -> Response:
        actor().must_be("admin")
        return _page(context, about=str(path_id(key_id, "key")))

    @pages.post("/keys/<key_id>/rotate")
    @shell.shows(lambda refusal, key_id: _page(context, refusal, key_id))
    def keys_rotate_now(key_id: str) -> Response:
        actor().must_be("admin")
        about = path_id(key_id, "key")
        return _shown_once(context, lambda: _rotate(context, str(about)), about=str(about))

    @pages.post("/keys/<key_id>/revoke")
    @shell.shows(lambda refusal, key_id: _page(context, refusal, key_id))
    def keys_revoke(key_id: str) -> Response:
        actor().must_be("admin")
        about = path_id(key_id, "key")
        return shell.attempt(
            context,
            lambda: _revoke(context, str(about)),
            again=lambda refusal: _page(context, refusal, str(about)),
            then=ADDRESS + shell.kept_query("q"),
        )


def _page(context: ConsoleContext, refusal: shell.FormRefusal | None = None, about: str = "") -> Response:
    # Checked here too: `shell.form_rerendered` shows a form again without calling its view.
    actor().must_be("admin")
    tenant_id = actor().tenant_id
    sought = request.args.get("q", "").strip()
    # One more than is shown tells whether there are more.
    known = newest_keys(context.pool, tenant_id, sought=sought, about=uuid_or_none(about), most=MOST_SHOWN + 1)
    usable, over = [row for row in known if row.usable], [row for row in known if not row.usable]
    return shell.page(
        context, "keys.html", title="Keys", refusal=refusal, about=about,
        waits=is_change_pending(context.pool, tenant_id, actor().operator_id),
        given=request.form, chosen=request.form.getlist("scopes") if refusal and not about else DEFAULT_SCOPES,
        usable=[row for at, row in enumerate(usable) if at < MOST_SHOWN or str(row.key_id) == about], over=over[:MOST_SHOWN],
        asked={"q": sought}, query=shell.kept_query("q"), left_out=max(len(usable), len(over)) > MOST_SHOWN, most=MOST_SHOWN,
        scopes=SCOPES, scope_words=SCOPE_WORDS, new_id=new_id(), form_id=shell.form_id("key_id", refusal), overlap_hours=OVERLAP_SECONDS // 3600,
        owners=[one.email for one in list_operators(context.pool, tenant_id) if one.active],
        agents=[one.target for one in known_targets(context.pool, tenant_id) if one.scope == "agent"],
    )  # fmt: skip


def _shown_once(context: ConsoleContext, make: Callable[[], IssuedKey], about: str = "") -> Response:
    """Make a key and show it in this answer, once; it is stored nowhere and shown on no other page."""
    try:
        issued = make()
    except WaitsForAdministrator as error:
        return shell.waits(context, error)
    except MadeBefore as error:
        refusal = shell.FormRefusal(
            f"{error.detail}. If you did not see it, revoke it in the list and create another.", {}, 409
        )  # fmt: skip
        return _page(context, refusal, about)
    except SentinelError as error:
        return _page(context, shell.form_refusal(error), about)
    return shell.page(context, "key_created.html", title="Key created", status=201, issued=issued, rotated=bool(about))


def _create(context: ConsoleContext) -> IssuedKey:
    prove(context)
    given = shell.typed(lists=("scopes",))
    if not given.get("scopes"):
        raise InvalidInput.of("scopes", "choose at least one")
    wanted = load(_CREATE, given)
    return issue_key(
        context.pool, actor().tenant_id, agent_id=wanted.get("agent_id"), label=wanted.get("label", ""),
        scopes=tuple(wanted["scopes"]), owner_operator_id=_owner(context, wanted.get("owner")),
        expires_days=_whole(wanted, "expires_days", MOST_DAYS), test="test" in wanted, key_id=_form_id(wanted), actor=actor(),
    )  # fmt: skip


def _rotate(context: ConsoleContext, about: str) -> IssuedKey:
    prove(context)
    wanted = load(_ROTATE, shell.typed())
    hours = _whole(wanted, "overlap_hours", MOST_OVERLAP_HOURS, least=0)
    return rotate_key(
        context.pool, actor().tenant_id, path_id(about, "key"), overlap_seconds=(hours or 0) * 3600,
        expires_days=_whole(wanted, "expires_days", MOST_DAYS), new_key_id=_form_id(wanted), actor=actor(),
    )  # fmt: skip


def _revoke(context: ConsoleContext, about: str) -> str:
    prove(context)
    if shell.typed():
        raise InvalidInput("revoking a key takes no further fields")
    revoke_key(context.pool, actor().tenant_id, path_id(about, "key"), actor=actor())
    return "The key is revoked; it is refused within a second, by an MCP proxy within two."


def _form_id(wanted: dict[str, Any]) -> uuid.UUID:
    found = uuid_or_none(wanted["key_id"])
    if found is None:
        raise InvalidInput("this form is not valid any more; reload the page")
    return found


def _owner(context: ConsoleContext, email: str | None) -> uuid.UUID | None:
    if email is None:
        return None
    for one in list_operators(context.pool, actor().tenant_id):
        if one.email == email and one.active:
            return one.operator_id
    raise InvalidInput.of("owner", "is not an operator of this tenant")


def _whole(wanted: dict[str, Any], name: str, most: int, *, least: int = 1) -> int | None:
    text = wanted.get(name)
    if text is None:
        return None
    number = shell.whole_number(text)
    if number is None or not least <= number <= most:
        raise InvalidInput.of(name, f"must be a whole number from {least} to {most}")
    return number
