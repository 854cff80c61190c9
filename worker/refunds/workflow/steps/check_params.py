"""check_params: the row is complete and canonical; anything else is an ERROR that says what is wrong."""

from __future__ import annotations

from sentinel.core.money import DIGITS
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier
from worker.refunds import transitions
from worker.refunds.workflow.context import PureStep, RunContext, StepResult
from worker.refunds.workflow.graph import StepName, next_step

_NEXT = next_step(StepName.CHECK_PARAMS)

_NEEDS_ORDER = ("private", "public")


class CheckParams(PureStep):
    """Looks at the row alone."""

    name = StepName.CHECK_PARAMS

    def run(self, context: RunContext) -> StepResult:
        """On, or ERROR naming the field and the rule."""
        problem = _problem(context)
        if problem is None:
            return StepResult({}, _NEXT)
        context.event = transitions.give_up(context.row, f"check_params: {problem}")
        return StepResult({"problem": problem})


def _problem(context: RunContext) -> str | None:
    row = context.row
    for name in ("channel", "scenario", "account_ref", "order_ref", "action", "agent_id"):
        value = getattr(row, name)
        if value is not None and not is_identifier(value, MAX_IDENTIFIER):
            return f"{name} must be an identifier of A-Z a-z 0-9 . _ : / @ -"
    if row.currency not in DIGITS:
        return "currency must be an ISO 4217 code in use"
    if row.amount_minor <= 0:
        return "amount must be more than 0"
    if row.channel in _NEEDS_ORDER:
        if row.order_ref is None:
            return f"order_ref is missing; a refund of the {row.channel} channel is about an order"
        if context.facts.account_ref is None:
            return f"account_ref is missing, and order {row.order_ref} does not say whose it is"
    return None
