"""Order sources: reads `policies/order_sources.yaml`, and verifies the signatures of webhooks.

The file says how each source signs, its field map and its look-ups. It names environment variables, never secrets. It
is read strictly: an unknown name is refused with its line and the nearest known one. A source without a secret is
closed: none of its deliveries verifies. `SourcesFile` reloads the file when it has changed, and keeps the last good one
when it has a fault.

Three schemes sign the raw body, all HMAC-SHA-256, compared in constant time. `hex` and `base64` sign the body alone: a
copy of such a delivery stays valid for ever, and the order's id keeps it from acting twice. `standard_webhooks`
(Standard Webhooks 1.0) signs id, time and body, and is accepted only within five minutes of its time. A bad signature
gives the value `Unverified`, not an exception; its `why` is for the metrics, never for the sender.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from sentinel.platform.outbound.standard_webhooks import ID, SIGNATURES, TIME, signature, signed_headers
from sentinel.platform.secret_files import secret_from_file
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.policy.errors import PolicyError as PolicyError
from sentinel.policy.source import Listing, Node, Source, Table, read_source
from worker.orders.enrich import Lookup, lookup_url_fault
from worker.orders.order import FIELDS, REQUIRED, FieldMap, Order, to_order
from worker.orders.settings import AFTER_SCORE_SECONDS, NO_TIME_TO_ASK

# Signatures.

TOLERANCE = timedelta(minutes=5)


class Scheme(StrEnum):
    """The signature scheme of a source."""

    HEX = "hex"
    BASE64 = "base64"
    STANDARD = "standard_webhooks"


@dataclass(frozen=True, slots=True)
class Secret:
    """A signing key; `until` is set on the old key of a rotation, which is accepted before that instant."""

    key: bytes = field(repr=False)
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """The delivery is genuine."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """The delivery is not known to be genuine; `why` is a code."""

    why: str


@dataclass(frozen=True, slots=True)
class Signing:
    """How one source signs. `header` and `prefix` apply to `hex` and `base64` only; the header's name may be in any case."""

    scheme: Scheme
    secrets: tuple[Secret, ...]
    header: str = ""
    prefix: str = ""

    def headers_in(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The headers that `verify` reads, from a request's WSGI environment.

        There a repeated header is its values joined by a comma, which never is a valid signature.
        """
        names = (ID, TIME, SIGNATURES) if self.scheme is Scheme.STANDARD else (self.header,)
        return {name: environ[key] for name, key in zip(names, _environ_keys(names), strict=True) if key in environ}

    def verify(self, headers: Mapping[str, str], body: bytes, now: datetime) -> Verified | Unverified:
        """Whether the source signed this body: `body` as it came over the wire, `now` with its zone. Never raises."""
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


# Signatures are compared as text in their canonical form: another text that decodes to the same bytes is refused.
_HEX = re.compile(r"[0-9a-f]{64}|[0-9A-F]{64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{43}=", re.ASCII)
# An id must not have a ".", which separates id, time and body in the signed text: the fields could be read differently.
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
    return Verified() if good else Unverified("mismatch")


@lru_cache(maxsize=64)
def _environ_keys(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("HTTP_" + name.upper().replace("-", "_") for name in names)


def _any_equal(said: list[str], right: list[str]) -> bool:
    """Whether any given signature equals any right one. Every pair is compared in constant time, so timing reveals nothing."""
    found = False
    for given in said:
        for wanted in right:
            found |= hmac.compare_digest(given.encode(), wanted.encode())
    return found


def _one(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header that occurs exactly once, in any case of its name; else None."""
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
    """Decode a Standard Webhooks secret (base64, with or without `whsec_`); None where the text is not base64."""
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        return None


# The file of sources.

FILE_NAME = "order_sources.yaml"
LEAST_BYTES, LEAST_STANDARD_BYTES = 16, 24
"""The shortest secrets that are accepted, as shorter ones can be guessed; Standard Webhooks itself requires 24 bytes."""

_KEYS = ("about", "scheme", "header", "prefix", "secret", "old_secret", "rate", "fields", "lookups", "always")
_LOOKUP_KEYS = ("url", "key", "fields", "timeout_ms")
_ENRICHABLE = ("account_age_days", "failed_payments")
ALWAYS = (
    "email", "account_ref", "account_age_days", "account_created_at", "billing_country", "shipping_country",
    "shipping_speed", "items", "failed_payments", "placed_at",
)  # fmt: skip
"""Facts that a source may declare as always sent."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,63}", re.ASCII)
_PATH = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,9}", re.ASCII)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` deliveries at once, `per_second` in the long run."""

    burst: int = 120
    per_second: int = 20


@dataclass(frozen=True, slots=True)
class OrderSource:
    """One sender of orders."""

    name: str
    signing: Signing
    fields: FieldMap
    rate: Rate = Rate()
    lookups: tuple[Lookup, ...] = ()
    always: tuple[str, ...] = ()
    """Facts that every order of this source has; an order that lacks one goes to a person."""
    about: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it has a secret, without which none of its deliveries verifies."""
        return bool(self.signing.secrets)

    def to_order(self, payload: Mapping[str, Any]) -> Order:
        """Map a payload of strictly parsed JSON to an order. Raises `InvalidInput` naming the path of what is wrong."""
        return to_order(self.name, self.fields, payload)


class Sources:
    """The declared sources; immutable."""

    def __init__(self, sources: Collection[OrderSource]) -> None:
        self.all = tuple(sources)
        self._by_name = {source.name: source for source in sources}

    @classmethod
    def load(cls, path: Path, env: Mapping[str, str] | None = None, *, budget_seconds: float | None = None) -> Sources:
        """Read the file, with secrets from `env` (default: the process's environment). Raises its first `PolicyError`.

        `budget_seconds` is the time that one order may take in all; look-ups are refused where it leaves no time for
        them. None: the budget is not known, and look-ups are accepted.
        """
        source, root = read_source(path, regular=True)
        table = source.fields(root, "the file", known=("sources",), required=("sources",))
        has_time = budget_seconds is None or budget_seconds > AFTER_SCORE_SECONDS
        reader = _File(source, os.environ if env is None else env, has_time_to_ask=has_time)
        named = source.table(table.entries["sources"], "sources")
        if not named.entries:
            raise source.error(named.place, "sources must not be empty")
        return cls([reader.one(name, node, named) for name, node in named.entries.items()])

    def find(self, name: str) -> OrderSource | None:
        """The source of this name, or None."""
        return self._by_name.get(name)

    def verify(self, name: str, headers: Mapping[str, str], body: bytes, now: datetime) -> Verified | Unverified:
        """Whether the source of this name signed the body; `Unverified` for an unknown source. Never raises."""
        source = self.find(name)
        return Unverified("no_source") if source is None else source.signing.verify(headers, body, now)

    def closed(self) -> tuple[str, ...]:
        """Names of sources without a secret."""
        return tuple(source.name for source in self.all if not source.is_open)


class SourcesFile:
    """The sources in force. `current` checks at most once a second whether the file has changed. Thread-safe."""

    def __init__(
        self, path: Path, env: Mapping[str, str] | None = None, *, budget_seconds: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Load the file for the first time, as `Sources.load`; raises `PolicyError`, as there is no good version to keep."""
        self.path, self._env, self._budget_seconds, self._now = path, env, budget_seconds, now
        self._stamp = _stamp(path)
        self._sources = self._load()
        self._look_at = now() + 1.0
        self.error: PolicyError | None = None
        """The fault of the file as it is now, while the last good version stays in force; None without a fault."""

    def current(self) -> Sources:
        """Return the sources in force, reloading a changed file; call it once per request. Never raises."""
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + 1.0
            if (stamp := _stamp(self.path)) != self._stamp:
                self._stamp = stamp
                self._reload()
        return self._sources

    def _load(self) -> Sources:
        return Sources.load(self.path, self._env, budget_seconds=self._budget_seconds)

    def _reload(self) -> None:
        try:
            self._sources, self.error = self._load(), None
        except PolicyError as error:
            self.error = error
            _log.error("order sources: %s; the last good file stays in force", error)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class _File:
    """Reads the nodes of one parsed file."""

    def __init__(self, source: Source, env: Mapping[str, str], *, has_time_to_ask: bool) -> None:
        self._source, self._env, self._has_time_to_ask = source, env, has_time_to_ask
        self._seen: dict[bytes, str] = {}

    def one(self, name: str, node: Node, named: Table) -> OrderSource:
        source = self._source.within(name, "source")
        if not _NAME.fullmatch(name):
            raise source.error(named.keys[name], "a source's name is a-z, 0-9, _ and -, at most 32 characters")
        at = source.fields(node, "a source", known=_KEYS, required=("scheme", "secret", "fields")).entries
        fields = self._field_map(source, at["fields"])
        lookups = tuple(self._lookup(source, n) for n in _items(source, at, "lookups"))
        return OrderSource(
            name,
            self._signing(source, name, at),
            fields,
            _rate(source, at["rate"]) if "rate" in at else Rate(),
            lookups,
            tuple(_always(source, n, fields, lookups) for n in _items(source, at, "always")),
            source.text(at["about"], "about") if "about" in at else "",
        )

    def _signing(self, source: Source, name: str, at: Mapping[str, Node]) -> Signing:
        scheme = Scheme(source.one_of(at["scheme"], "scheme", tuple(Scheme)))
        secrets = self._secrets(source, name, at, scheme)
        if scheme is Scheme.STANDARD:
            for key in ("header", "prefix"):
                if key in at:
                    raise source.error(
                        at[key].place, f"{key} must be omitted: standard_webhooks defines its own headers"
                    )
            return Signing(scheme, secrets)
        if "header" not in at:
            raise source.error(
                at["scheme"].place, f'"header" is missing: it must name the header of the signature of {scheme}'
            )
        header = source.text(at["header"], "header", form=_HEADER, means="the name of a header")
        return Signing(scheme, secrets, header, _prefix(source, at["prefix"]) if "prefix" in at else "")

    def _secrets(self, source: Source, name: str, at: Mapping[str, Node], scheme: Scheme) -> tuple[Secret, ...]:
        found = [Secret(key) for key in [self._secret(source, name, at["secret"], scheme)] if key]
        if "old_secret" in at:
            old = source.fields(
                at["old_secret"], "old_secret", known=("env", "until"), required=("env", "until")
            ).entries
            until = _time(source, old["until"])
            if key := self._secret(source, name, old["env"], scheme):
                found.append(Secret(key, until))
        return tuple(found)

    def _secret(self, source: Source, name: str, node: Node, scheme: Scheme) -> bytes | None:
        variable = source.text(node, "secret", form=_VARIABLE, means="the name of an environment variable")
        text = self._secret_text(source, node, variable)
        if not text:
            return None
        key = standard_key(text) if scheme is Scheme.STANDARD else text.encode()
        if key is None:
            raise source.error(node.place, f"{variable} must be whsec_ followed by base64")
        least = LEAST_STANDARD_BYTES if scheme is Scheme.STANDARD else LEAST_BYTES
        if len(key) < least:
            raise source.error(node.place, f"{variable} must hold a secret of at least {least} bytes")
        # With a shared secret, a delivery for one source would verify for the other too, and be another order there.
        owner = self._seen.setdefault(hmac.digest(key, b"order source", "sha256"), name)
        if owner != name:
            raise source.error(node.place, f'{variable} must not hold the same secret as source "{owner}"')
        return key

    def _secret_text(self, source: Source, node: Node, variable: str) -> str:
        """The text of the file that `variable`_FILE names, or of the variable; "" where neither is set."""
        try:
            return secret_from_file(variable, self._env) or self._env.get(variable, "").strip()
        except UnsafeConfiguration as error:
            raise source.error(node.place, error.detail) from None

    def _field_map(self, source: Source, node: Node) -> FieldMap:
        table = source.fields(node, "fields", known=FIELDS, required=REQUIRED)
        return {field: _paths(source, field, value) for field, value in table.entries.items()}

    def _lookup(self, source: Source, node: Node) -> Lookup:
        at = source.fields(node, "a lookup", known=_LOOKUP_KEYS, required=("url", "fields")).entries
        url = source.text(at["url"], "url")
        if (fault := lookup_url_fault(url)) is not None:
            raise source.error(at["url"].place, fault)
        if not self._has_time_to_ask:
            raise source.error(node.place, NO_TIME_TO_ASK)
        fields = source.fields(at["fields"], "fields of a lookup", known=_ENRICHABLE)
        timeout = source.integer(at["timeout_ms"], "timeout_ms", least=50, most=5000) if "timeout_ms" in at else 1000
        return Lookup(
            url,
            {field: _paths(source, field, value) for field, value in fields.entries.items()},
            self._bearer(source, at["key"]) if "key" in at else "",
            timeout / 1000,
        )

    def _bearer(self, source: Source, node: Node) -> str:
        variable = source.text(node, "key", form=_VARIABLE, means="the name of an environment variable")
        key = self._secret_text(source, node, variable)
        if not (key.isascii() and (key.isprintable() or not key) and " " not in key):
            raise source.error(node.place, f"{variable} must be printable ASCII without spaces")
        return key


def _prefix(source: Source, node: Node) -> str:
    text = getattr(node, "text", None)
    if text is None or getattr(node, "kind", "") != "str" or not text.isascii() or len(text) > 32:
        raise source.error(node.place, 'prefix must be text of at most 32 ASCII characters, "" for none')
    return str(text)


def _time(source: Source, node: Node) -> datetime:
    text = source.text(node, "until")
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise source.error(node.place, 'until must be a time with its zone, like "2026-12-31T12:00:00Z"')
    return found


def _rate(source: Source, node: Node) -> Rate:
    at = source.fields(node, "rate", known=("burst", "per_second"), required=("burst", "per_second")).entries
    return Rate(
        source.integer(at["burst"], "burst", least=1, most=100_000),
        source.integer(at["per_second"], "per_second", least=1, most=100_000),
    )


def _paths(source: Source, field: str, node: Node) -> tuple[tuple[str, ...], ...]:
    nodes = source.listing(node, field) if isinstance(node, Listing) else (node,)
    means = "a dotted path like order.customer.id"
    return tuple(tuple(source.text(item, field, form=_PATH, means=means).split(".")) for item in nodes)


def _always(source: Source, node: Node, fields: FieldMap, lookups: Collection[Lookup]) -> str:
    """Read one fact of `always`. It must be mapped, looked up, or derived from a mapped field; else raises `PolicyError`."""
    name = source.one_of(node, "always", ALWAYS)
    known = {*fields, *(field for lookup in lookups for field in lookup.fields)}
    known |= {"account_age_days"} if "account_created_at" in known else set()
    if name not in known:
        raise source.error(node.place, f"always names {name}, and neither fields nor lookups say where it is")
    return name


def _items(source: Source, at: Mapping[str, Node], key: str) -> tuple[Node, ...]:
    return source.listing(at[key], key) if key in at else ()
