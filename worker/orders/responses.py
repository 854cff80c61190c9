"""The response to a sender about an order: its status, its lane and a reason code, never the reasons in detail.

The first delivery of an order is processed; repeats get its response. While it is in flight they get 409 and retry
later. Once it is recorded they get the same response, marked as a replay; while the order is pending, with its
present status. Another body under a known order id gets 422, and raises an alert. A failed delivery is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sentinel.core.errors import KeyReused, StillDeciding
from worker.orders.lanes import FINAL
from worker.orders.order import ClaimedOrder, Order, ReviewStatus
from worker.orders.store import OrderStore, TakeOutcome, TakeResult

KEEP_SECONDS = 7 * 86400.0
"""How long a recorded response is kept, and a final one repeated byte for byte."""

_WORDS = {
    ReviewStatus.RECEIVED: "received",
    ReviewStatus.SCORED: "received",
    ReviewStatus.DECIDED: "fulfilling",
    ReviewStatus.STARTED: "fulfilling",
    ReviewStatus.QUEUED: "queued",
    ReviewStatus.FULFILLED: "fulfilled",
    ReviewStatus.HELD: "held",
    ReviewStatus.REFUND_FILED: "refund_filed",
    # That a person must act here is internal: the sender cannot do anything about it.
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
        """The response as JSON of the database's type `orders.delivery_response`."""
        return {
            "response_status": self.status, "response_body": self.body.decode(), "is_final": self.is_final,
            "keep_seconds": KEEP_SECONDS,
        }  # fmt: skip


def order_response(work: ClaimedOrder, **now: Any) -> OrderResponse:
    """Make the response about an order; `now` overrides fields of `work` that have just changed (status, lane, …)."""
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
    """Another delivery of this order is in flight."""

    code = "in-flight"

    def __init__(self) -> None:
        super().__init__("a delivery of this order is in flight; send it again later")


class BodyConflict(KeyReused):
    """The order was delivered before with another body."""

    def __init__(self) -> None:
        super().__init__("body")


def response_to_repeat(store: OrderStore, order: Order, taken: TakeResult, digest: str) -> OrderResponse:
    """The response to a delivery that did not take its order. Raises `DeliveryInFlight` or `BodyConflict`."""
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
    # One alert per different body, so that a sender that repeats it does not raise more.
    alert = {
        "kind": "body_conflict", "occasion": digest[:64], "summary": "a known order was delivered again with another body",
        "details": {"body_sha256": digest},
    }  # fmt: skip
    store.raise_alert(order.source, order.order_id, alert)
