"""The outbound HTTP client: one bounded exchange with a server that may be slow, broken or hostile.

Every result is a value: `Response` or `NoResponse`. One try, no redirects, no proxies or credentials from the environment,
no compression; one deadline over connecting, sending and receiving, however slowly bytes drip, and one bound on what is
kept. Only looking up a host's name is left to the system's own time limits.
"""

from __future__ import annotations

import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import orjson
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

MAX_HEAD_BYTES = 64 << 10
"""Status line, headers and chunk marks together: what may come besides the body."""


class FailureKind(StrEnum):
    """Why there is no answer."""

    NOT_SENT = "not_sent"
    """No connection, or nothing that can be sent: surely the server has not been asked."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; `content_type` is lower case and without parameters."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class NoResponse:
    """Not known what the server did, except with `FailureKind.NOT_SENT`: then nothing."""

    kind: FailureKind


Target = tuple[Any, Any, int, str, Any]
Resolver = Callable[[str, int, float], Sequence[Target]]
"""A host, a port and the seconds left → where a connection may go, as `socket.getaddrinfo` says it. Nothing is looked up
after it: what a resolver has checked is what is connected to."""


def post_json(
    url: str, body: object, *, headers: Mapping[str, str] | None = None, deadline_seconds: float, max_bytes: int
) -> Response | NoResponse:
    """POST `body` as JSON. Never raises."""
    try:
        data = orjson.dumps(body)
    except (TypeError, ValueError):
        return NoResponse(FailureKind.NOT_SENT)
    sent = {"Content-Type": "application/json", **(headers or {})}
    return exchange("POST", url, data, headers=sent, deadline_seconds=deadline_seconds, max_bytes=max_bytes)


def exchange(
    method: str,
    url: str,
    data: bytes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    deadline_seconds: float,
    max_bytes: int,
    resolve: Resolver | None = None,
) -> Response | NoResponse:
    """One request, at most `deadline_seconds` in all; a body of more than `max_bytes` is no answer. Never raises."""
    _deadline.start(deadline_seconds, max_bytes + MAX_HEAD_BYTES, resolve or _look_up)
    try:
        return _exchange(method, url, data, headers or {}, max_bytes)
    except Exception:  # a hostile answer finds errors nobody listed: none of them may come through
        return NoResponse(_deadline.trouble())


def _exchange(
    method: str, url: str, data: bytes | None, headers: Mapping[str, str], max_bytes: int
) -> Response | NoResponse:
    with _Session() as session:
        # Also keeps a .netrc from taking the place of the Authorization header.
        session.trust_env = False
        session.headers.clear()
        session.mount("http://", _Adapter())
        session.mount("https://", _Adapter())
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close", **headers}
        left = _deadline.left()
        with session.request(
            method, url, data=data, headers=sent, timeout=(left, left), allow_redirects=False, stream=True
        ) as response:
            body = _body(response.raw, max_bytes)
    if len(body) > max_bytes:
        return NoResponse(FailureKind.TOO_LARGE)
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return Response(response.status_code, kind, body)


def _body(raw: Any, max_bytes: int) -> bytes:
    """At most one byte more than wanted; read until nothing comes, because only then a body that is cut off is noticed."""
    parts, left = [], max_bytes + 1
    while left > 0 and (part := raw.read(left, decode_content=False)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class Readiness:
    """Whether a server says it is ready: GET `url` answers 200 within a second; asked at most every five seconds."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, now: Callable[[], float] = time.monotonic
    ):
        self._url, self._headers, self._now = url, headers, now
        self._until = float("-inf")
        self._is_ready = False
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        """The last answer, or a new one. Never raises."""
        with self._lock:
            if self._now() >= self._until:
                found = exchange("GET", self._url, headers=self._headers, deadline_seconds=1.0, max_bytes=64 << 10)
                self._is_ready = isinstance(found, Response) and found.status == 200
                self._until = self._now() + 5.0
            return self._is_ready


class _TooManyBytes(OSError):
    """More bytes came than may be looked at."""


class _Deadline(threading.local):
    """What is left of the exchange that this thread is in."""

    until = 0.0
    bytes_left = 0
    is_connected = False
    resolve: Resolver

    def start(self, seconds: float, most_bytes: int, resolve: Resolver) -> None:
        self.until = time.monotonic() + seconds
        self.bytes_left = most_bytes
        self.resolve = resolve
        self.is_connected = False

    def left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left

    def count(self, received: int) -> int:
        self.bytes_left -= received
        if self.bytes_left < 0:
            raise _TooManyBytes("the answer is too large")
        return received

    def trouble(self) -> FailureKind:
        if not self.is_connected:
            return FailureKind.NOT_SENT
        if self.bytes_left < 0:
            return FailureKind.TOO_LARGE
        return FailureKind.TIMEOUT if time.monotonic() >= self.until else FailureKind.BROKEN


_deadline = _Deadline()


class _BoundedSocket(socket.socket):
    """Sets the time that is left before every call: a server sending byte by byte gets no more than one sending at once."""

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(_deadline.left())
        return _deadline.count(super().recv_into(*args, **options))

    def sendall(self, *args: Any, **options: Any) -> None:
        self.settimeout(_deadline.left())
        super().sendall(*args, **options)


class _BoundedTls(ssl.SSLSocket):
    """The same over TLS, where `sendall` is a loop of `send`."""

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(_deadline.left())
        return _deadline.count(super().recv_into(*args, **options))

    def send(self, *args: Any, **options: Any) -> int:
        self.settimeout(_deadline.left())
        return super().send(*args, **options)


def _look_up(host: str, port: int, seconds: float) -> Sequence[Target]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _dial(host: str, port: int) -> socket.socket:
    failed: OSError | None = None
    for family, kind, protocol, _, address in _deadline.resolve(host, port, _deadline.left()):
        link = _BoundedSocket(family, kind, protocol)
        try:
            link.settimeout(_deadline.left())
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            link.close()
            failed = error
        else:
            _deadline.is_connected = True
            return link
    raise failed or OSError("the name has no address")


class _Http(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _dial(self.host, self.port or 80)


class _Https(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _dial(self.host, self.port or 443)


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """No answer points elsewhere. Also without following, requests would read and unpack a redirect's whole body."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=_tls(), **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _BoundedTls
    return context


def is_http_url(url: str) -> bool:
    """Whether `url` is an address that can be asked: http or https, a host, no credentials, query or fragment."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        bad = parts.username or parts.password or parts.query or parts.fragment
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not bad
    except ValueError:
        return False
