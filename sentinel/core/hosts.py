"""Names and addresses of hosts."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's own address; an IPv6 address may be in brackets."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_WITH_PORT = re.compile(r"\[([^]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+", re.ASCII)
"""An address with the client's port, as some proxies write it."""

_TRANSLATED = IPv6Network("64:ff9b::/96")
"""RFC 6052's well-known prefix: a translator (NAT64, SIIT) in front of an IPv6-only site shows every IPv4 client in this network."""


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return the unit that limits by address count by: an IPv4 address, also one inside an IPv6 address (mapped, or
    translated by RFC 6052's well-known prefix), or the /64 of another IPv6 address, all of which one customer usually
    has. Other text is returned unchanged."""
    written = _WITH_PORT.fullmatch(address)
    try:
        found = ip_address((written[1] or written[2] or "" if written else address).partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if found in _TRANSLATED:
            return str(IPv4Address(int(found) & 0xFFFFFFFF))
        return str(ip_network((found, 64), strict=False))
    return str(found)
