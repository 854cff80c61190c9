"""The interface of settlement systems."""

from __future__ import annotations

import uuid
from typing import Protocol, runtime_checkable

from worker.outbound.effects import EffectResult
from worker.refunds.rows import LedgerRow


class SettlementSystem(Protocol):
    """One way of giving something back. Thread-safe; nothing here raises.

    `reference` is the idempotency key towards the system: the ledger row's stored start id, the same at every try.
    """

    name: str
    moves_money: bool
    """False for what is no refund: a coupon, a ticket, a notice."""

    def is_ready(self) -> bool:
        """Whether it can be asked at all; asked before the permit is redeemed. Cheap: at most 5 seconds old."""

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Do it, once for a reference however often it is asked."""

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        """Whether it was done: `Settled`, `Refused` (surely not there) or `NoAnswer`."""


@runtime_checkable
class Compensating(Protocol):
    """A system that can take back what it did."""

    def compensate(self, reference: uuid.UUID) -> EffectResult:
        """Take it back: `Settled` when it is not there any more, `Refused` when it stays, `NoAnswer` otherwise."""
