"""check_params, gate_common, route_mode_scenario and scenario_validate: what is known of a row, without asking outside.

A row that is incomplete is an ERROR that says what is wrong; everything else that stands in the way goes to a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from sentinel.core.money import DIGITS
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier
from worker.images.recogniser import Recognised
from worker.refunds import transitions
from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.routes import IN_PARTS, MAY_BE_UNKNOWN
from worker.refunds.workflow.runner import PureStep, RunContext, StepResult, to_person

_NEEDS_ORDER = ("private", "public")
_COMPLETE = StepResult({}, next_step(StepName.CHECK_PARAMS))
_AFTER_GATE, _AFTER_VALIDATE = next_step(StepName.GATE_COMMON), next_step(StepName.SCENARIO_VALIDATE)
_NO_HIT = StepResult({}, _AFTER_GATE, tool_used="ledger")


class CheckParams(PureStep):
    """Looks at the row alone."""

    name = StepName.CHECK_PARAMS

    def run(self, context: RunContext) -> StepResult:
        """On, or ERROR naming the field and the rule."""
        problem = _problem(context)
        if problem is None:
            return _COMPLETE
        context.event = transitions.give_up(context.row, f"check_params: {problem}")
        return StepResult({"problem": problem})


def _problem(context: RunContext) -> str | None:
    row = context.row
    if (problem := _problem_of_terms(row.channel, row.scenario, row.action, row.agent_id)) is not None:
        return problem
    for name, value in (("account_ref", row.account_ref), ("order_ref", row.order_ref)):
        if value is not None and not is_identifier(value, MAX_IDENTIFIER):
            return _no_identifier(name)
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


@lru_cache(256)
def _problem_of_terms(channel: str, scenario: str, action: str, agent_id: str) -> str | None:
    """What many rows have in common, looked at once."""
    for name, value in {"channel": channel, "scenario": scenario, "action": action, "agent_id": agent_id}.items():
        if not is_identifier(value, MAX_IDENTIFIER):
            return _no_identifier(name)
    return None


def _no_identifier(name: str) -> str:
    return f"{name} must be an identifier of A-Z a-z 0-9 . _ : / @ -"


COMPENSATION = "compensation"


class GateCommon(PureStep):
    """Asks what the ledger knows about the order and the account."""

    name = StepName.GATE_COMMON

    def run(self, context: RunContext) -> StepResult:
        """To a person at the first hit that no person has lifted."""
        lifted: dict[str, object] = {}
        for reason in _hits(context):
            if reason not in context.lifted:
                return to_person(context, reason, _AFTER_GATE, **lifted)
            lifted = {"lifted": reason}
        asked = _asked_for(context)
        if asked is not None and not lifted:
            # Reasons that a person has lifted are not asked about twice.
            return to_person(context, asked, _AFTER_GATE)
        return StepResult(lifted, _AFTER_GATE, tool_used="ledger") if lifted else _NO_HIT


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
        return _into_branch(route.name, route.settles_to, route.wants_image and route.needs_proof(context.row.money))


@cache
def _into_branch(route: str, settles_to: str, proof: bool) -> StepResult:
    following = StepName.COLLECT_IMAGE if proof else StepName.SCENARIO_VALIDATE
    return StepResult({"route": route, "settles_to": settles_to, "proof": proof}, following)


_DAY_SECONDS = 86_400


class ScenarioValidate(PureStep):
    """Pure on what has been collected."""

    name = StepName.SCENARIO_VALIDATE

    def run(self, context: RunContext) -> StepResult:
        """On when every condition holds or was lifted; else to a person with the first that does not."""
        lifted: dict[str, object] = {}
        for reason in _unfulfilled(context):
            if reason not in context.lifted:
                return to_person(context, reason, _AFTER_VALIDATE, **lifted)
            lifted = {"lifted": reason}
        if lifted:
            return StepResult({"scenario": context.row.scenario, **lifted}, _AFTER_VALIDATE)
        return _fulfilled(context.row.scenario)


@lru_cache(256)
def _fulfilled(scenario: str) -> StepResult:
    return StepResult({"scenario": scenario}, _AFTER_VALIDATE)


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
