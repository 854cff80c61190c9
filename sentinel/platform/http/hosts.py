"""The Host header: one name or address with an optional port (RFC 9110 §7.2), or the request is refused before any route.

A Host that is no such thing only comes from programs that try what a server or a cache makes of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from sentinel.core.errors import InvalidInput

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
