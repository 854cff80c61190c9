"""The worker's Prometheus metrics: counters of events, and gauges read from the ledger at each scrape.

Labels come from closed sets: states, events' outcomes and kinds of failure, never a row's or a customer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentinel.store.migrate import SchemaNotReady
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.rows import LedgerFigures
from worker.refunds.workflow.runner import RowResult

_OPEN = {
    "due": "Rows that are due and not claimed.",
    "lag_seconds": "How long the longest due row has been due.",
    "waiting": "Rows that wait for a person or a customer.",
    "put_off": "Rows that wait for something outside: the authority, a settlement system.",
    "held": "Rows that a worker holds by a lease.",
    "lapsed": "Rows whose lease has expired and that are not claimed again.",
    "errors": "Rows in ERROR; a person must decide.",
    "outbox_open": "Reports that the authority has not acknowledged.",
    "outbox_parked": "Reports that the authority refused permanently; a person must decide.",
    "settlement_findings": "Refunds that a bank sent back, or made elsewhere, and payments that cannot be read, found in the last 24 hours.",
}


class WorkerMetrics:
    """The metrics of one worker process. `is_reachable` says whether the authority answered the last call."""

    def __init__(self, ledger: Ledger, is_reachable: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self._rows = Counter(
            "worker_rows", "Rows by the state a run left them in, and whether they wait for something outside.",
            ["state", "put_off"], registry=self._registry,
        )  # fmt: skip
        self._registry.register(_LedgerCollector(ledger, is_reachable))

    def register(self, figures: Collector) -> None:
        """Expose these metrics too at each scrape."""
        self._registry.register(figures)

    def count(self, row: RowResult) -> None:
        """Count one row that a run has left."""
        self._rows.labels(str(row.state), "yes" if row.put_off else "no").inc()

    def exposition(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _LedgerCollector(Collector):
    """Gauges read at each scrape."""

    def __init__(self, ledger: Ledger, is_reachable: Callable[[], bool]) -> None:
        self._ledger, self._is_reachable = ledger, is_reachable

    def collect(self) -> Iterable[Metric]:
        """The figures, or nothing but `worker_database_up 0`."""
        yield GaugeMetricFamily(
            "worker_authority_reachable", "1 while the authority answers this worker.", float(self._is_reachable())
        )
        try:
            found: LedgerFigures | None = self._ledger.figures()
        except (LedgerUnavailable, SchemaNotReady):
            found = None
        yield GaugeMetricFamily(
            "worker_database_up", "1 when the database answered this scrape.", float(found is not None)
        )
        if found is not None:
            for name, text in _OPEN.items():
                yield GaugeMetricFamily(f"worker_{name}", text, float(getattr(found, name)))
