"""Idempotent delivery: the first delivery of an order runs, the others get its response.

In flight: 409, retry later. Recorded: the same response, marked as a replay; while an order is pending, with its present
status. Another body under a known order id: 422, and an alert. A failed delivery is not recorded.
"""

from __future__ import annotations

import hashlib

from sentinel.core.errors import KeyReused, StillDeciding
from worker.orders.claims import TakeOutcome, TakeResult
from worker.orders.order import Order
from worker.orders.responses import OrderResponse, order_response
from worker.orders.store import OrderStore


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
