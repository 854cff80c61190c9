"""Samples how things stand, every few seconds for as long as the console runs, so that its first page can draw the last hour.

It only reads what the pages read; when a database is away it waits, and the drawing has a gap where nobody measured.
"""

from __future__ import annotations

from collections.abc import Callable

from ops_console.periodic import start_rounds
from ops_console.read_models import gauges
from sentinel.core.errors import SentinelError
from sentinel.store.database import Pool

APART_SECONDS = 20.0


def start_sampler(pool: Pool, ledger: Pool, *, stopping: Callable[[], bool]) -> None:
    """Sample in a thread of its own until `stopping` says so."""

    def sample() -> None:
        # A little less than a round: one console's next round is never too early, another's between them is.
        gauges.take_samples(pool, _lags(ledger), apart_seconds=0.9 * APART_SECONDS)

    start_rounds("sampler", sample, seconds=APART_SECONDS, stopping=stopping)


def _lags(ledger: Pool) -> list[gauges.WorkerLag] | None:
    try:
        return gauges.worker_lags(ledger)
    except SentinelError:
        return None
