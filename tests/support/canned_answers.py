"""What somebody outside says, without a server: for tests of what an answer means.

How bytes arrive (late, drop by drop, cut off, too many) is behaviour of the wire: those tests ask a real socket
(`scripted_server.py`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import responses
from requests import PreparedRequest

from tests.support.scripted_server import Asked, Script

PLACE = "http://outside.example"
_ANY = re.compile(".*")


@contextmanager
def answering(*bodies: Any, status: int = 200, kind: str = "application/json") -> Iterator[list[PreparedRequest]]:
    """Inside, whatever is asked of anybody gets these answers in turn, the last one from then on.

    A body that is not bytes goes out as JSON. The list has the requests once it is over.
    """
    asked: list[PreparedRequest] = []
    with responses.RequestsMock(assert_all_requests_are_fired=False) as outside:
        for body in bodies:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            for method in ("GET", "POST", "DELETE"):
                outside.add(method, _ANY, body=sent, status=status, content_type=kind)
        yield asked
        asked += [call.request for call in outside.calls]


@dataclass
class CannedAsked(Asked):
    """One request; its answer is kept instead of sent."""

    said: tuple[int, dict[str, str], bytes] | None = None

    def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        """A well-formed answer."""
        lines = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.said = (status, lines, body)

    def raw(self, data: bytes) -> None:
        """There is no wire to put bytes on."""
        raise AssertionError("what happens on the wire needs a ScriptedServer")


class CannedServer:
    """As `ScriptedServer`, but whoever asks `url` is answered in the process: for what answers mean."""

    def __init__(self) -> None:
        self.url = PLACE
        self.script: Script = lambda asked: asked.answer(500, b"")
        self.asked: list[Asked] = []

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Answers inside; another address has nobody."""
        with responses.RequestsMock(assert_all_requests_are_fired=False) as outside:
            for method in ("GET", "POST", "DELETE"):
                outside.add_callback(method, re.compile(re.escape(self.url)), self._answer, content_type=None)
            yield self

    def _answer(self, request: PreparedRequest) -> tuple[int, dict[str, str], bytes]:
        over = threading.Event()
        over.set()
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = request.body or b""
        link: Any = None
        asked = CannedAsked(
            request.method or "",
            request.path_url,
            headers,
            body if isinstance(body, bytes) else body.encode(),
            link,
            over,
        )
        self.asked.append(asked)
        self.script(asked)
        assert asked.said is not None, "a server that does not answer needs a ScriptedServer"
        return asked.said
