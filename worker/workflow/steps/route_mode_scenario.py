"""route_mode_scenario: the one route of exactly this channel, scenario and mode; never "the closest one"."""

from __future__ import annotations

from worker.workflow.context import Context, PureStep, StepResult
from worker.workflow.graph import StepName
from worker.workflow.reasons import Escalation


class RouteModeScenario(PureStep):
    """The route was found when the run began; here it decides."""

    name = StepName.ROUTE_MODE_SCENARIO

    def run(self, context: Context) -> StepResult:
        """Into the branch; without one a person cannot lift anything: there is no way on."""
        route = context.route
        if route is None:
            return StepResult({}, StepName.TRANSFER_TO_HUMAN, Escalation.NO_ROUTE)
        if route.to_person is not None:
            return StepResult({"route": route.name}, StepName.TRANSFER_TO_HUMAN, route.to_person)
        proof = route.needs_proof(context.row.money)
        following = StepName.COLLECT_IMAGE if proof else StepName.SCENARIO_VALIDATE
        return StepResult({"route": route.name, "settles_to": route.settles_to, "proof": proof}, following)
