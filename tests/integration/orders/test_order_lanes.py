"""An order's way through the lanes with the real authority deciding; and what the database refuses whatever the code says."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors as pg

from ops_console.resolve_order import resolve_order
from sentinel.core.errors import Conflict
from sentinel.store.database import ORDERS
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, decide
from tests.support.order_fixtures import LANES, OrderFixtures, make_intake, order_body
from worker.orders.lanes import TRANSITIONS


@pytest.mark.parametrize("lane", LANES)
def test_an_order_ends_in_the_lane_that_the_authority_decides(orders: OrderFixtures, lane: str) -> None:
    answer = orders.deliver(order_body("o-1", lane))
    assert answer.status_code == {"low": 200, "medium": 202, "high": 200}[lane], answer.text
    assert (answer.json["lane"], answer.json["status"]) == (lane, LANES[lane].lower())
    assert orders.status_and_lane("o-1") == (LANES[lane], lane)
    shop = {"low": ["fulfilled"], "medium": [], "high": ["held"]}[lane]
    assert [row[0] for row in orders.all("select status from orders.simulated_shop")] == shop
    assert [row[0] for row in orders.all("select kind from orders.alerts")] == (
        ["order_held"] if lane == "high" else []
    )


def test_a_fulfilment_is_reported_and_leaves_nothing_open(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1"))
    orders.make_due()
    orders.rounds()
    assert orders.one("select outcome from sentinel.operation_states") == "success"
    assert orders.one("select count(*) from orders.effects where reported_at is null") == 0
    assert orders.fixtures.broken_invariants() == []


def test_an_approved_order_is_fulfilled_once_and_its_replay_says_so(orders: OrderFixtures) -> None:
    body = order_body("o-1", "medium")
    assert orders.deliver(body).json["status"] == "queued"
    decide(orders.fixtures, orders.one("select approval_id from orders.reviews"))
    orders.rounds(until=lambda: orders.status_and_lane("o-1") == ("FULFILLED", "medium"))
    again = orders.deliver(body)
    assert (again.status_code, again.json["status"], again.headers["X-Sentinel-Idempotent-Replay"]) == (
        202,
        "fulfilled",
        "true",
    )
    assert orders.all("select status from orders.simulated_shop") == [("fulfilled",)]


def test_a_rejected_order_is_held_and_never_fulfilled(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1", "medium"))
    decide(orders.fixtures, orders.one("select approval_id from orders.reviews"), "reject")
    orders.rounds(until=lambda: orders.status_and_lane("o-1") == ("HELD", "medium"))
    orders.make_due()
    orders.rounds()
    assert orders.all("select kind, state from orders.effects") == [("hold", "done")]


def test_an_order_with_nothing_to_pay_waits_for_a_person_who_cannot_refund_it(orders: OrderFixtures) -> None:
    """Fully discounted, or a gift; it is taken, and what is asked says so instead of an amount."""
    body = order_body("o-1", amount={"value": "0.00", "currency": "EUR"})
    answer = orders.deliver(body)
    assert (answer.status_code, answer.json["lane"], answer.json["status"]) == (202, "medium", "queued")
    [(signals, asked)] = orders.all("select signals, guard_params from orders.reviews")
    assert [one["code"] for one in signals] == ["nothing_to_pay"]
    assert ("amount" in asked, asked["nothing_to_pay"]) == (False, True)
    with pytest.raises(Conflict, match="nothing was paid"):
        say(orders, "refund")
    assert orders.one("select count(*) from refunds.ledger_entries") == 0
    assert say(orders, "fulfil") == "fulfil"
    orders.rounds(until=lambda: orders.status_and_lane("o-1") == ("FULFILLED", "medium"))
    orders.make_due()
    orders.rounds()
    assert orders.one("select outcome from sentinel.operation_states") == "success"
    assert orders.deliver(body).json["status"] == "fulfilled"
    assert orders.fixtures.broken_invariants() == []


def say(orders: OrderFixtures, decision: str) -> str:
    """What became of an approver's decision on o-1."""
    person = actor(orders.fixtures, "approver")
    return resolve_order(
        orders.fixtures.console_pool,
        person,
        "demo",
        "o-1",
        decision=decision,
        reason="looked at it",
        digest=orders.digest("o-1"),
    ).result


def test_the_database_has_the_declared_table(orders: OrderFixtures) -> None:
    found = orders.all(
        "select from_lane, from_status, event, to_lane, to_status from orders.transitions where not retired"
    )
    declared = {
        (start.lane or "-", start.status, event, to.lane or "-", to.status)
        for (start, event), to in TRANSITIONS.items()
    }
    assert set(found) == declared


@pytest.fixture
def held(orders: OrderFixtures) -> Iterator[tuple[OrderFixtures, psycopg.Connection]]:
    """A high order, and a connection with the intake's own rights."""
    orders.deliver(order_body("o-1", "high"))
    with orders.fixtures.as_role(ORDERS) as connection:
        yield orders, connection


FULFIL = """insert into orders.effects (tenant_id, review_id, kind, lane, operation_id)
            select tenant_id, review_id, 'fulfil', {lane}, operation_id from orders.reviews"""


DONE = """insert into orders.effects (tenant_id, review_id, kind, lane, operation_id, state)
          select tenant_id, review_id, 'fulfil', {lane}, operation_id, 'done' from orders.reviews"""
SHOP = """insert into orders.simulated_shop (tenant_id, source, order_id, status, operation_id, told)
          select tenant_id, source, order_id || '-2', 'fulfilled', operation_id, '{}' from orders.reviews"""


WAYS_TO_FULFIL = [
    FULFIL.format(lane="lane"),
    FULFIL.format(lane="'low'"),
    "update orders.reviews set status = 'STARTED', last_event = 'started', start_id = gen_random_uuid()",
    "update orders.reviews set status = 'FULFILLED', last_event = 'fulfilled'",
    "update orders.reviews set lane = 'low', status = 'DECIDED', last_event = 'allowed'",
    DONE.format(lane="lane"),
    DONE.format(lane="'low'"),
    f"{SHOP}; {DONE.format(lane='lane')}",
    "update orders.reviews set lane = 'low', status = 'FULFILLED', last_event = 'shipped', decision = 'ALLOW', start_id = gen_random_uuid()",
]


NOWHERE = "http://127.0.0.1:9"


def test_what_is_only_scored_is_not_fulfilled_by_saying_so(fixtures: Fixtures) -> None:
    """Shipped at once: only with a start, the shop's row and the effect, all of the same operation."""
    away = make_intake(fixtures, NOWHERE, authority_timeout_seconds=0.5)
    assert away.deliver(order_body("o-1")).status_code == 503
    shipped = (
        "update orders.reviews set status = 'FULFILLED', lane = 'low', last_event = 'shipped', decision = 'ALLOW', reason_code = 'r',"
        " operation_id = gen_random_uuid()"
    )
    with fixtures.as_role(ORDERS) as connection:
        for statement in (
            shipped,
            f"{shipped}, start_id = gen_random_uuid()",
            f"{shipped}, start_id = gen_random_uuid(); {DONE.format(lane='lane')}",
        ):
            with pytest.raises(pg.CheckViolation):
                connection.execute(statement.encode())
    assert away.status_and_lane("o-1") == ("SCORED", None)
    away.close()


def test_the_database_refuses_to_fulfil_a_high_order(held: tuple[OrderFixtures, psycopg.Connection]) -> None:
    for statement in WAYS_TO_FULFIL:
        with pytest.raises(pg.IntegrityError):
            held[1].execute(statement.encode())


def test_even_without_its_triggers_the_constraint_refuses_it(held: tuple[OrderFixtures, psycopg.Connection]) -> None:
    """The mutant: a database whose triggers were dropped still has the lane in the effect itself."""
    admin = held[0].fixtures.admin
    for trigger in ("check_effect", "check_new_effect", "check_shipped"):
        admin.execute(f"drop trigger {trigger} on orders.effects")
    with pytest.raises(pg.CheckViolation, match="effects_no_fulfilment_of_high"):
        admin.execute(FULFIL.format(lane="lane").encode())
    with pytest.raises(pg.ForeignKeyViolation, match="effects_of_lane"):
        admin.execute(FULFIL.format(lane="'low'").encode())
    admin.execute("alter table orders.effects drop constraint effects_no_fulfilment_of_high")
    admin.execute(FULFIL.format(lane="lane").encode())
    assert fulfilled_though_high(held[0]) == 1


def fulfilled_though_high(orders: OrderFixtures) -> int:
    """The checker: fulfilments of orders in the high lane."""
    return int(
        orders.one(
            "select count(*) from orders.effects f join orders.reviews r using (tenant_id, review_id)"
            " where f.kind = 'fulfil' and r.lane = 'high' and f.state <> 'cancelled'"
        )
    )


def test_the_intake_cannot_rewrite_what_it_reviewed_or_forget_it(
    held: tuple[OrderFixtures, psycopg.Connection],
) -> None:
    for statement in (
        "update orders.reviews set order_id = 'other'", "update orders.reviews set resolution = 'fulfil'",
        "delete from orders.reviews", "delete from orders.effects", "delete from orders.events", "truncate orders.reviews",
        "select * from sentinel.operations", "select * from refunds.ledger_entries", "update orders.transitions set to_lane = 'low'",
    ):  # fmt: skip
        with pytest.raises(pg.InsufficientPrivilege):
            held[1].execute(statement.encode())
