"""The response to a sender about an order: its status, its lane and a reason code, never the reasons in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from worker.orders.claims import ClaimedOrder
from worker.orders.lanes import FINAL
from worker.orders.order import ReviewStatus

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
        """As the store records it (`orders.answered`)."""
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
