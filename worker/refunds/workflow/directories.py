"""Order directories: where a channel's orders are looked up. Without an answer the row goes to a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import orjson

from worker.refunds.rows import KnownFacts, LedgerRow, OrderFacts


@dataclass(frozen=True, slots=True)
class UnknownOrder:
    """The directory answered: there is no such order."""


@dataclass(frozen=True, slots=True)
class NoDirectoryAnswer:
    """The directory did not answer; `detail` is for the trail."""

    detail: str


Found = OrderFacts | UnknownOrder | NoDirectoryAnswer


class OrderDirectory(Protocol):
    """Orders of one channel."""

    name: str

    def is_ready(self) -> bool:
        """Whether it can be asked at all."""

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """Per row its order, in the same order; never raises."""


class LedgerDirectory:
    """Orders that the shop has put into the ledger's own table: they came with the row's facts."""

    name = "ledger_orders"

    def is_ready(self) -> bool:
        """True: the facts are there or the row would not be."""
        return True

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """What the facts hold."""
        return [order_of(facts) or UnknownOrder() for _, facts in rows]


class NotConnected:
    """A channel without a configured directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_ready(self) -> bool:
        """False until it is configured."""
        return False

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """No answer for anybody."""
        return [NoDirectoryAnswer("not connected")] * len(rows)


def directories(*, public_is_connected: bool) -> Mapping[str, OrderDirectory]:
    """Channel → directory. A marketplace's orders count once the settings say that they are imported."""
    own = LedgerDirectory()
    return {"retail": own, "private": own, "public": own if public_is_connected else NotConnected("public_orders")}


def order_of(facts: KnownFacts) -> OrderFacts | None:
    """The order that came with a row's facts."""
    if facts.order is None:
        return None
    found: dict[str, Any] = orjson.loads(facts.order)
    times = {name: _moment(found[name]) for name in ("ordered_at", "delivered_at")}
    return OrderFacts(**{**found, **times})


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
