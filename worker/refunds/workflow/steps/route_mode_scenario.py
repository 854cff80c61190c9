"""route_mode_scenario: the one route of exactly this channel, scenario and mode; never "the closest one"."""

from __future__ import annotations

from worker.refunds.workflow.context import PureStep, RunContext, StepResult
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName


class RouteModeScenario(PureStep):
    """The route was found when the run began; here it decides."""

    name = StepName.ROUTE_MODE_SCENARIO

    def run(self, context: RunContext) -> StepResult:
        """Into the branch; without one a person cannot lift anything: there is no way on."""
        route = context.route
        if route is None:
            return StepResult({}, StepName.TRANSFER_TO_HUMAN, Escalation.NO_ROUTE)
        if route.to_person is not None:
            return StepResult({"route": route.name}, StepName.TRANSFER_TO_HUMAN, route.to_person)
        proof = route.needs_proof(context.row.money)
        following = StepName.COLLECT_IMAGE if proof else StepName.SCENARIO_VALIDATE
        return StepResult({"route": route.name, "settles_to": route.settles_to, "proof": proof}, following)
