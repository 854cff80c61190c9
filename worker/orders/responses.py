"""The response to a sender about an order: its status, its lane and a reason code, never the reasons in detail.

The first delivery of an order runs, the others get its response. In flight: 409, retry later. Recorded: the same response,
marked as a replay; while an order is pending, with its present status. Another body under a known order id: 422, and an alert.
A failed delivery is not recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sentinel.core.errors import KeyReused, StillDeciding
from worker.orders.lanes import FINAL
from worker.orders.order import ClaimedOrder, Order, ReviewStatus
from worker.orders.store import OrderStore, TakeOutcome, TakeResult

KEEP_SECONDS = 7 * 86400.0
"""How long a response is repeated byte for byte."""

_WORDS = {
    ReviewStatus.RECEIVED: "received",
    ReviewStatus.SCORED: "received",
    ReviewStatus.DECIDED: "fulfilling",
    ReviewStatus.STARTED: "fulfilling",
    ReviewStatus.QUEUED: "queued",
    ReviewStatus.FULFILLED: "fulfilled",
    ReviewStatus.HELD: "held",
    ReviewStatus.REFUND_FILED: "refund_filed",
    # What a person is asked is theirs alone; the sender has nothing to do about it.
    ReviewStatus.SHOP_REFUSED: "queued",
    ReviewStatus.REFUND_REFUSED: "refund_filed",
}


@dataclass(frozen=True, slots=True)
class OrderResponse:
    """One response: 200 when the order is final, 202 while it is pending."""

    status: int
    body: bytes
    is_final: bool
    replayed: bool = False

    def as_json(self) -> dict[str, Any]:
        """As the store records it (`orders.delivery_response`)."""
        return {
            "response_status": self.status, "response_body": self.body.decode(), "is_final": self.is_final,
            "keep_seconds": KEEP_SECONDS,
        }  # fmt: skip


def order_response(work: ClaimedOrder, **now: Any) -> OrderResponse:
    """The answer about an order as `work` knows it; `now` replaces what has just changed (status, lane, …)."""
    seen = {
        name: now.get(name, getattr(work, name))
        for name in ("status", "lane", "reason_code", "operation_id", "approval_id", "due_at")
    }
    status = ReviewStatus(seen["status"])
    body: Mapping[str, Any] = {
        "order_id": work.order_id, "source": work.source, "status": _WORDS[status], "lane": seen["lane"],
        "reason_code": seen["reason_code"], "review_id": work.review_id, "operation_id": seen["operation_id"],
        **({"approval_id": seen["approval_id"], "due_at": seen["due_at"]} if status is ReviewStatus.QUEUED else {}),
    }  # fmt: skip
    is_final = status in FINAL
    return OrderResponse(200 if is_final else 202, orjson.dumps(body, option=orjson.OPT_UTC_Z), is_final)


class DeliveryInFlight(StillDeciding):
    """Another delivery of this order is under way."""

    code = "in-flight"

    def __init__(self) -> None:
        super().__init__("a delivery of this order is in flight; send it again later")


class BodyConflict(KeyReused):
    """The order came before with another body."""

    def __init__(self) -> None:
        super().__init__("body")


def body_digest(body: bytes) -> str:
    """What makes two deliveries the same: every byte."""
    return hashlib.sha256(body).hexdigest()


def response_to_repeat(store: OrderStore, order: Order, taken: TakeResult, digest: str) -> OrderResponse:
    """The answer to a delivery that is not the first. Raises `DeliveryInFlight` or `BodyConflict`."""
    work = taken.work
    if taken.outcome is TakeOutcome.CONFLICT:
        _alert_conflict(store, order, digest)
        raise BodyConflict
    if taken.outcome is TakeOutcome.RECORDED:
        return _replay(taken)
    if taken.outcome is TakeOutcome.IN_FLIGHT or work is None:
        raise DeliveryInFlight
    answer = order_response(work)
    store.record_answer(work, answer.as_json())
    return answer


def _replay(taken: TakeResult) -> OrderResponse:
    assert taken.response_status is not None and taken.response_body is not None
    if taken.is_final:
        return OrderResponse(taken.response_status, taken.response_body.encode(), is_final=True, replayed=True)
    assert taken.work is not None
    now = order_response(taken.work)
    return OrderResponse(taken.response_status, now.body, is_final=False, replayed=True)


def _alert_conflict(store: OrderStore, order: Order, digest: str) -> None:
    # One alert per other body: a sender that repeats it does not make noise.
    alert = {
        "kind": "body_conflict", "occasion": digest[:64], "summary": "a known order came again with another body",
        "details": {"body_sha256": digest},
    }  # fmt: skip
    store.raise_alert(order.source, order.order_id, alert)
