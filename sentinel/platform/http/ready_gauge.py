"""A program's readiness as a Prometheus gauge, for alert rules: 1 where /readyz answers 200.

In a module of its own, because prometheus_client may be imported only after PROMETHEUS_MULTIPROC_DIR is set.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentinel.platform.http.readiness import Readiness


class ReadyGauge(Collector):
    """The gauge `name`, read at each scrape from the cached checks of /readyz, so that a scrape costs no more than a probe."""

    def __init__(self, name: str, readiness: Readiness) -> None:
        self._name, self._readiness = name, readiness

    def collect(self) -> Iterable[Metric]:
        """1 when every check holds, else 0."""
        yield GaugeMetricFamily(
            self._name, "1 when every check of /readyz holds.", float(all(self._readiness.checks.values()))
        )
