"""What a shop offers to order review, and the shop behind HTTP.

    POST {shop}/orders/{id}/fulfill     Idempotency-Key: the operation; {order_id, source, operation_id, amount, lane, band,
                                        signals} → 200/201 {"status": "fulfilled", "reference"?}
    POST {shop}/orders/{id}/hold        the same → 200/201 {"status": "held", "reference"?}
    GET  {shop}/orders/{id}             200 {"status": "open"|"fulfilled"|"held", "operation_id"?, "reference"?};
                                        404/410 problem: no such order

`{source}` in the shop's address becomes the order's source. Only what is exactly one of these answers counts: a proxy's
login page or error page is no answer. One try each; whether to ask again is `effects.py`'s.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from sentinel.core.money import money_out
from worker.orders.order import Review
from worker.outbound.effects import EffectClient, EffectResult, NoAnswer, Refused, Reply, Settled, Verdict, one_line

STATUSES = ("open", "fulfilled", "held")


@dataclass(frozen=True, slots=True)
class ShopStatus:
    """How an order stands in the shop; `operation_id` is whose doing that is, where the shop says so."""

    status: str
    operation_id: str | None = None
    reference: str | None = None


class Shop(Protocol):
    """Where orders are fulfilled or held. Thread-safe; nothing here raises.

    `operation_id` is the authority's operation: the idempotency key, the same at every try.
    """

    name: str

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Ship it."""

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """Keep it from being shipped."""

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """How it stands; an order that the shop does not know is "open"."""


class HttpShop:
    """A shop's own HTTP interface at `url`. Thread-safe."""

    name = "http"

    def __init__(self, url: str, api_key: str = "", timeout_seconds: float = 3.0) -> None:
        self._url, self._api_key, self._timeout_seconds = url, api_key, timeout_seconds

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """POST …/fulfill once."""
        return self._act(review, operation_id, "fulfill", "fulfilled")

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """POST …/hold once."""
        return self._act(review, operation_id, "hold", "held")

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """GET the order."""
        shop = self._client_for(review)
        if isinstance(shop, Refused):
            return ShopStatus("open")
        reply = shop.call("GET", "")
        if isinstance(reply, NoAnswer):
            return reply
        if reply.status == 200:
            return _standing(reply)
        return ShopStatus("open") if reply.is_absence else NoAnswer(reply.why)

    def _act(self, review: Review, operation_id: uuid.UUID, verb: str, wanted: str) -> EffectResult:
        shop = self._client_for(review)
        if isinstance(shop, Refused):
            return shop
        reply = shop.call("POST", f"/{verb}", operation_id, shop_payload(review, operation_id))
        if isinstance(reply, NoAnswer):
            return reply
        return _done(reply, wanted, operation_id) if reply.verdict is Verdict.DONE else reply.not_done()

    def _client_for(self, review: Review) -> EffectClient | Refused:
        if review.order_id.strip(".") == "":
            # Clients fold "." and ".." away: the request would go to another address than the one that was meant.
            return Refused("its id cannot be part of an address")
        base = self._url.rstrip("/").replace("{source}", quote(review.source, safe=""))
        return EffectClient(f"{base}/orders/{quote(review.order_id, safe='')}", self._api_key, self._timeout_seconds)


def shop_payload(review: Review, operation_id: uuid.UUID) -> dict[str, Any]:
    """The body sent to a shop about an order, signals included."""
    return {
        "order_id": review.order_id,
        "source": review.source,
        "operation_id": str(operation_id),
        "amount": money_out(review.amount),
        "lane": review.lane,
        "band": review.band,
        "signals": [{"code": signal.code, "detail": signal.detail} for signal in review.signals],
    }


def _text(value: Any) -> str | None:
    return one_line(value) or None if isinstance(value, str) else None


def _done(reply: Reply, wanted: str, operation_id: uuid.UUID) -> EffectResult:
    if reply.body.get("status") != wanted:
        return NoAnswer(f'a {reply.status} that does not say "{wanted}"')
    return Settled(_text(reply.body.get("reference")) or str(operation_id))


def _standing(reply: Reply) -> ShopStatus | NoAnswer:
    status = reply.body.get("status")
    if status not in STATUSES:
        return NoAnswer("a 200 that does not say how the order stands")
    return ShopStatus(str(status), _text(reply.body.get("operation_id")), _text(reply.body.get("reference")))
