"""Order review's Prometheus metrics. Over several processes PROMETHEUS_MULTIPROC_DIR must be set before this is imported.

Labels come from closed sets, so a sender cannot grow the series: a source is one of the declared ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter as TallyCounter
from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentinel.core.errors import BodyTooLarge, SentinelError
from worker.orders.order import Score
from worker.orders.store import OrderFigures, OrderStore

ANSWERS = Counter("orders_deliveries", "Deliveries by source and result.", ["source", "result"])
SIGNATURE_FAILURES = Counter("orders_signature_failures", "Deliveries without a valid signature.", ["why"])
RATE_LIMITED = Counter("orders_rate_limited", "Deliveries refused by a limit: address or source.", ["limit"])
LANES = Counter("orders_decided", "Orders by lane and the authority's answer.", ["lane", "event"])
SETTLED = Counter("orders_settled", "Fulfilments by result.", ["status"])
PUT_OFF = Counter("orders_put_off", "Postponed orders by their status.", ["status"])
NO_AUTHORITY = Counter("orders_without_authority", "Orders to which the authority gave no usable answer.")
MODEL = Counter("orders_model", "Model answers about the rules' score.", ["answer"])
REPORTS = Counter("orders_reports", "Reports to the authority by result.", ["result"])
SECONDS = Histogram(
    "orders_delivery_seconds", "Time from a delivery's arrival to its answer.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)  # fmt: skip
SCORE_SECONDS = Histogram(
    "orders_score_seconds", "Time to enrich and score an order.",
    buckets=(0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 15),
)  # fmt: skip

_OPEN = {
    "queued": "Orders that wait for an analyst: queued or returned.",
    "oldest_queued_seconds": "Age of the oldest of them since its decision, or since its arrival if there is none.",
    "under_way": "Orders in progress: delivered, not finished, and not waiting for an analyst.",
    "holds_open": "Holds that the shop has not accepted yet.",
    "reports_open": "Outcomes that the authority has not acknowledged.",
    "reports_parked": "Outcomes that the authority refused permanently; alert on any: a person must decide.",
    "alerts_open": "Alerts not delivered yet.",
}


def scored(score: Score, seconds: float) -> None:
    """Count one scored order; `seconds` includes its look-ups."""
    SCORE_SECONDS.observe(seconds)
    MODEL.labels(score.model).inc()


def count_decisions(decided: Iterable[tuple[str | None, str]]) -> None:
    """Count recorded answers of the authority, given as (lane, event) of each order."""
    for (lane, event), count in TallyCounter(decided).items():
        LANES.labels(lane, event).inc(count)


class AnswerCounts:
    """Counts the responses to deliveries, adding those of one turn of the event loop together. For the loop's own thread."""

    def __init__(self, sources: Iterable[str] = ()) -> None:
        for source in sources:
            # Create the series at zero for the alert rule: a rate does not count the increment with which a series
            # begins.
            ANSWERS.labels(source, BodyTooLarge.code)
        self._results: TallyCounter[tuple[str, str]] = TallyCounter()
        self._seconds: list[float] = []

    def count(self, source: str, result: str, seconds: float | None = None) -> None:
        """Count one response; `seconds` is its latency, given where the order was processed."""
        if not self._results:
            asyncio.get_running_loop().call_soon(self._add)
        self._results[source, result] += 1
        if seconds is not None:
            self._seconds.append(seconds)

    def _add(self) -> None:
        for (source, result), count in self._results.items():
            ANSWERS.labels(source, result).inc(count)
        for seconds in self._seconds:
            SECONDS.observe(seconds)
        self._results.clear()
        self._seconds.clear()


class OrderGauges(Collector):
    """Gauges that are read from the database at each scrape."""

    def __init__(self, store: OrderStore) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        """Yield the store's figures, or only `orders_database_up 0` where the database does not answer."""
        try:
            found: OrderFigures | None = self._store.figures()
        except SentinelError:
            found = None
        yield GaugeMetricFamily(
            "orders_database_up", "1 when the database answered this scrape.", float(found is not None)
        )
        if found is not None:
            for name, text in _OPEN.items():
                yield GaugeMetricFamily(f"orders_{name}", text, float(getattr(found, name)))
