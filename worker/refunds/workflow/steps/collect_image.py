"""collect_image: a proof image is there."""

from __future__ import annotations

from collections.abc import Sequence

from worker.refunds.ledger import Ledger
from worker.refunds.workflow.context import RunContext, StepResult, to_person
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName


class CollectImage:
    """Loads the images of the rows that need one."""

    name = StepName.COLLECT_IMAGE

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Only rows that have any."""
        ids = [context.row.ledger_entry_id for context in contexts if context.facts.images]
        found = self._ledger.images(ids) if ids else {}
        for context in contexts:
            context.images = found.get(context.row.ledger_entry_id, ())

    def run(self, context: RunContext) -> StepResult:
        """On to the recogniser, or to a person."""
        if not context.images:
            return to_person(context, Escalation.IMAGE_MISSING, StepName.SCENARIO_VALIDATE)
        return StepResult({"images": len(context.images)}, StepName.RECOGNISE_IMAGE, tool_used="proof_images")
