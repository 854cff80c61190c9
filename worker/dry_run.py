"""What would happen to rows, without doing any of it: no claim, no question that is recorded, no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.ledger import Ledger
from worker.rows import KnownFacts, LedgerRow, NewRow
from worker.workflow.knowing import Knowing
from worker.workflow.runner import Runner
from worker.workflow.simulate import Foresight, foresight_of


class Foreseer:
    """Simulates rows. Every call raises `LedgerUnavailable`."""

    def __init__(self, ledger: Ledger, knowing: Knowing, runner: Runner) -> None:
        self._ledger, self._knowing, self._runner = ledger, knowing, runner

    def due(self, limit: int) -> list[Foresight]:
        """Up to `limit` rows that a claim would take."""
        rows = self._ledger.peek(limit)
        return self._simulated(rows, self._ledger.facts([row.ledger_entry_id for row in rows]) if rows else {})

    def new(self, rows: Sequence[NewRow]) -> list[Foresight]:
        """Rows that are not in the ledger, against what it knows."""
        return self._simulated(*self._ledger.facts_of_new(rows))

    def _simulated(self, rows: Sequence[LedgerRow], known: Mapping[str, KnownFacts]) -> list[Foresight]:
        contexts = self._knowing.contexts(rows, known)
        self._runner.run(contexts)
        return [foresight_of(context) for context in contexts]
