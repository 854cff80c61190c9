"""A delivery, from its bytes to its response on the event loop: rate limit, signature, parsing; then it joins a set.

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

from sentinel.core.errors import NotFound, RateLimited, SentinelError, Unauthenticated
from sentinel.platform.http.bodies import body_bytes, read_object
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.wire import Answer, Request
from worker.orders import metrics
from worker.orders.processor import OrderProcessor, OrderSets
from worker.orders.responses import body_digest
from worker.orders.signatures import Unverified
from worker.orders.sources import OrderSource, SourcesFile
from worker.orders.store import DeliveredOrder

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

    def _read(self, environ: dict[str, Any], name: str | None) -> DeliveredOrder:
        """What was delivered, once it is within the limits and genuine."""
        if name is None:
            raise NotFound("there is nothing here")
        self._take("address", address_of(environ, self.trusted_proxies))
        body = body_bytes(environ)
        source = self._genuine(environ, name, body)
        self._take("source", source.name, source)
        return DeliveredOrder(source.to_order(read_object(body)), body_digest(body))

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
