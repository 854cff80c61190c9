"""execute_by_system and confirm: stores and redeems the permit, asks the branch's settlement system, writes the execution.

In this order. The execution, EXECUTED and the outcome report are written in one transaction; for the simulated systems that
write *is* the effect. The report is sent right after the batch, and from the outbox until it is acknowledged.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import ChainMap
from collections.abc import Sequence

from msgspec.structs import replace

from sentinel.client import Client, GuardAnswer, Rejected, StartReceipt, Unreachable
from sentinel.store.ids import new_id
from worker.failpoints import Failpoint, Failpoints
from worker.outbound.guard_answers import RESOLVED
from worker.refunds import transitions
from worker.refunds.concurrency import WorkerPool
from worker.refunds.ledger import ROW_REFUSED, Ledger, LedgerUnavailable
from worker.refunds.rows import Change, Execution, LedgerState, Report, report_body
from worker.refunds.transitions import RetryPolicy, is_outside
from worker.refunds.workflow.graph import Escalation, StepName
from worker.refunds.workflow.routes import IN_PARTS
from worker.refunds.workflow.runner import RunContext, StepResult, Untried, trail_entry, untouched
from worker.settlement import EffectRefused, EffectResult, NoAnswer, Settled
from worker.settlement.effects import Ending, Left
from worker.settlement.registry import Systems, UnknownSystem

_log = logging.getLogger("worker")

_NOT_IN_TIME = "the execution was not written: the time to act, or the claim, was over before"


class ExecuteBySystem:
    """Records ALLOWED, redeems the permit, settles. No permit is redeemed for a system that is not ready."""

    name = StepName.EXECUTE_BY_SYSTEM

    def __init__(
        self,
        *,
        ledger: Ledger,
        client: Client,
        worker_pool: WorkerPool,
        retry_policy: RetryPolicy,
        systems: Systems,
        failpoints: Failpoints,
        act_within_seconds: int = 150,
    ) -> None:
        self._act_within_seconds = act_within_seconds
        self._ledger, self._client, self._worker_pool = ledger, client, worker_pool
        self._retry_policy, self._systems, self._failpoints = retry_policy, systems, failpoints

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Record ALLOWED, redeem the permit and settle; each stage goes on with the rows whose lease this worker still holds."""
        waiting = [
            each for each in contexts if each.permission is None and each.started is None and each.outcome is None
        ]
        fresh = [
            context for context in waiting
            if context.event is not None and context.not_taken is None and self._may_start(context)
        ]  # fmt: skip
        # If this is called again after it raised, what was recorded then is not recorded twice.
        recorded = [
            each for each in waiting
            if each.event is None and each.not_taken is None and not each.counted_first and each.defect is None
        ]  # fmt: skip
        permitted = [*recorded, *(self._record_allowed(fresh) if fresh else [])]
        self._start([context for context in permitted if not self._is_untried(context)])
        started = [each for each in contexts if isinstance(each.started, StartReceipt) and each.settled is None]
        # Rows with a `permission` settle by the execution and need no thread; the others are settled several at a time.
        self._worker_pool.map(self._settle, [context for context in started if context.permission is None])
        for context in started:
            if context.permission is not None:
                self._settle(context)

    def _may_start(self, context: RunContext) -> bool:
        """Whether the row's system is ready, or the row was started before.

        Then an effect may be in flight, and it is finished even if the system is not ready now.
        """
        begun = isinstance(context.answer, GuardAnswer) and transitions.was_started_before(context.answer)
        return begun or self._systems.is_ready(context.settles_in)

    def _is_untried(self, context: RunContext) -> bool:
        """Whether the row was started before and nothing more of it will be tried; then `started` says why, and no start is asked for."""
        answer = _permit(context)
        if transitions.was_started_before(answer) and not transitions.was_not_executed(answer):
            why = self._systems.why_untried(context.row, context.settles_in)
            context.started = None if why is None else Untried(why)
        return context.started is not None

    def _settle(self, context: RunContext) -> None:
        context.execution_id = new_id()
        # A system knows this refund by the start id, which is the same for every attempt.
        assert context.row.start_id is not None
        system = self._systems.find(context.settles_in)
        assert system is not None  # without a system its start was not asked for
        try:
            context.settled = system.settle(context.row, context.row.start_id)
        except Exception as error:
            # The effect may have been done; the other rows of the batch must go on.
            _log.error("settling %s failed: %s", context.row.ledger_entry_id, type(error).__name__)
            context.settled = NoAnswer(f"its adapter failed: {type(error).__name__}")

    def _record_allowed(self, contexts: Sequence[RunContext]) -> list[RunContext]:
        impossible: dict[str, str] = {}
        start_ids = self._ledger.apply(
            [_with_order_flags(each, each.event) for each in contexts if isinstance(each.event, Change)], impossible
        )
        left = [
            context.row.ledger_entry_id for context in contexts if start_ids.get(context.row.ledger_entry_id) is None
        ]
        refused = self._ledger.why_refused(left)
        permitted = []
        for context in contexts:
            change = context.event
            context.event = None
            start_id = start_ids.get(context.row.ledger_entry_id)
            if context.row.ledger_entry_id in refused:
                context.not_taken = Escalation(refused[context.row.ledger_entry_id])
                continue
            if context.row.ledger_entry_id in impossible:
                context.defect = f"the database refused it: {impossible[context.row.ledger_entry_id]}"
                continue
            if not isinstance(change, Change) or start_id is None:
                # Or its claim was lost: then it is not put back either, as that checks the epoch too.
                context.counted_first = True
                continue
            context.not_taken = None
            # The stored start id counts, not the proposed one: it may be an earlier holder's.
            context.row = replace(
                context.row, start_id=start_id, decision=change.decision, reason_code=change.reason_code,
                permit_token=change.permit_token, may_be_started=True,
            )  # fmt: skip
            permitted.append(context)
        if permitted:
            self._failpoints.hit(Failpoint.AFTER_ALLOWED_RECORDED)
        return permitted

    def _start(self, permitted: Sequence[RunContext]) -> None:
        receipts = self._worker_pool.map_chunks(self._redeem, permitted, alone=lambda each: each.row.failed_before)
        for context, receipt in zip(permitted, receipts, strict=True):
            context.started = receipt

    def _redeem(self, permitted: Sequence[RunContext]) -> Sequence[StartReceipt | Unreachable | Rejected]:
        self._failpoints.hit(Failpoint.BEFORE_START)
        receipts = self._client.start_many(
            [(_permit(context), context.row.start_id or "") for context in permitted],
            act_within_seconds=self._act_within_seconds,
        )
        self._failpoints.hit(Failpoint.AFTER_START)
        return receipts

    def run(self, context: RunContext) -> StepResult:
        """Go on when settled; put the row back on a refused start; leave an unknown outcome to a later claim.

        A refused settlement is final and ends the row; one that may or may not be refused counts as no answer.
        """
        row, name = context.row, context.settles_in or "none"
        if context.outcome is not None:
            return StepResult({"claim": "lost"})
        if context.defect is not None and context.started is None:
            return StepResult({"claim": "not recorded"})
        if context.not_taken is not None:
            # Another row of this order was first: the question to a person gives the permit back.
            context.event = None
            return StepResult({"order": "taken"}, StepName.TRANSFER_TO_HUMAN, context.not_taken)
        if context.counted_first:
            context.event = transitions.let_go(row, transitions.COUNTED_FIRST)
            return StepResult({"order": "counted another first"})
        if context.started is None:
            # The system became unready after the decision: the question to a person gives the permit back.
            context.event = None
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        if isinstance(context.started, Untried):
            context.event = transitions.after_unknown_outcome(row, context.started.why, self._retry_policy)
            return StepResult({"start": "not asked for"})
        if is_outside(context.started):
            context.event = transitions.after_unknown_outcome(row, context.started.detail, self._retry_policy)
            return StepResult({"start": "no answer"})
        if isinstance(context.started, Rejected) and context.started.code == RESOLVED:
            return self._not_executed(context)
        if isinstance(context.started, Rejected):
            back, context.event = transitions.after_start_refused(
                row, context.started, self._retry_policy, was_started=transitions.was_started_before(_permit(context))
            )
            self._ledger.apply([back])
            return StepResult({"start": "refused", "code": context.started.code})
        return self._settled(context, name)

    def _not_executed(self, context: RunContext) -> StepResult:
        """End a row that a person resolved as not executed once no effect of it is left; nothing more is tried.

        What its system did in part is taken back; what it did completely is reported.
        """
        row = context.row
        name, found = self._ended(context)
        if isinstance(found, Left):
            context.event = transitions.after_not_executed_left(row, found.what)
            if found.moves_money:
                self._ledger.apply([transitions.start_refused(row, "a person said that this was not executed")])
                context.event = transitions.after_not_executed_but(row, Settled(found.what[:200]), system=name)
        elif isinstance(found, EffectRefused):
            context.event = transitions.after_not_executed(row)
        elif isinstance(found, NoAnswer):
            context.event = transitions.after_not_executed_unseen(row, found, self._retry_policy, system=name)
        else:
            self._ledger.apply([transitions.start_refused(row, "a person said that this was not executed")])
            context.event = transitions.after_not_executed_but(row, found, system=name)
        return StepResult({"start": "refused", "code": RESOLVED, "found": type(found).__name__})

    def _ended(self, context: RunContext) -> tuple[str, EffectResult | Left]:
        """End the row in the system that it was begun in, or else its branch's; returns the system's name and what it did of the row."""
        assert context.row.start_id is not None
        try:
            begun = self._systems.begun_in(context.row.start_id)
        except (UnknownSystem, LedgerUnavailable) as error:
            return "the settlement system", NoAnswer(str(error))
        system = begun or self._systems.find(context.settles_in)
        # In the ledger the execution is the effect, and an ALLOWED row has none. Outside, nothing is tried without a
        # record.
        if system is None and not self._systems.has_record:
            return "none", NoAnswer("there is no record to read")
        if system is None or getattr(system, "settles_in_ledger", False):
            return system.name if system else "none", EffectRefused("never tried")
        if isinstance(system, Ending):
            return system.name, system.end(context.row, context.row.start_id)
        return system.name, system.look_up(context.row.start_id)

    def _settled(self, context: RunContext, name: str) -> StepResult:
        row, settled = context.row, context.settled
        if isinstance(settled, Settled):
            return StepResult({"reference": settled.reference}, StepName.CONFIRM, tool_used=name)
        if isinstance(settled, EffectRefused):
            operation_id = _permit(context).operation_id
            context.event = event = transitions.after_settlement_refused(
                row, operation_id, system=name, reason=settled.reason
            )
            return StepResult({"settlement": "refused", "report": str(event.report_id)}, tool_used=name)
        detail = settled.detail if isinstance(settled, NoAnswer) else "no usable answer"
        why = f"{name}: {transitions.without_name(detail, name)}" if context.settles_in is not None else detail
        context.event = transitions.after_unknown_outcome(row, why, self._retry_policy)
        return StepResult({"settlement": "no answer" if isinstance(settled, NoAnswer) else "failed"}, tool_used=name)


def _with_order_flags(context: RunContext, change: Change) -> Change:
    unknown_lifted = Escalation.ORDER_PAID_UNKNOWN in context.lifted
    return replace(change, takes_order=_takes_order(context), unknown_lifted=unknown_lifted)


def _takes_order(context: RunContext) -> bool:
    """Whether this is the one refund that its order gets without a person."""
    row = context.row
    return (
        row.order_ref is not None and row.channel not in IN_PARTS and Escalation.REFUNDED_BEFORE not in context.lifted
    )


def _permit(context: RunContext) -> GuardAnswer:
    assert isinstance(context.answer, GuardAnswer)
    return dataclasses.replace(context.answer, permit_token=context.row.permit_token)


class Confirm:
    """The last step: writes the execution, EXECUTED and the report in one transaction."""

    name = StepName.CONFIRM

    def __init__(self, ledger: Ledger, retry_policy: RetryPolicy, failpoints: Failpoints) -> None:
        self._ledger, self._retry_policy, self._failpoints = ledger, retry_policy, failpoints

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Record the executions together; one by one where that fails."""
        executions = [_execution(context) for context in contexts]
        self._failpoints.hit(Failpoint.BEFORE_EXECUTION)
        done, not_done = self._written(executions)
        self._failpoints.hit(Failpoint.AFTER_EXECUTION_COMMIT)
        for context, execution in zip(contexts, executions, strict=True):
            row = context.row
            if row.ledger_entry_id in done:
                context.outcome = untouched(row, LedgerState.EXECUTED, None)
                context.report = Report.just_written(row, execution.report_id, execution.report)
            else:
                # If another worker has the row by now, releasing its lease changes nothing and says so.
                why = not_done.get(row.ledger_entry_id, _NOT_IN_TIME)
                context.trail.pop()  # it names a report that was not written
                context.event = transitions.after_unknown_outcome(row, why, self._retry_policy)

    def run(self, context: RunContext) -> StepResult:
        """End the run."""
        return StepResult({})

    def _written(self, executions: Sequence[Execution]) -> tuple[set[str], dict[str, str]]:
        """Write executions; returns the ids written, and id → why for those that the database did not write.

        One impossible row must not keep the others from being paid.
        """
        ids = [execution.row.ledger_entry_id for execution in executions]
        try:
            done = self._ledger.record_executions(executions)
            missing = [one for one in executions if one.row.ledger_entry_id not in done]
            # Written by a first try whose answer was lost, which the second one found done.
            return done | self._ledger.recorded_executions(missing), {}
        except ROW_REFUSED as error:
            if len(executions) == 1:
                # The primary message alone: the details may quote the row.
                why = error.diag.message_primary or type(error).__name__
                return set(), {ids[0]: f"the database refused the execution: {why}"}
            parts = [self._written([execution]) for execution in executions]
            return set().union(*(done for done, _ in parts)), dict(ChainMap(*(not_done for _, not_done in parts)))
        except LedgerUnavailable as error:
            # The commit may have happened: look that up before deciding anything about these rows.
            done = self._ledger.recorded_executions(executions)
            return done, {one: f"the execution was not written: {error}" for one in ids if one not in done}


def _execution(context: RunContext) -> Execution:
    row, report, route = context.row, new_id(), context.route
    assert isinstance(context.started, StartReceipt) and context.execution_id is not None and route is not None
    result = {"execution_id": str(context.execution_id), "system": route.settles_to}
    payload = report_body(row, report, "success", result=result)
    # This step's own line is written in the execution's transaction, so that it is never there without the execution.
    line = trail_entry(StepName.CONFIRM, StepResult({"report": str(report)}, tool_used="outbox"), context.began)
    context.trail.append(line)
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
