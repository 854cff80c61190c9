"""Periodic background tasks of the console, a thread each: samples for the overview, the index of public ids, old sessions, figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from ops_console.accounts import sessions, sign_in_attempts
from ops_console.board.reader import NOBODY
from ops_console.context import ConsoleContext
from ops_console.read_models import gauges
from sentinel.authority.public_ids import index_public_ids
from sentinel.core.errors import SentinelError
from sentinel.store.database import Pool

_LOOK_UP_SECONDS = 0.5

log = structlog.get_logger("console.rounds")


def start_periodic(name: str, work: Callable[[], None], *, seconds: float, stopping: Callable[[], bool]) -> None:
    """Call `work` every so many seconds until `stopping` says so; a database that is away is waited for, and told once."""
    threading.Thread(target=_repeat, args=(name, work, seconds, stopping), name=name, daemon=True).start()


def _repeat(name: str, work: Callable[[], None], seconds: float, stopping: Callable[[], bool]) -> None:
    is_away, due = False, time.monotonic()
    while not stopping():
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            try:
                work()
                is_away = False
            except SentinelError as error:
                if not is_away:
                    log.warning(f"{name}_waits", cause=error.detail)
                is_away = True
            except Exception:
                # Nobody would notice that it is not done any more: what one round breaks on, the next may not.
                log.exception(f"{name}_failed")
        time.sleep(min(seconds, _LOOK_UP_SECONDS))


SAMPLE_SECONDS = 20.0


def start_sampler(pool: Pool, ledger: Pool, *, stopping: Callable[[], bool]) -> None:
    """Sample in a thread of its own until `stopping` says so."""

    def sample() -> None:
        # A little less than a round: one console's next round is never too early, another's between them is.
        gauges.take_samples(pool, _lags(ledger), apart_seconds=0.9 * SAMPLE_SECONDS)

    start_periodic("sampler", sample, seconds=SAMPLE_SECONDS, stopping=stopping)


def _lags(ledger: Pool) -> list[gauges.WorkerLag] | None:
    try:
        return gauges.worker_lags(ledger)
    except SentinelError:
        return None


INDEX_SECONDS = 1.0


def start_indexer(context: ConsoleContext, *, stopping: Callable[[], bool]) -> None:
    """Index in a thread of its own until `stopping` says so."""

    def index() -> None:
        tenant_id = context.board.tenant()[0]
        if tenant_id != NOBODY:
            index_public_ids(context.pool, tenant_id, context.public_ids(), seconds=INDEX_SECONDS)

    start_periodic("indexer", index, seconds=INDEX_SECONDS, stopping=stopping)


SWEEP_SECONDS = 60.0


def start_sweeper(pool: Pool, *, stopping: Callable[[], bool]) -> None:
    """Delete attempts to sign in and sessions that are long over, some at once, in a thread of its own until `stopping` says so."""

    def sweep() -> None:
        sign_in_attempts.sweep(pool)
        sessions.sweep(pool)

    start_periodic("sweeper", sweep, seconds=SWEEP_SECONDS, stopping=stopping)


NOTE_SECONDS = 1.0


def start_connection_notes(context: ConsoleContext, *, stopping: Callable[[], bool]) -> None:
    """Note this process's database connections for /metrics, whichever process is asked for it, until `stopping` says so."""
    # What counts is imported only once the folder of the shared counters is there.
    from ops_console.metrics import note_connections

    pools = {context.login.name: context.pool, "board": context.board.pool}
    start_periodic("connections", lambda: note_connections(pools), seconds=NOTE_SECONDS, stopping=stopping)
