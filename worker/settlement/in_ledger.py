"""Simulated systems in the ledger: their effect *is* the execution row, so it is atomic with state and report.

They settle by the write that follows; until that commits nothing has happened, and nothing needs to be recorded before.
"""

from __future__ import annotations

import base64
import hashlib
import uuid

from worker.outbound.effects import NoAnswer, Settled
from worker.refunds.rows import LedgerRow


class InLedger:
    """Always ready; nothing leaves the ledger's database."""

    name: str
    moves_money = True
    settles_in_ledger = True

    def is_ready(self) -> bool:
        """True: there is nothing outside to be ready."""
        return True

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> Settled:
        """Settled by the write that follows."""
        return Settled(self.own_reference(reference))

    def look_up(self, reference: uuid.UUID) -> NoAnswer:
        """Only the execution row knows, and it is not asked here: better no answer than a wrong one."""
        return NoAnswer("the effect is the execution row: look there")

    def own_reference(self, reference: uuid.UUID) -> str:
        """The system's own name for the effect, the same for the same reference."""
        return str(reference)


class SimulatedRefund(InLedger):
    """The retail shop's refund."""

    name = "simulated_refund"


class PrivateRefund(InLedger):
    """The private shop's refund API, simulated."""

    name = "private_refund"

    def own_reference(self, reference: uuid.UUID) -> str:
        """As that API would name it."""
        return f"pr_{reference.hex}"


class Coupon(InLedger):
    """A coupon instead of money: not a refund."""

    name = "coupon"
    moves_money = False

    def own_reference(self, reference: uuid.UUID) -> str:
        """The coupon's code: 16 characters that a customer can type, not guessable from another coupon's."""
        digest = hashlib.sha256(b"coupon:" + reference.bytes).digest()
        code = base64.b32encode(digest)[:16].decode("ascii")
        return "-".join(["CPN", *(code[at : at + 4] for at in range(0, 16, 4))])
