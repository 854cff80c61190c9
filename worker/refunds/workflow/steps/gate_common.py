"""gate_common: the conditions for every automatic refund, checked before an order is looked up. The first one missed decides."""

from __future__ import annotations

from worker.refunds.workflow.context import PureStep, RunContext, StepResult, to_person
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.routes import IN_PARTS, MAY_BE_UNKNOWN

COMPENSATION = "compensation"

_NEXT = next_step(StepName.GATE_COMMON)


class GateCommon(PureStep):
    """Asks what the ledger knows about the order and the account."""

    name = StepName.GATE_COMMON

    def run(self, context: RunContext) -> StepResult:
        """To a person at the first hit that no person has lifted."""
        lifted: dict[str, object] = {}
        for reason in _hits(context):
            if reason not in context.lifted:
                return to_person(context, reason, _NEXT, **lifted)
            lifted = {"lifted": reason}
        asked = _asked_for(context)
        if asked is not None and not lifted:
            # Reasons that a person has lifted are not asked about twice.
            return to_person(context, asked, _NEXT)
        return StepResult(lifted, _NEXT, tool_used="ledger")


def _asked_for(context: RunContext) -> Escalation | None:
    """Why the row was filed for a person; an unknown reason counts too."""
    reason = context.facts.escalation
    if reason is None:
        return None
    return next((known for known in Escalation if known == reason), Escalation.UNKNOWN)


def _hits(context: RunContext) -> list[Escalation]:
    facts, row = context.facts, context.row
    # A late parcel calls for a compensation, so there it is the ground and not the obstacle.
    delayed = facts.delayed_shipment and row.scenario != COMPENSATION
    asked = (
        (facts.open_complaint, Escalation.OPEN_COMPLAINT),
        (delayed, Escalation.DELAYED_SHIPMENT),
        (facts.account_mismatch, Escalation.ACCOUNT_MISMATCH),
        (facts.blacklisted, Escalation.BLACKLISTED),
        (facts.refunded_before and row.channel not in IN_PARTS, Escalation.REFUNDED_BEFORE),
        (facts.order_budget == "exceeded", Escalation.ORDER_OVERDRAWN),
        (facts.order_budget == "other_currency", Escalation.ORDER_OTHER_CURRENCY),
        (_paid_unknown(context), Escalation.ORDER_PAID_UNKNOWN),
    )
    return [reason for hit, reason in asked if hit]


def _paid_unknown(context: RunContext) -> bool:
    """Where a channel needs the order, `query_order` says that it is not known: nothing would be payable then."""
    return context.facts.order_budget == "unknown" and (
        context.facts.order is not None or context.row.channel in MAY_BE_UNKNOWN
    )
