"""The console's metrics. Over several processes they add up only if PROMETHEUS_MULTIPROC_DIR is set before this import."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

from sentinel.store.database import Pool

REQUESTS = Counter("console_requests", "Answers by route and status.", ["route", "status"])
SIGN_INS = Counter("console_sign_ins", "Sign-in attempts by result.", ["result"])
STEP_UPS = Counter("console_step_ups", "Identity confirmations within a session (step-up) by result.", ["result"])
RESOLVED = Counter("console_approvals_resolved", "People's votes on approvals by result.", ["result"])
ORDERS_RESOLVED = Counter("console_orders_resolved", "Analysts' decisions on orders by result.", ["result"])
STREAMS = Gauge("console_live_streams", "Viewers of the live stream.", multiprocess_mode="livesum")
POOL_IN_USE = Gauge(
    "console_pool_in_use", "Database connections handed out, by login.", ["pool"], multiprocess_mode="livesum"
)


def note_connections(pools: Mapping[str, Pool]) -> None:
    """Set the gauge of this process's database connections in use, by login.

    Every process has to call this periodically: a scrape adds up the last value of each process.
    """
    for name, pool in pools.items():
        POOL_IN_USE.labels(name).set(pool.in_use)
