"""Enrichment: looks up missing facts of an order with GETs to URLs of the sources file, within the order's time budget.

A look-up that fails, times out or answers in another form leaves its facts unknown and adds a signal. Facts of the
signed delivery are never overwritten.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from sentinel.core.errors import SentinelError
from sentinel.platform.http.bodies import read_object
from sentinel.platform.outbound.client import NoResponse, Response
from sentinel.platform.outbound.public_addresses import NotAllowed, PublicHttpClient
from worker.orders.order import MAX_COUNT, FieldMap, Order, Signal, as_count, at_path

PLACEHOLDERS = ("order_id", "account_ref")
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
UNAVAILABLE = "enrichment_unavailable"


@dataclass(frozen=True, slots=True)
class Lookup:
    """One URL to ask, and the paths of the fields in its answer. `key`, if not empty, is sent as bearer token."""

    url: str
    fields: FieldMap
    key: str = field(default="", repr=False)
    timeout_seconds: float = 1.0


def lookup_url_fault(url: str) -> str | None:
    """What is wrong with the URL of a look-up, or None. Placeholders may stand behind the host only."""
    unknown = [name for name in PLACEHOLDER.findall(url) if name not in PLACEHOLDERS]
    if unknown:
        return f"unknown placeholder {{{unknown[0]}}}; known: {', '.join(PLACEHOLDERS)}"
    host_ends = url.find("/", len("https://"))
    if "{" in url[: host_ends if host_ends > 0 else len(url)]:
        return "the url must not have a placeholder in its host"
    fault = PublicHttpClient().fault(PLACEHOLDER.sub("x", url))
    return None if fault is None else f"the url must be https, with a public name and port 443 or 8443 ({fault})"


@dataclass(frozen=True, slots=True)
class Enriched:
    """The enriched order, and a signal for each look-up that failed."""

    order: Order
    signals: tuple[Signal, ...] = ()


class Enricher:
    """Makes the look-ups of a source, one after the other. Thread-safe."""

    def __init__(self, outward: PublicHttpClient | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._outward, self._now = outward or PublicHttpClient(), now

    def enrich(self, order: Order, lookups: Sequence[Lookup], deadline: float) -> Enriched:
        """Look up the facts that the order lacks until `deadline`, an instant of `time.monotonic`. Never raises."""
        signals: list[Signal] = []
        for place, lookup in enumerate(lookups, 1):
            if not _missing(order, lookup):
                continue
            found = self._ask(order, lookup, deadline)
            if isinstance(found, str):
                signals.append(Signal(UNAVAILABLE, f"look-up {place}: {found}"))
            else:
                order, unread = _with(order, lookup, found)
                signals += [
                    Signal(UNAVAILABLE, f"look-up {place}: {name} is no whole number from 0 to {MAX_COUNT}")
                    for name in unread
                ]
        return Enriched(order, tuple(signals))

    def _ask(self, order: Order, lookup: Lookup, deadline: float) -> Mapping[str, Any] | str:
        """Make one look-up; return its JSON object, or a code for why there is none."""
        url = _url(order, lookup.url)
        seconds = min(lookup.timeout_seconds, deadline - self._now())
        if url is None or seconds <= 0:
            return "the order has no value for its URL" if url is None else "no time left"
        headers = {"Authorization": f"Bearer {lookup.key}"} if lookup.key else {}
        found = self._outward.exchange("GET", url, headers=headers, deadline_seconds=seconds)
        if isinstance(found, NoResponse | NotAllowed):
            return str(found.kind if isinstance(found, NoResponse) else found.why)
        return _object(found)


def _object(found: Response) -> Mapping[str, Any] | str:
    if found.status != 200:
        return f"http_{found.status}"
    if found.content_type != "application/json":
        return "not application/json"
    try:
        return read_object(found.body)
    except SentinelError:
        return "malformed"


def _missing(order: Order, lookup: Lookup) -> bool:
    return any(getattr(order, name) is None for name in lookup.fields)


def _url(order: Order, template: str) -> str | None:
    """The URL with its placeholders filled in; None where the order lacks the value of one."""
    values = {name: getattr(order, name) for name in PLACEHOLDER.findall(template)}
    # "." or ".." as a path segment would lead to another path, and quoting does not prevent that.
    if any(not value or not value.strip(".") for value in values.values()):
        return None
    return PLACEHOLDER.sub(lambda found: quote(values[found[1]], safe=""), template)


def _with(order: Order, lookup: Lookup, found: Mapping[str, Any]) -> tuple[Order, list[str]]:
    """The order with the facts that it lacked, and the names of those that the answer has in another form."""
    unread = []
    for name, paths in lookup.fields.items():
        value = next((value for path in paths if (value := at_path(found, path)) not in (None, "")), None)
        if value is None or getattr(order, name) is not None:
            continue
        if (count := as_count(value)) is None:
            unread.append(name)
        else:
            order = replace(order, **{name: count})  # type: ignore[arg-type]
    return order, unread
