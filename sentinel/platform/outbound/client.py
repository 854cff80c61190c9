"""The outbound HTTP client: one bounded exchange with a server that may be slow, broken or hostile.

Every result is a value: `Response` or `NoResponse`. One try, no redirects, no proxies or credentials from the environment,
no compression; one deadline over connecting, sending and receiving, however slowly bytes drip, and one bound on what is
kept.
"""

from __future__ import annotations

import functools
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from sentinel.platform.outbound.failures import FailureKind

# urllib3 logs whole URLs, which may contain secrets or customer data, when it complains about a server's odd headers.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)

MAX_BYTES = 64 << 10
"""The default for the largest body that is read, in bytes."""
MAX_HEAD_BYTES = 64 << 10
"""How many bytes may come besides the body: status line, headers and chunk framing together."""
_LEAST_CONNECT_SECONDS = 1.0
READY_WAIT_SECONDS = 1.0
"""How long a server may take to say that it is ready."""
_READY_SECONDS = 5.0
"""For how long what it said counts."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; `content_type` is lower case and without parameters."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No usable answer: what the server did is unknown, except with `FailureKind.NOT_SENT`, when it did nothing."""

    kind: FailureKind


Target = tuple[Any, Any, int, str, Any]
Resolver = Callable[[str, int, float], Sequence[Target]]
"""(host, port, seconds left) → the addresses to connect to, as `socket.getaddrinfo` returns them. Nothing is looked up
afterwards, so the connection goes to exactly the addresses that a resolver has checked."""


def look_up(host: str, port: int, seconds: float) -> Sequence[Target]:
    """`socket.getaddrinfo` within a time limit. Raises what it raises, or `TimeoutError`."""
    found: Future[Sequence[Target]] = Future()

    def ask() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # not only OSError: a name may be one that the system's codecs cannot encode
            found.set_exception(error)

    # The system's own look-up has no deadline: when the time is over it is left behind in its thread.
    threading.Thread(target=ask, daemon=True).start()
    return found.result(seconds)


def connect(
    targets: Sequence[Target], left: Callable[[], float], make: Callable[..., socket.socket] = socket.socket
) -> socket.socket:
    """Connect to the first of `targets` that accepts; `left` returns the seconds left. Raises `OSError` when none does.

    Each has its part of the time, but a second if there is one: where IPv6 leads nowhere, IPv4 must have its turn.
    """
    failed = OSError("the name has no address")
    for place, (family, kind, protocol, _, address) in enumerate(targets):
        link = make(family, kind, protocol)
        try:
            seconds = left()
            link.settimeout(max(seconds / (len(targets) - place), min(seconds, _LEAST_CONNECT_SECONDS)))
            link.connect(address)
            link.settimeout(left())
        except OSError as error:
            link.close()
            failed = error
        else:
            return link
    raise failed


def exchange(
    method: str,
    url: str,
    data: bytes | None = None,
    *,
    json: object = None,
    headers: Mapping[str, str] | None = None,
    deadline_seconds: float,
    max_bytes: int = MAX_BYTES,
    resolve: Resolver = look_up,
) -> Response | NoResponse:
    """Make one request with `data` or `json` within `deadline_seconds`; over `max_bytes` of body is `NoResponse`. Never raises."""
    _bounds.start(deadline_seconds, max_bytes + MAX_HEAD_BYTES, resolve)
    sent = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close", **(headers or {})}
    try:
        if json is not None:
            data, sent["Content-Type"] = orjson.dumps(json), "application/json"
        with _Session() as session, session.request(
            method, url, data=data, headers=sent, timeout=_bounds.left(), allow_redirects=False, stream=True
        ) as response:  # fmt: skip
            body = b""
            # Read to the end, because only there a truncated body is noticed.
            for part in response.raw.stream(max_bytes + 1, decode_content=False):
                body += part
                if len(body) > max_bytes:
                    return NoResponse(FailureKind.TOO_LARGE)
    except Exception:  # a hostile answer can cause errors that nobody has listed: none of them may reach the caller
        return NoResponse(_bounds.trouble())
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return Response(response.status_code, kind, body)


class SystemReadiness:
    """Whether an outside system is ready, as it last said: `ask` is called, with the seconds that it may take, at most every five. Thread-safe."""

    def __init__(self, ask: Callable[[float], bool], now: Callable[[], float]) -> None:
        self._ask, self._now = ask, now
        self._lock, self._is_ready, self._until = threading.Lock(), False, float("-inf")

    def get(self) -> bool:
        """Return it, asking the system if the last answer is too old."""
        with self._lock:
            if self._now() >= self._until:
                self._is_ready = self._ask(READY_WAIT_SECONDS)
                self._until = self._now() + _READY_SECONDS
            return self._is_ready


class JsonClient:
    """A JSON client of one server at `url`, with `api_key` as bearer token if there is one. Thread-safe; never raises."""

    def __init__(
        self, url: str, api_key: str = "", timeout_seconds: float = 5.0, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds, self._readiness = timeout_seconds, SystemReadiness(self._ask_ready, now)

    def ask(
        self, method: str, path: str, json: object = None, *, headers: Mapping[str, str] | None = None,
        deadline_seconds: float | None = None,
    ) -> Response | NoResponse:  # fmt: skip
        """Make one request to `url` + `path`, within `timeout_seconds` if no other deadline is given."""
        seconds = self._timeout_seconds if deadline_seconds is None else deadline_seconds
        sent = {**self._headers, **(headers or {})}
        return exchange(method, self.url + path, json=json, headers=sent, deadline_seconds=seconds)

    def is_ready(self) -> bool:
        """Whether GET `url`/ready answers 200 within `READY_WAIT_SECONDS`; asked at most every five seconds."""
        return self._readiness.get()

    def _ask_ready(self, seconds: float) -> bool:
        found = self.ask("GET", "/ready", deadline_seconds=seconds)
        return isinstance(found, Response) and found.status == 200


class _Bounds(threading.local):
    """The time and bytes that are left to the exchange that this thread is in."""

    until, bytes_left, is_connected = 0.0, 0, False
    resolve: Resolver

    def start(self, seconds: float, most_bytes: int, resolve: Resolver) -> None:
        self.until, self.bytes_left, self.is_connected = time.monotonic() + seconds, most_bytes, False
        self.resolve = resolve

    def left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left

    def count(self, received: int) -> int:
        self.bytes_left -= received
        if self.bytes_left < 0:
            raise OSError("more bytes came than may be looked at")
        return received

    def trouble(self) -> FailureKind:
        if not self.is_connected:
            return FailureKind.NOT_SENT
        if self.bytes_left < 0:
            return FailureKind.TOO_LARGE
        return FailureKind.TIMEOUT if time.monotonic() >= self.until else FailureKind.BROKEN


_bounds = _Bounds()


class _BoundedSocket(socket.socket):
    """Sets the time that is left as its timeout before every call, so that a server sending byte by byte gets no more time."""

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(_bounds.left())
        return _bounds.count(super().recv_into(*args, **options))

    def send(self, *args: Any, **options: Any) -> int:
        self.settimeout(_bounds.left())
        return super().send(*args, **options)

    def sendall(self, *args: Any, **options: Any) -> None:
        self.settimeout(_bounds.left())
        super().sendall(*args, **options)


class _BoundedTls(_BoundedSocket, ssl.SSLSocket):
    """The same over TLS, where `sendall` is a loop of `send`."""


def _dial(connection: HTTPConnection) -> socket.socket:
    targets = _bounds.resolve(connection.host, connection.port, _bounds.left())
    link = connect(targets, _bounds.left, _BoundedSocket)
    _bounds.is_connected = True
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(_bounds.left())  # for the TLS handshake, which is one call
    return link


class _Http(HTTPConnection):
    _new_conn = _dial


class _Https(HTTPSConnection):
    _new_conn = _dial


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _BoundedTls
    return context


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=_tls(), **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _Session(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        # Also keeps a .netrc from taking the place of the Authorization header.
        self.trust_env = False
        self.headers.clear()
        self.mount("http://", _Adapter())
        self.mount("https://", _Adapter())

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return no target: even without following it, requests would read and decompress a redirect's whole body."""


def is_http_url(url: str) -> bool:
    """Whether `url` can be requested: http or https, a host that can be looked up, no credentials, query or fragment."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # as a look-up does: an empty or too long label raises an error
        bad = parts.username or parts.password or parts.query or parts.fragment
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not bad
    except ValueError:
        return False
