"""A batch of claimed rows through the workflow: what may not be tried any more first, then the graph, then the books.

There is one way to an execution, and it is the graph's. What a run ends with is one event per row, written with the
trail of the run; a row that is no longer ours is left to whoever holds it now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from worker import next_steps, outcomes
from worker.failpoints import Failpoint, Failpoints
from worker.failures import is_outside
from worker.ledger import Ledger
from worker.next_steps import Patience
from worker.outcomes import RowOutcome
from worker.reporter import Reporter
from worker.rows import Change, KnownFacts, Lapse, LedgerRow, Report
from worker.states import LedgerState
from worker.workflow.context import Context
from worker.workflow.knowing import Knowing
from worker.workflow.runner import Runner


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch; `answered` and `silent` count rows with and without an answer of the authority."""

    rows: list[RowOutcome]
    answered: int = 0
    silent: int = 0
    detail: str | None = None
    reported: int = 0


class Pipeline:
    """Processes batches; several threads may do so at once."""

    def __init__(
        self, *, ledger: Ledger, knowing: Knowing, runner: Runner, reporter: Reporter, patience: Patience,
        failpoints: Failpoints,
    ) -> None:  # fmt: skip
        self._ledger, self._knowing, self._runner = ledger, knowing, runner
        self._reporter, self._patience, self._failpoints = reporter, patience, failpoints

    def process(self, rows: Sequence[LedgerRow]) -> BatchOutcome:
        """Take claimed rows as far as they go now. Raises `LedgerUnavailable`: then leases bring the rows back."""
        self._failpoints.hit(Failpoint.AFTER_CLAIM)
        batch = BatchOutcome([])
        able = [row for row in rows if row.attempts < self._patience.max_attempts]
        contexts = self._knowing.contexts(
            able, self._ledger.facts([row.ledger_entry_id for row in able]) if able else {}
        )
        self._runner.run(contexts)
        self._close(contexts)
        spent = [row for row in rows if row.attempts >= self._patience.max_attempts]
        given_up = [Context(row, _nothing_known(row)) for row in spent]
        for context in given_up:
            context.event = next_steps.give_up(context.row, next_steps.too_often(context.row))
        self._close(given_up)
        by_id = {context.row.ledger_entry_id: context for context in (*contexts, *given_up)}
        for row in rows:
            self._count(batch, by_id[row.ledger_entry_id])
        batch.reported = self._reporter.deliver([c.report for c in contexts if c.report is not None])
        return batch

    # Keeping book

    def _close(self, contexts: Collection[Context]) -> None:
        """Write down how each run ended, where the graph's last steps have not done so."""
        changes: list[tuple[Context, Change]] = []
        lapses: list[tuple[Context, Lapse]] = []
        for context in contexts:
            event, trail = context.event, context.trail or None
            if context.outcome is None and isinstance(event, Change):
                changes.append((context, replace(event, steps=trail)))
            elif context.outcome is None and isinstance(event, Lapse):
                lapses.append((context, replace(event, steps=trail)))
        applied = self._ledger.apply([change for _, change in changes])
        for context, change in changes:
            if context.row.ledger_entry_id in applied:
                context.outcome = outcomes.of_change(change, harmless=change.last_error == next_steps.ENDED)
                context.report = _report_of(change) or context.report
            else:
                context.outcome = outcomes.lost(context.row, change.from_state)
        self._ledger.let_lapse([lapse for _, lapse in lapses])
        for context, lapse in lapses:
            state = LedgerState.GUARDING if context.started is None else LedgerState.ALLOWED
            context.outcome = outcomes.of_lapse(lapse, state)

    def _count(self, batch: BatchOutcome, context: Context) -> None:
        """An answer is an answer, even a refusal of the row; what says nothing about the row is none."""
        if context.outcome is not None:
            batch.rows.append(context.outcome)
        for said in (context.silence, context.early_look, context.said, context.started):
            if is_outside(said):
                batch.silent += 1
                batch.detail = said.detail
                return
        batch.answered += context.said is not None or context.started is not None


def _report_of(change: Change) -> Report | None:
    if change.report is None or change.report_id is None:
        return None
    return Report.just_written(change.row, change.report_id, change.report)


def _nothing_known(row: LedgerRow) -> KnownFacts:
    return KnownFacts(row.ledger_entry_id, "{}", None, None, None, False, None, None, 0)
