"""What the supervisor of the embedded server logs while it cannot start it again."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from structlog.testing import capture_logs

from sentinel.store.embedded import server
from sentinel.store.embedded.failures import EmbeddedError
from sentinel.store.embedded.server import Embedded, _watch


class Server:
    """A server that ended, and starts at the fifth try; it ends the watch once it was seen alive."""

    def __init__(self, ended: threading.Event) -> None:
        self.ended, self.tries = ended, 0

    def is_alive(self) -> bool:
        return self.tries == 5

    def start(self) -> None:
        self.tries += 1
        if self.tries < 5:
            raise EmbeddedError("no space left on device" if self.tries < 4 else "another cause")

    def bound_log(self) -> None:
        self.ended.set()


def test_tries_that_fail_for_one_cause_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_RESTART_SECONDS", 0.01)
    monkeypatch.setattr(server, "_WATCH_SECONDS", 0.01)
    ended = threading.Event()
    with capture_logs() as lines:
        _watch(cast(Embedded, Server(ended)), ended)
    assert [(line["event"], line.get("cause")) for line in lines] == [
        ("database_ended", None),
        ("database_restart_failed", "no space left on device"),
        ("database_restart_failed", "another cause"),
        ("database_restarted", None),
    ]
