"""The refund ledger's pages: entries filtered, searched and paged, one entry's history, and having the worker process one now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, request

from ops_console.api.refunds import entry_view
from ops_console.api.rendering import cursor_in, cursor_out
from ops_console.board.figures import OUTCOMES
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import highlighted_diagram as graph
from ops_console.pages import ledger_filter, shell
from ops_console.pages.ledger_timeline import last_path, reason_in_words, timeline
from ops_console.pages.proofs import events_address, proof_link
from ops_console.process_one import most_waiting, process_one
from ops_console.read_models.ledger_history import MOST, history_of
from ops_console.read_models.ledger_search import (
    MOST_OPERATIONS,
    LedgerFilter,
    LedgerPart,
    Place,
    counted,
    entries_of_operations,
    find_entry,
    search_part,
)
from ops_console.read_models.order_views import budget_of_entry
from ops_console.read_models.refund_views import LedgerEntryRow, retry_refusal
from sentinel.authority.approvals import find_approval
from sentinel.authority.public_ids import look_up_public_id
from sentinel.authority.reasons import REASONS
from sentinel.core.errors import InvalidInput, NotFound
from sentinel.core.public_ids import is_public_id
from sentinel.store.ids import event_of_proof, uuid_or_none

ADDRESS = "/ops/ledger"
LIVE = "/ops/ledger-now"
"""The part of the first page that polls; not below the list's address, where every name is an entry's id."""
PAGE = 50
_NAME_CHARACTERS = 120

_FINAL = {
    "executed": "no: it was executed",
    "handled": "no: it was executed or handled elsewhere; nothing is left to do",
    "not_executed": "no: a person resolved it as not executed, which is final; to pay it, enter it again under another ledger entry id",
    "closed_by_analyst": "no: an analyst has since decided to hold its order, or to try again, which filed another row; see the order's page",
}
_IN_DOUBT = "not now: it may have been paid; resolve it first on the page In doubt"
"""Shown as the reason why an entry in ERROR is not retried, for every code of `refunds.may_have_been_paid` not in `_FINAL`."""


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the list, its part that refreshes itself, an entry's page, and the form that has the worker process one."""

    @pages.get("/ledger")
    def ledger() -> Response:
        return _list(context)

    @pages.get("/ledger-now")
    @shell.refreshes_itself
    def ledger_now() -> Response:
        return shell.fragment("ledger_now.html", **_rows(context, ledger_filter.given()))

    @pages.post("/ledger")
    @shell.shows(lambda refusal: _list(context, refusal))
    def ledger_process_one() -> Response:
        then = shell.address(ADDRESS, ledger_filter.given())
        return shell.attempt(
            context, lambda: _process(context), again=lambda refusal: _list(context, refusal), then=then
        )

    @pages.get("/ledger/<given_id:ledger_entry_id>")
    def ledger_entry(ledger_entry_id: str) -> Response:
        return _entry(context, ledger_entry_id)


def _list(context: ConsoleContext, refusal: shell.FormRefusal | None = None) -> Response:
    asked, filter_refusal = ledger_filter.given(), None
    try:
        values = _rows(context, asked)
    except InvalidInput as error:
        filter_refusal = shell.form_refusal(error)
        values = _values(context, asked, LedgerPart([]))
    live = shell.address(LIVE, asked) if values["is_first"] and not (refusal or filter_refusal) else None
    return shell.page(
        context, "ledger.html", title="Ledger", refusal=refusal, filter_refusal=filter_refusal, live=live,
        reasons=REASONS, decisions=OUTCOMES, request_id=shell.form_id("request_id", refusal), **values,
    )  # fmt: skip


def _rows(context: ConsoleContext, asked: dict[str, str]) -> dict[str, Any]:
    """Read one page of the list. Raises `InvalidInput` for a malformed filter or cursor."""
    wanted, before = ledger_filter.read_filter(asked), cursor_in()
    named, is_all = _named(context, wanted)
    found = search_part(context.ledger, actor().tenant_id, named, before=before, limit=PAGE + 1)
    return _values(context, asked, found, is_all=is_all)


def _values(
    context: ConsoleContext, asked: dict[str, str], found: LedgerPart, *, is_all: bool = True
) -> dict[str, Any]:
    is_full = len(found.entries) > PAGE
    end = _place(found.entries[PAGE - 1]) if is_full else found.looked_to
    return {
        "operations_looked_at": None if is_all else MOST_OPERATIONS, "searching": end is not None and not is_full,
        "asked": asked, "rows": found.entries[:PAGE], "counts": counted(context.ledger, actor().tenant_id), "words": reason_in_words,
        "older": shell.address(ADDRESS, asked, cursor=cursor_out(*end)) if end else None, "is_first": "cursor" not in request.args,
        "newest": shell.address(ADDRESS, asked),
    }  # fmt: skip


def _named(context: ConsoleContext, wanted: LedgerFilter) -> tuple[LedgerFilter, bool]:
    """Return (the filter with the search resolved, whether all matching operations were looked at).

    A public id becomes the entry or refund that it stands for, the beginning of an operation's id becomes that
    operation's entries; both are looked up in the authority's database.
    """
    if wanted.prefix is None:
        return wanted, True
    tenant_id = actor().tenant_id
    if is_public_id(wanted.prefix) or event_of_proof(wanted.prefix):
        return replace(wanted, prefix=None, exact=_behind(context, wanted.prefix)), True
    entries, is_all = entries_of_operations(context.pool, tenant_id, wanted.prefix)
    return replace(wanted, named=entries), is_all


def _behind(context: ConsoleContext, public_id: str) -> str:
    """Return the ledger entry or refund that a public id or proof id stands for; if unknown, the id itself, which
    matches nothing.

    Raises `InvalidInput` for the public id of an agent or an action.
    """
    try:
        found = look_up_public_id(context.pool, actor().tenant_id, context.public_ids(), public_id)
    except NotFound:
        return public_id
    if found.kind in ("agent", "action"):
        raise InvalidInput.of("q", f"is the {found.kind} {found.value}: search for it on the page Events")
    return (found.refund_id if found.kind == "refund" else found.ledger_entry_id) or public_id


def _place(row: LedgerEntryRow) -> Place:
    return row.created_at, row.ledger_entry_id


def _entry(context: ConsoleContext, ledger_entry_id: str) -> Response:
    tenant_id = actor().tenant_id
    is_name = len(ledger_entry_id) <= _NAME_CHARACTERS and ledger_entry_id.isascii() and ledger_entry_id.isprintable()
    row = find_entry(context.ledger, tenant_id, ledger_entry_id) if is_name else None
    if row is None:
        raise NotFound("there is no ledger row with this id")
    life = history_of(
        context.ledger, context.pool, tenant_id, ledger_entry_id=row.ledger_entry_id, operation_id=row.operation_id
    )
    path = last_path(life.trails)
    drawn = path and graph.highlight(graph.WORKFLOW, path)
    approval = find_approval(context.pool, tenant_id, row.approval_id) if row.approval_id else None
    return shell.page(
        context, "ledger_entry.html", title=f"Ledger row {row.ledger_entry_id}", row=row, shown=entry_view(row), path=path,
        drawn=drawn, moments=timeline(life), runs=len(life.trails), approval=approval, words=reason_in_words,
        proof=proof_link(context, tenant_id, row.proof_id, row.agent_id) if row.proof_id else None,
        rules=context.inspector.rules_of_operation(context.pool, actor().tenant_id, row.operation_id),
        budget=budget_of_entry(context.ledger, tenant_id, row.ledger_entry_id),
        is_cut=len(life.events) == MOST, stays=_stays(context, row),
        events_address=events_address(str(row.operation_id)) if row.operation_id else None,
    )  # fmt: skip


def _stays(context: ConsoleContext, row: LedgerEntryRow) -> str | None:
    """Return why an entry in ERROR is not retried, as a sentence; None if it can be, or is not in ERROR."""
    if row.status != "ERROR":
        return None
    code = retry_refusal(context.ledger, actor().tenant_id, row.ledger_entry_id)
    return None if code is None else _FINAL.get(code, _IN_DOUBT)


def _process(context: ConsoleContext) -> shell.FlashMessage:
    person = actor()
    person.must_be("approver")
    request_id = uuid_or_none(request.form.get("request_id", ""))
    if request_id is None:
        raise InvalidInput.of("request_id", "is not valid; reload the page")
    most = most_waiting(context.settings.threads)
    done = process_one(context.ledger, person, request_id=request_id, most=most)
    if not done.get("processed"):
        detail = done.get("detail") or "nothing is due"
        return shell.FlashMessage(f"{detail[0].upper()}{detail[1:]}.", "warning")
    outcome = ", ".join(str(done[name]) for name in ("decision", "reason_code", "status") if done.get(name))
    text = f"The worker processed {done.get('ledger_entry_id', 'a row')}: {outcome}."
    if not done.get("failed"):
        return shell.FlashMessage(text)
    return shell.FlashMessage(f"{text} It failed: {done['detail']}." if done.get("detail") else text, "warning")
