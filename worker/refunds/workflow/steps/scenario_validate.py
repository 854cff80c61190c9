"""scenario_validate: the branch's own conditions. An unknown fact fulfils none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worker.images.recogniser import Recognised
from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.context import PureStep, RunContext, StepResult, to_person
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step

_DAY_SECONDS = 86_400
_NEXT = next_step(StepName.SCENARIO_VALIDATE)


class ScenarioValidate(PureStep):
    """Pure on what has been collected."""

    name = StepName.SCENARIO_VALIDATE

    def run(self, context: RunContext) -> StepResult:
        """On when every condition holds or was lifted; else to a person with the first that does not."""
        lifted: dict[str, object] = {}
        for reason in _unfulfilled(context):
            if reason not in context.lifted:
                return to_person(context, reason, _NEXT, **lifted)
            lifted = {"lifted": reason}
        return StepResult({"scenario": context.row.scenario, **lifted}, _NEXT)


def _unfulfilled(context: RunContext) -> list[Escalation]:
    check = _CHECKS.get(context.row.scenario)
    if check is None:
        return []
    order = context.order
    if order is None or order.currency != context.row.currency:
        return [Escalation.NOT_IN_SCENARIO]
    late = [] if _is_in_window(context) else [Escalation.OUTSIDE_WINDOW]
    return late + check(context, order)


def _is_in_window(context: RunContext) -> bool:
    """Exactly the last moment is still within."""
    days = context.route.within_days if context.route else None
    age = context.facts.request_age_seconds
    return days is None or (age is not None and 0 <= age <= days * _DAY_SECONDS)


def _fee(context: RunContext, order: OrderFacts) -> list[Escalation]:
    charged = order.shipping_fee_minor or 0
    found = [] if 0 < context.row.amount_minor <= charged else [Escalation.FEE_NOT_CHARGED]
    if context.route and context.route.needs_proof(context.row.money) and not _proves_amount(context):
        found.append(Escalation.IMAGE_MISMATCH)
    return found


def _proves_amount(context: RunContext) -> bool:
    asked = context.row.money
    return any(
        reading.kind == "fee_receipt" and reading.amount is not None and reading.amount.currency == asked.currency
        and reading.amount.amount_minor >= asked.amount_minor
        for reading in _readings(context)
    )  # fmt: skip


def _price_diff(context: RunContext, order: OrderFacts) -> list[Escalation]:
    paid, now = order.item_paid_minor, order.price_now_minor
    dropped = paid - now if paid is not None and now is not None else 0
    return [] if 0 < context.row.amount_minor <= dropped else [Escalation.PRICE_NOT_DROPPED]


def _compensation(context: RunContext, order: OrderFacts) -> list[Escalation]:
    return [] if context.facts.delayed_shipment else [Escalation.NOT_IN_SCENARIO]


def _damage(context: RunContext, order: OrderFacts) -> list[Escalation]:
    shown = any(reading.kind == "defect_photo" for reading in _readings(context))
    return [] if shown else [Escalation.IMAGE_MISMATCH]


def _readings(context: RunContext) -> list[Recognised]:
    return [reading for reading in context.readings if isinstance(reading, Recognised)]


_CHECKS: Mapping[str, Callable[[RunContext, OrderFacts], list[Escalation]]] = {
    "fee": _fee,
    "price_diff": _price_diff,
    "compensation": _compensation,
    "defect": _damage,
    "quality": _damage,
}
"""What a scenario asks for; the retail standard refund asks for nothing that the policy does not."""
