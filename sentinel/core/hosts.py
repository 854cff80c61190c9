"""Names and addresses of hosts."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's own address; an IPv6 address may stand in brackets."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_WITH_PORT = re.compile(r"\[([^]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+", re.ASCII)
"""An address as some proxies write it, with the port that it came from."""

_TRANSLATED = IPv6Network("64:ff9b::/96")
"""Of IPv4 clients whom a translator (NAT64, SIIT) in front of an IPv6-only site shows: all of them are in this one network."""


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """What whoever limits by address counts by: an IPv4 address, also one that stands in an IPv6 address (mapped, or translated
    by RFC 6052's well-known prefix); the first 64 bits of another IPv6 address, of which one customer has all; other text as it is."""
    written = _WITH_PORT.fullmatch(address)
    try:
        found = ip_address((written[1] or written[2] if written else address).partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if found in _TRANSLATED:
            return str(IPv4Address(int(found) & 0xFFFFFFFF))
        return str(ip_network((found, 64), strict=False))
    return str(found)
