"""limit_check: an early look at what the authority would say, so that no customer is asked to confirm what it refuses.

The reservation itself is made at ask_authority. Where no customer is asked in between, the look is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sentinel.client import CheckAnswer, Client, Rejected, Unreachable
from worker import next_steps
from worker.crew import Crew
from worker.next_steps import Patience
from worker.workflow.context import Context, StepResult, to_person
from worker.workflow.graph import StepName
from worker.workflow.question import params_of
from worker.workflow.reasons import Escalation

AT_ONCE = 32


class LimitCheck:
    """One `check` for all rows that a customer will be asked about."""

    name = StepName.LIMIT_CHECK

    def __init__(
        self, client: Client, crew: Crew, patience: Patience, asks_customer: Callable[[Context], bool]
    ) -> None:
        self._client, self._crew, self._patience, self._asks_customer = client, crew, patience, asks_customer

    def prepare(self, contexts: Sequence[Context]) -> None:
        """Ask for those who wait for a customer afterwards."""
        # What a person has approved holds its budget already: the authority has just looked, and would count it twice.
        here = [context for context in contexts if not context.lifted and self._asks_customer(context)]
        answers = self._crew.map_chunks(self._check, here, AT_ONCE)
        for context, answer in zip(here, answers, strict=True):
            context.early_look = answer

    def _check(self, contexts: Sequence[Context]) -> Sequence[CheckAnswer | Unreachable | Rejected]:
        return self._client.check_many(
            [
                {"action": each.row.action, "params": params_of(each), "agent_id": each.row.agent_id}
                for each in contexts
            ]
        )  # fmt: skip

    def run(self, context: Context) -> StepResult:
        """On when it would be allowed, or was not asked; to a person otherwise."""
        look = context.early_look
        if look is None:
            return StepResult({"look": "left to the decision"}, StepName.CRITIC_CHECK)
        if not isinstance(look, CheckAnswer):
            context.event = next_steps.after_no_answer(context.row, look, self._patience)
            return StepResult({"authority": "no answer"})
        if look.decision == "ALLOW":
            return StepResult({"look": look.decision}, StepName.CRITIC_CHECK, tool_used="action/check")
        return to_person(
            context, Escalation.OVER_LIMIT_EARLY, StepName.CRITIC_CHECK, look=look.decision, code=look.reason_code
        )
