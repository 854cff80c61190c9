"""Verifies webhook signatures: three schemes over the raw body, all HMAC-SHA-256, compared in constant time.

`hex` and `base64` sign the body alone: a copy of such a delivery stays valid for ever, and the order's id keeps it from
acting twice. `standard_webhooks` (Standard Webhooks 1.0) signs id, time and body, and is accepted only within five minutes
of its time. A bad signature is the value `Unverified`, nothing is raised; its `why` is for our counters, never for the
sender.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from sentinel.platform.outbound.standard_webhooks import ID, SIGNATURES, TIME, signature, signed_headers

TOLERANCE = timedelta(minutes=5)


class Scheme(StrEnum):
    """How a source signs."""

    HEX = "hex"
    BASE64 = "base64"
    STANDARD = "standard_webhooks"


@dataclass(frozen=True, slots=True)
class Secret:
    """A key; `until` set: the old one of a rotation, good before that instant."""

    key: bytes = field(repr=False)
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """Genuine. `delivery_id` is the sender's own where it is signed."""

    delivery_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unverified:
    """Not known to be genuine."""

    why: str


@dataclass(frozen=True, slots=True)
class Signing:
    """One source's way of signing. `header` and `prefix` are of `hex` and `base64`; the header's name in any case."""

    scheme: Scheme
    secrets: tuple[Secret, ...]
    header: str = ""
    prefix: str = ""

    def headers_in(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What `verify` reads of a request's WSGI environment. One that comes twice is both its values with a comma, which none is."""
        names = (ID, TIME, SIGNATURES) if self.scheme is Scheme.STANDARD else (self.header,)
        return {name: environ[key] for name, key in zip(names, _environ_keys(names), strict=True) if key in environ}

    def verify(self, headers: Mapping[str, str], body: bytes, now: datetime) -> Verified | Unverified:
        """`body` as it came over the wire, `now` with its zone. Never raises."""
        keys = [secret.key for secret in self.secrets if secret.until is None or now < secret.until]
        if not keys:
            return Unverified("no_secret")
        if self.scheme is Scheme.STANDARD:
            return _verify_standard(keys, headers, body, now)
        return self._verify_plain(keys, headers, body)

    def _verify_plain(self, keys: list[bytes], headers: Mapping[str, str], body: bytes) -> Verified | Unverified:
        given = _one(headers, self.header)
        if given is None or not given.startswith(self.prefix):
            return Unverified("header")
        text = given[len(self.prefix) :]
        form, write = (_HEX, _hex) if self.scheme is Scheme.HEX else (_BASE64, _base64)
        if not form.fullmatch(text):
            return Unverified("form")
        said = text.lower() if self.scheme is Scheme.HEX else text
        return Verified() if _any_equal([said], [write(_mac(key, body)) for key in keys]) else Unverified("mismatch")

    def sign(self, body: bytes, now: datetime, delivery_id: str) -> dict[str, str]:
        """The headers of a genuine delivery, signed with the newest secret: for replays, demos and tests."""
        key = self.secrets[0].key
        if self.scheme is not Scheme.STANDARD:
            write = _hex if self.scheme is Scheme.HEX else _base64
            return {self.header: self.prefix + write(_mac(key, body))}
        return signed_headers([key], delivery_id, int(now.timestamp()), body)


# Signatures are compared in the one form they are written in: two texts that decode to the same bytes are not both right.
_HEX = re.compile(r"[0-9a-f]{64}|[0-9A-F]{64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{43}=", re.ASCII)
# No "." in an id: it separates id from time in what is signed, and a shifted one would sign something else.
_DELIVERY_ID = re.compile(r"[A-Za-z0-9_:/@-]{1,128}", re.ASCII)
_SECONDS = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)
_LIST = re.compile(r"v[0-9]{1,3}[a-z]?,[A-Za-z0-9+/=_-]{1,200}(?: v[0-9]{1,3}[a-z]?,[A-Za-z0-9+/=_-]{1,200}){0,15}", re.ASCII)  # fmt: skip


def _verify_standard(
    keys: list[bytes], headers: Mapping[str, str], body: bytes, now: datetime
) -> Verified | Unverified:
    delivery_id, seconds, signatures = (_one(headers, name) for name in (ID, TIME, SIGNATURES))
    if delivery_id is None or seconds is None or signatures is None:
        return Unverified("header")
    if not (_DELIVERY_ID.fullmatch(delivery_id) and _SECONDS.fullmatch(seconds) and _LIST.fullmatch(signatures)):
        return Unverified("form")
    if abs(now.timestamp() - int(seconds)) > TOLERANCE.total_seconds():
        return Unverified("stale")
    said = [text for version, _, text in (entry.partition(",") for entry in signatures.split(" ")) if version == "v1"]
    good = _any_equal(said, [signature(key, delivery_id, int(seconds), body) for key in keys])
    return Verified(delivery_id) if good else Unverified("mismatch")


@lru_cache(maxsize=64)
def _environ_keys(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("HTTP_" + name.upper().replace("-", "_") for name in names)


def _any_equal(said: list[str], right: list[str]) -> bool:
    """Every pair is compared, in constant time, so that how long it takes says nothing about which was close."""
    found = False
    for given in said:
        for wanted in right:
            found |= hmac.compare_digest(given.encode(), wanted.encode())
    return found


def _one(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header that is there exactly once."""
    wanted = name.lower()
    values = [value for key, value in headers.items() if key.lower() == wanted]
    return values[0] if len(values) == 1 else None


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")


def _hex(mac: bytes) -> str:
    return mac.hex()


def _base64(mac: bytes) -> str:
    return base64.b64encode(mac).decode()


def standard_key(text: str) -> bytes | None:
    """The secret of Standard Webhooks in `whsec_…` text, or None for what is none."""
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        return None
