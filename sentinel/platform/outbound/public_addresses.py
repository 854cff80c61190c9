"""The outbound client for addresses that others chose (SSRF protection): only public addresses, checked and pinned.

A name is looked up once, every address that comes back must be a public one, and exactly these are connected to, so that a
name server that answers differently a moment later (DNS rebinding) changes nothing. Under TLS the certificate is still the
name's. No redirects, no credentials in the address, few ports (`GUARANTEES.md` G39).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sentinel.platform.outbound.client import (
    MAX_BYTES,
    NoResponse,
    Resolver,
    Response,
    Target,
    exchange,
    look_up,
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
DEADLINE_SECONDS = 5.0

# Addresses at which clouds serve their own machines (metadata and credentials among it) outside of the link-local
# networks: Azure, Oracle, Alibaba; by IPv6 AWS, Google, Oracle, Scaleway, Akamai, Alibaba. Some are in public ranges,
# others in private ones.
_CLOUD_SERVICES = tuple(
    ipaddress.ip_network(block)
    for block in (
        "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128",
        "fd00:42::42/128", "fd00:a9fe:a9fe::1/128", "fd00:100::100:200/128",
    )
)  # fmt: skip
# Ranges that `is_global` does not exclude: relays and mappings that lead to an IPv4 address of the sender's choice, and
# ranges that are reserved or only for examples.
_CLOSED_4 = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24", "224.0.0.0/4",
    )
)  # fmt: skip
_OPEN_6 = ipaddress.IPv6Network("2000::/3")
_CLOSED_6 = tuple(
    ipaddress.IPv6Network(block)
    for block in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
)
_ISATAP = (0x00005EFE, 0x02005EFE)
# 6to4, Teredo and the prefix of local translators (RFC 8215), in which the IPv4 address stands in one of several places.
_RELAYS = tuple(ipaddress.IPv6Network(block) for block in ("2002::/16", "2001::/32", "64:ff9b:1::/48"))

# Only one spelling of a URL is accepted, so that no two parsers can see different hosts in it.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?:[/?][A-Za-z0-9._~:/?@!$&'()*+,;=%-]{0,2000})?",
    re.ASCII,
)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_INSIDE_LABEL = re.compile(r"\w(?:[\w-]{0,61}\w)?", re.ASCII)
"""With underscores too, which services of compose and machines of Windows have in their names."""
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)
_INSIDE_NAMES = frozenset({"localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "corp", "private",
                           "arpa", "onion"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The call was refused and not made: `why` is a code of `FAULTS`. A look-up can still end in "inside_address"."""

    why: str


def is_cloud_service(address: Address) -> bool:
    """Whether a cloud serves its own machines at this address; those among the link-local addresses are not listed."""
    return any(address in block for block in _CLOUD_SERVICES)


def is_relayed(address: Address) -> bool:
    """Whether an IPv6 address leads, through a relay or tunnel, to an IPv4 address that is written in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return False
    return any(address in block for block in _RELAYS) or _is_isatap(address)


def _is_isatap(address: ipaddress.IPv6Address) -> bool:
    return (int(address) >> 32) & 0xFFFFFFFF in _ISATAP


def is_public(address: Address) -> bool:
    """Whether an address is public as it is written: not mapped, relayed, reserved or a cloud's own service."""
    if is_cloud_service(address):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in block for block in _CLOSED_4)
    if address.scope_id is not None or address not in _OPEN_6 or any(address in block for block in _CLOSED_6):
        return False
    return address.is_global and not _is_isatap(address)


@dataclass(frozen=True, slots=True)
class PublicHttpClient:
    """An HTTP client that calls only these schemes and ports, and addresses that `may_reach`. Frozen, shared, thread-safe."""

    schemes: tuple[str, ...] = ("https",)
    ports: tuple[int, ...] | None = (443, 8443)
    """None allows any port."""
    may_reach: Callable[[Address], bool] = is_public
    look_up: Resolver = look_up
    inside_names: bool = False
    """Whether names of a private network may be called, such as `collector` or `siem.internal`; `may_reach` decides where they lead."""

    def fault(self, url: str) -> str | None:
        """Why this URL may not be called as it is written, as a code of `FAULTS`; None when its host may be looked up."""
        found = _URL.fullmatch(url)
        if found is None:
            return "form"
        if found["scheme"] not in self.schemes:
            return "scheme"
        port = int(found["port"] or (443 if found["scheme"] == "https" else 80))
        if not 0 < port < 65536 or (self.ports is not None and port not in self.ports):
            return "port"
        return self._host_fault(found["host"])

    def _host_fault(self, host: str) -> str | None:
        if host.startswith("[") or _NUMBER.fullmatch(host.rpartition(".")[2]):
            # Every parser reads a host that ends in a number as an address; only the plain form of one is accepted.
            address = _address(host.strip("[]"))
            if address is None or (address.version == 6) != host.startswith("["):
                return "host"
            return None if self.may_reach(address) else "inside_address"
        labels, form = host.split("."), _INSIDE_LABEL if self.inside_names else _LABEL
        if (len(labels) < 2 and not self.inside_names) or not all(form.fullmatch(label) for label in labels):
            return "host"
        return "inside_name" if labels[-1].lower() in _INSIDE_NAMES and not self.inside_names else None

    def exchange(
        self,
        method: str,
        url: str,
        data: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> Response | NoResponse | NotAllowed:
        """One request as `sentinel.platform.outbound.client.exchange` makes it, to checked addresses only. Never raises."""
        if (why := self.fault(url)) is not None:
            return NotAllowed(why)
        refused: list[str] = []

        def checked(host: str, port: int, seconds: float) -> Sequence[Target]:
            found = self.look_up(host, port, seconds)
            # One inside address among public ones is how DNS rebinding begins: then none of them is used.
            if not found or not all(self._is_open(target) for target in found):
                refused.append(host)
                raise PermissionError("not an outside address")
            return found

        answer = exchange(
            method, url, data, headers=headers, deadline_seconds=deadline_seconds, max_bytes=max_bytes, resolve=checked
        )
        return NotAllowed("inside_address") if refused else answer

    def _is_open(self, target: Target) -> bool:
        address = _address(str(target[4][0]))
        return address is not None and self.may_reach(address)


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


LOOPBACK_CLIENT = PublicHttpClient(("http", "https"), None, lambda address: address.is_loopback)
"""For tests and for a demo on one machine: loopback and nothing else."""


def public_client(*, loopback_only: bool) -> PublicHttpClient:
    """The client for addresses from settings: loopback alone for a demo and for tests, else the public ones."""
    return LOOPBACK_CLIENT if loopback_only else PublicHttpClient()
