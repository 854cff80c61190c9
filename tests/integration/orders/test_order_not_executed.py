"""An order whose start a person resolved: as not executed it goes to a person, not stuck and not fulfilled after it (G52); as executed it is done."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ops_console.pages.order_timeline import timeline
from ops_console.read_models.order_views import effects_of, events_of, find_order
from ops_console.resolve_order import resolve_order
from sentinel.authority.halts import list_halts
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from tests import mutants
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, let_leave_end, refused
from tests.support.order_fixtures import make_intake, order_body
from tests.support.shop_server import FlakyShop
from worker.failpoints import Failpoints, OrderFailpoint
from worker.orders import processor
from worker.orders.build import act_within_seconds
from worker.orders.transitions import LATE_TRIES


def resolve(fixtures: Fixtures, *, executed: bool) -> str:
    """ "" when it is taken, else why not."""
    run_housekeeping(fixtures.authority.pool, 0)
    operation = fixtures.one("select operation_id from sentinel.operations")
    return refused(
        lambda: resolve_in_doubt(
            fixtures.console_pool, actor(fixtures, "admin"), operation, executed=executed, evidence="looked"
        )
    )


def say_not_executed(fixtures: Fixtures) -> str:
    """The same of a person's "not executed"."""
    return resolve(fixtures, executed=False)


class Stopped(Failpoints):
    """Breaks once at one place."""

    def __init__(self, place: OrderFailpoint) -> None:
        super().__init__()
        self.place: OrderFailpoint | None = place

    def hit(self, place: object) -> None:
        if place == self.place:
            self.place = None
            raise ZeroDivisionError


def test_an_order_is_not_resolved_while_its_intake_may_act(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url, parts={"shop": FlakyShop("down")})
    orders.deliver(order_body("o-1"))
    assert say_not_executed(fixtures) == "still-acting"
    left = fixtures.one("select extract(epoch from act_until - started_at)::float from sentinel.operation_states")
    assert round(left) == act_within_seconds(orders.settings) > orders.settings.lease_seconds
    orders.make_due()
    orders.rounds()
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low") and fixtures.broken_invariants() == []
    orders.close()


@pytest.mark.parametrize(
    ("place", "standing", "told_shop", "alert"),
    [
        # The start is not on record here: the order is asked about again, denied, and the shop is told to hold it.
        (OrderFailpoint.AFTER_GUARD, ("HELD", "high"), [("held", "o-1")], ("order_held", "resolved_not_executed")),
        # It is on record: what was intended is refused its start, and a person says what now.
        (
            OrderFailpoint.AFTER_DECIDED,
            ("SHOP_REFUSED", "low"),
            [],
            ("shop_refused", "a person said that it was not executed"),
        ),
    ],
)
def test_an_order_left_behind_started_is_held_for_a_person_and_never_fulfilled(
    fixtures: Fixtures, authority_url: str, place: OrderFailpoint, standing: Any, told_shop: Any, alert: Any
) -> None:
    """Left before the start was on record here, and after: its start is refused either way."""
    shop = FlakyShop()
    orders = make_intake(fixtures, authority_url, parts={"shop": shop}, failpoints=Stopped(place))
    assert orders.deliver(order_body("o-1")).status_code == 503
    let_leave_end(fixtures)
    assert say_not_executed(fixtures) == ""
    orders.make_due()
    orders.rounds()
    assert (orders.status_and_lane("o-1"), shop.done) == (standing, told_shop)
    assert orders.all("select kind, details ->> 'reason' from orders.alerts") == [alert]
    orders.make_due()
    orders.rounds()
    assert (
        orders.one("select count(*) from orders.effects where report_due_at < 'infinity' and reported_at is null") == 0
    )
    assert fixtures.broken_invariants() == []
    orders.close()


def test_what_a_person_called_not_executed_is_not_tried_again_and_can_be_held(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: a retry was recorded, and said that the shop is asked once more, which it never was."""
    shop, ann = FlakyShop(), actor(fixtures, "approver")
    orders = make_intake(
        fixtures, authority_url, parts={"shop": shop}, failpoints=Stopped(OrderFailpoint.AFTER_DECIDED)
    )

    def say(decision: str) -> str:
        return refused(
            lambda: resolve_order(
                fixtures.console_pool, ann, "demo", "o-1", decision=decision, reason="in stock", status="SHOP_REFUSED"
            )
        )

    try:
        assert orders.deliver(order_body("o-1")).status_code == 503
        let_leave_end(fixtures)
        assert say_not_executed(fixtures) == ""
        orders.make_due()
        orders.rounds()
        assert orders.status_and_lane("o-1") == ("SHOP_REFUSED", "low")
        assert say("retry") == "conflict"
        assert orders.all("select decision from orders.analyst_decisions") == []
        assert say("hold") == ""
        orders.make_due()
        orders.rounds()
        assert (orders.status_and_lane("o-1"), shop.done) == (("HELD", "low"), [("held", "o-1")])
    finally:
        orders.close()


def test_an_alert_does_not_say_that_the_shop_refused_what_a_person_called_not_executed(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: "the shop refused to fulfil: a person said that it was not executed"."""
    orders = make_intake(
        fixtures, authority_url, parts={"shop": FlakyShop()}, failpoints=Stopped(OrderFailpoint.AFTER_DECIDED)
    )
    try:
        assert orders.deliver(order_body("o-1")).status_code == 503
        let_leave_end(fixtures)
        assert say_not_executed(fixtures) == ""
        orders.make_due()
        orders.rounds()
        assert orders.all("select kind, summary from orders.alerts") == [
            ("shop_refused", "it must not be fulfilled any more: a person said that it was not executed")
        ]
    finally:
        orders.close()


def test_people_are_told_of_a_shop_that_does_not_say_whether_it_fulfilled_what_it_must_not_any_more(
    fixtures: Fixtures, authority_url: str
) -> None:
    """The finding: the order stayed STARTED for as long as the shop gave no answer, and nobody learnt of it."""
    shop = FlakyShop("blind")
    orders = make_intake(
        fixtures, authority_url, parts={"shop": shop}, failpoints=Stopped(OrderFailpoint.AFTER_DECIDED)
    )
    try:
        assert orders.deliver(order_body("o-1")).status_code == 503
        let_leave_end(fixtures)
        assert say_not_executed(fixtures) == ""
        fixtures.admin.execute("update orders.reviews set attempts = %s", [LATE_TRIES - 1])
        orders.make_due()
        orders.rounds()
        assert orders.status_and_lane("o-1") == ("STARTED", "low")
        assert orders.all("select kind, occasion from orders.alerts") == [("shop_late", "look")]
        orders.make_due()
        orders.rounds()
        assert (orders.status_and_lane("o-1"), shop.done) == (("SHOP_REFUSED", "low"), [])
    finally:
        orders.close()


def shipped_after_executed(fixtures: Fixtures, authority_url: str, place: OrderFailpoint) -> list[tuple[str, str]]:
    """The checker: a person says "executed" of an order that was left behind started; what the shop, which knows nothing of it, does then."""
    shop = FlakyShop()
    orders = make_intake(fixtures, authority_url, parts={"shop": shop}, failpoints=Stopped(place))
    assert orders.deliver(order_body("o-1")).status_code == 503
    assert resolve(fixtures, executed=True) == ""
    for _ in range(2):
        orders.make_due()
        orders.rounds()
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low")
    assert orders.one("select count(*) from orders.effects where reported_at is null") == 0
    orders.close()
    return shop.done


LEFT_STARTED = (OrderFailpoint.AFTER_GUARD, OrderFailpoint.AFTER_DECIDED, OrderFailpoint.BEFORE_SHOP)


@pytest.mark.parametrize("place", LEFT_STARTED)
def test_an_order_that_a_person_called_executed_is_done_and_its_shop_is_not_asked(
    fixtures: Fixtures, authority_url: str, place: OrderFailpoint
) -> None:
    """Somebody shipped it by hand: the shop's interface shows it as open."""
    assert shipped_after_executed(fixtures, authority_url, place) == []
    assert fixtures.one("select shop_reference from orders.effects") == "executed, as a person said"
    assert fixtures.one("select reason_code from orders.reviews") != "started_elsewhere"
    assert fixtures.broken_invariants() == []


def test_the_timeline_of_an_order_that_a_person_called_executed_does_not_say_that_the_shop_did_it(
    fixtures: Fixtures, authority_url: str
) -> None:
    assert shipped_after_executed(fixtures, authority_url, OrderFailpoint.AFTER_DECIDED) == []
    pool, tenant_id = fixtures.console_pool, fixtures.tenant_id
    row = find_order(pool, tenant_id, "demo", "o-1")
    assert row is not None
    changes, effects = events_of(pool, tenant_id, row.review_id), effects_of(pool, tenant_id, row.review_id)
    assert {moment.title for moment in timeline(row, changes, effects, [], [], []) if "ulfil" in moment.title} == {
        "Low: may be fulfilled", "Fulfilment started", "Fulfilled, as a person said; the shop was not asked", "Fulfilled",
    }  # fmt: skip


@pytest.mark.parametrize("place", LEFT_STARTED)
def test_mutant_that_goes_on_with_what_was_called_executed_ships_it(
    fixtures: Fixtures, authority_url: str, place: OrderFailpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "is_executed", lambda answer: False)
    monkeypatch.setattr(processor, "is_started", lambda answer: answer.start is not None)
    assert shipped_after_executed(fixtures, authority_url, place) == [("fulfilled", "o-1")]


def test_the_simulated_shop_does_not_ship_it_either(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url, failpoints=Stopped(OrderFailpoint.AFTER_GUARD))
    assert orders.deliver(order_body("o-1")).status_code == 503
    assert resolve(fixtures, executed=True) == ""
    orders.make_due()
    orders.rounds()
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low")
    assert orders.all("select 1 from orders.simulated_shop") == [] and fixtures.broken_invariants() == []
    orders.close()


def test_what_the_shop_did_before_is_told_and_halts(fixtures: Fixtures, authority_url: str) -> None:
    shop = FlakyShop("late", "blind")
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    orders.deliver(order_body("o-1"))
    assert shop.done == [("fulfilled", "o-1")] and orders.status_and_lane("o-1")[0] == "STARTED"
    let_leave_end(fixtures)
    assert say_not_executed(fixtures) == ""
    shop.script = ["blind"]
    for _ in range(3):
        orders.make_due()
        orders.rounds()
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low") and shop.done == [("fulfilled", "o-1")]
    assert orders.one("select count(*) from orders.effects where reported_at is null") == 0
    assert fixtures.one("select in_doubt_reason from sentinel.operation_states") == "contradiction"
    assert [halt.target for halt in list_halts(fixtures.console_pool, fixtures.tenant_id)] == [
        "order-review order.fulfill"
    ]
    assert fixtures.broken_invariants() == []
    orders.close()


def fulfilled_late(fixtures: Fixtures, authority_url: str) -> int:
    """The checker: an intake that stands still between the answer and the shop, with a person's decision in between."""
    orders = make_intake(fixtures, authority_url, lease_seconds=31.0)

    class StandsStill(Failpoints):
        def hit(self, place: object) -> None:
            if place == OrderFailpoint.BEFORE_SHOP:
                let_leave_end(fixtures)
                fixtures.admin.execute("update orders.reviews set lease_until = clock_timestamp()")
                assert say_not_executed(fixtures) == ""
                # On this process' clock too.
                object.__setattr__(orders.review.processor, "act_seconds", time.monotonic() * -1)

    object.__setattr__(orders.review.processor, "failpoints", StandsStill(OrderFailpoint.BEFORE_SHOP))
    orders.deliver(order_body("o-1"))
    orders.close()
    return int(fixtures.one("select count(*) from orders.simulated_shop where status = 'fulfilled'"))


def test_the_simulated_shop_ships_nothing_after_the_lease(fixtures: Fixtures, authority_url: str) -> None:
    assert fulfilled_late(fixtures, authority_url) == 0


def test_mutant_that_ships_without_a_lease_is_caught(fixtures: Fixtures, authority_url: str) -> None:
    mutants.cut(fixtures, "orders.ship_scored", "and r.lease_until > clock_timestamp()")
    assert fulfilled_late(fixtures, authority_url) == 1
