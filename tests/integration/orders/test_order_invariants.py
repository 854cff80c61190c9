"""The invariants of order review (deploy/invariants.sql): quiet over every way an order can go, and each red on its own breach.

The breaches bypass constraints and triggers: what the database refuses by itself is in test_order_lanes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from ops_console.resolve_order import DECISIONS, resolve_order
from sentinel.core.money import Money
from sentinel.platform.resources import invariants_sql
from sentinel.store.database import CONSOLE
from sentinel.store.invariants import check_invariant, read_invariants, run_invariants
from tests.support.harness import actor
from tests.support.order_fixtures import OrderFixtures, order_body
from worker.orders.order import Order
from worker.orders.store import DeliveredOrder

BUDGETS = ("order_budget", "order_over_refunded")
"""Of what an order may be paid back: tests/integration/worker/test_order_budgets.py."""
MINE = [
    one for one in read_invariants(invariants_sql())
    if one.name.startswith(("order_", "shop_")) and not one.name.startswith(BUDGETS)
]  # fmt: skip
FULFIL = """insert into orders.effects (tenant_id, review_id, kind, lane, operation_id, state)
  select tenant_id, review_id, 'fulfil', lane, operation_id, {state} from orders.reviews where order_id = {order}"""
SECOND = """insert into orders.reviews select (jsonb_populate_record(r, jsonb_build_object('review_id', gen_random_uuid()))).*
  from orders.reviews r where order_id = 'o-low'"""

BREACHES: list[tuple[str, set[str], str]] = [
    ("a second review of an order", {"order_in_two_lanes"}, SECOND.replace("jsonb_build_object(", "jsonb_build_object('status', 'RECEIVED', 'lane', null, ")),
    ("a finished order without a lane", {"order_in_two_lanes", "order_trail_differs"}, "update orders.reviews set lane = null where order_id = 'o-hold'"),
    ("a lane that no step led to", {"order_trail_differs"}, "update orders.reviews set lane = 'low' where order_id = 'o-queued'"),
    ("a status that no step led to", {"order_trail_differs", "order_stuck"},
     "update orders.reviews set status = 'DECIDED', next_attempt_at = now() - interval '1 hour' where order_id = 'o-queued'"),
    ("a trail with a way out of the high lane", {"order_way_not_declared"},
     "update orders.events e set from_lane = 'high' from orders.reviews r where r.review_id = e.review_id and r.order_id = 'o-low' and e.event = 'fulfilled'"),
    ("a high order's fulfilment", {"order_fulfilled_though_denied"}, FULFIL.format(state="'intended'", order="'o-high'")),
    ("the same under a lane that it has not", {"order_fulfilled_though_denied"},
     FULFIL.format(state="'intended'", order="'o-high'").replace("lane, operation_id, 'i", "'low', operation_id, 'i")),
    ("a refunded order's fulfilment", {"order_fulfilled_though_denied", "order_fulfilled_without_start"},
     FULFIL.format(state="'done'", order="'o-refund'")),
    ("a denial that was fulfilled", {"order_fulfilled_though_denied"}, "update orders.reviews set decision = 'DENY' where order_id = 'o-low'"),
    ("a fulfilled order whose effect is another's", {"order_fulfilled_without_effect", "order_fulfilled_without_start", "shop_did_unasked"},
     "update orders.effects f set operation_id = gen_random_uuid() from orders.reviews r where r.review_id = f.review_id and r.order_id = 'o-low'"),
    ("a fulfilled order whose effect is still intended", {"order_fulfilled_though_denied", "order_fulfilled_without_effect"},
     "update orders.effects f set state = 'intended' from orders.reviews r where r.review_id = f.review_id and r.order_id = 'o-low'"),
    ("a fulfilment that the authority never started", {"order_fulfilled_without_start"},
     "delete from sentinel.operation_states s using orders.reviews r where r.operation_id = s.operation_id and r.order_id = 'o-low'"),
    ("a fulfilment under another order's operation", {"order_fulfilled_without_start"},
     "update sentinel.operation_rows o set idempotency_key = 'order:demo:o-other' from orders.reviews r where r.operation_id = o.operation_id and r.order_id = 'o-low'"),
    ("a report that the authority refused for good", {"order_report_parked"},
     "update orders.effects f set reported_at = null, report_due_at = 'infinity' from orders.reviews r where r.review_id = f.review_id and r.order_id = 'o-low'"),
    ("an effect that is there twice", {"order_effect_twice"},
     "insert into orders.effects select f.* from orders.effects f join orders.reviews r using (tenant_id, review_id) where r.order_id = 'o-low'"),
    ("two orders under one operation", {"order_effect_twice", "shop_did_unasked"},
     "update orders.effects set operation_id = (select operation_id from orders.reviews where order_id = 'o-high')"
     " where review_id = (select review_id from orders.reviews where order_id = 'o-hold')"),
    ("a held order that the shop is not to hold", {"order_held_without_hold", "shop_did_unasked"},
     "delete from orders.effects where review_id = (select review_id from orders.reviews where order_id = 'o-high')"),
    ("a hold of a fulfilled order", {"order_held_without_hold"}, FULFIL.format(state="'intended'", order="'o-low'").replace("'fulfil'", "'hold'")),
    ("a hold that was fulfilled", {"order_decision_not_kept"}, "update orders.reviews set resolution = 'hold' where order_id = 'o-fulfil'"),
    ("a refund that nobody asked for", {"order_decision_not_kept"}, "update orders.reviews set resolution = null, resolved_at = null where order_id = 'o-refund'"),
    ("a decision on a high order", {"order_decision_not_kept"}, "update orders.reviews set resolution = 'fulfil', resolved_at = now() where order_id = 'o-high'"),
    ("a refund without its row", {"order_refund_missing"}, "delete from refunds.ledger_entries where ledger_entry_id = 'order:demo:o-refund'"),
    ("a refund of another amount", {"order_refund_missing"}, "update refunds.ledger_entries set amount_minor = amount_minor + 1"),
    ("a refund that was denied and nobody heard of it", {"order_refund_died_unseen"},
     "update refunds.ledger_entries set status = 'DENIED', updated_at = now() - interval '3 minutes'"),
    ("a refund that nobody follows", {"order_refund_missing"}, "update orders.refunds set state = 'refused', ended_at = now()"),
    ("a refund that was paid beside a hold", {"order_refund_beside_hold", "order_trail_differs", "order_held_without_hold"},
     "alter table refunds.ledger_entries drop constraint ledger_permitted_holds_budget;"
     "update refunds.ledger_entries set status = 'EXECUTED';"
     "update orders.reviews set status = 'HELD', resolution = 'hold' where order_id = 'o-refund'"),
    ("a fulfilment that was refused, and the order given up", {"order_gave_up"},
     "insert into orders.effects (tenant_id, review_id, kind, lane, operation_id, state)"
     " select tenant_id, review_id, 'fulfil', 'medium', operation_id, 'refused' from orders.reviews where order_id = 'o-queued'"),
    ("an approval that is elsewhere", {"order_queued_without_approval"}, "update orders.reviews set approval_id = gen_random_uuid() where order_id = 'o-queued'"),
    ("an order that nobody takes up", {"order_stuck"},
     "update orders.reviews set next_attempt_at = now() - interval '31 seconds' where order_id = 'o-under-way'"),
    ("another order's answer", {"order_answer_of_another"}, "update orders.deliveries set order_id = 'o-other' where order_id = 'o-low'"),
    ("an answer that is final too early", {"order_answer_of_another"}, "update orders.deliveries set is_final = true where order_id = 'o-queued'"),
    ("a shipment that was not on record", {"shop_did_unasked"}, "delete from orders.simulated_shop where order_id = 'o-high';"
     "insert into orders.simulated_shop (tenant_id, source, order_id, status, operation_id, told)"
     " select tenant_id, source, order_id, 'fulfilled', operation_id, '{}' from orders.reviews where order_id = 'o-high'"),
    ("an order that only the shop knows", {"shop_did_unasked"}, "update orders.simulated_shop set order_id = 'o-other' where order_id = 'o-low'"),
]  # fmt: skip


def every_way(orders: OrderFixtures) -> None:
    """An order in each lane, one of each decision, one that waits and one that is under way."""
    for lane in ("low", "high"):
        assert orders.deliver(order_body(f"o-{lane}", lane)).status_code == 200
    for name in ("queued", *DECISIONS):
        assert orders.deliver(order_body(f"o-{name}", "medium")).status_code == 202
    for decision in DECISIONS:
        person = actor(orders.fixtures, "approver")
        resolve_order(
            orders.fixtures.console_pool, person, "demo", f"o-{decision}", decision=decision, reason="looked at it",
            digest=orders.digest(f"o-{decision}"),
        )  # fmt: skip
    orders.rounds(until=lambda: orders.one("select count(*) from orders.simulated_shop") == 4)
    orders.rounds()
    # Taken by somebody who is still at it.
    orders.review.store.take([DeliveredOrder(Order("demo", "o-under-way", Money(4250, "USD")), "00" * 32)])


def red(connection: psycopg.Connection) -> set[str]:
    """Names of the invariants that find something in the open transaction."""
    return {one.name for one in MINE if check_invariant(connection, one).violations}


@contextmanager
def undone(connection: psycopg.Connection) -> Iterator[None]:
    """A transaction that is taken back, in which no trigger fires and no key is unique."""
    connection.execute("begin")
    try:
        connection.execute("set local session_replication_role = replica")
        for (statement,) in connection.execute(
            "select format('alter table %s drop constraint %I cascade', conrelid::regclass, conname) from pg_constraint"
            " where connamespace = 'orders'::regnamespace and contype in ('c', 'u', 'p', 'f') order by contype = 'p'"
        ).fetchall():
            connection.execute(statement.replace("drop constraint", "drop constraint if exists").encode())
        yield
    finally:
        connection.execute("rollback")


def test_each_invariant_is_quiet_until_its_own_breach(orders: OrderFixtures) -> None:
    every_way(orders)
    admin = orders.fixtures.admin
    assert orders.fixtures.broken_invariants() == []
    found = {}
    for name, _, breach in BREACHES:
        with undone(admin):
            admin.execute(breach.encode())
            found[name] = red(admin)
    assert found == {name: wanted for name, wanted, _ in BREACHES}
    assert {one for _, wanted, _ in BREACHES for one in wanted} == {one.name for one in MINE}
    assert orders.fixtures.broken_invariants() == []


def test_the_doctor_may_ask_them_all_and_reads_no_words(orders: OrderFixtures) -> None:
    every_way(orders)
    with orders.fixtures.as_role(CONSOLE) as connection:
        asked = run_invariants(connection, invariants_sql())
        for words in ("response_body from orders.deliveries", "told from orders.simulated_shop"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select {words}".encode())
    assert {one.name for one in MINE} <= {one.name for one in asked}
    assert [one.name for one in asked if one.violations] == []
