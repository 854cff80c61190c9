"""Moves a batch of rows through the graph, step by step in its order, and refuses undeclared transitions.

Rows at the same step share its outside calls. A step's result is taken only if the graph declares it: a defect in a step
sends its row to a person, never on.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from worker.failpoints import Failpoints, step_place
from worker.refunds.workflow.context import RunContext, Step, StepResult
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import FIRST, SUCCESSORS, StepName

_log = logging.getLogger("worker")

_ORDER = tuple(StepName)
_ROUNDS = len(Escalation) + 2
"""A run begins again once per approved reason; more often is a defect."""


class UndeclaredSteps(Exception):
    """The steps given are not those of the graph."""


class Runner:
    """Runs contexts through `steps`, one per step of the graph. Raises `UndeclaredSteps`."""

    def __init__(self, steps: Iterable[Step], failpoints: Failpoints | None = None) -> None:
        self._failpoints = failpoints or Failpoints()
        self._steps: Mapping[StepName, Step] = {step.name: step for step in steps}
        if set(self._steps) != set(SUCCESSORS):
            raise UndeclaredSteps(f"steps without a graph or the reverse: {set(self._steps) ^ set(SUCCESSORS)}")

    def run(self, contexts: Sequence[RunContext]) -> None:
        """Until every context has ended its run. What the steps raise for the whole batch goes through."""
        standing: dict[StepName, list[RunContext]] = {FIRST: list(contexts)}
        for _ in range(_ROUNDS):
            again: dict[StepName, list[RunContext]] = {}
            for name in _ORDER:
                here = standing.pop(name, [])
                if here:
                    self._pass(self._steps[name], here, standing, again)
            standing = again
            if not standing:
                return
        for context in (context for here in standing.values() for context in here):
            # Let go without an event: its lease brings it back, and its attempts end. The others are not held up by it.
            _log.error("the workflow went round in circles for %s", context.row.ledger_entry_id)

    def _pass(
        self,
        step: Step,
        here: list[RunContext],
        ahead: dict[StepName, list[RunContext]],
        again: dict[StepName, list[RunContext]],
    ) -> None:
        """One step for all who stand there; on to `ahead`, or to `again` for the next round."""
        self._failpoints.hit(step_place(step.name))
        step.prepare(here)
        place = _ORDER.index(step.name)
        for context in here:
            result = self._declared(step.name, context, self._said(step, context))
            context.note(step.name, result)
            following = result.next_step
            if following is None:
                continue
            if following is StepName.TRANSFER_TO_HUMAN:
                context.escalation = _reason(result.message)
            (ahead if _ORDER.index(following) > place else again).setdefault(following, []).append(context)
        self._failpoints.hit(step_place(step.name))

    def _said(self, step: Step, context: RunContext) -> StepResult:
        try:
            said: object = step.run(context)
        except Exception as error:
            # Its text may quote the row; where it happened is enough to find the defect.
            _log.error("step %s failed for %s: %s", step.name, context.row.ledger_entry_id, _where(error))
            return StepResult({}, StepName.TRANSFER_TO_HUMAN, Escalation.STEP_REFUSED)
        if isinstance(said, StepResult) and isinstance(said.next_step, StepName | None):
            return said
        _log.error("step %s gave no answer that can be followed for %s", step.name, context.row.ledger_entry_id)
        return StepResult({}, StepName.TRANSFER_TO_HUMAN, Escalation.STEP_REFUSED)

    def _declared(self, name: StepName, context: RunContext, result: StepResult) -> StepResult:
        if result.next_step is None or result.next_step in SUCCESSORS[name]:
            return result
        _log.error("step %s named %s, which may not follow it", name, result.next_step)
        if StepName.TRANSFER_TO_HUMAN in SUCCESSORS[name]:
            return StepResult({}, StepName.TRANSFER_TO_HUMAN, Escalation.STEP_REFUSED)
        return StepResult({})


def _where(error: Exception) -> str:
    """ "KeyError in confirm_card.py:41"."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"


def _reason(message: str | None) -> Escalation:
    try:
        return Escalation(message or "")
    except ValueError:
        return Escalation.UNKNOWN
