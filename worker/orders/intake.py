"""The intake: a delivery from its bytes to its response on the event loop, and everything else (health, metrics, documentation)
in Flask behind it.

The order of the checks matters: an unsigned delivery costs one counter, and nothing of it is stored.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from flask import Flask, Response

from sentinel.core.errors import NotFound, RateLimited, SentinelError, Unauthenticated
from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge, by_path
from sentinel.platform.http.bodies import MAX_BYTES, body_bytes, read_object
from sentinel.platform.http.docs_page import docs_page
from sentinel.platform.http.https_only import HttpsOnly
from sentinel.platform.http.openapi import Documentation, answered_on_the_loop, documented, openapi_document
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.readiness import alive, database_checks, exposition_answer, readiness_answer
from sentinel.platform.http.wire import Answer, Handler, Request
from sentinel.store.database import ORDERS
from sentinel.store.safety import database_status
from worker.key_check import KeyCheck
from worker.orders import metrics
from worker.orders.processor import OrderProcessor, OrderSets
from worker.orders.responses import body_digest
from worker.orders.settings import OrderReviewSettings
from worker.orders.signatures import Unverified
from worker.orders.sources import OrderSource, SourcesFile
from worker.orders.store import Delivery, OrderStore
from worker.settlement import stripe_events

REPLAY_HEADER = "X-Sentinel-Idempotent-Replay"
_PREFIX, _SUFFIXES = "/webhooks/", ("/orders", "/orders/created")
_UNKNOWN = "unknown"


@dataclass(slots=True)
class Intake:
    """Answers deliveries; `threads` make the outside calls of single orders, and `limit` is shared by all processes."""

    pipeline: OrderProcessor
    sources: SourcesFile
    limit: SharedRateLimit
    threads: ThreadPoolExecutor
    trusted_proxies: int = 0
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _sets: OrderSets = field(init=False)

    def __post_init__(self) -> None:
        self._sets = OrderSets(self.pipeline)

    async def deliver(self, request: Request) -> Answer:
        """One delivery on the event loop. Raises the refusals of its checks, in their order."""
        began = time.perf_counter()
        name = source_of(request.environ["PATH_INFO"])
        label = name if name and self.sources.current().find(name) else _UNKNOWN
        try:
            run = self.pipeline.delivered(self._read(request.environ, name))
            response = await self._sets.process(run, self.threads)
        except SentinelError as error:
            metrics.ANSWERS.labels(label, error.code).inc()
            raise
        metrics.ANSWERS.labels(label, "replayed" if response.replayed else str(response.status)).inc()
        metrics.SECONDS.observe(time.perf_counter() - began)
        headers = {"Cache-Control": "no-store"} | ({REPLAY_HEADER: "true"} if response.replayed else {})
        return Answer(response.body, response.status, headers=headers)

    def _read(self, environ: dict[str, Any], name: str | None) -> Delivery:
        """What was delivered, once it is within the limits and genuine."""
        if name is None:
            raise NotFound("there is nothing here")
        self._take("address", address_of(environ, self.trusted_proxies))
        body = body_bytes(environ)
        source = self._genuine(environ, name, body)
        self._take("source", source.name, source)
        return Delivery(source.to_order(read_object(body)), body_digest(body))

    def _genuine(self, environ: Mapping[str, Any], name: str, body: bytes) -> OrderSource:
        """The source, if it has signed this very body; a source that is not there has signed nothing."""
        sources = self.sources.current()
        verdict = sources.verify(name, headers_of(environ), body, self.now())
        source = sources.find(name)
        if isinstance(verdict, Unverified) or source is None:
            metrics.SIGNATURE_FAILURES.labels(verdict.why if isinstance(verdict, Unverified) else "no_source").inc()
            raise Unauthenticated
        return source

    def _take(self, kind: str, who: str, source: OrderSource | None = None) -> None:
        key = hashlib.sha256(f"{kind}:{who}".encode()).digest()
        try:
            if source is None:
                self.limit.take(key)
            else:
                self.limit.take(key, per_second=source.rate.per_second, burst=source.rate.burst)
        except RateLimited as error:
            metrics.RATE_LIMITED.labels(kind).inc()
            raise RateLimited(error.retry_after_seconds, f"Too many deliveries from this {kind}.") from None


def source_of(path: str) -> str | None:
    """`/webhooks/{source}/orders` or `/webhooks/{source}/orders/created` → the source."""
    if not path.startswith(_PREFIX):
        return None
    name, slash, rest = path[len(_PREFIX) :].partition("/")
    return name if name and slash + rest in _SUFFIXES else None


def address_of(environ: Mapping[str, Any], trusted_proxies: int) -> str:
    """Who asks: the connection's address, or what the outermost trusted proxy saw."""
    if trusted_proxies:
        told = [part.strip() for part in str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",") if part.strip()]
        if len(told) >= trusted_proxies:
            return told[-trusted_proxies]
    return str(environ.get("REMOTE_ADDR", ""))


def headers_of(environ: Mapping[str, Any]) -> dict[str, str]:
    """The request's headers by name, in capitals with hyphens."""
    return {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}


DESCRIPTION = (
    "Signed order webhooks in, one of three lanes out. How a source signs and where its fields are is declared in"
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
    " waits, the answer says where it stands now.",
    responses={
        200: ("Fulfilled or held.", _STANDING),
        202: ("Queued for an analyst, or accepted and being fulfilled.", _STANDING),
    },
    problems=(400, 401, 409, 411, 413, 415, 422, 429, 503),
)


def create_app(intake: Intake, store: OrderStore, key: KeyCheck, settings: OrderReviewSettings) -> Edge:
    """The app of one process."""
    app = Flask("worker.orders", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES + 1
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.add_url_rule("/webhooks/<source>/orders", "deliver", answered_on_the_loop(_DELIVERY), methods=["POST"])
    app.add_url_rule(
        "/webhooks/<source>/orders/created", "deliver_created", answered_on_the_loop(_DELIVERY), methods=["POST"]
    )
    posts = _settlement_webhooks(app, intake, store, settings)
    _meta_routes(app, store, key)
    app.register_blueprint(docs_page("sentinel order review"))
    problems.register(app)
    return Edge(
        app,
        threads=_DOCUMENT_THREADS,
        posts=lambda path: intake.deliver if source_of(path) else posts(path),
        health_port=settings.health_port,
        https_only=HttpsOnly(settings.behind_tls, settings.trusted_proxies),
    )


def _settlement_webhooks(
    app: Flask, intake: Intake, store: OrderStore, settings: OrderReviewSettings
) -> Callable[[str], Handler | None]:
    """The routes of settlement systems that are configured, by their path."""
    if not settings.stripe_webhook_secrets:
        return by_path({})
    webhook = stripe_events.StripeWebhook(store.pool, store.tenant_id, settings.stripe_webhook_secrets, intake.threads)
    documented_route = answered_on_the_loop(stripe_events.DOCUMENTATION)
    app.add_url_rule(stripe_events.PATH, "stripe", documented_route, methods=["POST"])
    return by_path({stripe_events.PATH: webhook.deliver})


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
        return readiness_answer({**database_checks(lambda: database_status(store.pool, ORDERS)), "key": key_is_ours})

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
