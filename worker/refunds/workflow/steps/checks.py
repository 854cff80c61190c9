"""check_params, gate_common, query_order, check_order, route_mode_scenario and scenario_validate: what is known of a row, without asking outside.

A row that is incomplete is an ERROR that says what is wrong; everything else that stands in the way goes to a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sentinel.core.money import DIGITS
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier
from worker.images.recogniser import Recognised
from worker.refunds import transitions
from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.context import PureStep, RunContext, StepResult, to_person
from worker.refunds.workflow.directories import Found, NoDirectoryAnswer, OrderDirectory, UnknownOrder
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.routes import IN_PARTS, MAY_BE_UNKNOWN

_NEEDS_ORDER = ("private", "public")


class CheckParams(PureStep):
    """Looks at the row alone."""

    name = StepName.CHECK_PARAMS

    def run(self, context: RunContext) -> StepResult:
        """On, or ERROR naming the field and the rule."""
        problem = _problem(context)
        if problem is None:
            return StepResult({}, next_step(self.name))
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


COMPENSATION = "compensation"


class GateCommon(PureStep):
    """Asks what the ledger knows about the order and the account."""

    name = StepName.GATE_COMMON

    def run(self, context: RunContext) -> StepResult:
        """To a person at the first hit that no person has lifted."""
        lifted: dict[str, object] = {}
        for reason in _hits(context):
            if reason not in context.lifted:
                return to_person(context, reason, next_step(self.name), **lifted)
            lifted = {"lifted": reason}
        asked = _asked_for(context)
        if asked is not None and not lifted:
            # Reasons that a person has lifted are not asked about twice.
            return to_person(context, asked, next_step(self.name))
        return StepResult(lifted, next_step(self.name), tool_used="ledger")


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


class QueryOrder:
    """Asks each channel's directory once for all of its rows."""

    name = StepName.QUERY_ORDER

    def __init__(self, directories: Mapping[str, OrderDirectory]) -> None:
        self._directories = directories

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Look the orders up."""
        for channel, directory in self._directories.items():
            here = [context for context in contexts if context.row.channel == channel]
            if not here:
                continue
            found: list[Found] = [NoDirectoryAnswer("not ready")] * len(here)
            if directory.is_ready():
                found = directory.find([(context.row, context.facts) for context in here])
            for context, one in zip(here, found, strict=True):
                context.lookup = one

    def run(self, context: RunContext) -> StepResult:
        """On with the order; to a person without one, where the channel needs it."""
        row, found = context.row, context.lookup
        if row.channel not in self._directories:
            return StepResult({"order": "no directory of this channel"}, next_step(self.name))
        tool = self._directories[row.channel].name
        if isinstance(found, OrderFacts):
            context.order = found
            if found.account_ref and row.account_ref and found.account_ref != row.account_ref:
                return to_person(context, Escalation.ACCOUNT_MISMATCH, next_step(self.name))
            return StepResult({"order_ref": found.order_ref}, next_step(self.name), tool_used=tool)
        if isinstance(found, UnknownOrder):
            if row.channel in MAY_BE_UNKNOWN:
                return StepResult({"order": "unknown"}, next_step(self.name), tool_used=tool)
            return to_person(context, Escalation.ORDER_UNKNOWN, next_step(self.name), order_ref=row.order_ref)
        return to_person(context, Escalation.ORDER_DIRECTORY_UNAVAILABLE, next_step(self.name), degraded=tool)


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


_DAY_SECONDS = 86_400


class ScenarioValidate(PureStep):
    """Pure on what has been collected."""

    name = StepName.SCENARIO_VALIDATE

    def run(self, context: RunContext) -> StepResult:
        """On when every condition holds or was lifted; else to a person with the first that does not."""
        lifted: dict[str, object] = {}
        for reason in _unfulfilled(context):
            if reason not in context.lifted:
                return to_person(context, reason, next_step(self.name), **lifted)
            lifted = {"lifted": reason}
        return StepResult({"scenario": context.row.scenario, **lifted}, next_step(self.name))


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


class CheckOrder(PureStep):
    """Pure on the order that was queried; a row without one has nothing to contradict."""

    name = StepName.CHECK_ORDER

    def run(self, context: RunContext) -> StepResult:
        """On, or to a person with the first contradiction."""
        found = None if context.order is None else _contradiction(context.order)
        if found is None:
            return StepResult({}, next_step(self.name))
        return to_person(context, Escalation.ORDER_PAID_UNKNOWN, next_step(self.name), contradiction=found)


def _contradiction(order: OrderFacts) -> str | None:
    """What cannot be so, in a code for the trail."""
    if order.delivered_at is not None and order.delivered_at < order.ordered_at:
        return "delivered_before_ordered"
    if (order.shipping_fee_minor or 0) > order.paid_minor:
        return "shipping_fee_above_paid"
    if (order.item_paid_minor or 0) > order.paid_minor:
        return "item_above_paid"
    return None
