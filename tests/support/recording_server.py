"""A system behind HTTP, on loopback or in the process, that records what it really did, with faults on request."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from tests.support.canned_answers import CannedServer
from tests.support.scripted_server import Asked, Script, ScriptedServer


def problem(status: int, title: str = "no") -> Script:
    """A refusal as a problem document."""
    body = json.dumps({"type": "about:blank", "title": title, "status": status}).encode()
    return lambda asked: asked.answer(status, body, "application/problem+json")


class RecordingServer:
    """Well-behaved but for its `faults`: (method, does it first, script), each used once in order.

    With "does it first" the effect happens and only the answer fails. `forever` stands for every call of its method. A naive
    one knows no key again: it does whatever it is asked.
    """

    def __init__(self, *, naive: bool = False) -> None:
        self.naive = naive
        self.bodies: list[dict[str, Any]] = []
        self.faults: deque[tuple[str, bool, Script]] = deque()
        self.forever: tuple[str, bool, Script] | None = None
        self.http: ScriptedServer | CannedServer = CannedServer()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.http.url

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Listens inside."""
        with self._answering(ScriptedServer()):
            yield self

    @contextmanager
    def canned(self) -> Iterator[Self]:
        """Answers in the process inside, without a socket: for tests of what its answers mean."""
        with self._answering(CannedServer()):
            yield self

    @contextmanager
    def _answering(self, http: ScriptedServer | CannedServer) -> Iterator[None]:
        self.http, http.script = http, self._answer
        with http.running():
            yield

    def do(self, asked: Asked) -> None:
        """What it is asked for; a slow one does it when its caller has given up."""
        raise NotImplementedError

    def act(self, asked: Asked) -> None:
        """Do it and answer."""
        raise NotImplementedError

    def _answer(self, asked: Asked) -> None:
        fault = self._fault(asked.method)
        if fault is None:
            return self.act(asked)
        if fault[1]:
            self.do(asked)
        return fault[2](asked)

    def _fault(self, method: str) -> tuple[str, bool, Script] | None:
        with self.lock:
            if self.forever is not None and self.forever[0] == method:
                return self.forever
            if self.faults and self.faults[0][0] == method:
                return self.faults.popleft()
        return None
