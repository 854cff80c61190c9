"""A statement that nobody answers is ended in its time, also where the thread that sees to it could not be started at first."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.store.database import Pool
from tests.support.harness import thread_that_starts_later

SECONDS = 30


def test_silence_is_ended_though_the_watching_thread_could_not_be_started_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    connection: Any = SimpleNamespace(fileno=ours.fileno)
    with closing(ours), closing(theirs), closing(Pool("host=nowhere", size=1)) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", thread_that_starts_later())
            with pytest.raises(RuntimeError, match="start new thread"), pool.watch(connection, SECONDS):
                pass
        assert not pool._waiting, "nobody waits, and nothing is ended later"
        ours.settimeout(SECONDS)
        with pool.watch(connection, 0.0) as deadline:
            assert ours.recv(1) == b"", "a shut socket wakes up who waits"
        assert deadline.over
