"""Handles a delivery on the event loop, from request to response: rate limit, signature, parsing; then it joins a set.

The order of the checks matters: an unsigned delivery only counts against its address, and nothing of it is stored.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import structlog

from sentinel.core.errors import (
    InvalidInput,
    NotFound,
    RateLimited,
    SentinelError,
    Unauthenticated,
    UnsupportedMediaType,
)
from sentinel.core.hosts import network_of
from sentinel.platform.http.asgi import problem_answer
from sentinel.platform.http.bodies import MAX_BYTES, framed_bytes, read_object, require_json_type
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.wire import EdgeResponse, Handler, QuickHandler, Request, address_of
from sentinel.store.ids import random_bytes
from worker.orders import metrics
from worker.orders.order import DEFAULTS
from worker.orders.processor import OrderProcessor, OrderSets
from worker.orders.sources import OrderSource, SourcesFile, Unverified
from worker.orders.store import DeliveredOrder, body_digest
from worker.orders.taking import OrderRun

log = structlog.get_logger("worker.orders")

REPLAY_HEADER = "X-Sentinel-Idempotent-Replay"
_PREFIX, _SUFFIXES = "/webhooks/", frozenset(f"/orders{more}{end}" for more in ("", "/created") for end in ("", "/"))
_UNKNOWN = "unknown"
_OUR_NAMES = ("body", "currency")
"""Names of faults that are no paths: of the whole body, and of the currency where the map has no path for it."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """The rate limits of deliveries, over all processes.

    Networks and sources are counted in separate limits, so that unsigned deliveries cannot use up a source's rate.
    """

    of_networks: SharedRateLimit
    of_sources: SharedRateLimit
    """The rates are the sources' own."""
    salt: bytes = field(default_factory=lambda: random_bytes(16), repr=False)
    """Keeps clients from predicting which slot of the shared counters an address uses. Made before the processes start,
    as the counters are, so that all processes use the same one."""

    def key(self, kind: str, who: str) -> bytes:
        """The key under which a limit counts this network or source (`kind` and `who`)."""
        return _limit_key(self.salt, kind, who)


class Intake(QuickHandler):
    """Answers deliveries; `threads` runs the outside calls of single orders."""

    def __init__(
        self, processor: OrderProcessor, sources: SourcesFile, limits: DeliveryLimits, threads: ThreadPoolExecutor,
        trusted_proxies: int = 0, max_body_bytes: int = MAX_BYTES, now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.threads = threads
        self._processor, self._sources, self._limits = processor, sources, limits
        self._trusted_proxies, self._max_body_bytes, self._now = trusted_proxies, max_body_bytes, now
        self._sets = OrderSets(processor, threads)
        self._answers = metrics.AnswerCounts(source.name for source in sources.current().all)

    def handler_of(self, other: Callable[[str], Handler | None], path: str) -> Handler | None:
        """The handler of a path: this intake for deliveries, else the one that `other` finds."""
        return self if source_of(path) else other(path)

    def begin(self, request: Request, reply: Callable[[EdgeResponse], None]) -> None:
        """Accept one delivery; `reply` is called once it is processed. Raises the refusals of the checks, in their order."""
        began = time.perf_counter()
        environ = request.environ
        name = source_of(environ["PATH_INFO"])
        label = name if name and self._sources.current().find(name) else _UNKNOWN
        try:
            run = self._processor.delivered(self._read(environ, name))
        except SentinelError as error:
            self._answers.count(label, error.code)
            raise
        self._sets.join(run, lambda over: reply(self._answer(over, label, began, environ)))

    def count_address(self, environ: dict[str, Any]) -> None:
        """Count a delivery, genuine or not, against the network that it came from. Raises `RateLimited` beyond the limit."""
        self._take("address", network_of(address_of(environ, self._trusted_proxies)))

    def _answer(self, run: OrderRun, label: str, began: float, environ: dict[str, Any]) -> EdgeResponse:
        try:
            response = run.result()
        except SentinelError as error:
            self._answers.count(label, error.code)
            return problem_answer(error, environ)
        self._answers.count(
            label, "replayed" if response.replayed else str(response.status), time.perf_counter() - began
        )
        headers = {"Cache-Control": "no-store"} | ({REPLAY_HEADER: "true"} if response.replayed else {})
        return EdgeResponse(response.body, response.status, headers=headers)

    def _read(self, environ: dict[str, Any], name: str | None) -> DeliveredOrder:
        """Check limits and signature of a delivery, and parse it."""
        if name is None:
            raise NotFound("there is nothing at this address")
        self.count_address(environ)
        body = framed_bytes(environ, self._max_body_bytes)
        source = self._genuine(environ, name, body)
        self._take("source", source.name, source)
        try:
            require_json_type(environ)
            return DeliveredOrder(source.to_order(read_object(body, self._max_body_bytes)), body_digest(body))
        except (InvalidInput, UnsupportedMediaType) as error:
            # A genuine delivery that cannot be read: its sender may give up in silence, so the operators must see it in
            # the log.
            log.warning("order_unreadable", source=source.name, faults=_faults_said(source, error))
            raise

    def _genuine(self, environ: Mapping[str, Any], name: str, body: bytes) -> OrderSource:
        """The source, if it signed exactly this body. Raises `Unauthenticated` for a bad signature or an unknown source."""
        sources = self._sources.current()
        source = sources.find(name)
        verdict = sources.verify(name, {} if source is None else source.signing.headers_in(environ), body, self._now())
        if isinstance(verdict, Unverified) or source is None:
            metrics.SIGNATURE_FAILURES.labels(verdict.why if isinstance(verdict, Unverified) else "no_source").inc()
            raise Unauthenticated
        return source

    def _take(self, kind: str, who: str, source: OrderSource | None = None) -> None:
        key = self._limits.key(kind, who)
        try:
            if source is None:
                self._limits.of_networks.take(key)
            else:
                self._limits.of_sources.take(key, per_second=source.rate.per_second, burst=source.rate.burst)
        except RateLimited as error:
            metrics.RATE_LIMITED.labels(kind).inc()
            raise RateLimited(error.retry_after_seconds, f"Too many deliveries from this {kind}.") from None


def _faults_said(source: OrderSource, error: SentinelError) -> dict[str, str]:
    """The faults by path, for the log. Paths that neither the source's map nor its defaults have become "elsewhere": the
    sender chose their names."""
    declared = {".".join(path) for paths in {**DEFAULTS, **source.fields}.values() for path in paths}
    return {
        name if name in _OUR_NAMES or any(f"{name}.".startswith(f"{path}.") for path in declared) else "elsewhere": rule
        for name, rule in (error.errors or {"body": error.detail}).items()
    }


@lru_cache(maxsize=1024)
def _limit_key(salt: bytes, kind: str, who: str) -> bytes:
    return hashlib.sha256(salt + f"{kind}:{who}".encode()).digest()


def source_of(path: str) -> str | None:
    """The source of `/webhooks/{source}/orders` or `/webhooks/{source}/orders/created`, also with a slash at the end; else None."""
    if not path.startswith(_PREFIX):
        return None
    name, slash, rest = path[len(_PREFIX) :].partition("/")
    return name if name and slash + rest in _SUFFIXES else None
