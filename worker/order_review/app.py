"""The intake as a WSGI app: deliveries before Flask, everything else (health, metrics, documentation) behind it."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Flask, Response, request

from sentinel.platform.http import https_only, problems
from sentinel.platform.http.docs_page import docs_page
from sentinel.platform.http.openapi import Documentation, documented, openapi_document
from sentinel.platform.http.readiness import alive, database_checks, exposition_answer, readiness_answer
from sentinel.platform.http.responses import wire_response
from sentinel.platform.http.strict_json import MAX_BYTES
from sentinel.platform.http.wire import HotRoutes, answer
from sentinel.store.database import ORDERS
from sentinel.store.safety import standing_of
from worker.key_check import KeyCheck
from worker.order_review import metrics
from worker.order_review.intake import Intake, source_of
from worker.order_review.store import OrderStore

DESCRIPTION = (
    "Signed order webhooks in, one of three lanes out. How a source signs and where its fields are is declared in"
    " `policies/order_sources.yaml`. One order is reviewed once, however often it is delivered."
)
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
    " waits, the answer says where it stands now.",
    responses={
        200: ("Fulfilled or held.", _STANDING),
        202: ("Queued for an analyst, or accepted and being fulfilled.", _STANDING),
    },
    problems=(400, 401, 409, 411, 413, 415, 422, 429, 503),
)


def create_app(intake: Intake, store: OrderStore, key: KeyCheck, *, behind_tls: bool = False) -> Flask:
    """The app of one process."""
    app = Flask("worker.order_review", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    _delivery_routes(app, intake)
    _meta_routes(app, store, key)
    app.register_blueprint(docs_page("sentinel order review"))
    https_only.install(app, behind_tls=behind_tls, trusted_proxies=intake.trusted_proxies)
    problems.register(app)
    app.wsgi_app = HotRoutes(  # type: ignore[method-assign]
        app.wsgi_app, lambda path: intake.deliver if source_of(path) else None
    )
    return app


def _delivery_routes(app: Flask, intake: Intake) -> None:
    """The deliveries' routes, for the documentation and for what comes with another method."""

    def deliver(source: str) -> Response:
        return wire_response(answer(intake.deliver, request.environ))

    deliver.documentation = _DELIVERY  # type: ignore[attr-defined]
    app.add_url_rule("/webhooks/<source>/orders", "deliver", deliver, methods=["POST"])
    app.add_url_rule("/webhooks/<source>/orders/created", "deliver_created", deliver, methods=["POST"])


def _meta_routes(app: Flask, store: OrderStore, key: KeyCheck) -> None:
    @app.get("/healthz")
    @documented("Whether the process answers", responses={200: ("It does.", {"type": "object"})})
    def healthz() -> Response:
        return alive()

    @app.get("/readyz")
    @documented(
        "Whether orders can be taken",
        responses={200: ("They can.", {"type": "object"}), 503: ("Not now, and why.", {"type": "object"})},
    )
    def readyz() -> Response:
        fault = key.fault()
        # While the authority is silent orders are taken and go to people; with a key that it refuses all of them would.
        key_is_ours = fault is None or not fault.answered
        return readiness_answer({**database_checks(lambda: standing_of(store.pool, ORDERS)), "key": key_is_ours})

    @app.get("/metrics")
    @documented(
        "Prometheus metrics", responses={200: ("The exposition.", {"type": "string"})}, content_type="text/plain"
    )
    def exposition() -> Response:
        return exposition_answer(metrics.exposition(store))

    @app.get("/openapi.json")
    @documented("This document", responses={200: ("OpenAPI 3.1.", {"type": "object"})})
    def openapi() -> Response:
        document = openapi_document(app, title="sentinel order review", description=DESCRIPTION, security_schemes={})
        return Response(orjson.dumps(document), content_type="application/json")
