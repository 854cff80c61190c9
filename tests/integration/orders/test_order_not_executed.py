"""An order whose start a person resolved as not executed goes to a person: not stuck, and not fulfilled after it (G52)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sentinel.authority.halts import list_halts
from sentinel.authority.housekeeping import keep_house
from sentinel.authority.in_doubt import resolve_in_doubt
from tests import twins
from tests.support.harness import actor, let_leave_end, refused
from tests.support.order_world import make_intake, order_body
from tests.support.shop_server import FlakyShop
from tests.support.world import World
from worker.failpoints import Failpoints
from worker.order_review.build import act_within_seconds
from worker.order_review.failpoints import Place


def say_not_executed(world: World) -> str:
    """ "" when it is taken, else why not."""
    keep_house(world.authority.pool, 0)
    operation = world.one("select operation_id from sentinel.operations")
    return refused(
        lambda: resolve_in_doubt(
            world.console_pool, actor(world, "admin"), operation, executed=False, evidence="looked"
        )
    )


class Stopped(Failpoints):
    """Breaks once at one place."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place: Place | None = place

    def hit(self, place: object) -> None:
        if place == self.place:
            self.place = None
            raise ZeroDivisionError


def test_an_order_is_not_resolved_while_its_intake_may_act(world: World, authority_url: str) -> None:
    orders = make_intake(world, authority_url, parts={"shop": FlakyShop("down")})
    orders.deliver(order_body("o-1"))
    assert say_not_executed(world) == "still-acting"
    left = world.one("select extract(epoch from act_until - started_at)::float from sentinel.operation_states")
    assert round(left) == act_within_seconds(orders.settings) > orders.settings.lease_seconds
    orders.make_due()
    orders.rounds()
    assert orders.standing("o-1") == ("FULFILLED", "low") and world.broken_invariants() == []
    orders.review.pool.close()


@pytest.mark.parametrize(
    ("place", "standing", "told_shop", "alert"),
    [
        # The start is not on record here: the order is asked about again, denied, and the shop is told to hold it.
        (Place.AFTER_GUARD, ("HELD", "high"), [("held", "o-1")], ("order_held", "resolved_not_executed")),
        # It is on record: what was intended is refused its start, and a person says what now.
        (Place.AFTER_DECIDED, ("SHOP_REFUSED", "low"), [], ("shop_refused", "a person said that it was not executed")),
    ],
)
def test_an_order_left_behind_started_is_held_for_a_person_and_never_fulfilled(
    world: World, authority_url: str, place: Place, standing: Any, told_shop: Any, alert: Any
) -> None:
    """Left before the start was on record here, and after: its start is refused either way."""
    shop = FlakyShop()
    orders = make_intake(world, authority_url, parts={"shop": shop}, failpoints=Stopped(place))
    assert orders.deliver(order_body("o-1")).status_code == 503
    let_leave_end(world)
    assert say_not_executed(world) == ""
    orders.make_due()
    orders.rounds()
    assert (orders.standing("o-1"), shop.done) == (standing, told_shop)
    assert orders.all("select kind, details ->> 'reason' from orders.alerts") == [alert]
    orders.make_due()
    orders.rounds()
    assert (
        orders.one("select count(*) from orders.effects where report_due_at < 'infinity' and reported_at is null") == 0
    )
    assert world.broken_invariants() == []
    orders.review.pool.close()


def test_what_the_shop_did_before_is_told_and_halts(world: World, authority_url: str) -> None:
    shop = FlakyShop("late", "blind")
    orders = make_intake(world, authority_url, parts={"shop": shop})
    orders.deliver(order_body("o-1"))
    assert shop.done == [("fulfilled", "o-1")] and orders.standing("o-1")[0] == "STARTED"
    let_leave_end(world)
    assert say_not_executed(world) == ""
    shop.script = ["blind"]
    for _ in range(3):
        orders.make_due()
        orders.rounds()
    assert orders.standing("o-1") == ("FULFILLED", "low") and shop.done == [("fulfilled", "o-1")]
    assert orders.one("select count(*) from orders.effects where reported_at is null") == 0
    assert world.one("select in_doubt_reason from sentinel.operation_states") == "contradiction"
    assert [halt.target for halt in list_halts(world.console_pool, world.tenant_id)] == ["order-review order.fulfill"]
    assert world.broken_invariants() == []
    orders.review.pool.close()


def fulfilled_late(world: World, authority_url: str) -> int:
    """The checker: an intake that stands still between the answer and the shop, with a person's word in between."""
    orders = make_intake(world, authority_url, lease_seconds=31.0)

    class StandsStill(Failpoints):
        def hit(self, place: object) -> None:
            if place == Place.BEFORE_SHOP:
                let_leave_end(world)
                world.admin.execute("update orders.reviews set lease_until = clock_timestamp()")
                assert say_not_executed(world) == ""
                # On this process' clock too.
                object.__setattr__(orders.review.pipeline, "act_seconds", time.monotonic() * -1)

    object.__setattr__(orders.review.pipeline, "failpoints", StandsStill())
    orders.deliver(order_body("o-1"))
    orders.review.pool.close()
    return int(world.one("select count(*) from orders.simulated_shop where status = 'fulfilled'"))


def test_the_simulated_shop_ships_nothing_after_the_lease(world: World, authority_url: str) -> None:
    assert fulfilled_late(world, authority_url) == 0


def test_twin_that_ships_without_a_lease_is_caught(world: World, authority_url: str) -> None:
    twins.cut(world, "orders.settle_fulfilments", "and r.lease_until > clock_timestamp()")
    assert fulfilled_late(world, authority_url) == 1
