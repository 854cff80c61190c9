"""The intake's app: deliveries on the event loop, everything else (health, metrics, documentation) in Flask behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flask import Flask, Response

from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge, by_path
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.docs_page import docs_page
from sentinel.platform.http.openapi import Documentation, OpenApiText, answered_on_the_loop, document_health, documented
from sentinel.platform.http.readiness import Readiness, database_checks, exposition, exposition_answer
from sentinel.platform.http.ready_gauge import ReadyGauge
from sentinel.platform.http.wire import Handler, HttpsOnly
from sentinel.store.database import ORDERS
from sentinel.store.safety import database_status
from worker.key_check import KeyCheck, KeyFaultKind
from worker.orders import metrics
from worker.orders.intake import Intake
from worker.orders.settings import OrderReviewSettings
from worker.orders.store import OrderStore
from worker.settlement import stripe_events
from worker.settlement.stripe_events import StripeWebhook

DESCRIPTION = (
    "Takes signed order webhooks and puts each order into one of three lanes. How a source signs and where its fields are is declared in"
    " `policies/order_sources.yaml`. One order is reviewed once, however often it is delivered."
)
_DOCUMENT_THREADS = 4
_STANDING: dict[str, Any] = {
    "type": "object",
    "required": ["order_id", "source", "status", "review_id"],
    "properties": {
        "order_id": {"type": "string"},
        "source": {"type": "string"},
        "status": {"enum": ["received", "fulfilling", "queued", "fulfilled", "held", "refund_filed"]},
        "lane": {"enum": ["low", "medium", "high", None]},
        "reason_code": {"type": ["string", "null"]},
        "review_id": {"type": "string", "format": "uuid"},
        "operation_id": {"type": ["string", "null"], "format": "uuid"},
        "approval_id": {"type": "string", "format": "uuid"},
        "due_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
_DELIVERY = Documentation(
    "An order, signed by its source",
    description="The same delivery again gets the same answer with `X-Sentinel-Idempotent-Replay: true`; while an order"
    " waits, the answer shows its current status.",
    responses={
        200: ("Fulfilled or held at once.", _STANDING),
        202: (
            "Queued for an analyst, or accepted and being fulfilled. A repeat of a delivery that was answered 202 is always answered 202; its body shows"
            " the order's current status.",
            _STANDING,
        ),
    },
    problems=(400, 401, 409, 411, 413, 415, 422, 429, 503),
)


def create_app(intake: Intake, store: OrderStore, key: KeyCheck, settings: OrderReviewSettings) -> Edge:
    """Create the app of one process."""
    app = Flask("worker.orders", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.add_url_rule("/webhooks/<source>/orders", "deliver", answered_on_the_loop(_DELIVERY), methods=["POST"])
    app.add_url_rule(
        "/webhooks/<source>/orders/created", "deliver_created", answered_on_the_loop(_DELIVERY), methods=["POST"]
    )
    posts = _settlement_webhooks(app, intake, store, settings)
    readiness = _readiness_of(store, key)
    _meta_routes(app, store, readiness)
    app.register_blueprint(docs_page("sentinel order review"))
    problems.register(app)
    return Edge(
        app,
        threads=_DOCUMENT_THREADS,
        posts=partial(intake.handler_of, posts),
        readiness=readiness,
        health_port=settings.health_port,
        https_only=HttpsOnly(settings.behind_tls, settings.trusted_proxies),
        max_body_bytes=settings.max_body_bytes,
    )


def _settlement_webhooks(
    app: Flask, intake: Intake, store: OrderStore, settings: OrderReviewSettings
) -> Callable[[str], Handler | None]:
    """Add the webhook routes of the configured settlement systems; return the lookup from path to handler."""
    if not settings.stripe_webhook_secrets:
        return by_path({})
    webhook = StripeWebhook(
        store.pool, store.tenant_id, settings.stripe_webhook_secrets, intake.threads, intake.count_address
    )
    app.add_url_rule(stripe_events.PATH, "stripe", answered_on_the_loop(stripe_events.DOCUMENTATION), methods=["POST"])
    return by_path({stripe_events.PATH: webhook.deliver})


def _readiness_of(store: OrderStore, key: KeyCheck) -> Readiness:
    def checks() -> dict[str, bool]:
        fault = key.fault()
        # An unreachable authority keeps the intake ready: orders are accepted and decided later. With a key that the
        # authority refuses or that may not ask, or another program at its address, no order would ever be decided.
        key_is_ours = fault is None or fault.kind is KeyFaultKind.SILENCE
        return {**database_checks(lambda: database_status(store.pool, ORDERS)), "key": key_is_ours}

    return Readiness(checks)


def _meta_routes(app: Flask, store: OrderStore, readiness: Readiness) -> None:
    document = OpenApiText(title="sentinel order review", description=DESCRIPTION, security_schemes={})

    document_health(app, "Whether orders can be accepted")

    @app.get("/metrics")
    @documented(
        "Prometheus metrics", responses={200: ("The exposition.", {"type": "string"})}, content_type="text/plain"
    )
    def show_metrics() -> Response:
        return exposition_answer(exposition(metrics.OrderGauges(store), ReadyGauge("orders_ready", readiness)))

    @app.get("/openapi.json")
    @documented("This document", responses={200: ("OpenAPI 3.1.", {"type": "object"})})
    def openapi() -> Response:
        return Response(document.of(app), content_type="application/json")
