"""The edge of all our servers, also in tests: hot routes and streams on the event loop, pages and documents in threads.

A request waits for its commit without holding a thread, so that the cost depends on the number of requests and not of
clients. A thread is taken once a request has arrived completely, and given back before its answer is sent, so that slow
senders and readers hold none.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from flask import Flask
from werkzeug.wrappers import Response

from sentinel.core.errors import NotFound, SentinelError
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.problems import (
    NOTHING_ALLOWED,
    OutageText,
    OutageTextOf,
    internal_problem,
    outage_text_for_agents,
    outage_text_of,
    problem_of,
    unread_problem,
)
from sentinel.platform.http.wire import (
    ALIVE,
    EdgeResponse,
    Handler,
    HttpsOnly,
    QuickHandler,
    Request,
    environ_of,
    head_of,
    request_id_of,
    require_host,
)

if TYPE_CHECKING:
    from sentinel.platform.http.readiness import Readiness

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
SendAnswer = Callable[[EdgeResponse, dict[str, Any]], Awaitable[None]]
StreamHandler = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

T = TypeVar("T")

HEALTHZ, READYZ, METRICS = "/healthz", "/readyz", "/metrics"
HEALTH = (HEALTHZ, READYZ, METRICS)
EVENT_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The headers of every stream of server-sent events."""
STALLED_SECONDS = 30.0
"""How long a stream's client that reads nothing keeps its place."""

_WSGI = {
    "SCRIPT_NAME": "", "wsgi.version": (1, 0), "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": True,
    "wsgi.run_once": False,
}  # fmt: skip

log = structlog.get_logger("sentinel.http")


class Edge:
    """The app that a process serves, and that tests call: an ASGI app around a Flask app.

    `posts` finds the handler of a POST route by its path, `streams` that of a stream by its path, `others` one by
    method and path. /healthz, and /readyz if `readiness` is given, are answered on the event loop too, so that threads
    that wait for the database do not keep a supervisor waiting. The Flask app answers everything else, in `threads`
    threads. `health_port` is the port of the supervisors' address, 0 without one. `headers` are added to answers of the
    event loop and of the server itself; streams and the Flask app set their own. A body of more than `max_body_bytes`
    is refused unread.
    """

    def __init__(
        self,
        flask: Flask,
        *,
        threads: int,
        posts: Callable[[str], Handler | None] = lambda path: None,
        streams: Callable[[str], StreamHandler | None] = lambda path: None,
        others: Callable[[str, str], Handler | None] = lambda method, path: None,
        readiness: Readiness | None = None,
        health_port: int = 0,
        https_only: HttpsOnly,
        headers: Mapping[str, str] = MappingProxyType({}),
        max_body_bytes: int = MAX_BYTES,
    ) -> None:
        self.flask = flask
        self.streams = streams
        self._headers_of_unread = tuple({**headers, **https_only.always}.items())
        self._headers = tuple(headers.items())
        self._posts = posts
        self._health_port = health_port
        self._https_only = https_only
        others = first_of([_health_routes(readiness), others])
        self._app = ByListener(
            HotRoutes(
                Documents(flask, threads), posts, streams, headers, others, max_body_bytes, outage_text_of(flask)
            ),
            health_port,
            headers,
        )

    def hot_routes(self, port: int) -> Callable[[bytes], QuickHandler | None]:
        """Return a finder of the `QuickHandler` of a POST by its target, for the listener of this port; it gives None for others."""
        if self._health_port and port == self._health_port:
            return lambda target: None
        return self._hot_route

    @lru_cache(maxsize=256)  # noqa: B019 - an edge lives as long as its process
    def _hot_route(self, target: bytes) -> QuickHandler | None:
        found = self._posts(target.decode("ascii", "replace"))
        return found if isinstance(found, QuickHandler) else None

    def headers_of_hot(self, environ: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """The headers that are added to the answer to a hot request."""
        added = self._https_only.of_request(environ)
        return (*self._headers, *added) if added else self._headers

    def answer_to_unread(self, status: int, message: str) -> bytes:
        """The bytes (head and body) that answer input that could not be read as a request; the connection is closed after them."""
        environ: dict[str, Any] = {}
        answer = EdgeResponse(*unread_problem(status, message, request_id_of(environ)))
        return head_of(answer, environ, self._headers_of_unread, False) + answer.body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Strict-Transport-Security is added here to every answer that must carry it."""
        if scope["type"] == "http":
            await self._app(scope, receive, _adding(self._https_only.headers(scope), send))


def route_of(path: str) -> str:
    """The path with one slash before and none behind it: Flask could answer other spellings as the same route, or redirect there."""
    return "/" + path.strip("/")


def by_path(handlers: Mapping[str, T]) -> Callable[[str], T | None]:
    """Return a finder of a handler by its path, with or without a slash at the end, as Flask matches."""
    return {path + end: handler for path, handler in handlers.items() for end in ("", "/")}.get


def first_of(finders: Sequence[Callable[[str, str], Handler | None]]) -> Callable[[str, str], Handler | None]:
    """Return a finder of a handler by method and path, which asks `finders` in order and takes the first result."""
    return lambda method, path: next((found for find in finders if (found := find(method, path)) is not None), None)


def _health_routes(readiness: Readiness | None) -> Callable[[str, str], Handler | None]:
    """Return a finder of the handlers of /healthz and, if `readiness` is given, of /readyz."""

    async def healthz(_: Request) -> EdgeResponse:
        return EdgeResponse(ALIVE)

    async def readyz(_: Request) -> EdgeResponse:
        assert readiness is not None
        return await readiness.answer()

    find = by_path({HEALTHZ: healthz} if readiness is None else {HEALTHZ: healthz, READYZ: readyz})
    return lambda method, path: find(path) if method in ("GET", "HEAD") else None


def _adding(headers: Sequence[tuple[bytes, bytes]], send: Send) -> Send:
    """Wrap `send` so that it adds these headers to an answer."""
    if not headers:
        return send

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return sending


class HotRoutes:
    """An ASGI app that answers the POST routes that `find` knows by their path, the streams that `find_stream` knows, and the
    routes that `find_other` knows by method and path.

    Everything else is handed to `rest`.
    """

    def __init__(
        self,
        rest: AsgiApp,
        find: Callable[[str], Handler | None],
        find_stream: Callable[[str], StreamHandler | None] = lambda path: None,
        headers: Mapping[str, str] = MappingProxyType({}),
        find_other: Callable[[str, str], Handler | None] = lambda method, path: None,
        max_body_bytes: int = MAX_BYTES,
        outage_text: OutageTextOf = outage_text_for_agents,
    ) -> None:
        self._headers = headers
        self._outage_text = outage_text
        self._max_body_bytes = max_body_bytes
        self._rest = rest
        self._find = find
        self._find_stream = find_stream
        self._find_other = find_other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        path, method = scope["path"], scope["method"]
        handler = self._find(path) if method == "POST" else None
        if (handler := handler or self._find_other(method, path)) is not None:
            answer = partial(_send, self._headers, send)
            await _answer(handler, scope, receive, answer, self._max_body_bytes, self._outage_text)
        elif method == "GET" and (stream := self._find_stream(path)) is not None:
            await _stream(stream, scope, receive, send, partial(_send, self._headers, send), self._outage_text)
        else:
            await self._rest(scope, receive, send)


class ByListener:
    """An ASGI app that restricts routes by address: /metrics only on the supervisors' one, and there only the health routes."""

    def __init__(self, app: AsgiApp, health_port: int, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._headers = headers
        self._app = app
        self._health_port = health_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        route = route_of(scope["path"])
        if route == METRICS or self._health_port:
            is_health = bool(self._health_port) and scope["server"][1] == self._health_port
            if route not in HEALTH if is_health else route == METRICS:
                environ = _environ(scope)
                return await _send(
                    self._headers, send, problem_answer(NotFound("there is nothing here"), environ), environ
                )
        return await self._app(scope, receive, send)


class Documents:
    """An ASGI app that runs a WSGI app in `threads` threads, one complete request at a time in each."""

    def __init__(self, app: WsgiApp, threads: int) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="documents")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        # A body that is declared too long is not waited for: the app refuses it by its header.
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        body = b"" if declared.isdigit() and int(declared[:20]) > MAX_BYTES else await _whole_body(receive, MAX_BYTES)
        if body is None:
            return
        environ = {**_environ(scope), **_WSGI, "wsgi.url_scheme": scope["scheme"], "wsgi.input": io.BytesIO(body)}
        environ["SERVER_NAME"], environ["SERVER_PORT"] = scope["server"][0], str(scope["server"][1])
        status, headers, answer = await asyncio.get_running_loop().run_in_executor(
            self._threads, _whole_answer, self._app, environ
        )
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def _whole_body(receive: Receive, max_bytes: int) -> bytes | None:
    """The request's body, cut to `max_bytes` + 1, which shows that it is too long; None when its client is gone."""
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        if length <= max_bytes:
            parts.append(message.get("body", b""))
            length += len(parts[-1])
        if not message.get("more_body") or length > max_bytes:
            return b"".join(parts)[: max_bytes + 1]


def _whole_answer(app: WsgiApp, environ: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Run the WSGI app and return (status, headers, body) in one piece, so that no thread waits for a slow reader."""
    found = Response.from_app(app, environ, buffered=True)
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in found.headers]
    return found.status_code, headers, found.get_data()


async def _answer(
    handler: Handler, scope: Scope, receive: Receive, answer: SendAnswer, max_bytes: int, outage_text: OutageTextOf
) -> None:
    """Send a handler's answer, or the problem document of its refusal."""
    environ = _environ(scope)
    body = b"" if _is_refused_unread(environ, max_bytes) else await _whole_body(receive, max_bytes)
    if body is None:
        return
    environ["wsgi.input"] = io.BytesIO(body)
    try:
        require_host(environ)
        given = await handler(Request(environ))
    except Exception as error:
        given = problem_answer(error, environ, outage_text(scope["method"]))
    await answer(given, environ)


async def _stream(
    handler: StreamHandler, scope: Scope, receive: Receive, send: Send, answer: SendAnswer, outage_text: OutageTextOf
) -> None:
    """Run a stream, or send the problem document of its refusal; a stream that fails after it has begun just ends."""
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
        given = problem_answer(error, environ, outage_text(scope["method"]))
        if not has_begun:
            await answer(given, environ)


def asgi_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Convert headers to ASGI's list of pairs of bytes."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a stream is gone; what it sends meanwhile is read and discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass


def problem_answer(error: Exception, environ: dict[str, Any], outage: OutageText = NOTHING_ALLOWED) -> EdgeResponse:
    """The problem document of a refusal; any unexpected error is logged and becomes a plain 500."""
    if isinstance(error, SentinelError):
        return EdgeResponse(*problem_of(error, request_id_of(environ), outage))
    log.exception("unexpected_error", path=environ["PATH_INFO"], exc_info=error)
    return EdgeResponse(*internal_problem(request_id_of(environ)))


def _environ(scope: Scope) -> dict[str, Any]:
    """The part of the WSGI environment that handlers read."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"], "PATH_INFO": scope["path"].encode().decode("latin-1"), "QUERY_STRING": scope.get("query_string", b"").decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope.get('http_version', '')}", "REMOTE_ADDR": (scope.get("client") or ("",))[0],
    }  # fmt: skip
    return environ | environ_of(scope["headers"])


def _is_refused_unread(environ: dict[str, Any], max_bytes: int) -> bool:
    """Whether the headers alone get the body refused, so that it is not waited for; `bodies.body_bytes` then says why."""
    declared = environ.get("CONTENT_LENGTH", "")
    is_number = declared.isascii() and declared.isdigit()
    return "HTTP_TRANSFER_ENCODING" in environ or not is_number or int(declared[:20]) > max_bytes


async def _send(more: Mapping[str, str], send: Send, given: EdgeResponse, environ: dict[str, Any]) -> None:
    """Send an answer, with `more` headers and the request's id."""
    headers = [(b"content-type", given.content_type.encode()), (b"content-length", b"%d" % len(given.body))]
    headers.append((b"x-request-id", request_id_of(environ).encode("latin-1")))
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in {**more, **given.headers}.items()]
    await send({"type": "http.response.start", "status": given.status, "headers": headers})
    await send({"type": "http.response.body", "body": given.body})
