"""A saga as one would write it first: ask one system, then the other; after a crash, begin again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from worker.refunds.rows import LedgerRow
from worker.settlement import EffectResult, Settled, SettlementSystem


class SagaWithoutRecord:
    """Nothing is written down, so every try is the first one and has a reference of its own."""

    def __init__(self, systems: Sequence[SettlementSystem]) -> None:
        self._systems = systems

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """All effects, in order."""
        answer: EffectResult = Settled("")
        for system in self._systems:
            answer = system.settle(row, uuid.uuid4())
            if not isinstance(answer, Settled):
                return answer
        return answer
