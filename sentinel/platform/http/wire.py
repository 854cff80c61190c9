"""Requests and answers without a framework, for the routes on the event loop; request ids, the check of Host, and HSTS."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

import msgspec

from sentinel.core.errors import InvalidInput
from sentinel.platform.http.bodies import body_bytes, read_object
from sentinel.store.ids import random_bytes


class Request(msgspec.Struct, eq=False):
    """One request, read from its WSGI environment."""

    environ: dict[str, Any]
    _body: bytes | None = None

    def header(self, name: str) -> str | None:
        """A header's value; `name` as the environment spells it, e.g. "HTTP_X_API_KEY"."""
        found: str | None = self.environ.get(name)
        return found

    def json(self) -> dict[str, Any]:
        """The body as a JSON object, strictly read. Raises the refusals of `bodies`."""
        return read_object(self.body())

    def body(self) -> bytes:
        """The body; it is read once and then kept. Raises the refusals of `body_bytes`."""
        if self._body is None:
            self._body = body_bytes(self.environ)
        return self._body


MAX_QUERY_FIELDS = 20
NOT_STORED: Mapping[str, str] = MappingProxyType({"Cache-Control": "no-store"})
ALIVE = b'{"status":"ok"}'
"""The body of /healthz: the process answers."""


class EdgeResponse(msgspec.Struct):
    """An answer: body, status, content type, and the headers besides the body's length and type."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = NOT_STORED


Handler = Callable[[Request], Awaitable[EdgeResponse]]
"""Answers one request. It raises refusals (`SentinelError`), which become problem documents."""


class QuickHandler(ABC):
    """A handler that needs no task of its own: the fast path for hot routes calls `begin`, every other path awaits the handler."""

    @abstractmethod
    def begin(self, request: Request, reply: Callable[[EdgeResponse], None]) -> None:
        """Start answering: `reply` is called once on the running loop, now or later. Raises refusals that are known at once."""

    async def __call__(self, request: Request) -> EdgeResponse:
        """The answer; raises refusals."""
        answered: asyncio.Future[EdgeResponse] = asyncio.get_running_loop().create_future()
        self.begin(request, lambda answer: None if answered.done() else answered.set_result(answer))
        return await answered


_UNPREFIXED = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


def environ_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Convert headers (names in lower case) to entries of a WSGI environment."""
    environ: dict[str, Any] = {}
    for name, value_bytes in headers:
        key, value = _environ_key(name), value_bytes.decode("latin-1")
        # A repeated header becomes one with both values, as under WSGI: a client cannot choose which of them counts.
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ


@lru_cache(maxsize=512)
def _environ_key(name: bytes) -> str:
    text = name.decode("latin-1")
    return _UNPREFIXED.get(text) or "HTTP_" + text.upper().replace("-", "_")


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")


def query_value(environ: Mapping[str, Any], name: str) -> str:
    """A query field's first value, "" without one. Raises `InvalidInput` when the query has more than MAX_QUERY_FIELDS fields."""
    try:
        fields = parse_qs(environ.get("QUERY_STRING", ""), max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise InvalidInput.of("query", f"has more than {MAX_QUERY_FIELDS} fields") from None
    found: str = fields.get(name, [""])[0]
    return found


def address_of(environ: Mapping[str, Any], trusted_proxies: int) -> str:
    """The client's address: the connection's, or behind trusted proxies the one that the outermost of them saw."""
    if trusted_proxies:
        told = [part.strip() for part in str(environ.get("HTTP_X_FORWARDED_FOR", "")).split(",") if part.strip()]
        if len(told) >= trusted_proxies:
            return told[-trusted_proxies]
    return str(environ.get("REMOTE_ADDR", ""))


def request_id_of(environ: dict[str, Any]) -> str:
    """The caller's `X-Request-ID` if it is a plain identifier, else a random one; it stays the same for the whole request."""
    found = environ.get("sentinel.request_id")
    if found is None:
        given = environ.get("HTTP_X_REQUEST_ID", "")
        found = environ["sentinel.request_id"] = given if _REQUEST_ID.fullmatch(given) else random_bytes(16).hex()
    return str(found)


def query_field(environ: Mapping[str, Any], name: str) -> str:
    """`query_value` for a route that refuses no query: "" instead of `InvalidInput` when there are too many fields."""
    try:
        return query_value(environ, name)
    except InvalidInput:
        return ""


_HSTS = "Strict-Transport-Security"
_ONE_YEAR = "max-age=31536000"
_HSTS_PAIRS = ((_HSTS.lower().encode(), _ONE_YEAR.encode()),)


@dataclass(frozen=True, slots=True)
class HttpsOnly:
    """Decides which answers carry Strict-Transport-Security (RFC 6797), after which a browser connects only over TLS.

    With `behind_tls` all answers do, else those to requests that came over TLS. Behind trusted proxies the entry of
    `X-Forwarded-Proto` that the outermost of them added decides; entries before it may be from anybody and are ignored.
    """

    behind_tls: bool = False
    trusted_proxies: int = 0

    @property
    def always(self) -> dict[str, str]:
        """The header if every answer has it, even one to input that could not be read as a request; else nothing."""
        return {_HSTS: _ONE_YEAR} if self.behind_tls else {}

    def headers(self, scope: Mapping[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
        """The headers to add to the answer to an ASGI request."""
        values = (
            [value for name, value in scope["headers"] if name == b"x-forwarded-proto"] if self.trusted_proxies else []
        )
        came_over_tls = self._came_over_tls(b",".join(values).decode("latin-1"), scope.get("scheme"))
        return _HSTS_PAIRS if self.behind_tls or came_over_tls else ()

    def of_request(self, environ: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """`headers` for a WSGI environment, as text; a request without a scheme counts as not encrypted."""
        return ((_HSTS, _ONE_YEAR),) if self.behind_tls or self.came_over_tls(environ) else ()

    def came_over_tls(self, environ: Mapping[str, Any]) -> bool:
        """Whether a request came over TLS, by its own scheme or by what the outermost trusted proxy says."""
        return self._came_over_tls(environ.get("HTTP_X_FORWARDED_PROTO", ""), environ.get("wsgi.url_scheme"))

    def _came_over_tls(self, forwarded: str, scheme: str | None) -> bool:
        if self.trusted_proxies:
            said = [part.strip().lower() for part in forwarded.split(",") if part.strip()]
            if len(said) >= self.trusted_proxies:
                return said[-self.trusted_proxies] == "https"
        return scheme == "https"


_MOST = 260
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?(?P<port>:[0-9]{0,5})?")
_ADDRESS = re.compile(r"\[(?P<address>[0-9A-Fa-f:.]{2,45})\](?P<port>:[0-9]{0,5})?")


def require_host(environ: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for an invalid Host header, and for a missing one in HTTP/1.1 (RFC 9112 §3.2)."""
    given = environ.get("HTTP_HOST")
    if given is None and environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
        return
    if given is None or not is_host(given):
        raise InvalidInput.of("Host", "must be one name or address, with or without a port")


def is_host(text: str) -> bool:
    """Whether `text` is a name of ASCII labels or an address (IPv6 in brackets), with or without a port up to 65535."""
    return len(text) <= _MOST and _is_host(text)


@lru_cache(maxsize=256)
def _is_host(text: str) -> bool:
    found = _NAME.fullmatch(text) or _ADDRESS.fullmatch(text)
    if found is None or int((found["port"] or ":")[1:] or "0") > 65535:
        return False
    return found.re is _NAME or _is_ipv6(found["address"])


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def head_of(
    answer: EdgeResponse, environ: dict[str, Any], more: tuple[tuple[str, str], ...], keep_alive: bool
) -> bytes:
    """The head of an answer over HTTP/1.1, with the request's id, the date, and `more` headers that every answer has."""
    known = _known_head(answer.status, answer.content_type, tuple(answer.headers.items()), more, keep_alive)
    request_id = request_id_of(environ).encode("latin-1")
    return b"%bcontent-length: %d\r\nx-request-id: %b\r\ndate: %b\r\n\r\n" % (
        known, len(answer.body), request_id, date_header(),
    )  # fmt: skip


def date_header() -> bytes:
    """The value of the Date header by this process's clock, to the second (RFC 9110 §6.6.1); nothing here depends on it."""
    return _date_at(int(time.time()))


@lru_cache(maxsize=1)
def _date_at(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(maxsize=512)
def _known_head(
    status: int, content_type: str, headers: tuple[tuple[str, str], ...], more: tuple[tuple[str, str], ...], keep_alive: bool
) -> bytes:  # fmt: skip
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {content_type}"]
    lines += [f"{name.lower()}: {value}" for name, value in {**dict(more), **dict(headers)}.items()]
    if not keep_alive:
        lines.append("connection: close")
    return "\r\n".join([*lines, ""]).encode("latin-1")
