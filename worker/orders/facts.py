"""An order's facts as stored JSON and back, the account's age bounded by the time of receipt, and missing facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sentinel.core.money import Money
from worker.orders.order import Item, Order

_TIMES = ("placed_at", "account_created_at")
_PLAIN = (
    "email", "account_age_days", "billing_country", "shipping_country", "shipping_speed", "failed_payments",
)  # fmt: skip


def facts_of(order: Order) -> dict[str, Any]:
    """JSON of everything but id, amount and account, which have columns of their own. Unknown stays away."""
    found: dict[str, Any] = {name: getattr(order, name) for name in _PLAIN if getattr(order, name) is not None}
    for name in _TIMES:
        if (moment := getattr(order, name)) is not None:
            found[name] = moment.isoformat()
    if order.items:
        found["items"] = [[item.sku, item.title, item.quantity] for item in order.items]
    return found


def order_of(source: str, order_id: str, amount: Money, account_ref: str | None, facts: Mapping[str, Any]) -> Order:
    """The order that `facts_of` was made of."""
    times: dict[str, Any] = {name: datetime.fromisoformat(facts[name]) if facts.get(name) else None for name in _TIMES}
    plain: dict[str, Any] = {name: facts.get(name) for name in _PLAIN}
    return Order(
        source=source, order_id=order_id, amount=amount, account_ref=account_ref,
        items=tuple(Item(*line) for line in facts.get("items", ())),
        **plain, **times,
    )  # fmt: skip


def as_received(order: Order, received_at: datetime) -> Order:
    """With the account's age when the order was placed, by the youngest that is said: told, or from the day it was made.

    `received_at` is the database's: an order that does not say when it was placed, or says a time to come, was placed then.
    """
    if order.account_created_at is None:
        return order
    placed_at = min(order.placed_at or received_at, received_at)
    # An account can be made by the very order, a moment after it.
    made = max(0, (placed_at - order.account_created_at).days)
    told = order.account_age_days
    return replace(order, account_age_days=made if told is None else min(told, made))


def missing_facts(order: Order, always: Sequence[str]) -> tuple[str, ...]:
    """Which of the facts that its source always sends are not there."""
    return tuple(name for name in always if getattr(order, name) in (None, ()))
