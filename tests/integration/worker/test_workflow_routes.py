"""Every cell of the route table, legal or not, and every dependency that can be down: a person, neither error nor release."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from sentinel.policy.switches import SwitchFile
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_faults import FAULTS, always
from tests.support.ledger_fixtures import CLEAN, new_row
from tests.support.workflow_fixtures import BRANCHES, FEE, PUBLIC_FEE, Branch, Shop, Spy, executed_once
from worker.critic.critic import Critic
from worker.critic.model import ModelCritic
from worker.images import HttpRecogniser, NoRecogniser
from worker.refunds.rows import KnownFacts, LedgerRow
from worker.refunds.settings import WorkerSettings
from worker.refunds.workflow.graph import Escalation as E
from worker.refunds.workflow.routes import Routes
from worker.refunds.workflow.runner import Found, NoDirectoryAnswer
from worker.settlement.registry import Systems, system_names

NOBODY = "http://127.0.0.1:9"
START = "action/guard/start"


# Cells

CHANNELS = ("retail", "private", "public", "counter")
SCENARIOS = ("standard", "fee", "price_diff", "compensation", "defect", "quality", "gift")
MODES = (None, "rebuy", "price_drop", "swap")
LEGAL = {(branch.channel, branch.scenario, branch.mode): branch for branch in BRANCHES.values()}
TO_PERSON = {("public", "price_diff", "rebuy")}


def test_every_cell_goes_its_own_way_or_to_a_person_never_the_closest_one(shop: Shop, authority: FakeAuthority) -> None:
    cells = {f"c{number}": cell for number, cell in enumerate(itertools.product(CHANNELS, SCENARIOS, MODES))}
    for name, cell in cells.items():
        shop.enter(LEGAL.get(cell) or Branch(cell[0], cell[1], "", mode=cell[2]), name, risk=CLEAN)
    shop.run()
    by_way: dict[str, set[Any]] = {}
    for name, cell in cells.items():
        status, waiting_for, reason = shop.stands(name)
        by_way.setdefault(f"{status} {waiting_for or ''} {reason}", set()).add(cell)
    with_card = {cell for cell, branch in LEGAL.items() if branch.card}
    assert by_way.pop("APPROVAL_REQUIRED customer awaiting_customer") == with_card
    assert by_way.pop("EXECUTED  within_policy_limit") == set(LEGAL) - with_card
    assert by_way.pop("APPROVAL_REQUIRED operator mode_needs_person") == TO_PERSON
    assert by_way == {
        "APPROVAL_REQUIRED operator no_route": set(cells.values()) - set(LEGAL) - TO_PERSON,
    }
    (counter,) = (name for name, cell in cells.items() if cell == ("retail", "standard", None))
    assert executed_once(shop, [counter], "simulated_refund")
    assert authority.calls.count(START) == 1


def test_the_shipped_table_has_exactly_the_specified_cells() -> None:
    switches = SwitchFile(policies_dir()).declared.switches
    found = Routes.load(policies_dir() / "routes.yaml", switches=switches, systems=system_names())
    assert {(route.channel, route.scenario, route.mode): route.settles_to for route in found.all} == {
        **{cell: branch.system for cell, branch in LEGAL.items()}, **dict.fromkeys(TO_PERSON, "")
    }  # fmt: skip
    assert {route.name for route in found.all if not route.confirm_card} == {
        "retail/standard",
        "public/price_diff/rebuy",
    }
    assert {route.name for route in found.all if route.wants_image} == {
        "private/fee", "public/fee", "public/defect", "public/quality"}  # fmt: skip
    assert {route.channel for route in found.all if route.critic == "model"} == {"public"}


# A table that cannot be meant

TEXT = (policies_dir() / "routes.yaml").read_text()
ROUTE = "  - channel: private\n    scenario: fee\n    action: refund.small.fee\n    switch: small_refund.refund_fee\n    chain: [image, scenario_validate, limit_check]\n"
BROKEN = {
    "channel": ("channel: private\n    scenario: fee", "channel: privat\n    scenario: fee", "channel: privat", '"private"'),
    "scenario": ("scenario: compensation", "scenario: compensaton", "scenario: compensaton", '"compensation"'),
    "step": ("chain: [image, scenario_validate, limit_check]\n    within_days: 7  ", "chain: [image, scenario_valdate, limit_check]\n    within_days: 7  ", "scenario_valdate", '"scenario_validate"'),
    "switch": ("switch: small_refund.compensation", "switch: small_refund.compensatoin", "compensatoin", '"small_refund.compensation"'),
    "system": ("settles_to: coupon", "settles_to: cupon", "settles_to: cupon", '"coupon"'),
    "mode": ("mode: price_drop", "mode: price_dorp", "mode: price_dorp", '"price_drop"'),
    "critic": ("critic: model\n    settles_to: platform_backend\n\n  # \"Return", "critic: modell\n    settles_to: platform_backend\n\n  # \"Return", "critic: modell", '"model"'),
    "key": ("within_days: 30                                           # as long as an order", "within_day: 30 # as long as an order", "within_day: 30", '"within_days"'),
    "reason": ("to_person: mode_needs_person", "to_person: mode_needs_persons", "to_person: mode_needs_persons", '"mode_needs_person"'),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_an_unknown_name_is_refused_with_file_line_and_the_nearest_known_name(tmp_path: Path, kind: str) -> None:
    old, new, marked, nearest = BROKEN[kind]
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, TEXT.replace(old, new, 1), old)
    line = next(n for n, text in enumerate(written(tmp_path).read_text().splitlines(), 1) if marked in text)
    said = str(refused.value)
    assert f"{written(tmp_path)}:{line}:" in said and nearest in said, said


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("chain: [scenario_validate, limit_check]", "chain: [scenario_validate]", "chain must be, in this order"),
        (
            "chain: [scenario_validate, limit_check]",
            "chain: [limit_check, scenario_validate]",
            "chain must be, in this order",
        ),
        ("chain: [scenario_validate, limit_check]", "chain: []", "chain"),
        ("    settles_to: coupon\n", "", '"settles_to" is missing'),
        ("    mode: price_drop\n", "    mode: rebuy\n", "there are two routes for public/price_diff/rebuy"),
        (
            "to_person: mode_needs_person",
            "to_person: mode_needs_person\n    settles_to: coupon",
            'must not have "settles_to"',
        ),
        ("confirm_card: true", "confirm_card: yes", "must be true or false"),
        ("within_days: 7 ", "within_days: -7 ", "within_days"),
        ('{USD: "8.00"', '{USD: "8.005"', "no_proof_up_to USD"),
        ('{USD: "8.00"', '{XYZ: "8.00"', 'no_proof_up_to: "XYZ" is not a currency'),
        ("action: refund.create", "action: Refund Create", "action"),
        (
            "chain: [image, scenario_validate, limit_check]",
            "chain: [scenario_validate, limit_check]",
            "this chain has no image",
        ),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(PolicyError, match=r"routes\.yaml:\d+:") as refused:
        load(tmp_path, TEXT.replace(old, new, 1), old)
    assert says in str(refused.value)


def load(folder: Path, text: str, old: str) -> Routes:
    assert old in TEXT, f"{old!r} is not in the table any more: bring this test up to date"
    written(folder).write_text(text)
    return Routes.load(written(folder), switches=SwitchFile(policies_dir()).declared.switches, systems=system_names())


def written(folder: Path) -> Path:
    return folder / "routes.yaml"


# Degrading


class Silent:
    """A directory that is there and does not answer."""

    name = "silent"

    def is_ready(self) -> bool:
        return True

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        return [NoDirectoryAnswer("timeout")] * len(rows)


@dataclass(frozen=True)
class Down:
    """A dependency that is down: on which branch, how, which reason a person reads, what the trail names."""

    branch: Branch
    how: Callable[[Shop, FakeAuthority], None]
    reason: E
    trail: dict[str, str] | None = None


def parts(**over: Any) -> Callable[[Shop, FakeAuthority], None]:
    return lambda shop, authority: shop.parts.update(over)


def settings(**over: Any) -> Callable[[Shop, FakeAuthority], None]:
    return lambda shop, authority: shop.settings.update(over)


def critic(model: Any) -> Callable[[Shop, FakeAuthority], None]:
    return lambda shop, authority: setattr(shop, "critic", Critic(model=model))


def switches(fault: str) -> Callable[[Shop, FakeAuthority], None]:
    refuse = lambda exchange: exchange.problem(404, "not-found")  # noqa: E731
    return lambda shop, authority: setattr(authority, "misbehave", always(FAULTS.get(fault, refuse), "switches"))


UNSET = Systems.from_settings(WorkerSettings())
DOWN = {
    "a directory that does not answer": Down(FEE, parts(directories={"private": Silent()}), E.ORDER_DIRECTORY_UNAVAILABLE, {"degraded": "silent"}),
    "a directory that is not connected": Down(PUBLIC_FEE, settings(public_orders_imported=False), E.ORDER_DIRECTORY_UNAVAILABLE, {"degraded": "public_orders"}),
    "no recogniser": Down(PUBLIC_FEE, parts(recogniser=NoRecogniser()), E.RECOGNISER_UNAVAILABLE, {"degraded": "none"}),
    "a recogniser that is down": Down(PUBLIC_FEE, parts(recogniser=HttpRecogniser(NOBODY)), E.RECOGNISER_UNAVAILABLE, {"degraded": "http"}),
    "no critic model": Down(PUBLIC_FEE, critic(None), E.CRITIC_ERROR),
    "a critic model that is down": Down(PUBLIC_FEE, critic(ModelCritic(f"{NOBODY}/v1", "m", "", 1.0)), E.CRITIC_ERROR),
    "no price-difference system": Down(BRANCHES["private/price_diff"], parts(systems=UNSET), E.SYSTEM_NOT_READY, {"degraded": "price_difference"}),
    "no platform": Down(PUBLIC_FEE, parts(systems=UNSET), E.SYSTEM_NOT_READY, {"degraded": "platform_backend"}),
    "no ticket system": Down(BRANCHES["public/defect"], parts(systems=UNSET), E.SYSTEM_NOT_READY, {"degraded": "ticket_then_platform"}),
    "nothing to make coupons with": Down(BRANCHES["private/compensation"], parts(systems=UNSET), E.SYSTEM_NOT_READY, {"degraded": "coupon"}),
    "nothing to sign links with": Down(FEE, settings(confirm_secrets=()), E.SYSTEM_NOT_READY, {"degraded": "confirm_card"}),
    "switches that may not be read": Down(FEE, switches("refused"), E.SWITCH_OFF),
}  # fmt: skip


@pytest.mark.parametrize("what", DOWN)
def test_without_a_dependency_a_person_is_asked(shop: Shop, authority: FakeAuthority, what: str) -> None:
    down = DOWN[what]
    down.how(shop, authority)
    shop.enter(down.branch)
    shop.run()
    assert shop.stands() == ("APPROVAL_REQUIRED", "operator", down.reason)
    assert shop.nothing_paid() and shop.cards() == 0
    assert START not in authority.calls
    if down.trail is not None:
        assert down.trail in [step.get("output") for step in shop.steps()]


class Fading(Spy):
    """Ready so many times."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__(name)
        self.left = times

    def is_ready(self) -> bool:
        self.left -= 1
        return self.left >= 0


def test_a_system_that_goes_away_at_any_moment_before_the_start_leaves_its_row_to_a_person(
    shop: Shop, authority: FakeAuthority
) -> None:
    """However often it said that it was ready: no start, no touch, no card for nothing."""
    paid = []
    for times in range(12):
        name = f"r{times}"
        shop.enter(FEE, name)
        shop.run()
        shop.answer(name)
        fading = shop.spies["private_refund"] = Fading("private_refund", times)
        shop.run()
        if shop.stands(name)[0] == "EXECUTED":
            paid.append(times)
        else:
            assert shop.stands(name) == ("APPROVAL_REQUIRED", "operator", E.SYSTEM_NOT_READY), times
            assert fading.touches == []
            assert authority.operations[f"refund:{name}"].start_id is None
        shop.spies["private_refund"] = Spy("private_refund")
    assert paid == list(range(min(paid), 12)) and 2 <= min(paid) <= 8


@pytest.mark.parametrize("notifier", ["log", "smtp"])
def test_a_link_that_cannot_be_sent_is_neither_an_error_nor_a_release(shop: Shop, notifier: str) -> None:
    shop.settings |= {"notifier": notifier, "smtp_host": "127.0.0.1", "smtp_port": 9, "smtp_from": "a@b.example",
                      "smtp_security": "none", "smtp_timeout_seconds": 1.0}  # fmt: skip
    shop.enter(FEE, contact="someone@shop.example")
    shop.run()
    shop.run()
    assert shop.stands() == ("APPROVAL_REQUIRED", "customer", "awaiting_customer")
    assert shop.nothing_paid()
    if notifier == "smtp":
        assert shop.fixtures.one("select last_delivery_error from refunds.confirmations")


@pytest.mark.parametrize("days_ago, waits", [(13, False), (15, True)])
def test_a_window_is_kept_whatever_the_scenario(shop: Shop, tmp_path: Path, days_ago: float, waits: bool) -> None:
    retail = "    action: refund.create\n"
    shop.parts["routes"] = load(tmp_path, TEXT.replace(retail, f"{retail}    within_days: 14\n", 1), retail)
    shop.enter(BRANCHES["retail/standard"], days_ago=days_ago)
    shop.run()
    assert shop.stands() == (
        ("APPROVAL_REQUIRED", "operator", "outside_window") if waits else ("EXECUTED", None, "within_policy_limit")
    )


# A row that says too little, or names what its route does not have


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize(
    "branch, action, ends",
    [("retail/standard", "data.read", "ERROR"), ("private/fee", "data.read", "ERROR"), ("private/fee", "refund.small.coupon", "ERROR"),
     ("retail/standard", "refund.create", "EXECUTED"), ("private/fee", "refund.small.fee", "APPROVAL_REQUIRED")],
)  # fmt: skip
def test_a_row_is_paid_under_no_other_action_than_its_routes(
    shop: Shop, authority: FakeAuthority, branch: str, action: str, ends: str, is_on: bool
) -> None:
    """Another action's policy knows neither its caps nor its once-key."""
    if not is_on:
        authority.switches.clear()
    shop.enter(BRANCHES[branch], action=action)
    shop.run()
    assert shop.stands()[0] == (ends if is_on or ends == "ERROR" else "APPROVAL_REQUIRED")
    if ends == "ERROR":
        said = shop.fixtures.one("select last_error from refunds.ledger_entries")
        assert said.startswith("check_params: action must be refund.create or the route's own, refund.")
        assert not [call for call in authority.calls if call.startswith("action/guard")] and shop.nothing_paid()


@pytest.mark.parametrize(
    "row, says",
    [({"order_ref": None}, "order_ref is missing"), ({"account_ref": None, "order_ref": "ord_unknown"}, "account_ref is missing"),
     ({"currency": "XXQ"}, "currency must be")],
)  # fmt: skip
def test_an_incomplete_row_ends_as_error_and_says_why(shop: Shop, row: dict[str, Any], says: str) -> None:
    shop.fixtures.add(new_row("r", **{"channel": "private", "scenario": "fee", "order_ref": "ord_r", **row}))
    shop.run()
    assert shop.stands()[0] == "ERROR"
    assert says in shop.fixtures.one("select last_error from refunds.ledger_entries")
    assert shop.nothing_paid()
