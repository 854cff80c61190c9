"""Orders under review as analysts see them: the list, one order with its signals, the decisions, and undelivered alerts."""

from __future__ import annotations

import dataclasses
from typing import Any

from flask import Blueprint, Response, request

from ops_console import metrics
from ops_console.api.case_schemas import OrderPageSchema, OrderResolvedSchema, OrderViewSchema
from ops_console.api.control_schemas import AlertPageSchema
from ops_console.api.rendering import (
    LIMIT,
    OPERATOR,
    READING,
    WRITING,
    amount,
    choice,
    cursor_out,
    id_cursor_in,
    in_query,
    json_response,
    limit,
    next_page,
    present,
)
from ops_console.api.request_schemas import OrderVoteSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor, must_have_proved
from ops_console.read_models import order_search, order_views
from ops_console.resolve_order import FULFIL, HOLD, REFUND, RETRY, refund_refusal, resolve_order
from sentinel.authority.policy_inspector import PoliciesInForce
from sentinel.authority.reasons import reason_text
from sentinel.core.errors import NotFound
from sentinel.platform.http.bodies import json_body, load, without_nulls
from sentinel.platform.http.openapi import documented

_DECISION = OrderVoteSchema()
_ORDER = "/orders/<source>/<given_id:order_id>"
_ID_CHARACTERS = 200
_SHOWN_OTHERWISE = frozenset({
    "amount_minor", "currency", "reason_code", "signals", "question_refused", "is_ruled_out", "refund_is_live", "refund_is_undecided",
    "offers_approve",
})  # fmt: skip
"""Columns of an order that its view shows in another form, or only uses to compute `offers`."""


def order_view(row: order_views.OrderRow, policies: PoliciesInForce) -> dict[str, Any]:
    """An order as operators see it: its signals, but no customer's address or account."""
    shown = {name: value for name, value in _plain(row).items() if name not in _SHOWN_OTHERWISE}
    return present({
        **shown, "amount": amount(row.amount_minor, row.currency), "signals": row.signals or [],
        "reason": {"code": row.reason_code, "text": reason_text(row.reason_code)} if row.reason_code else None,
        "offers": offers(row, policies), "refund_refused": _refused(row, policies),
    })  # fmt: skip


def _refused(row: order_views.OrderRow, policies: PoliciesInForce) -> dict[str, str] | None:
    """The reason code and text why a refund of an order that waits for a person would be denied; None in any other case."""
    waits = row.status in ("QUEUED", "SHOP_REFUSED", "REFUND_REFUSED")
    code = refund_refusal(policies, row.amount_minor, row.currency) if waits else None
    return {"code": code, "text": reason_text(code)} if code else None


def offers(row: order_views.OrderRow, policies: PoliciesInForce) -> list[str]:
    """The decisions that a person may take on the order now. None are offered while a filed refund may still be paid;
    "refund" is not offered if nothing was paid or the policy would deny it, "fulfil" not if its approval cannot be given,
    and "retry" not if a person has resolved the fulfilment as not executed.
    """
    refundable = (row.amount_minor or 0) > 0 and refund_refusal(policies, row.amount_minor, row.currency) is None
    refund = [REFUND] if refundable else []
    match row.status:
        case "QUEUED" if row.resolution is None and row.approval_status == "pending":
            return [*([FULFIL] if row.offers_approve else []), *refund, HOLD]
        case "SHOP_REFUSED":
            return [*([] if row.is_ruled_out else [RETRY]), *refund, HOLD]
        case "REFUND_REFUSED" if not row.refund_is_live:
            return [RETRY, HOLD] if refundable and not row.refund_is_undecided else [HOLD]
        case "SCORED" if row.question_refused:
            return [HOLD]
        case "HELD" if row.hold_state == "intended":
            return [RETRY]
        case _:
            return []


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the order routes."""
    _reading(blueprint, context)
    _decisions(blueprint, context)


def _reading(blueprint: Blueprint, context: ConsoleContext) -> None:
    @blueprint.get("/orders")
    @documented(
        "Orders under review, newest first", responses={200: ("A page.", OrderPageSchema)}, problems=READING, security=OPERATOR,
        parameters=(in_query("lane", enum=list(order_views.LANES)), in_query("status", enum=list(order_views.STATUSES)),
                    in_query("cursor"), in_query("limit", **LIMIT, maximum=200, default=50)),
    )  # fmt: skip
    def show_orders() -> Response:
        most, tenant_id = limit(50, 200), actor().tenant_id
        rows = order_search.search_orders(
            context.pool, tenant_id, lane=choice("lane", order_views.LANES), status=choice("status", order_views.STATUSES),
            before=id_cursor_in(), limit=most,
        )  # fmt: skip
        following = next_page(rows, most, lambda row: cursor_out(row.received_at, str(row.review_id)))
        waiting = order_views.queue_figures(context.pool, tenant_id)
        policies = context.inspector.in_force(context.pool)
        return json_response({"orders": [order_view(row, policies) for row in rows], "waiting": waiting, **following})

    @blueprint.get("/orders/alerts")
    @documented(
        "Alerts about orders, newest first", responses={200: ("Alerts not delivered yet, or all.", AlertPageSchema)},
        problems=READING, security=OPERATOR,
        parameters=(in_query("delivered", enum=["true"]), in_query("cursor"), in_query("limit", **LIMIT, maximum=200, default=50)),
    )  # fmt: skip
    def show_alerts() -> Response:
        waiting_only, most = request.args.get("delivered") != "true", limit(50, 200)
        rows = order_search.alerts(
            context.pool, actor().tenant_id, waiting_only=waiting_only, before=id_cursor_in(), limit=most
        )
        following = next_page(rows, most, lambda row: cursor_out(row.created_at, str(row.alert_id)))
        return json_response({"alerts": [_alert_view(row) for row in rows], **following})

    @blueprint.get(_ORDER)
    @documented("One order: its status, the reasons, and what was done", responses={200: ("The order.", OrderViewSchema)},
                problems=(*READING, 404), security=OPERATOR)  # fmt: skip
    def show_order(source: str, order_id: str) -> Response:
        tenant_id, row = actor().tenant_id, known_order(context, source, order_id)
        return json_response({
            **order_view(row, context.inspector.in_force(context.pool)),
            "effects": [_plain(one) for one in order_views.effects_of(context.pool, tenant_id, row.review_id)],
            "decisions": [_plain(one) for one in order_views.analyst_decisions(context.pool, tenant_id, row.review_id)],
            "events": [_plain(one) for one in order_views.events_of(context.pool, tenant_id, row.review_id)],
            "alerts": [_alert_view(one) for one in order_views.alerts_of(context.pool, tenant_id, source, order_id)],
        })  # fmt: skip


def _decisions(blueprint: Blueprint, context: ConsoleContext) -> None:
    answers = {
        200: (
            "The decision is in force, or the vote is recorded until enough people have voted.",
            OrderResolvedSchema(),
        )
    }

    @blueprint.post(f"{_ORDER}/fulfil")
    @documented(
        "Release the order for fulfilment", request=_DECISION, responses=answers, problems=WRITING, security=OPERATOR
    )
    def fulfil(source: str, order_id: str) -> Response:
        return _resolve(context, source, order_id, FULFIL)

    @blueprint.post(f"{_ORDER}/refund")
    @documented("Do not fulfil the order and file a refund; if the refund is denied or fails, the order comes back", request=_DECISION, responses=answers,
                problems=WRITING, security=OPERATOR)  # fmt: skip
    def refund(source: str, order_id: str) -> Response:
        return _resolve(context, source, order_id, REFUND)

    @blueprint.post(f"{_ORDER}/retry")
    @documented("Retry what the order waits for: the refused fulfilment, the refused refund, or the hold",
                request=_DECISION, responses=answers, problems=WRITING, security=OPERATOR)  # fmt: skip
    def retry(source: str, order_id: str) -> Response:
        return _resolve(context, source, order_id, RETRY)

    @blueprint.post(f"{_ORDER}/hold")
    @documented("Do not fulfil the order and have the shop hold it", request=_DECISION, responses=answers, problems=WRITING,
                security=OPERATOR)  # fmt: skip
    def hold(source: str, order_id: str) -> Response:
        return _resolve(context, source, order_id, HOLD)


def _resolve(context: ConsoleContext, source: str, order_id: str, decision: str) -> Response:
    person = actor()
    # Before the body is parsed: a person who may not decide gets no hints about the form of a decision.
    person.must_be("approver")
    if decision != HOLD:
        must_have_proved()
    given = load(_DECISION, without_nulls(json_body()))
    done = resolve_order(
        context.pool, person, *checked_order_name(source, order_id), decision=decision, reason=given["reason"], digest=given.get("digest"),
        status=given.get("status"), approval_id=given.get("approval_id"), inspector=context.inspector,
    )  # fmt: skip
    metrics.ORDERS_RESOLVED.labels(done.result).inc()
    return json_response(_plain(done))


def known_order(context: ConsoleContext, source: str, order_id: str) -> order_views.OrderRow:
    """Return the order that a path names. Raises `NotFound`."""
    row = order_views.find_order(context.pool, actor().tenant_id, *checked_order_name(source, order_id))
    if row is None:
        raise NotFound("there is no order with this id")
    return row


def checked_order_name(source: str, order_id: str) -> tuple[str, str]:
    """Return (source, order id) from a path. Raises `NotFound` for text that cannot be one of these."""
    if any(len(part) > _ID_CHARACTERS or not part.isascii() or not part.isprintable() for part in (source, order_id)):
        raise NotFound("there is no order with this id")
    return source, order_id


def _plain(row: Any) -> dict[str, Any]:
    return present({field.name: getattr(row, field.name) for field in dataclasses.fields(row)})


def _alert_view(row: order_views.AlertRow) -> dict[str, Any]:
    # A delivered alert is not tried again, so its `next_attempt_at` is left out.
    return _plain(row if row.delivered_at is None else dataclasses.replace(row, next_attempt_at=None))  # type: ignore[arg-type]
