"""A claimed order, the result of taking a delivery, and due reports and holds, as the store returns them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sentinel.core.money import Money
from worker.orders.facts import as_received, order_of
from worker.orders.order import (
    Band,
    KnownAccount,
    Lane,
    Order,
    Review,
    ReviewStatus,
    Signal,
)


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


class TakeOutcome(StrEnum):
    """What a delivery found."""

    TAKEN = "taken"
    RECORDED = "recorded"
    STANDING = "standing"
    IN_FLIGHT = "in_flight"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class TakeResult:
    """A delivery's place: `work` is claimed when TAKEN, else only how the order stands."""

    outcome: TakeOutcome
    response_status: int | None
    response_body: str | None
    is_final: bool | None
    known: KnownAccount
    work: ClaimedOrder | None


@dataclass(frozen=True, slots=True)
class DueReport:
    """One outcome that the authority has not acknowledged."""

    review_id: uuid.UUID
    source: str
    order_id: str
    done: bool
    operation_id: uuid.UUID
    shop_reference: str | None
    error: str | None
    amount_minor: int
    currency: str
    tries: int


@dataclass(frozen=True, slots=True)
class DueHold:
    """A hold to be tried; how often it was before, and how long ago."""

    work: ClaimedOrder
    tries: int
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class OrderFigures:
    """What is open, for the metrics."""

    queued: int
    oldest_queued_seconds: float
    under_way: int
    holds_open: int
    reports_open: int
    alerts_open: int
