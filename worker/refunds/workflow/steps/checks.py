"""kill_switch, check_params, gate_common, route_mode_scenario, scenario_validate and critic_check: what stops a row before anybody outside is asked.

An incomplete row ends in ERROR, which says what is wrong; with any other obstacle the row goes to a person.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache

from sentinel.client import Rejected, Switches, Unreachable
from sentinel.core.money import DIGITS, Money
from sentinel.core.operation import MAX_IDENTIFIER, is_identifier
from worker.critic.case import CriticCase, Opinion
from worker.critic.critic import Critic
from worker.images import Recognised
from worker.refunds import transitions
from worker.refunds.concurrency import WorkerPool
from worker.refunds.rows import OrderFacts
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.graph import Escalation, StepName, next_step
from worker.refunds.workflow.routes import GENERAL_ACTION, IN_PARTS, MAY_BE_UNKNOWN, Route, Routes, master_of
from worker.refunds.workflow.runner import PureStep, RunContext, StepResult, to_person
from worker.settlement.registry import Systems
from worker.switch_cache import NOTHING_ON, SwitchCache, halts_cover

# kill_switch: no halt covers the row, and every switch of its route is on.
#
# The authority decides switches and halts again: this only keeps rows from being asked about that must go to a person first. A switch
# that cannot be read is off.

_NEXT = next_step(StepName.KILL_SWITCH)
_ENDS_NEXT = StepResult({"action": "another than the route's"}, _NEXT)


class KillSwitch:
    """Reads the switch cache once for a batch. Rows without a route are left to route_mode_scenario."""

    name = StepName.KILL_SWITCH

    def __init__(
        self,
        switch_cache: SwitchCache,
        routes: Routes,
        systems: Systems,
        retry_policy: RetryPolicy,
        stopping: threading.Event,
    ) -> None:
        self._switch_cache, self._routes, self._systems = switch_cache, routes, systems
        self._retry_policy, self._stopping = retry_policy, stopping

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Look the switches up once for all rows; without an answer of the authority no row goes on.

        Where the authority refuses to list them, nothing counts as on, so that every row goes to a person.
        """
        switches_error: Unreachable | None = None
        try:
            switches = self._switch_cache.current()
        except Rejected:
            switches = NOTHING_ON
        except Unreachable as error:
            switches, switches_error = NOTHING_ON, error
        cells: dict[tuple[str, str, str | None], tuple[Route | None, bool]] = {}
        for context in contexts:
            context.switches, context.switches_error = switches, switches_error
            cell = context.row.channel, context.row.scenario, context.row.mode
            if (known := cells.get(cell)) is None:
                route = self._routes.find(*cell)
                known = cells[cell] = route, route is not None and self._is_open(route, switches)
            context.route, context.is_route_open = known

    def _is_open(self, route: Route, switches: Switches) -> bool:
        """Whether nothing is halted and the route's switches are on for everybody: then its rows need no check one by one."""
        return not switches.halts and not _unproven(route, switches, self._systems) and all(
            (state := switches.switches.get(name)) is not None and state.is_on and state.canary_percent >= 100
            for name in switches_of(route)
        )  # fmt: skip

    def run(self, context: RunContext) -> StepResult:
        """Check halts first, then each switch of the route with its canary."""
        if context.switches_error is not None and self._stopping.is_set():
            context.event, context.switches_error = transitions.let_go(context.row, transitions.ENDED), None
            return StepResult({"worker": "ending"})
        if context.switches_error is not None:
            context.event = transitions.after_no_answer(context.row, context.switches_error, self._retry_policy)
            return StepResult({"authority": "no answer"})
        if context.is_route_open and context.route is not None:
            return _is_on(context.route.switch)
        if _names_another_action(context):
            return _ENDS_NEXT
        lifted: dict[str, object] = {}
        for reason, seen in _kept_from(context, context.switches or NOTHING_ON, self._systems):
            if reason not in context.lifted:
                return to_person(context, reason, _NEXT, **seen, **lifted)
            lifted = {"lifted": reason}
        if lifted or context.route is None:
            seen = {"switch": context.route.switch} if context.route is not None else {"route": "none"}
            return StepResult({**seen, **lifted}, _NEXT, tool_used="switches")
        return _is_on(context.route.switch)


def _names_another_action(context: RunContext) -> bool:
    """Whether the row names another action than its route's: that action's policy does not bound what this route pays,
    so no person is asked under it. Once a row's question is fixed, its action stays."""
    route, row = context.route, context.row
    return route is not None and row.guard_request is None and row.action != route.action


@cache
def _is_on(switch: str) -> StepResult:
    return StepResult({"switch": switch}, _NEXT, tool_used="switches")


def _kept_from(context: RunContext, switches: Switches, systems: Systems) -> list[tuple[Escalation, dict[str, object]]]:
    """Return every obstacle with what was seen; lifting one leaves the others in force."""
    row = context.row
    found: list[tuple[Escalation, dict[str, object]]] = []
    if halts_cover(switches, agent_id=row.agent_id, action=row.action, scenario=row.scenario):
        found.append((Escalation.HALTED, {}))
    for name in switches_of(context.route) if context.route is not None else ():
        hit = _switched(switches, name, context.facts.account_ref)
        if hit is not None:
            found.append(hit)
    unproven = _unproven(context.route, switches, systems) if context.route is not None else []
    if unproven:
        found.append((Escalation.SYSTEM_NOT_PROVEN, {"systems": unproven}))
    return found


def _unproven(route: Route, switches: Switches, systems: Systems) -> list[str]:
    """Return the configured outside systems that the route settles in and that its launch gate did not try for real."""
    state = switches.switches.get(route.switch)
    if state is None:
        return []
    return sorted(systems.configured_outside(route.settles_to) & set(state.unproven))


def _switched(switches: Switches, name: str, account: str | None) -> tuple[Escalation, dict[str, object]] | None:
    state = switches.switches.get(name)
    if state is None or not state.is_on:
        return Escalation.SWITCH_OFF, {"switch": name, "on": False}
    percent = state.canary_percent
    # A row without an account is in no share of a canary: only a canary of 100 percent includes it.
    if percent < 100 and (account is None or not in_canary(name, account, percent)):
        return Escalation.OUTSIDE_CANARY, {"switch": name, "canary_percent": percent}
    return None


def switches_of(route: Route) -> tuple[str, ...]:
    """The switches that must be on for a route: its own, and the master's where its family has one."""
    master = master_of(route.switch)
    return (route.switch,) if master is None else (master, route.switch)


_PARTS = 2**64


def in_canary(switch: str, account: str, percent: int) -> bool:
    """Whether the account is among the first `percent` (0 to 100) of the switch. 0 is no account, 100 every account.

    Anything below 0 counts as 0, above 100 as 100. Texts are compared as they are, letter for letter.
    """
    # Length first: ("a", "b.c") and ("a.b", "c") are different pairs. Lone surrogates are encoded too.
    name, owner = (text.encode("utf-8", "surrogatepass") for text in (switch, account))
    digest = hashlib.sha256(b"canary/%d/%s/%s" % (len(name), name, owner)).digest()
    # Integers: a rounded share could differ between machines.
    return int.from_bytes(digest[:8], "big") * 100 < percent * _PARTS


# check_params, gate_common, route_mode_scenario and scenario_validate: what is known of a row.

_NEEDS_ORDER = ("private", "public")
_COMPLETE = StepResult({}, next_step(StepName.CHECK_PARAMS))
_AFTER_GATE, _AFTER_VALIDATE = next_step(StepName.GATE_COMMON), next_step(StepName.SCENARIO_VALIDATE)
_NO_HIT = StepResult({}, _AFTER_GATE, tool_used="ledger")


class CheckParams(PureStep):
    """Checks the row's own fields."""

    name = StepName.CHECK_PARAMS

    def run(self, context: RunContext) -> StepResult:
        """Go on, or end in ERROR naming the field and the rule."""
        problem = _problem(context)
        if problem is None:
            return _COMPLETE
        context.event = transitions.give_up(context.row, f"check_params: {problem}")
        return StepResult({"problem": problem})


def _problem(context: RunContext) -> str | None:
    row = context.row
    if (problem := _problem_of_terms(row.channel, row.scenario, row.action, row.agent_id)) is not None:
        return problem
    if context.route is not None and _names_another_action(context):
        return f"action must be {GENERAL_ACTION} or the route's own, {context.route.action}"
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
    """Check the fields that many rows have in common; cached."""
    for name, value in {"channel": channel, "scenario": scenario, "action": action, "agent_id": agent_id}.items():
        if not is_identifier(value, MAX_IDENTIFIER):
            return _no_identifier(name)
    return None


def _no_identifier(name: str) -> str:
    return f"{name} must be an identifier of A-Z a-z 0-9 . _ : / @ -"


COMPENSATION = "compensation"


class GateCommon(PureStep):
    """Checks what the ledger knows about the order and the account: complaints, delays, the blacklist, earlier refunds."""

    name = StepName.GATE_COMMON

    def run(self, context: RunContext) -> StepResult:
        """Go to a person at the first finding that no person has lifted; else go on."""
        lifted: dict[str, object] = {}
        for reason in _hits(context):
            if reason not in context.lifted:
                return to_person(context, reason, _AFTER_GATE, **lifted)
            lifted = {"lifted": reason}
        asked = _asked_for(context)
        if asked is not None and not lifted:
            # A person who has lifted a finding is not asked about the filed reason as well.
            return to_person(context, asked, _AFTER_GATE)
        return StepResult(lifted, _AFTER_GATE, tool_used="ledger") if lifted else _NO_HIT


def _asked_for(context: RunContext) -> Escalation | None:
    """Why the row was filed for a person; None if it was not, and UNKNOWN for an unknown reason."""
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
        (facts.refunded_under_another_budget, Escalation.REFUNDED_BEFORE),
        (facts.order_budget == "exceeded", Escalation.ORDER_OVERDRAWN),
        (facts.order_budget == "other_currency", Escalation.ORDER_OTHER_CURRENCY),
        (_paid_unknown(context), Escalation.ORDER_PAID_UNKNOWN),
    )
    return [reason for hit, reason in asked if hit]


def _paid_unknown(context: RunContext) -> bool:
    """Whether what was paid for the order is unknown.

    False for an unknown order of a channel that needs one: `query_order` says that, and no approval makes it payable.
    """
    return context.facts.order_budget == "unknown" and (
        context.facts.order is not None or context.row.channel in MAY_BE_UNKNOWN
    )


class RouteModeScenario(PureStep):
    """Sends rows without a route to a person, the others to the next step of their route."""

    name = StepName.ROUTE_MODE_SCENARIO

    def run(self, context: RunContext) -> StepResult:
        """Go on into the branch; a row without one goes to a person, who cannot lift that: there is no next step."""
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
    """Checks the time window and the scenario's own conditions on what earlier steps collected."""

    name = StepName.SCENARIO_VALIDATE

    def run(self, context: RunContext) -> StepResult:
        """Go on when every condition holds or was lifted; else to a person with the first that does not."""
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
    late = [] if _is_in_window(context) else [Escalation.OUTSIDE_WINDOW]
    check = _CHECKS.get(context.row.scenario)
    if check is None:
        return late
    shows = _PROOFS.get(context.row.scenario)
    unproved = [] if shows is None or shows(context) else [Escalation.IMAGE_MISMATCH]
    order = context.order
    if order is None or order.currency != context.row.currency:
        # A person who lifts NOT_IN_SCENARIO has not judged what the images show.
        return [Escalation.NOT_IN_SCENARIO, *unproved]
    return [*late, *check(context, order), *unproved]


def _is_in_window(context: RunContext) -> bool:
    """Whether the time window is still open; its last moment counts."""
    days = context.route.within_days if context.route else None
    age = context.facts.request_age_seconds
    return days is None or (age is not None and 0 <= age <= days * _DAY_SECONDS)


def _fee(context: RunContext, order: OrderFacts) -> list[Escalation]:
    charged = order.shipping_fee_minor or 0
    return [] if 0 < context.row.amount_minor <= charged else [Escalation.FEE_NOT_CHARGED]


def _proves_fee(context: RunContext) -> bool:
    asked = context.row.money
    if context.route is None or not context.route.needs_proof(asked):
        return True
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
    return []


def _shows_defect(context: RunContext) -> bool:
    return any(reading.kind == "defect_photo" for reading in _readings(context))


def _readings(context: RunContext) -> list[Recognised]:
    return [reading for reading in context.readings if isinstance(reading, Recognised)]


_CHECKS: Mapping[str, Callable[[RunContext, OrderFacts], list[Escalation]]] = {
    "fee": _fee,
    "price_diff": _price_diff,
    "compensation": _compensation,
    "defect": _damage,
    "quality": _damage,
}
"""Scenario → what it requires of the order; the retail standard refund requires nothing beyond the policy."""
_PROOFS: Mapping[str, Callable[[RunContext], bool]] = {
    "fee": _proves_fee, "defect": _shows_defect, "quality": _shows_defect,
}  # fmt: skip
"""Scenario → whether the images show what they must, whatever is known of the order."""


# critic_check: the critic's opinion. It can only send a row to a person, never help it through.


class CriticCheck:
    """The rules critic for every row, the model critic where the branch asks for it."""

    name = StepName.CRITIC_CHECK

    def __init__(self, critic: Critic, worker_pool: WorkerPool, also_with_model: Collection[str] = ()) -> None:
        self._critic, self._worker_pool, self._also = critic, worker_pool, frozenset(also_with_model)

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Judge every row: by the rules one after the other, which takes microseconds, by a model for several rows at a time."""
        with_model = []
        for context in contexts:
            if self._wants_model(context):
                with_model.append(context)
            else:
                context.opinion = self._critic.judge(case_of(context), wants_model=False)
        opinions: list[Opinion] = self._worker_pool.map(
            lambda context: self._critic.judge(case_of(context), wants_model=True), with_model
        )
        for context, opinion in zip(with_model, opinions, strict=True):
            context.opinion = opinion

    def _wants_model(self, context: RunContext) -> bool:
        route = context.route
        return route is not None and (route.critic == "model" or not self._also.isdisjoint({route.name, "all"}))

    def run(self, context: RunContext) -> StepResult:
        """Go on to the customer or the authority; to a person on anything but a clear approval."""
        opinion, route = context.opinion, context.route
        has_card = context.card is not None or (route is not None and route.confirm_card)
        following = StepName.CONFIRM_CARD if has_card else StepName.ASK_AUTHORITY
        if opinion is None:
            return to_person(context, Escalation.CRITIC_ERROR, following)
        if opinion.approved and not opinion.reason:
            return _approved(opinion.layer, opinion.reason_code, opinion.detail_code, following)
        output = {"layer": opinion.layer, "code": opinion.reason_code, "detail": opinion.detail_code}
        if opinion.reason:
            output["words"] = opinion.reason
        if opinion.approved:
            return StepResult(output, following, tool_used="critic")
        return to_person(context, Escalation(opinion.reason_code), following, **output)


@cache
def _approved(layer: str, code: str, detail: str, following: StepName) -> StepResult:
    return StepResult({"layer": layer, "code": code, "detail": detail}, following, tool_used="critic")


def case_of(context: RunContext) -> CriticCase:
    """The row as the critic sees it."""
    row, facts, order = context.row, context.facts, context.order

    def money(minor: int | None) -> Money | None:
        return Money(minor, order.currency) if order is not None and minor is not None else None

    return CriticCase(
        channel=row.channel, scenario=row.scenario, mode=row.mode, requested=row.money,
        paid=money(order.paid_minor) if order else None, item_paid=money(order.item_paid_minor) if order else None,
        shipping_fee=money(order.shipping_fee_minor) if order else None, reason=facts.reason,
        order_note=order.note if order else None,
        image_text=" ".join(reading.text for reading in context.readings if reading.text) or None,
        same_text_accounts=facts.same_text_accounts,
    )  # fmt: skip
