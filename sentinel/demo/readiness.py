"""Waits until the demo's programs answer, with a deadline."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.core.errors import SentinelError
from sentinel.demo.processes import Processes, raise_if_stopped

READY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_MOST_SAID = 300


class DemoFailed(SentinelError):
    """A part of the demo did not come up; `detail` names it and its log."""

    code = "demo-failed"


def wait_ready(processes: Processes, addresses: Mapping[str, Sequence[str]], logs: Path, stop: threading.Event) -> None:
    """Return once every address of each child answers 200. Raises `DemoFailed`, or `DemoStopped` once `stop` is set."""
    deadline = time.monotonic() + READY_SECONDS
    for name, url in ((name, url) for name, urls in addresses.items() for url in urls):
        answered, enough = threading.Event(), threading.Event()
        # In a thread: a program that still loads accepts a connection and keeps it waiting, which a stop must not.
        threading.Thread(target=_poll_health, args=(url, answered, enough), daemon=True, name=f"ask-{name}").start()
        try:
            while not answered.wait(_POLL_SECONDS):
                raise_if_stopped(stop)
                if (ended := processes.ended()) is not None:
                    raise DemoFailed(f"{ended} ended at once{_last_words(logs / f'{ended}.log')}")
                if time.monotonic() > deadline:
                    raise DemoFailed(f"{name} did not become ready{_last_words(logs / f'{name}.log')}")
        finally:
            enough.set()


def _last_words(log: Path) -> str:
    """Where the log is, and its last line: mostly the program's own refusal."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; see {log}" + (f", which ends: {said[:_MOST_SAID]}" if said else "")


def _poll_health(url: str, answered: threading.Event, enough: threading.Event) -> None:
    while not enough.wait(_POLL_SECONDS):
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310
            if answer.status == 200:
                answered.set()
                return
