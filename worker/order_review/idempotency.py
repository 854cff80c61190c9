"""One order, however often it is delivered: the first runs, the others are told.

In flight: 409 and come again. Recorded: the same answer, marked as a replay; while an order waits, a replay says where it
stands now. Another body under a known order id: 422, and people are alerted. What failed is not recorded.
"""

from __future__ import annotations

import hashlib

from sentinel.core.errors import KeyReused, StillDeciding
from worker.order_review.answers import Told, told
from worker.order_review.model import Order
from worker.order_review.store import OrderStore
from worker.order_review.work import Taken, TakeOutcome


class InFlight(StillDeciding):
    """Another delivery of this order is under way."""

    code = "in-flight"

    def __init__(self) -> None:
        super().__init__("a delivery of this order is in flight; send it again later")


class OtherBody(KeyReused):
    """The order came before with another body."""

    def __init__(self) -> None:
        super().__init__("body")


def body_digest(body: bytes) -> str:
    """What makes two deliveries the same: every byte."""
    return hashlib.sha256(body).hexdigest()


def told_before(store: OrderStore, order: Order, taken: Taken, digest: str) -> Told:
    """The answer to a delivery that is not the first. Raises `InFlight` or `OtherBody`."""
    work = taken.work
    if taken.outcome is TakeOutcome.CONFLICT:
        _alert_conflict(store, order, digest)
        raise OtherBody
    if taken.outcome is TakeOutcome.RECORDED:
        return _replay(taken)
    if taken.outcome is TakeOutcome.IN_FLIGHT or work is None:
        raise InFlight
    answer = told(work)
    store.record_answer(work, answer.as_json())
    return answer


def _replay(taken: Taken) -> Told:
    assert taken.response_status is not None and taken.response_body is not None
    if taken.is_final:
        return Told(taken.response_status, taken.response_body.encode(), is_final=True, replayed=True)
    assert taken.work is not None
    now = told(taken.work)
    return Told(taken.response_status, now.body, is_final=False, replayed=True)


def _alert_conflict(store: OrderStore, order: Order, digest: str) -> None:
    # One alert per other body: a sender that repeats it does not make noise.
    alert = {
        "kind": "body_conflict", "occasion": digest[:64], "summary": "a known order came again with another body",
        "details": {"body_sha256": digest},
    }  # fmt: skip
    store.raise_alert(order.source, order.order_id, alert)
