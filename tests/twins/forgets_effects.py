"""A saga as one would write it first: ask one system, then the other; after a crash, begin again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from worker.rows import LedgerRow
from worker.settlement import Answer, Settled, SettlementSystem


class SagaWithoutRecord:
    """Nothing is written down, so every try is the first one and has a reference of its own."""

    def __init__(self, systems: Sequence[SettlementSystem]) -> None:
        self._systems = systems

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> Answer:
        """All effects, in order."""
        answer: Answer = Settled("")
        for system in self._systems:
            answer = system.settle(row, uuid.uuid4())
            if not isinstance(answer, Settled):
                return answer
        return answer
