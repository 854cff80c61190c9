"""The pages of operations in doubt: started, outcome unknown; the evidence of each, and a person's resolution of it."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from flask import Blueprint, Response, request

from ops_console.api.rendering import choice, path_id
from ops_console.api.request_schemas import ResolveInDoubtSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.step_up import prove
from ops_console.read_models.events import MOST_OF_OPERATION, EventRow, events_of
from sentinel.authority.in_doubt import find_operation, in_doubt_totals, list_in_doubt, resolve_in_doubt
from sentinel.authority.reasons import reason_text
from sentinel.core.errors import InvalidInput, NotFound
from sentinel.platform.http.bodies import load

_RESOLVE = ResolveInDoubtSchema()
_DECISIONS = {"yes": True, "no": False}
ADDRESS = "/ops/in-doubt"
MOST_SHOWN = 200
_CURRENCY = re.compile(r"[A-Z]{3}")


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the list, the page of one operation, and its form of resolution."""

    @pages.get("/in-doubt")
    def in_doubt() -> Response:
        by_amount = choice("sort", ("age", "amount")) == "amount"
        currency = _currency(by_amount)
        rows = list_in_doubt(context.pool, actor().tenant_id, limit=MOST_SHOWN, by_amount=by_amount, currency=currency)
        return shell.page(
            context, "in_doubt.html", title="In doubt", rows=rows, kept=_kept(), by_amount=by_amount, currency=currency, most=MOST_SHOWN,
            totals=in_doubt_totals(context.pool, actor().tenant_id), reason_text=reason_text,
        )  # fmt: skip

    @pages.get("/in-doubt/<operation_id>")
    def in_doubt_one(operation_id: str) -> Response:
        return _one(context, path_id(operation_id, "operation"))

    @pages.post("/in-doubt/<operation_id>/resolve")
    @shell.shows(lambda refusal, operation_id: _one(context, path_id(operation_id, "operation"), refusal))
    def in_doubt_resolve(operation_id: str) -> Response:
        actor().must_be("admin")
        about = path_id(operation_id, "operation")
        return shell.attempt(
            context, lambda: _resolve(context, about), again=lambda refusal: _one(context, about, refusal),
            then=f"{ADDRESS}/{about}{_kept()}",
        )  # fmt: skip


def _kept() -> str:
    """The list's order and currency as the end of an address, for the way back from one operation."""
    return shell.kept_query("sort", "currency")


def _currency(by_amount: bool) -> str | None:
    """The currency filter, or None. Raises `InvalidInput` if it is malformed or the list is not sorted by amount."""
    currency = request.args.get("currency")
    if currency is not None and not (by_amount and _CURRENCY.fullmatch(currency)):
        raise InvalidInput.of("currency", "must be three capital letters, and only with sort=amount")
    return currency


def _one(context: ConsoleContext, operation_id: uuid.UUID, refusal: shell.FormRefusal | None = None) -> Response:
    found = find_operation(context.pool, actor().tenant_id, operation_id)
    if found is None:
        raise NotFound("there is no operation with this id")
    events = events_of(context.pool, actor().tenant_id, operation_id)
    since = found.in_doubt_since.isoformat() if found.in_doubt_since else ""
    return shell.page(
        context, "in_doubt_one.html", title="Operation in doubt" if found.status == "in_doubt" else "Operation",
        refusal=refusal, given=request.form, row=found, events=events, kept=_kept(),
        reason_text=reason_text, resolution=_resolution(events), since=since, most_events=MOST_OF_OPERATION,
        # A choice that was made for an earlier doubt of the operation is not preselected for this one.
        chosen=request.form.get("executed") if request.form.get("in_doubt_since") == since else None,
    )  # fmt: skip


def _resolution(events: list[EventRow]) -> dict[str, Any]:
    """The body of the last event that resolved the operation (by whom and how), and when; empty if there is none."""
    resolved = [event for event in events if event.kind == "in_doubt_resolved"]
    return {**json.loads(resolved[-1].body), "occurred_at": resolved[-1].occurred_at} if resolved else {}


def _resolve(context: ConsoleContext, operation_id: uuid.UUID) -> str:
    person = actor()
    prove(context)
    given = shell.typed()
    if given.get("executed") not in _DECISIONS:
        raise InvalidInput.of("executed", "choose one of the two answers")
    if "in_doubt_since" not in given:
        raise InvalidInput.of("in_doubt_since", "is missing: reload the page")
    wanted = load(_RESOLVE, {**given, "executed": _DECISIONS[given["executed"]]})
    resolve_in_doubt(
        context.pool, person, operation_id, executed=wanted["executed"], evidence=wanted["evidence"],
        in_doubt_since=wanted["in_doubt_since"],
    )  # fmt: skip
    if wanted["executed"]:
        return "Recorded: it was executed. Its amount counts as paid."
    return "Recorded: it was not executed. Its amount is released, and it may be requested again under another key."
