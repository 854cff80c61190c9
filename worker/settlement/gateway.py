"""What every settlement system offers and answers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from worker.rows import LedgerRow


@dataclass(frozen=True, slots=True)
class Settled:
    """Done, once; `reference` is the system's own name for it."""

    reference: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Surely not done; from a look-up: surely not there.

    From `settle` it is final: whoever asks again under the same reference is refused again, so the refund ends there. What
    a later try may lift (a limit, a key, a busy system), and what is only not there yet, is `NoAnswer`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Not known: it may have been done."""

    detail: str


Answer = Settled | Refused | NoAnswer


class SettlementSystem(Protocol):
    """One way of giving something back. Thread-safe; nothing here raises.

    `reference` is the idempotency key towards the system: the ledger row's stored start id, the same at every try.
    """

    name: str
    moves_money: bool
    """False for what is no refund: a coupon, a ticket, a notice."""

    def is_ready(self) -> bool:
        """Whether it can be asked at all; asked before the permit is redeemed. Cheap: at most 5 seconds old."""

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> Answer:
        """Do it, once for a reference however often it is asked."""

    def look_up(self, reference: uuid.UUID) -> Answer:
        """Whether it was done: `Settled`, `Refused` (surely not there) or `NoAnswer`."""


@runtime_checkable
class Compensating(Protocol):
    """A system that can take back what it did."""

    def compensate(self, reference: uuid.UUID) -> Answer:
        """Take it back: `Settled` when it is not there any more, `Refused` when it stays, `NoAnswer` otherwise."""


def one_line(text: object, most: int = 200) -> str:
    """A stranger's words as one printable line of at most `most` characters."""
    return "".join(c if c.isprintable() else " " for c in str(text)[: 2 * most]).strip()[:most]
