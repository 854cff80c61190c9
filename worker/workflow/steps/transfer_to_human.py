"""transfer_to_human: a question to the authority, not a dead end. Its approval queue is the one human queue."""

from __future__ import annotations

from worker.workflow.context import Context, PureStep, StepResult
from worker.workflow.graph import StepName
from worker.workflow.reasons import Escalation


class TransferToHuman(PureStep):
    """The runner has set the reason; here it is written into the trail."""

    name = StepName.TRANSFER_TO_HUMAN

    def run(self, context: Context) -> StepResult:
        """To the authority, with the reason."""
        context.escalation = context.escalation or Escalation.UNKNOWN
        return StepResult({"escalation": context.escalation}, StepName.ASK_AUTHORITY)
