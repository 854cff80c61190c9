"""The page of halts: what is halted, by whom and why, and the last effect after each; setting a halt and lifting one."""

from __future__ import annotations

import threading
import uuid
from datetime import datetime

from flask import Blueprint, Response, request

from ops_console.api.rendering import path_id
from ops_console.api.request_schemas import LiftHaltSchema, SetHaltSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.step_up import prove
from ops_console.remembered import Remembered, keep_newest
from sentinel.authority.halts import (
    EFFECTS_AFTER_HALT,
    HaltRow,
    LastEffect,
    known_targets,
    last_effect,
    lift_halt,
    list_lifted_too,
    set_halt,
)
from sentinel.platform.http.bodies import load

_SET, _LIFT = SetHaltSchema(), LiftHaltSchema()
ADDRESS = "/ops/halts"
MOST_SHOWN = 100
"""How many halts in force of one agent, action or scenario the page lists; a search finds the others."""
_WIDE = ("global", "tenant")
MEASURED = 20
"""For how many of the newest halts the last effect is measured on the page."""
MOST_FINAL = 1_000
"""How many last effects that no longer change are cached; the oldest gives way to a new one."""


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the page and its two forms."""
    page = _Page(context)

    @pages.get("/halts")
    def halts() -> Response:
        return page.show()

    @pages.post("/halts")
    @shell.shows(page.show)
    def halts_set() -> Response:
        return shell.attempt(context, lambda: _set(context), again=page.show, then=ADDRESS)

    @pages.post("/halts/<halt_id>/lift")
    @shell.shows(page.show)
    def halts_lift(halt_id: str) -> Response:
        return shell.attempt(
            context,
            lambda: _lift(context, halt_id),
            again=lambda refusal: page.show(refusal, halt_id),
            then=ADDRESS + shell.kept_query("q"),
        )


class _Page:
    """The page, with a cache of the last effect after each halt, which no longer changes once the halt is old enough."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self._soon = Remembered(2.0)
        self._final: dict[tuple[uuid.UUID, uuid.UUID, datetime | None], LastEffect] = {}
        self._final_lock = threading.Lock()

    def show(self, refusal: shell.FormRefusal | None = None, halt_id: str = "") -> Response:
        """Render the page; `halt_id` is the halt whose lifting was refused, "" for any other refusal."""
        tenant_id = actor().tenant_id
        rows, left_out = list_lifted_too(self._context.pool, tenant_id)
        in_force, lifted = ([row for row in rows if (row.lifted_at is None) is open_] for open_ in (True, False))
        sought = request.args.get("q", "").strip()
        drawn = _drawn(in_force, sought, halt_id)
        measured = sorted((*drawn, *lifted), key=lambda row: row.set_at, reverse=True)[:MEASURED]
        return shell.page(
            self._context, "halts.html", title="Halts", refusal=refusal,
            about=halt_id, given=request.form, in_force=drawn, lifted=lifted, left_out=left_out,
            asked={"q": sought}, query=shell.kept_query("q"), hidden=len(in_force) - len(drawn), most=MOST_SHOWN,
            suggestions=[(one.target, one.scope) for one in known_targets(self._context.pool, tenant_id)],
            effects={row.halt_id: self._effect(tenant_id, row) for row in measured}, looked=EFFECTS_AFTER_HALT,
        )  # fmt: skip

    def _effect(self, tenant_id: uuid.UUID, halt: HaltRow) -> LastEffect:
        key = (tenant_id, halt.halt_id, halt.lifted_at)
        if (kept := self._final.get(key)) is not None:
            return kept
        found = self._soon.get(key, lambda: last_effect(self._context.pool, tenant_id, halt))
        if found.is_final:
            with self._final_lock:
                keep_newest(self._final, key, found, MOST_FINAL)
        return found


def _drawn(in_force: list[HaltRow], sought: str, about: str) -> list[HaltRow]:
    """Those whose scope, target or reason contains the search, as many as the page lists; always the one that the page is
    about, and those of the whole tenant.
    """
    fits, found = 0, []
    for row in in_force:
        fits += (is_sought := sought.casefold() in f"{row.scope} {row.target} {row.reason}".casefold())
        if row.scope in _WIDE or str(row.halt_id) == about or (is_sought and fits <= MOST_SHOWN):
            found.append(row)
    return found


def _set(context: ConsoleContext) -> str:
    person = actor()
    person.must_be("approver")
    given = load(_SET, shell.typed())
    done = set_halt(
        context.pool, person, scope=given["scope"], target=given.get("target", ""), level=given.get("level", "kill"),
        reason=given["reason"],
    )  # fmt: skip
    return "This was already halted; nothing changed." if done.already else "The halt is in force."


def _lift(context: ConsoleContext, halt_id: str) -> str:
    person = actor()
    person.must_be("admin")
    prove(context)
    lift_halt(context.pool, person, path_id(halt_id, "halt"), reason=load(_LIFT, shell.typed())["reason"])
    return "The halt is lifted."
