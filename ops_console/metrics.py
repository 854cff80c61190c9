"""What the console counts. Correct over several processes when PROMETHEUS_MULTIPROC_DIR is set before this is imported."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

from sentinel.store.database import Pool

REQUESTS = Counter("console_requests", "Answers by route and status.", ["route", "status"])
SIGN_INS = Counter("console_sign_ins", "Sign-in attempts by result.", ["result"])
STEP_UPS = Counter("console_step_ups", "Proofs within a session by result.", ["result"])
RESOLVED = Counter("console_approvals_resolved", "People's votes on approvals by result.", ["result"])
ORDERS_RESOLVED = Counter("console_orders_resolved", "Analysts' decisions on orders by result.", ["result"])
STREAMS = Gauge("console_live_streams", "Viewers of the live stream.", multiprocess_mode="livesum")
POOL_IN_USE = Gauge(
    "console_pool_in_use", "Database connections handed out, by login.", ["pool"], multiprocess_mode="livesum"
)


def note_connections(pools: Mapping[str, Pool]) -> None:
    """Note this process's database connections, by login. In each process again and again: a scrape adds up what the processes noted last."""
    for name, pool in pools.items():
        POOL_IN_USE.labels(name).set(pool.in_use)
