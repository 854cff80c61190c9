"""A request and an answer without a framework: what the routes of the event loop work on, a request's id, and the hosts that are answered."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.core.errors import InvalidInput
from sentinel.platform.http.bodies import body_bytes, read_object
from sentinel.platform.randomness import random_bytes


@dataclass(slots=True)
class Request:
    """One request, by what is read of its WSGI environment."""

    environ: dict[str, Any]

    def header(self, name: str) -> str | None:
        """A header's value; `name` as the environment spells it, e.g. "HTTP_X_API_KEY"."""
        found: str | None = self.environ.get(name)
        return found

    def json(self) -> dict[str, Any]:
        """The body as a JSON object, strictly read. Raises the refusals of `bodies`."""
        return read_object(self.body())

    def body(self) -> bytes:
        """The body. Raises the refusals of `body_bytes`."""
        return body_bytes(self.environ)


@dataclass(slots=True)
class Answer:
    """Status, body and the headers beyond its length and type."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})


Handler = Callable[[Request], Awaitable[Answer]]
"""Answers one request. Raises refusals, which become problem documents."""


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")


def request_id_of(environ: dict[str, Any]) -> str:
    """The caller's `X-Request-ID` if it is a plain identifier, else one made here; the same all through a request."""
    found = environ.get("sentinel.request_id")
    if found is None:
        given = environ.get("HTTP_X_REQUEST_ID", "")
        found = environ["sentinel.request_id"] = given if _REQUEST_ID.fullmatch(given) else random_bytes(16).hex()
    return str(found)


_MOST = 260
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?(?P<port>:[0-9]{0,5})?")
_ADDRESS = re.compile(r"\[(?P<address>[0-9A-Fa-f:.]{2,45})\](?P<port>:[0-9]{0,5})?")


def require_host(environ: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for a Host that is no host, and for none at all in HTTP/1.1 (RFC 9112 §3.2)."""
    given = environ.get("HTTP_HOST")
    if given is None and environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
        return
    if given is None or not is_host(given):
        raise InvalidInput.of("Host", "must be one name or address, with or without a port")


def is_host(text: str) -> bool:
    """Whether it is a name of ASCII labels or an address (IPv6 in brackets), with a port up to 65535 or none."""
    if len(text) > _MOST:
        return False
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
