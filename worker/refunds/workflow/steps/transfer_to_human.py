"""transfer_to_human: escalates to the authority, whose approval queue is the one queue of people."""

from __future__ import annotations

from worker.refunds.workflow.context import PureStep, RunContext, StepResult
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName


class TransferToHuman(PureStep):
    """The runner has set the reason; here it is written into the trail."""

    name = StepName.TRANSFER_TO_HUMAN

    def run(self, context: RunContext) -> StepResult:
        """To the authority, with the reason."""
        context.escalation = context.escalation or Escalation.UNKNOWN
        return StepResult({"escalation": context.escalation}, StepName.ASK_AUTHORITY)
