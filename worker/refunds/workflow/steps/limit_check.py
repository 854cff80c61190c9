"""limit_check: asks early what the authority would answer, so that no customer confirms a refund that it refuses.

The reservation itself is made at ask_authority. Where no customer is asked in between, this step is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sentinel.client import CheckAnswer, Client, Rejected, Unreachable
from worker.refunds import transitions
from worker.refunds.transitions import RetryPolicy
from worker.refunds.worker_pool import WorkerPool
from worker.refunds.workflow.context import RunContext, StepResult, to_person
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.guard_request import params_of

AT_ONCE = 32

_NEXT = next_step(StepName.LIMIT_CHECK)


class LimitCheck:
    """One `check` for all rows that a customer will be asked about."""

    name = StepName.LIMIT_CHECK

    def __init__(
        self,
        client: Client,
        worker_pool: WorkerPool,
        retry_policy: RetryPolicy,
        asks_customer: Callable[[RunContext], bool],
    ) -> None:
        self._client, self._worker_pool, self._retry_policy, self._asks_customer = (
            client,
            worker_pool,
            retry_policy,
            asks_customer,
        )

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Ask for those who wait for a customer afterwards."""
        # What a person has approved holds its budget already: the authority has just looked, and would count it twice.
        here = [context for context in contexts if not context.lifted and self._asks_customer(context)]
        answers = self._worker_pool.map_chunks(self._check, here, AT_ONCE)
        for context, answer in zip(here, answers, strict=True):
            context.check_answer = answer

    def _check(self, contexts: Sequence[RunContext]) -> Sequence[CheckAnswer | Unreachable | Rejected]:
        return self._client.check_many(
            [
                {"action": each.row.action, "params": params_of(each), "agent_id": each.row.agent_id}
                for each in contexts
            ]
        )  # fmt: skip

    def run(self, context: RunContext) -> StepResult:
        """On when it would be allowed, or was not asked; to a person otherwise."""
        look = context.check_answer
        if look is None:
            return StepResult({"look": "left to the decision"}, _NEXT)
        if not isinstance(look, CheckAnswer):
            context.event = transitions.after_no_answer(context.row, look, self._retry_policy)
            return StepResult({"authority": "no answer"})
        if look.decision == "ALLOW":
            return StepResult({"look": look.decision}, _NEXT, tool_used="action/check")
        return to_person(context, Escalation.OVER_LIMIT_EARLY, _NEXT, look=look.decision, code=look.reason_code)
