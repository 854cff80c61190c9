"""collect_image and recognise_image: a proof image is there, and what the configured recogniser reads in it. Each is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from sentinel.core.money import Money
from sentinel.platform.outbound.client import FailureKind, NoResponse
from worker.images.proof import ProofImage
from worker.images.recogniser import Recognised, Recogniser, Unrecognised
from worker.refunds.concurrency import WorkerPool
from worker.refunds.ledger import Ledger
from worker.refunds.rows import KeptImage
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName
from worker.refunds.workflow.runner import RunContext, StepResult, to_person


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


Reading = Recognised | Unrecognised | NoResponse


class RecogniseImage:
    """Reads each image once. `keeps` False: what is read is not written down."""

    name = StepName.RECOGNISE_IMAGE

    def __init__(self, ledger: Ledger, worker_pool: WorkerPool, recogniser: Recogniser, *, keeps: bool = True) -> None:
        self._ledger, self._worker_pool, self._recogniser, self._keeps = ledger, worker_pool, recogniser, keeps

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Read the images that were not read yet."""
        is_ready = self._recogniser.is_ready()
        for context in contexts:
            context.readings = self._worker_pool.map(lambda image: self._read(image, is_ready), context.images)

    def _read(self, image: KeptImage, is_ready: bool) -> Reading:
        if image.recognised is not None:
            return _from_json(image.recognised)
        if not is_ready:
            return NoResponse(FailureKind.NOT_SENT)
        found = self._recogniser.recognise(
            ProofImage(image.ledger_entry_id, image.sha256, image.media_type, bytes(image.content))
        )
        if isinstance(found, Recognised) and self._keeps:
            self._ledger.keep_reading(image, self._recogniser.name, _as_json(found))
        return found

    def run(self, context: RunContext) -> StepResult:
        """On when at least one image could be read."""
        tool = self._recogniser.name
        readable = [reading for reading in context.readings if isinstance(reading, Recognised)]
        unanswered = any(isinstance(reading, NoResponse) for reading in context.readings)
        context.readings = readable
        if readable:
            return StepResult(
                {"read": [reading.kind for reading in readable]}, StepName.SCENARIO_VALIDATE, tool_used=tool
            )
        if unanswered:
            return to_person(context, Escalation.RECOGNISER_UNAVAILABLE, StepName.SCENARIO_VALIDATE, degraded=tool)
        return to_person(context, Escalation.IMAGE_UNRECOGNISED, StepName.SCENARIO_VALIDATE)


def _as_json(reading: Recognised) -> Mapping[str, Any]:
    amount = reading.amount
    return {
        "kind": reading.kind, "text": reading.text, "tracking_number": reading.tracking_number,
        "amount_minor": amount.amount_minor if amount else None, "currency": amount.currency if amount else None,
    }  # fmt: skip


def _from_json(text: str) -> Recognised:
    found = orjson.loads(text)
    has_amount = found["amount_minor"] is not None
    amount = Money(found["amount_minor"], found["currency"]) if has_amount else None
    return Recognised(kind=found["kind"], amount=amount, tracking_number=found["tracking_number"], text=found["text"])
