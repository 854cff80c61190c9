"""check_order: what the shop says of the order does not contradict itself. Facts that do are no basis for paying."""

from __future__ import annotations

from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.context import PureStep, RunContext, StepResult, to_person
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step

_NEXT = next_step(StepName.CHECK_ORDER)


class CheckOrder(PureStep):
    """Pure on the order that was queried; a row without one has nothing to contradict."""

    name = StepName.CHECK_ORDER

    def run(self, context: RunContext) -> StepResult:
        """On, or to a person with the first contradiction."""
        found = None if context.order is None else _contradiction(context.order)
        if found is None:
            return StepResult({}, _NEXT)
        return to_person(context, Escalation.ORDER_PAID_UNKNOWN, _NEXT, contradiction=found)


def _contradiction(order: OrderFacts) -> str | None:
    """What cannot be so, in a code for the trail."""
    if order.delivered_at is not None and order.delivered_at < order.ordered_at:
        return "delivered_before_ordered"
    if (order.shipping_fee_minor or 0) > order.paid_minor:
        return "shipping_fee_above_paid"
    if (order.item_paid_minor or 0) > order.paid_minor:
        return "item_above_paid"
    return None
