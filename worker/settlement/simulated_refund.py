"""The simulated refund: the effect *is* the execution row, so it is atomic with the row's state and its report."""

from __future__ import annotations

import uuid

from worker.rows import LedgerRow
from worker.settlement.gateway import Settled


class SimulatedRefund:
    """Always ready; nothing leaves the ledger's database."""

    name = "simulated_refund"

    def is_ready(self) -> bool:
        """True: there is nothing outside to be ready."""
        return True

    def settle(self, row: LedgerRow, execution_id: uuid.UUID) -> Settled:
        """Settled by the write that follows; until that commits nothing has happened."""
        return Settled(str(execution_id))
