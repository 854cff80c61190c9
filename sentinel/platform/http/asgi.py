"""The edge of every server of ours on its event loop: hot routes and streams on the loop, pages and documents in threads.

A request waits for its commit without holding a thread, so that what many clients cost is their requests and not their
number. A thread is taken when a request is there as a whole, and given back before its answer is sent: whoever sends or
reads slowly holds none.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any, cast

import structlog
from a2wsgi import WSGIMiddleware

from sentinel.core.errors import NotFound, SentinelError
from sentinel.platform.http.hosts import require_host
from sentinel.platform.http.problems import internal_problem, problem_of
from sentinel.platform.http.request_ids import request_id_of
from sentinel.platform.http.strict_json import MAX_BYTES
from sentinel.platform.http.wire import Answer, Request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
StreamHandler = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
WaitingHandler = Callable[[Request], Awaitable[Answer]]

METRICS = "/metrics"
HEALTH = ("/healthz", "/readyz", METRICS)

_UNPREFIXED = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}

log = structlog.get_logger("sentinel.http")


class HotRoutes:
    """An ASGI app that answers the POST routes that `find` knows by their path, and the streams that `find_stream` knows.

    Everything else is handed to `rest`.
    """

    def __init__(
        self,
        rest: AsgiApp,
        find: Callable[[str], WaitingHandler | None],
        find_stream: Callable[[str], StreamHandler | None] = lambda path: None,
    ) -> None:
        self._rest = rest
        self._find = find
        self._find_stream = find_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        handler = self._find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            stream = self._find_stream(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
            return await (self._rest(scope, receive, send) if stream is None else _stream(stream, scope, receive, send))
        environ = _environ(scope)
        environ["wsgi.input"] = io.BytesIO(await _body(environ, receive))
        await _send(await _answer(handler, environ), send)
        return None


class ByListener:
    """What each address of a server answers: /metrics only the one for supervisors, which answers nothing else but health."""

    def __init__(self, app: AsgiApp, health_port: int) -> None:
        self._app = app
        self._health_port = health_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path = scope.get("path")
        if path == METRICS or self._health_port:
            is_health = bool(self._health_port) and scope["server"][1] == self._health_port
            if path not in HEALTH if is_health else path == METRICS:
                request_id = request_id_of(_environ(scope))
                return await _send(Answer(*problem_of(NotFound("there is nothing here"), request_id)), send)
        return await self._app(scope, receive, send)


class Documents:
    """An ASGI app that has a WSGI app answer in `threads` threads, whole request by whole request."""

    def __init__(self, app: WsgiApp, threads: int) -> None:
        self._in_threads: Any = WSGIMiddleware(cast(Any, partial(_whole_answer, app)), workers=threads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        # What says that it is too long is refused by its header, and not waited for.
        body = b"" if _is_too_long(scope) else await _whole_body(receive)
        if body is None:
            return
        await self._in_threads(scope, _given(body, receive), send)


def _is_too_long(scope: Scope) -> bool:
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return bool(declared.isdigit()) and int(declared[:20]) > MAX_BYTES


async def _whole_body(receive: Receive) -> bytes | None:
    """The request's body as far as `MAX_BYTES` and one byte more, by which it is refused; None when its client is gone."""
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if length <= MAX_BYTES:
            parts.append(message.get("body", b""))
            length += len(parts[-1])
        if not message.get("more_body") or length > MAX_BYTES:
            return b"".join(parts)[: MAX_BYTES + 1]


def _given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body at once, and then what the connection says."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def given() -> MutableMapping[str, Any]:
        for message in messages:
            return message
        return await receive()

    return given


def _whole_answer(app: WsgiApp, environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """A WSGI answer in one piece, so that no thread waits for who reads it."""
    parts = app(environ, start_response)
    try:
        return [b"".join(parts)]
    finally:
        getattr(parts, "close", lambda: None)()


async def _stream(handler: StreamHandler, scope: Scope, receive: Receive, send: Send) -> None:
    """A stream, or the problem document of why there is none; one that has begun and fails just ends."""
    environ = _environ(scope)
    has_begun = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        require_host(environ)
        await handler(environ, receive, sending)
    except Exception as error:
        request_id = request_id_of(environ)
        if not isinstance(error, SentinelError):
            log.exception("unexpected_error", path=scope["path"])
        if has_begun:
            return
        problem = problem_of(error, request_id) if isinstance(error, SentinelError) else internal_problem(request_id)
        given = Answer(*problem)
        given.headers["X-Request-ID"] = request_id
        await _send(given, send)


async def _answer(handler: WaitingHandler, environ: dict[str, Any]) -> Answer:
    """`wire.answer` for a handler that waits."""
    request_id = request_id_of(environ)
    try:
        require_host(environ)
        given = await handler(Request(environ))
    except SentinelError as error:
        given = Answer(*problem_of(error, request_id))
    except Exception:
        log.exception("unexpected_error", path=environ.get("PATH_INFO"))
        given = Answer(*internal_problem(request_id))
    given.headers["X-Request-ID"] = request_id
    return given


def _environ(scope: Scope) -> dict[str, Any]:
    """What a handler reads of the WSGI environment."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"], "PATH_INFO": scope["path"], "QUERY_STRING": scope.get("query_string", b"").decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope.get('http_version', '')}",
    }  # fmt: skip
    for name_bytes, value_bytes in scope["headers"]:
        name, value = name_bytes.decode("latin-1"), value_bytes.decode("latin-1")
        key = _UNPREFIXED.get(name) or "HTTP_" + name.upper().replace("-", "_")
        # A header that comes twice is one with both values, as under WSGI: never the one that suits.
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ


async def _body(environ: dict[str, Any], receive: Receive) -> bytes:
    """The body, as far as it may be taken; `bodies.body_bytes` says what is wrong with it otherwise."""
    declared = environ.get("CONTENT_LENGTH", "")
    is_number = declared.isascii() and declared.isdigit()
    if "HTTP_TRANSFER_ENCODING" in environ or not is_number or int(declared[:20]) > MAX_BYTES:
        return b""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts) if len(parts) > 1 else parts[0]


async def _send(given: Answer, send: Send) -> None:
    headers = [(b"content-type", given.content_type.encode()), (b"content-length", b"%d" % len(given.body))]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in given.headers.items()]
    await send({"type": "http.response.start", "status": given.status, "headers": headers})
    await send({"type": "http.response.body", "body": given.body})
