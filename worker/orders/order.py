"""The values of order review: an order as its source sent it, its facts as JSON and back, its score, a review as it is stored and
as it is claimed.

What a source did not send is None ("unknown"), never zero: a rule that needs it says so instead of guessing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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


RANK = {Band.LOW: 0, Band.MEDIUM: 1, Band.UNKNOWN: 1, Band.HIGH: 2}
"""How strict a band is; an unknown one goes to a person like a medium one."""


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


@dataclass(frozen=True, slots=True)
class ClaimedOrder:
    """One claimed review, the columns of `orders.work`. Every change names its `epoch`."""

    review_id: uuid.UUID
    source: str
    order_id: str
    amount_minor: int
    currency: str
    account_ref: str | None
    order_facts: Mapping[str, Any]
    status: str
    lane: str | None
    epoch: int
    attempts: int
    band: str | None
    signals: Sequence[Mapping[str, str]] | None
    model: str | None
    guard_params: Mapping[str, Any] | None
    operation_id: uuid.UUID | None
    decision_event_id: uuid.UUID | None
    decision: str | None
    reason_code: str | None
    approval_id: uuid.UUID | None
    start_id: uuid.UUID | None
    decided_at: datetime | None
    due_at: datetime | None
    resolution: str | None
    last_error: str | None
    tries: int | None
    """How often the fulfilment was tried without an answer; only while it is started."""
    seconds_since_try: float | None
    received_at: datetime
    """When its first delivery came, by the database's clock."""

    @property
    def amount(self) -> Money:
        """The order's amount."""
        return Money(self.amount_minor, self.currency)

    @property
    def order(self) -> Order:
        """The order as it was kept."""
        order = order_of(self.source, self.order_id, self.amount, self.account_ref, self.order_facts)
        return as_received(order, self.received_at)

    @property
    def review(self) -> Review:
        """The review as the shop and people see it."""
        return Review(
            review_id=self.review_id, source=self.source, order_id=self.order_id, amount_minor=self.amount_minor,
            currency=self.currency, status=ReviewStatus(self.status), epoch=self.epoch, account_ref=self.account_ref,
            lane=Lane(self.lane) if self.lane else None, band=Band(self.band) if self.band else None,
            signals=tuple(Signal(s["code"], s["detail"]) for s in self.signals or ()),
            model=self.model or "not_asked",  # type: ignore[arg-type]
            operation_id=self.operation_id, approval_id=str(self.approval_id) if self.approval_id else None,
            start_id=self.start_id, decided_at=self.decided_at,
        )  # fmt: skip

    @property
    def own_start_id(self) -> uuid.UUID:
        """The start id of its fulfilment: derived from what is stored, so the same in every process."""
        return self.start_id or uuid.uuid5(self.review_id, "start")
