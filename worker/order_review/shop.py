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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import orjson

from sentinel.core.money import money_out
from worker import outside
from worker.order_review.model import Review
from worker.settlement.gateway import Answer, NoAnswer, Refused, Settled, one_line
from worker.settlement.reply import JSON, Reply, Verdict

MAX_BYTES = 64 << 10
STATUSES = ("open", "fulfilled", "held")


@dataclass(frozen=True, slots=True)
class Standing:
    """How an order stands in the shop; `operation_id` is whose doing that is, where the shop says so."""

    status: str
    operation_id: str | None = None
    reference: str | None = None


class Shop(Protocol):
    """Where orders are fulfilled or held. Thread-safe; nothing here raises.

    `operation_id` is the authority's operation: the idempotency key, the same at every try.
    """

    name: str

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> Answer:
        """Ship it."""

    def hold(self, review: Review, operation_id: uuid.UUID) -> Answer:
        """Keep it from being shipped."""

    def look(self, review: Review) -> Standing | NoAnswer:
        """How it stands; an order that the shop does not know is "open"."""


class HttpShop:
    """A shop's own HTTP interface at `url`. Thread-safe."""

    name = "http"

    def __init__(self, url: str, api_key: str = "", timeout_seconds: float = 3.0) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds = timeout_seconds

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> Answer:
        """POST …/fulfill once."""
        return self._act(review, operation_id, "fulfill", "fulfilled")

    def hold(self, review: Review, operation_id: uuid.UUID) -> Answer:
        """POST …/hold once."""
        return self._act(review, operation_id, "hold", "held")

    def look(self, review: Review) -> Standing | NoAnswer:
        """GET the order."""
        address = self._address(review)
        if isinstance(address, Refused):
            return Standing("open")
        reply = self._call("GET", address)
        if isinstance(reply, NoAnswer):
            return reply
        if reply.status == 200:
            return _standing(reply)
        return Standing("open") if reply.is_absence else NoAnswer(reply.why)

    def _act(self, review: Review, operation_id: uuid.UUID, verb: str, wanted: str) -> Answer:
        address = self._address(review)
        if isinstance(address, Refused):
            return address
        body = orjson.dumps(told(review, operation_id))
        headers = {"Idempotency-Key": str(operation_id), "Content-Type": JSON}
        reply = self._call("POST", f"{address}/{verb}", body, headers)
        if isinstance(reply, NoAnswer):
            return reply
        return _done(reply, wanted, operation_id) if reply.verdict is Verdict.DONE else reply.not_done()

    def _address(self, review: Review) -> str | Refused:
        if review.order_id.strip(".") == "":
            # Clients fold "." and ".." away: the request would go to another address than the one that was meant.
            return Refused("its id cannot be part of an address")
        base = self._url.replace("{source}", quote(review.source, safe=""))
        return f"{base}/orders/{quote(review.order_id, safe='')}"

    def _call(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply | NoAnswer:
        found = outside.exchange(
            method, url, body, headers=self._headers | dict(headers or {}), deadline_seconds=self._timeout_seconds,
            max_bytes=MAX_BYTES,
        )  # fmt: skip
        return Reply.of(found)


def told(review: Review, operation_id: uuid.UUID) -> dict[str, Any]:
    """What a shop is told about an order, signals included."""
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


def _done(reply: Reply, wanted: str, operation_id: uuid.UUID) -> Answer:
    if reply.body.get("status") != wanted:
        return NoAnswer(f'a {reply.status} that does not say "{wanted}"')
    return Settled(_text(reply.body.get("reference")) or str(operation_id))


def _standing(reply: Reply) -> Standing | NoAnswer:
    status = reply.body.get("status")
    if status not in STATUSES:
        return NoAnswer("a 200 that does not say how the order stands")
    return Standing(str(status), _text(reply.body.get("operation_id")), _text(reply.body.get("reference")))
