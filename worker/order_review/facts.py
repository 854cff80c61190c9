"""An order as it is kept for whoever takes it up after its first holder: what the rules ask, without the raw payload."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sentinel.core.money import Money
from worker.order_review.model import Item, Order

_PLAIN = (
    "email", "account_age_days", "billing_country", "shipping_country", "shipping_speed", "failed_payments",
)  # fmt: skip


def facts_of(order: Order) -> dict[str, Any]:
    """JSON of everything but id, amount and account, which have columns of their own. Unknown stays away."""
    found: dict[str, Any] = {name: getattr(order, name) for name in _PLAIN if getattr(order, name) is not None}
    if order.placed_at is not None:
        found["placed_at"] = order.placed_at.isoformat()
    if order.items:
        found["items"] = [[item.sku, item.title, item.quantity] for item in order.items]
    return found


def order_of(source: str, order_id: str, amount: Money, account_ref: str | None, facts: Mapping[str, Any]) -> Order:
    """The order that `facts_of` was made of."""
    placed_at = facts.get("placed_at")
    plain: dict[str, Any] = {name: facts.get(name) for name in _PLAIN}
    return Order(
        source=source, order_id=order_id, amount=amount, account_ref=account_ref,
        placed_at=datetime.fromisoformat(placed_at) if placed_at else None,
        items=tuple(Item(*line) for line in facts.get("items", ())),
        **plain,
    )  # fmt: skip
