"""Samples how things stand, every few seconds for as long as the console runs, so that its first page can draw the last hour.

It only reads what the pages read; when a database is away it waits, and the drawing has a gap where nobody measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from sentinel.core.errors import SentinelError
from sentinel.store import gauges
from sentinel.store.database import Pool

APART_SECONDS = 20.0
_LOOK_UP_SECONDS = 0.5

log = structlog.get_logger("console.sampler")


def start_sampler(pool: Pool, ledger: Pool, *, stopping: Callable[[], bool]) -> None:
    """Sample in a thread of its own until `stopping` says so; it looks up twice a second."""
    threading.Thread(target=_sample_until, args=(pool, ledger, stopping), name="sampler", daemon=True).start()


def _sample_until(pool: Pool, ledger: Pool, stopping: Callable[[], bool]) -> None:
    is_away, due = False, time.monotonic()
    while not stopping():
        if time.monotonic() >= due:
            due = time.monotonic() + APART_SECONDS
            is_away = _sample(pool, ledger, was_away=is_away)
        time.sleep(_LOOK_UP_SECONDS)


def _sample(pool: Pool, ledger: Pool, *, was_away: bool) -> bool:
    """One round; whether the database was away. Told once, not each round."""
    try:
        # A little less than a round: one console's next round is never too early, another's between them is.
        gauges.take_samples(pool, _lags(ledger), apart_seconds=0.9 * APART_SECONDS)
    except SentinelError as error:
        if not was_away:
            log.warning("sampler_waits", cause=error.detail)
        return True
    except Exception:
        # Nobody would notice that no figure is taken any more: what one round breaks on, the next may not.
        log.exception("sampling_failed")
    return False


def _lags(ledger: Pool) -> list[gauges.WorkerLag] | None:
    try:
        return gauges.worker_lags(ledger)
    except SentinelError:
        return None
