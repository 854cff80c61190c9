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
from sentinel.platform.ongoing_failures import OngoingFailures
from sentinel.store.database import Pool

_LOOK_UP_SECONDS = 0.5

log = structlog.get_logger("console.rounds")


def start_periodic(name: str, work: Callable[[], None], *, seconds: float, stopping: Callable[[], bool]) -> None:
    """Call `work` every `seconds` in a thread of its own until `stopping()` is True. A failure that goes on is logged once a minute."""
    threading.Thread(target=_repeat, args=(name, work, seconds, stopping), name=name, daemon=True).start()


def _repeat(name: str, work: Callable[[], None], seconds: float, stopping: Callable[[], bool]) -> None:
    failures, due = OngoingFailures(), time.monotonic()
    while not stopping():
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            # An error must not end the thread: nobody would notice, and the next round may succeed.
            with failures.logged(log, name, name):
                work()
        time.sleep(min(seconds, _LOOK_UP_SECONDS))


SAMPLE_SECONDS = 20.0


def start_sampler(pool: Pool, ledger: Pool, *, stopping: Callable[[], bool]) -> None:
    """Take samples for the overview in a thread of its own until `stopping()` is True."""

    def sample() -> None:
        # A little less than a round: this console's next round is never skipped as too early, but a second console's
        # round in between is.
        gauges.take_samples(pool, _lags(ledger), apart_seconds=0.9 * SAMPLE_SECONDS)

    start_periodic("sampler", sample, seconds=SAMPLE_SECONDS, stopping=stopping)


def _lags(ledger: Pool) -> list[gauges.WorkerLag] | None:
    try:
        return gauges.worker_lags(ledger)
    except SentinelError:
        return None


INDEX_SECONDS = 1.0


def start_indexer(context: ConsoleContext, *, stopping: Callable[[], bool]) -> None:
    """Index the public ids of the board's tenant in a thread of its own until `stopping()` is True."""

    def index() -> None:
        tenant_id = context.board.tenant()[0]
        if tenant_id != NOBODY:
            index_public_ids(context.pool, tenant_id, context.public_ids(), seconds=INDEX_SECONDS)

    start_periodic("indexer", index, seconds=INDEX_SECONDS, stopping=stopping)


SWEEP_SECONDS = 60.0


def start_sweeper(pool: Pool, *, stopping: Callable[[], bool]) -> None:
    """Delete old sign-in attempts and sessions, a batch a minute, in a thread of its own until `stopping()` is True."""

    def sweep() -> None:
        sign_in_attempts.sweep(pool)
        sessions.sweep(pool)

    start_periodic("sweeper", sweep, seconds=SWEEP_SECONDS, stopping=stopping)


NOTE_SECONDS = 1.0


def start_connection_notes(context: ConsoleContext, *, stopping: Callable[[], bool]) -> None:
    """Publish this process's number of database connections to the shared metrics, until `stopping()` is True."""
    # The metrics may be imported only once the folder of the shared counters exists.
    from ops_console.metrics import note_connections

    pools = {context.login.name: context.pool, "board": context.board.pool}
    start_periodic("connections", lambda: note_connections(pools), seconds=NOTE_SECONDS, stopping=stopping)
