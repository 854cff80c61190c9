"""Supervises the embedded server: restarts it when it ends by itself (full disk, OOM killer, `kill`).

For programs that last. What they serve refuses meanwhile; the address stays the same, so nothing else has to be told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sentinel.store.embedded.failures import EmbeddedError, StartGivenUp, never_stop
from sentinel.store.embedded.server import Embedded, RunningServer

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 5.0


@contextmanager
def supervised(base_dir: Path, *, should_stop: Callable[[], bool] = never_stop) -> Iterator[RunningServer]:
    """As `running(base_dir, own=True)`, and restarted whenever it ends. Raises `EmbeddedError` at the first start.

    Gone is also a server that a command kept and that ended with it: from then on it is ours. A start, the first or a later
    one, is given up once `should_stop`; the first raises `StartGivenUp` then.
    """
    ended = threading.Event()
    embedded = Embedded(base_dir, own=True, should_stop=lambda: ended.is_set() or should_stop())
    server = embedded.start()
    watcher = threading.Thread(target=_watch, args=(embedded, ended), name="embedded-watch", daemon=True)
    watcher.start()
    try:
        yield server
    finally:
        ended.set()
        watcher.join()
        embedded.stop()


def _watch(embedded: Embedded, ended: threading.Event) -> None:
    import structlog  # commands that run a server for a moment log nothing and need not load it

    log = structlog.get_logger("sentinel.embedded")
    pause = _POLL_SECONDS
    while not ended.wait(pause):
        pause = _POLL_SECONDS
        if embedded.is_alive():
            continue
        log.warning("database_ended", what_next="it is started again")
        try:
            embedded.start()
        except StartGivenUp:
            return
        except EmbeddedError as error:
            log.error("database_restart_failed", cause=str(error), again_in_seconds=_RETRY_SECONDS)
            pause = _RETRY_SECONDS
        else:
            log.info("database_restarted")
