"""Work that a console repeats in a thread of its own for as long as it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from sentinel.core.errors import SentinelError

_LOOK_UP_SECONDS = 0.5

log = structlog.get_logger("console.rounds")


def start_rounds(name: str, work: Callable[[], None], *, seconds: float, stopping: Callable[[], bool]) -> None:
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
