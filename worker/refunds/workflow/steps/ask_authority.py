"""ask_authority: the one guard request that can lead to an execution: for a permit, or (escalated) for a person's approval.

An escalated request never leads to an execution by itself: once approved, the run begins again without that reason, and
every other step runs anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import orjson

from sentinel.client import Client, GuardAnswer, GuardQuestion, Rejected, Unreachable
from worker.failpoints import Failpoint, Failpoints
from worker.refunds import run_results, transitions
from worker.refunds.ledger import Ledger
from worker.refunds.rows import RISK_CLASS, Change, ReleaseLease
from worker.refunds.states import LedgerEvent, LedgerState
from worker.refunds.transitions import RetryPolicy
from worker.refunds.worker_pool import WorkerPool
from worker.refunds.workflow.context import RunContext, StepResult, Stopped
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import FIRST, StepName
from worker.refunds.workflow.guard_request import evidence_of, params_of
from worker.settlement.registry import Systems

AT_ONCE = 32
"""Rows per call to the authority."""
_NEVER_LIFTED = (
    Escalation.SYSTEM_NOT_READY,
    Escalation.NO_ROUTE,
    Escalation.MODE_NEEDS_PERSON,
    Escalation.ORDER_OVERDRAWN,
    Escalation.ORDER_OTHER_CURRENCY,
    Escalation.ORDER_UNKNOWN,
    Escalation.STEP_REFUSED,
    Escalation.UNKNOWN,
)
"""No approval makes these payable: there is no automatic way, or the order's budget has no room."""


class AskAuthority:
    """Fixes the question, asks it, and says what the answer means."""

    name = StepName.ASK_AUTHORITY

    def __init__(
        self, *, ledger: Ledger, client: Client, worker_pool: WorkerPool, retry_policy: RetryPolicy, systems: Systems, failpoints: Failpoints,
        stopping: threading.Event,
    ) -> None:  # fmt: skip
        self._ledger, self._client, self._worker_pool, self._retry_policy = ledger, client, worker_pool, retry_policy
        self._systems, self._failpoints, self._stopping = systems, failpoints, stopping

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Ask about all who may be asked about."""
        here = [context for context in contexts if context.escalation is not None or self._is_ready(context)]
        self._fix_questions(here)
        here = [context for context in here if context.outcome is None]
        # A row that got no answer before is asked alone: one that breaks its call must not keep its neighbours waiting.
        answers = self._worker_pool.map_chunks(
            self._ask, here, AT_ONCE, alone=lambda context: context.row.failed_before
        )
        for context, answer in zip(here, answers, strict=True):
            cut_off = isinstance(answer, Unreachable) and self._stopping.is_set()
            context.answer = Stopped() if cut_off else answer
            if not isinstance(context.answer, Stopped):
                context.said = context.answer

    def _is_ready(self, context: RunContext) -> bool:
        route = context.route
        # A route that goes to a person settles nowhere; such a row may come here from an earlier step.
        return route is not None and route.to_person is None and self._systems.get(route.settles_to).is_ready()

    def _fix_questions(self, contexts: Sequence[RunContext]) -> None:
        fresh = [context for context in contexts if context.row.guard_request is None]
        if not fresh:
            return
        requests = {context.row.ledger_entry_id: params_of(context) for context in fresh}
        kept = self._ledger.fix_requests([context.row for context in fresh], requests)
        self._failpoints.hit(Failpoint.AFTER_FACTS)
        for context in fresh:
            row_id = context.row.ledger_entry_id
            if row_id in kept:
                context.row = replace(context.row, guard_request=orjson.dumps(requests[row_id]).decode())
            else:
                context.outcome = run_results.lease_lost(context.row, LedgerState.GUARDING)

    def _ask(self, contexts: Sequence[RunContext]) -> Sequence[GuardAnswer | Unreachable | Rejected | Stopped]:
        if self._stopping.is_set():
            return [Stopped()] * len(contexts)
        self._failpoints.hit(Failpoint.BEFORE_GUARD)
        found = self._client.guard_many([self._question(context) for context in contexts])
        self._failpoints.hit(Failpoint.AFTER_GUARD)
        return found

    def _question(self, context: RunContext) -> GuardQuestion:
        row, system = context.row, context.route.settles_to if context.route else None
        is_ready = context.escalation not in _NEVER_LIFTED and self._is_ready(context)
        return {
            "action": row.action, "params": row.params, "idempotency_key": row.idempotency_key, "resource": row.resource,
            "risk_class": RISK_CLASS, "agent_id": row.agent_id,
            "evidence_context": evidence_of(context, system=system, is_ready=is_ready),
        }  # fmt: skip

    def run(self, context: RunContext) -> StepResult:
        """To the execution with a permit; again from the start with an approved reason; else the run ends."""
        row, answer, reason = context.row, context.answer, context.escalation
        if context.outcome is not None:
            return StepResult({"claim": "lost"})
        if answer is None:
            name = context.route.settles_to if context.route else "none"
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        context.answer, context.escalation = None, None
        if isinstance(answer, Stopped):
            context.event = transitions.release_at_stop(row)
            return StepResult({"worker": "ending"})
        if not isinstance(answer, GuardAnswer):
            context.event = transitions.after_no_answer(row, answer, self._retry_policy)
            return StepResult({"authority": "no answer"})
        return self._meant(context, answer, transitions.after_guard(row, answer, self._retry_policy), reason)

    def _meant(
        self, context: RunContext, answer: GuardAnswer, then: Change | ReleaseLease, reason: Escalation | None
    ) -> StepResult:
        output = {"decision": answer.decision, "status": answer.status, "code": answer.reason_code}
        may_start = isinstance(then, Change) and then.event is LedgerEvent.ALLOWED
        if not may_start or reason is None or transitions.is_begun(answer):
            context.event, context.answer = then, answer if may_start else None
            return StepResult(output, StepName.EXECUTE_BY_SYSTEM if may_start else None, tool_used="action/guard")
        if answer.status == "approved" and reason not in _NEVER_LIFTED:
            context.lifted |= {reason}
            return StepResult({**output, "lifts": reason}, FIRST, tool_used="action/guard")
        context.event = transitions.permit_instead_of_approval(context.row, reason, self._retry_policy)
        return StepResult(output, None, "no person was asked", "action/guard")
