"""The values of order review: an order as its source sent it, its score, and a review as it is stored.

What a source did not send is None ("unknown"), never zero: a rule that needs it says so instead of guessing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from sentinel.core.money import Money

ACTION, AGENT_ID = "order.fulfill", "order-review"
MAX_SIGNAL_CHARS = 500
"""The longest detail of one signal."""


class Band(StrEnum):
    """What the score says; `unknown` goes to a person."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    UNKNOWN = "unknown"


class Lane(StrEnum):
    """Where an order goes: the authority's ALLOW, APPROVAL_REQUIRED or DENY on `order.fulfill`."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class ReviewStatus(StrEnum):
    """Where a review stands; `lanes.py` has the table of what may follow what."""

    RECEIVED = "RECEIVED"
    SCORED = "SCORED"
    DECIDED = "DECIDED"
    STARTED = "STARTED"
    QUEUED = "QUEUED"
    FULFILLED = "FULFILLED"
    HELD = "HELD"
    REFUND_FILED = "REFUND_FILED"
    SHOP_REFUSED = "SHOP_REFUSED"
    """The shop will not fulfil it: a person tries again, refunds it or has it held."""
    REFUND_REFUSED = "REFUND_REFUSED"
    """The refund that was filed was denied or failed: a person tries again or has it held."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of an order."""

    sku: str | None
    title: str | None
    quantity: int | None


@dataclass(frozen=True, slots=True)
class Order:
    """One order as its source's field map read it; None is unknown. `raw` is the whole payload."""

    source: str
    order_id: str
    amount: Money
    email: str | None = None
    account_ref: str | None = None
    account_age_days: int | None = None
    """As sent, until `facts.as_received` has bounded it by when the account was made and the order came."""
    account_created_at: datetime | None = None
    billing_country: str | None = None
    shipping_country: str | None = None
    shipping_speed: str | None = None
    items: tuple[Item, ...] = ()
    failed_payments: int | None = None
    placed_at: datetime | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing that was noticed: a stable code for the authority, a detail (≤ 500 characters) for people."""

    code: str
    detail: str


ModelAnswer = Literal["not_asked", "agreed", "raised", "fell_back"]


@dataclass(frozen=True, slots=True)
class Score:
    """The band, why, what the model said to it, and how long all of it took."""

    band: Band
    signals: tuple[Signal, ...] = ()
    model: ModelAnswer = "not_asked"
    latency_ms: int = 0


@dataclass(frozen=True, slots=True)
class KnownAccount:
    """What our own orders say about an order's account over the last 24 hours, this order not counted.

    All None where the order names no account. `amount_24h` is in the order's currency.
    """

    velocity_24h: int | None = None
    amount_24h: Money | None = None


def with_orders_beside(known: KnownAccount, order: Order, orders: Sequence[Order]) -> KnownAccount:
    """`known` with those of `orders` that are of the same account too, `order` itself not counted: they came together with it."""
    others = [one for one in orders if one.account_ref == order.account_ref and one is not order]
    if known.velocity_24h is None or not others:
        return known
    currency = order.amount.currency
    minor = sum(one.amount.amount_minor for one in others if one.amount.currency == currency)
    minor += known.amount_24h.amount_minor if known.amount_24h else 0
    return KnownAccount(known.velocity_24h + len(others), Money(minor, currency) if minor else None)


@dataclass(frozen=True, slots=True)
class Review:
    """One order's review as it is kept in `orders.reviews`; there is one per tenant, source and order id, for ever."""

    review_id: uuid.UUID
    source: str
    order_id: str
    amount_minor: int
    currency: str
    status: ReviewStatus
    epoch: int
    account_ref: str | None = None
    lane: Lane | None = None
    band: Band | None = None
    signals: tuple[Signal, ...] = ()
    model: ModelAnswer = "not_asked"
    operation_id: uuid.UUID | None = None
    """The authority's decision; the shop's `Idempotency-Key`."""
    approval_id: str | None = None
    start_id: uuid.UUID | None = None
    decided_at: datetime | None = None

    @property
    def amount(self) -> Money:
        """The order's amount."""
        return Money(self.amount_minor, self.currency)

    @property
    def order_key(self) -> str:
        """The authority's idempotency key of this order."""
        return order_key(self.source, self.order_id)


def order_key(source: str, order_id: str) -> str:
    """`order:{source}:{order_id}`: one fulfilment for ever."""
    return f"order:{source}:{order_id}"


def resource_of(source: str, order_id: str) -> str:
    """The authority's resource of an order."""
    return f"order/{source}/{order_id}"
