"""confirm: the execution, EXECUTED and the outcome report are written in one transaction.

For the simulated systems that write *is* the effect. The report is sent right after the batch, and from the outbox until it
is acknowledged; no money moves for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from psycopg import errors as pg

from sentinel.client import StartReceipt
from worker.failpoints import Failpoint, Failpoints
from worker.refunds import run_results, transitions
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.rows import Execution, Report, report_body
from worker.refunds.states import LedgerState
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.context import RunContext, StepResult
from worker.refunds.workflow.graph import StepName


class Confirm:
    """The last step."""

    name = StepName.CONFIRM

    def __init__(self, ledger: Ledger, retry_policy: RetryPolicy, failpoints: Failpoints) -> None:
        self._ledger, self._retry_policy, self._failpoints = ledger, retry_policy, failpoints

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Write down what was settled, all of it or each for itself."""
        executions = [_execution(context) for context in contexts]
        self._failpoints.hit(Failpoint.BEFORE_EXECUTION)
        done, impossible = self._written(executions)
        self._failpoints.hit(Failpoint.AFTER_EXECUTION_COMMIT)
        for context, execution in zip(contexts, executions, strict=True):
            row = context.row
            if row.ledger_entry_id in done:
                context.outcome = run_results.untouched(row, LedgerState.EXECUTED, None)
                context.report = Report.just_written(row, execution.report_id, execution.report)
            elif row.ledger_entry_id in impossible:
                context.event = transitions.after_unknown_outcome(
                    row, "the database refused the execution", self._retry_policy
                )
            else:
                context.outcome = run_results.lease_lost(row, context.state)

    def run(self, context: RunContext) -> StepResult:
        """The run is over."""
        return StepResult({})

    def _written(self, executions: Sequence[Execution]) -> tuple[set[str], set[str]]:
        """(executed, refused by a constraint). One impossible row must not keep the others from being paid."""
        ids = [execution.row.ledger_entry_id for execution in executions]
        try:
            return self._ledger.record_executions(executions), set()
        except pg.IntegrityError:
            if len(executions) == 1:
                return set(), set(ids)
            parts = [self._written([execution]) for execution in executions]
            return set().union(*(done for done, _ in parts)), set().union(*(not_done for _, not_done in parts))
        except LedgerUnavailable:
            # The commit may have happened: look before anything else is thought about these rows.
            return self._ledger.executed(ids), set()


def _execution(context: RunContext) -> Execution:
    row, report, route = context.row, uuid.uuid4(), context.route
    assert isinstance(context.started, StartReceipt) and context.execution_id is not None and route is not None
    result = {"execution_id": str(context.execution_id), "system": route.settles_to}
    payload = report_body(row, report, "success", result=result)
    # This step's own line is written with the execution, which the trail must not outlive.
    context.note(StepName.CONFIRM, StepResult({"report": str(report)}, tool_used="outbox"))
    return Execution(
        row,
        context.execution_id,
        context.started.start_event_id,
        route.settles_to,
        report,
        payload,
        list(context.trail),
        context.permission,
    )
