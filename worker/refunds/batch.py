"""Processes a batch of claimed rows: gives up rows without attempts left, runs the workflow, writes the results.

Only the workflow leads to an execution. A run ends with one event per row, written with the run's trail; a row without an
event keeps its state and comes back when its lease expires.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from worker.failpoints import Failpoint, Failpoints
from worker.refunds import run_results, transitions
from worker.refunds.ledger import Ledger
from worker.refunds.reporter import Reporter
from worker.refunds.rows import Change, KnownFacts, LedgerRow, ReleaseLease, Report
from worker.refunds.run_results import RowResult
from worker.refunds.transitions import RetryPolicy, is_outside
from worker.refunds.workflow.runner import ContextLoader, RunContext, Runner


@dataclass(slots=True)
class BatchResult:
    """What became of a batch; `answered` and `unanswered` count rows with and without an answer of the authority."""

    rows: list[RowResult]
    answered: int = 0
    unanswered: int = 0
    detail: str | None = None
    reported: int = 0


class BatchProcessor:
    """Processes batches; several threads may do so at once."""

    def __init__(
        self, *, ledger: Ledger, context_loader: ContextLoader, runner: Runner, reporter: Reporter, retry_policy: RetryPolicy,
        failpoints: Failpoints,
    ) -> None:  # fmt: skip
        self._ledger, self._context_loader, self._runner = ledger, context_loader, runner
        self._reporter, self._retry_policy, self._failpoints = reporter, retry_policy, failpoints

    def process(self, rows: Sequence[LedgerRow]) -> BatchResult:
        """Take claimed rows as far as they go now. Raises `LedgerUnavailable`: then leases bring the rows back."""
        self._failpoints.hit(Failpoint.AFTER_CLAIM)
        batch = BatchResult([])
        able = [row for row in rows if row.attempts < self._retry_policy.max_attempts]
        contexts = self._context_loader.contexts(
            able, self._ledger.facts([row.ledger_entry_id for row in able]) if able else {}
        )
        self._runner.run(contexts)
        self._close(contexts)
        spent = [row for row in rows if row.attempts >= self._retry_policy.max_attempts]
        given_up = [RunContext(row, _nothing_known(row)) for row in spent]
        for context in given_up:
            context.event = transitions.give_up(context.row, transitions.attempts_exhausted(context.row))
        self._close(given_up)
        by_id = {context.row.ledger_entry_id: context for context in (*contexts, *given_up)}
        for row in rows:
            self._count(batch, by_id[row.ledger_entry_id])
        batch.reported = self._reporter.deliver([c.report for c in contexts if c.report is not None])
        return batch

    # Writing results

    def _close(self, contexts: Collection[RunContext]) -> None:
        """Write how each run ended, where the graph's last steps have not done so."""
        changes: list[tuple[RunContext, Change]] = []
        releases: list[tuple[RunContext, ReleaseLease]] = []
        for context in contexts:
            event, trail = context.event, context.trail or None
            if context.outcome is None and isinstance(event, Change):
                changes.append((context, replace(event, steps=trail)))
            elif context.outcome is None and isinstance(event, ReleaseLease):
                releases.append((context, replace(event, steps=trail)))
        applied = self._ledger.apply([change for _, change in changes])
        for context, change in changes:
            if context.row.ledger_entry_id in applied:
                context.outcome = run_results.of_change(change, harmless=change.last_error == transitions.ENDED)
                context.report = _report_of(change) or context.report
            else:
                context.outcome = run_results.lease_lost(context.row, change.from_state)
        self._ledger.release_leases([release for _, release in releases])
        for context, release in releases:
            context.outcome = run_results.result_of_release(release, context.state)

    def _count(self, batch: BatchResult, context: RunContext) -> None:
        """A refusal of the row counts as an answer; a failure outside does not."""
        if context.outcome is not None:
            batch.rows.append(context.outcome)
        for said in (context.switches_error, context.check_answer, context.said, context.started):
            if said is not None and is_outside(said):
                batch.unanswered += 1
                batch.detail = said.detail
                return
        batch.answered += context.said is not None or context.started is not None


def _report_of(change: Change) -> Report | None:
    if change.report is None or change.report_id is None:
        return None
    return Report.just_written(change.row, change.report_id, change.report)


def _nothing_known(row: LedgerRow) -> KnownFacts:
    return KnownFacts(row.ledger_entry_id, "{}", None, None, False, None, 0)
