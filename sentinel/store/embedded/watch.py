"""A server that is started again when it ends by itself: a full disk, the kernel's memory killer, somebody's `kill`.

For programs that last. What they serve refuses meanwhile; the address stays the same, so nothing else has to be told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from sentinel.store.embedded.failures import EmbeddedError, StartGivenUp, never
from sentinel.store.embedded.server import Embedded, RunningServer

_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 5.0

log = structlog.get_logger("sentinel.embedded")


@contextmanager
def kept_running(base_dir: Path, *, is_over: Callable[[], bool] = never) -> Iterator[RunningServer]:
    """As `running(base_dir, own=True)`, and started again whenever it is gone. Raises `EmbeddedError` at the first start.

    Gone is also a server that a command kept and that ended with it: from then on it is ours. A start, the first or a later
    one, is given up once `is_over`; the first raises `StartGivenUp` then.
    """
    ended = threading.Event()
    embedded = Embedded(base_dir, own=True, is_over=lambda: ended.is_set() or is_over())
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
    pause = _LOOK_SECONDS
    while not ended.wait(pause):
        pause = _LOOK_SECONDS
        if embedded.is_alive():
            continue
        log.warning("database_gone", what_next="it is started again")
        try:
            embedded.start()
        except StartGivenUp:
            return
        except EmbeddedError as error:
            log.error("database_not_back", cause=str(error), again_in_seconds=_AGAIN_SECONDS)
            pause = _AGAIN_SECONDS
        else:
            log.info("database_back")
