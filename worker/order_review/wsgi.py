"""The intake's process: refuse to start unsafe, then serve. In the foreground until SIGTERM."""

from __future__ import annotations

import os
from typing import Any

import structlog

from sentinel.http.asgi import Documents
from sentinel.http.rate_limit import SharedRateLimit
from sentinel.logs import configure_logs
from sentinel.server import (
    OTHER_FILES,
    Server,
    metrics_folder,
    require_free_health_port,
    require_free_port,
    require_open_files,
)
from sentinel.store.database import ORDERS
from sentinel.store.safety import require_ready
from worker.order_review.key import refuse_wrong_key
from worker.order_review.settings import OrderReviewSettings

log = structlog.get_logger("worker.order_review")


def serve(settings: OrderReviewSettings, *, graceful_seconds: int = 20) -> None:
    """Run the intake until it is told to stop. Raises one-line refusals before anything listens."""
    configure_logs(settings.log_level, program="order-review")
    require_free_port(settings.host, settings.port, "--port or SENTINEL_ORDERS_PORT")
    require_free_health_port((settings.health_host, settings.health_port), "SENTINEL_ORDERS_HEALTH_PORT")
    require_open_files(settings.max_connections + OTHER_FILES, "SENTINEL_ORDERS_MAX_CONNECTIONS")
    require_ready(settings.database_url, ORDERS, connections=settings.processes * settings.pool_size)
    refuse_wrong_key(settings)
    with metrics_folder():
        _run(settings, graceful_seconds)


def _run(settings: OrderReviewSettings, graceful_seconds: int) -> None:
    # What counts is imported only once the folder of the shared counters is there.
    from worker.order_review.app import create_app
    from worker.order_review.background import Background
    from worker.order_review.build import build_order_review, make_scorer, read_failpoints, read_sources
    from worker.order_review.intake import Intake

    limit = SharedRateLimit(per_second=settings.address_per_second, burst=settings.address_burst)
    sources = read_sources(settings)
    make_scorer(settings), read_failpoints(settings)
    backgrounds: list[Background] = []

    def make_app(_worker: Any) -> Any:
        parts = build_order_review(settings, read_sources(settings))
        parts.background.start()
        backgrounds.append(parts.background)
        intake = Intake(parts.pipeline, parts.sources, limit, settings.trusted_proxies)
        return Documents(create_app(intake, parts.store, parts.key, behind_tls=settings.behind_tls), settings.threads)

    def stop() -> None:
        for background in backgrounds:
            background.stop()

    for name in sources.current().closed():
        log.warning("source_without_secret", source=name)
    log.info("serving", address=f"http://{settings.host}:{settings.port}", process=os.getpid())
    Server(
        make_app, host=settings.host, port=settings.port, health=(settings.health_host, settings.health_port), processes=settings.processes, connections=settings.max_connections,
        connections_per_address=settings.max_connections if settings.trusted_proxies else settings.max_connections_per_address,
        graceful_seconds=graceful_seconds, on_worker_exit=stop,
    ).run()  # fmt: skip
