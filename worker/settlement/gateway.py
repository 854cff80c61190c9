"""What every settlement system offers and answers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Protocol

from worker.rows import LedgerRow


@dataclass(frozen=True, slots=True)
class Settled:
    """Done, once; `reference` is the system's own name for it."""

    reference: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Surely not done."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Not known: it may have been done."""

    detail: str


class SettlementSystem(Protocol):
    """One way of giving money back."""

    name: str

    def is_ready(self) -> bool:
        """Whether it can be asked at all; asked before the permit is redeemed."""

    def settle(self, row: LedgerRow, execution_id: uuid.UUID) -> Settled | Refused | NoAnswer:
        """Do it. `execution_id` is the idempotency key towards the system."""
