"""The page of halts: what is stopped, by whom and why; setting one, lifting one."""

from __future__ import annotations

from flask import Blueprint, Response, request

from ops_console.api.rendering import path_id
from ops_console.api.schemas import LiftHaltSchema, SetHaltSchema
from ops_console.context import Context
from ops_console.identity import actor
from ops_console.pages import shell
from sentinel.http.bodies import load
from sentinel.services.lift_halt import lift_halt
from sentinel.services.set_halt import set_halt
from sentinel.store.halts import list_halts

_SET, _LIFT = SetHaltSchema(), LiftHaltSchema()
ADDRESS = "/ops/halts"


def routes(pages: Blueprint, context: Context) -> None:
    """Add the page and its two acts."""

    @pages.get("/halts")
    def halts() -> Response:
        return _page(context)

    @pages.post("/halts")
    def set_a_halt() -> Response:
        return shell.attempt(context, lambda: _set(context), again=lambda told: _page(context, told), then=ADDRESS)

    @pages.post("/halts/<halt_id>/lift")
    def lift_a_halt(halt_id: str) -> Response:
        return shell.attempt(
            context, lambda: _lift(context, halt_id), again=lambda told: _page(context, told, halt_id), then=ADDRESS
        )


def _page(context: Context, refused: shell.Refused | None = None, about: str = "") -> Response:
    rows = list_halts(context.pool, actor().tenant_id, lifted_too=True)
    return shell.page(
        context, "halts.html", title="Halts", status=refused.status if refused else 200, refused=refused, about=about,
        given=request.form, in_force=[row for row in rows if row.lifted_at is None],
        lifted=[row for row in rows if row.lifted_at is not None],
    )  # fmt: skip


def _set(context: Context) -> str:
    person = actor()
    person.must_be("approver")
    given = load(_SET, shell.typed())
    done = set_halt(
        context.pool, person, scope=given["scope"], target=given.get("target", ""), level=given.get("level", "kill"),
        reason=given["reason"],
    )  # fmt: skip
    return "This was halted already; nothing changed." if done.already else "The halt is in force."


def _lift(context: Context, halt_id: str) -> str:
    person = actor()
    person.must_be("admin")
    lift_halt(context.pool, person, path_id(halt_id), reason=load(_LIFT, shell.typed())["reason"])
    return "The halt is lifted."
