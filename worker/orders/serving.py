"""The intake's process: refuses to start with an unsafe configuration, then serves in the foreground until SIGTERM."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from sentinel.platform.http.asgi import Edge
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.logs import configure_logs
from sentinel.platform.serving.server import Listener, Server, metrics_folder, require_listeners
from sentinel.store.database import ORDERS
from sentinel.store.safety import require_ready
from worker.orders.key_check import checked_at_start
from worker.orders.settings import OrderReviewSettings

log = structlog.get_logger("worker.orders")


def serve(settings: OrderReviewSettings, *, graceful_seconds: int = 20) -> None:
    """Run the intake until SIGTERM. An unsafe configuration is refused with one line before anything listens."""
    configure_logs(settings.log_level)
    listener = Listener(
        settings.host, settings.port, settings.max_connections, settings.max_connections_per_address, "--port or SENTINEL_ORDERS_PORT",
        "SENTINEL_ORDERS_HEALTH_PORT", "SENTINEL_ORDERS_MAX_CONNECTIONS", health=(settings.health_host, settings.health_port),
        behind_proxies=settings.trusted_proxies > 0,
    )  # fmt: skip
    require_listeners(listener)
    require_ready(settings.database_url, ORDERS, connections=settings.processes * settings.pool_size)
    settings = checked_at_start(settings)
    with metrics_folder():
        _run(settings, listener, graceful_seconds)


def _run(settings: OrderReviewSettings, listener: Listener, graceful_seconds: int) -> None:
    # Import modules with metrics only now: the folder that the processes' counters share must exist first.
    from worker.orders.app import create_app
    from worker.orders.background import Background
    from worker.orders.build import build_order_review, make_scorer, read_failpoints, read_sources
    from worker.orders.intake import DeliveryLimits, Intake

    limits = DeliveryLimits(
        SharedRateLimit(per_second=settings.address_per_second, burst=settings.address_burst),
        SharedRateLimit(per_second=1, burst=1),
    )
    # Read the files once, before the processes: one that is restarted later gets the same, even if a file is broken by
    # then.
    sources, scorer, failpoints = read_sources(settings), make_scorer(settings), read_failpoints(settings)
    backgrounds: list[Background] = []

    def make_app(_worker: Any) -> Edge:
        parts = build_order_review(settings, sources, scorer=scorer, failpoints=failpoints)
        parts.background.start()
        backgrounds.append(parts.background)
        threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="deliver")
        intake = Intake(
            parts.processor, parts.sources, limits, threads, settings.trusted_proxies, settings.max_body_bytes
        )
        return create_app(intake, parts.store, parts.key, settings)

    def stop() -> None:
        for background in backgrounds:
            background.stop()

    for name in sources.current().closed():
        log.warning("source_without_secret", source=name)
    log.info("serving", address=listener.url, process=os.getpid())
    Server(
        make_app, listener, processes=settings.processes, graceful_seconds=graceful_seconds, on_worker_exit=stop,
    ).run()  # fmt: skip
