"""A request and an answer without a framework: what the hot routes work on, under Flask or before it.

Both ends are plain values around the WSGI environment, so the same handler serves every edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import structlog

from sentinel.core.errors import SentinelError
from sentinel.platform.http.bodies import body_bytes
from sentinel.platform.http.hosts import require_host
from sentinel.platform.http.problems import internal_problem, problem_of
from sentinel.platform.http.request_ids import request_id_of
from sentinel.platform.http.strict_json import read_object

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}

log = structlog.get_logger("sentinel.http")


@dataclass(slots=True)
class Request:
    """One request, by its WSGI environment."""

    environ: dict[str, Any]

    def header(self, name: str) -> str | None:
        """A header's value; `name` as the environment spells it, e.g. "HTTP_X_API_KEY"."""
        found: str | None = self.environ.get(name)
        return found

    def json(self) -> dict[str, Any]:
        """The body as a JSON object, strictly read. Raises the refusals of `bodies` and `strict_json`."""
        return read_object(body_bytes(self.environ))


@dataclass(slots=True)
class Answer:
    """Status, body and the headers beyond its length and type."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})


Handler = Callable[[Request], Answer]


def answer(handler: Handler, environ: dict[str, Any]) -> Answer:
    """Run a handler; refusals become problem documents and anything unexpected a plain 500."""
    request_id = request_id_of(environ)
    try:
        require_host(environ)
        given = handler(Request(environ))
    except SentinelError as error:
        given = Answer(*problem_of(error, request_id))
    except Exception:
        log.exception("unexpected_error", path=environ.get("PATH_INFO"))
        given = Answer(*internal_problem(request_id))
    given.headers["X-Request-ID"] = request_id
    return given


class HotRoutes:
    """A WSGI app that answers the POST routes that `find` knows by their path, and hands everything else to `rest`."""

    def __init__(self, rest: Any, find: Callable[[str], Handler | None]) -> None:
        self._rest = rest
        self._find = find

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """WSGI."""
        handler = self._find(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "POST" else None
        if handler is None:
            found: Iterable[bytes] = self._rest(environ, start_response)
            return found
        given = answer(handler, environ)
        start_response(
            _STATUS_LINES[given.status],
            [("Content-Type", given.content_type), ("Content-Length", str(len(given.body))), *given.headers.items()],
        )
        return (given.body,)
