"""Orders under review: the lanes, the queue by due time, search, undelivered alerts, and one order's history.

An analyst decides a queued order on its approval card, and an order that came back on its page here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask import Blueprint, Response, request, url_for

from ops_console import metrics
from ops_console.api.orders import checked_order_name, known_order, offers
from ops_console.api.rendering import cursor_out, id_cursor_in
from ops_console.api.request_schemas import OrderVoteSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import highlighted_diagram as graph
from ops_console.pages import shell
from ops_console.pages.ledger_reads import read_ledger
from ops_console.pages.ledger_timeline import reason_in_words
from ops_console.pages.order_timeline import path_of, timeline
from ops_console.pages.proofs import events_address, proof_link
from ops_console.pages.step_up import prove
from ops_console.read_models import order_search, order_views
from ops_console.read_models.events import events_of
from ops_console.read_models.order_views import budget_of_order
from ops_console.resolve_order import HOLD, REFUND, RETRY, refund_refusal, resolve_order
from sentinel.core.errors import InvalidInput
from sentinel.platform.http.bodies import load
from sentinel.store.queries import database_time

ADDRESS = "/ops/orders"
LIVE = "/ops/orders-now"
"""The part of the first page that polls."""
PAGE, QUEUE_SHOWN, ALERTS_SHOWN = 50, 50, 20
_FIELDS = ("q", "lane", "status")
STATUSES = (order_search.WAITING, *order_views.STATUSES)
_SOON = timedelta(minutes=30)
_DECISION = OrderVoteSchema()


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the list, its part that refreshes itself, and an order's page."""

    @pages.get("/orders")
    def orders() -> Response:
        return _list(context)

    @pages.get("/orders-now")
    @shell.refreshes_itself
    def orders_now() -> Response:
        return shell.fragment("orders_now.html", **_rows(context, _asked()))

    @pages.get("/orders/<source>/<given_id:order_id>")
    def orders_one(source: str, order_id: str) -> Response:
        return _order(context, source, order_id)

    @pages.post("/orders/<source>/<given_id:order_id>")
    @shell.shows(lambda refusal, source, order_id: _order(context, source, order_id, refusal))
    def orders_decide(source: str, order_id: str) -> Response:
        actor().must_be("approver")
        return shell.attempt(
            context, lambda: _say(context, source, order_id),
            again=lambda refusal: _order(context, source, order_id, refusal),
            then=url_for("pages.orders_one", source=source, order_id=order_id),
        )  # fmt: skip


def _list(context: ConsoleContext) -> Response:
    asked, refusal = _asked(), None
    try:
        values = _rows(context, asked)
    except InvalidInput as error:
        refusal = shell.form_refusal(error)
        values = _values(context, asked, [])
    live = shell.address(LIVE, asked) if values["is_first"] and not refusal else None
    return shell.page(
        context, "orders.html", title="Orders", refusal=refusal, live=live,
        statuses=STATUSES, **values,
    )  # fmt: skip


def _asked() -> dict[str, str]:
    return {name: text for name in _FIELDS if (text := request.args.get(name, "").strip())}


def _rows(context: ConsoleContext, asked: dict[str, str]) -> dict[str, Any]:
    """Read one page of the list. Raises `InvalidInput` for a malformed filter or cursor."""
    _check(asked)
    found = order_search.search_orders(
        context.pool, actor().tenant_id, lane=asked.get("lane"), status=asked.get("status"), prefix=asked.get("q"),
        before=id_cursor_in(), limit=PAGE + 1,
    )  # fmt: skip
    return _values(context, asked, found)


def _values(context: ConsoleContext, asked: dict[str, str], found: list[Any]) -> dict[str, Any]:
    last = found[PAGE - 1] if len(found) > PAGE else None
    at, last_id = order_search.place_of(last, asked.get("status")) if last else (None, None)
    cursor = {"cursor": cursor_out(at, str(last_id))} if at else {}
    is_first = "cursor" not in request.args
    return {
        "asked": asked, "rows": found[:PAGE], "is_first": is_first, "lanes": order_views.LANES, "words": reason_in_words,
        "older": shell.address(ADDRESS, asked, **cursor) if last else None, "now": database_time(context.pool), "soon": _SOON,
        "newest": shell.address(ADDRESS, asked), **(_overview(context) if is_first and not asked else {}),
    }  # fmt: skip


def _overview(context: ConsoleContext) -> dict[str, object]:
    """Values for the part above the list on its first page without a filter."""
    tenant_id = actor().tenant_id
    return {
        "queue": order_search.queue(context.pool, tenant_id, limit=QUEUE_SHOWN),
        "waiting": order_views.queue_figures(context.pool, tenant_id),
        "lane_states": order_search.lane_states(context.pool, tenant_id),
        "ended": order_search.ended_today(context.pool, tenant_id),
        "alerts": order_search.alerts(context.pool, tenant_id, waiting_only=True, limit=ALERTS_SHOWN),
    }


def _check(asked: dict[str, str]) -> None:
    faults = {}
    if asked.get("lane", "low") not in order_views.LANES:
        faults["lane"] = "is not a known lane"
    if asked.get("status", "QUEUED") not in STATUSES:
        faults["status"] = "is not a known status"
    text = asked.get("q", "")
    if len(text) > 128 or not text.isascii() or not text.isprintable():
        faults["q"] = "cannot be an order id"
    if faults:
        raise InvalidInput("some of the filters are not valid", errors=faults)


_RETRIED = {
    "SHOP_REFUSED": "Recorded: the shop is asked once more to fulfil it.",
    "REFUND_REFUSED": "Recorded: its refund is tried again. If it is denied or fails, the order comes back here.",
    "HELD": "Recorded: the shop is asked once more to hold it.",
}
_SAID = {
    REFUND: "Recorded: a refund is filed. If it is denied or fails, the order comes back here.",
    HOLD: "Recorded: it is held; the shop is told again until it accepts the hold.",
}


def _say(context: ConsoleContext, source: str, order_id: str) -> str:
    person, given = actor(), shell.typed()
    if given.get("decision") not in (RETRY, *_SAID):
        raise InvalidInput.of("decision", "choose one of the decisions offered")
    if given["decision"] != HOLD:
        prove(context)
    shown = {"status": given["seen"]} if "seen" in given else {}
    wanted = load(_DECISION, {"reason": given.get("reason", ""), **shown})
    done = resolve_order(
        context.pool,
        person,
        *checked_order_name(source, order_id),
        decision=given["decision"],
        reason=wanted["reason"],
        status=wanted.get("status"),
        inspector=context.inspector,
    )
    metrics.ORDERS_RESOLVED.labels(done.result).inc()
    return _RETRIED[wanted["status"]] if given["decision"] == RETRY else _SAID[given["decision"]]


def _order(context: ConsoleContext, source: str, order_id: str, refusal: shell.FormRefusal | None = None) -> Response:
    tenant_id, row = actor().tenant_id, known_order(context, source, order_id)
    changes = order_views.events_of(context.pool, tenant_id, row.review_id)
    effects = order_views.effects_of(context.pool, tenant_id, row.review_id)
    alerts = order_views.alerts_of(context.pool, tenant_id, source, order_id)
    events = events_of(context.pool, tenant_id, row.operation_id) if row.operation_id else []
    asking = next((one.agent_id for one in events if one.agent_id), None)
    said = order_views.analyst_decisions(context.pool, tenant_id, row.review_id)
    path, policies = path_of(row, changes), context.inspector.in_force(context.pool)
    return shell.page(
        context, "order.html", title=f"Order {row.order_id}", row=row, effects=effects, alerts=alerts, path=path,
        moments=timeline(row, changes, effects, alerts, events, said), words=reason_in_words, now=database_time(context.pool),
        drawn=graph.highlight(graph.LANES, path),
        waits=row.status == "QUEUED" and row.resolution is None and row.approval_status == "pending",
        refund_refused=refund_refusal(policies, row.amount_minor, row.currency), offered=[] if row.status == "QUEUED" else offers(row, policies), refusal=refusal, given=request.form,
        events_address=events_address(str(row.operation_id)) if row.operation_id else None,
        proof=proof_link(context, tenant_id, row.proof_id, asking) if row.proof_id else None,
        rules=context.inspector.rules_of_operation(context.pool, actor().tenant_id, row.operation_id),
        budget=read_ledger(lambda: budget_of_order(context.ledger, tenant_id, row.source, row.order_id)),
    )  # fmt: skip
