"""What the shop refuses comes back to a person who can have it tried again; what is to be held is told until the shop has it."""

from __future__ import annotations

from typing import Any

import pytest

from ops_console.read_models.order_search import queue
from ops_console.read_models.order_views import queue_figures
from ops_console.resolve_order import resolve_order
from sentinel.authority.approvals import resolve_approval
from sentinel.core.errors import SentinelError
from tests.support.fixtures import Fixtures
from tests.support.harness import actor
from tests.support.order_fixtures import OrderFixtures, make_intake, order_body
from tests.support.recording_server import problem
from tests.support.shop_server import ShopServer

CODES = (400, 401, 403, 404, 409, 410, 421, 422, 423, 424, 425, 429, 451, 503)


def say(orders: OrderFixtures, order_id: str, decision: str, role: str = "approver") -> str:
    """What became of a decision: the result, or the refusal's code."""
    try:
        return resolve_order(
            orders.fixtures.console_pool,
            actor(orders.fixtures, role),
            "demo",
            order_id,
            decision=decision,
            reason="asked the shop",
            digest=orders.digest(order_id),
            status=orders.status_and_lane(order_id)[0],
        ).result
    except SentinelError as error:
        return error.code


@pytest.mark.parametrize("code", CODES)
def test_a_hold_is_told_until_the_shop_has_it_whatever_it_answered_first(
    fixtures: Fixtures, authority_url: str, code: int
) -> None:
    with ShopServer().running() as shop:
        orders = make_intake(fixtures, authority_url, shop_url=shop.url, shop_timeout_seconds=20.0)
        shop.forever = ("POST", False, problem(code))
        assert orders.deliver(order_body("o-1", "high")).json["status"] == "held"
        for _ in range(6):
            orders.make_due()
            orders.rounds()
        assert orders.one("select state from orders.effects where kind = 'hold'") == "intended"
        # People hear of it once: at once of a refusal, after some tries of silence.
        assert orders.one("select count(*) from orders.alerts where kind in ('shop_refused', 'shop_late')") >= 1
        shop.forever = None
        # Nobody has to: but who does not want to wait says so.
        assert say(orders, "o-1", "retry") == "retry"
        orders.make_due()
        orders.rounds(until=lambda: orders.one("select state from orders.effects where kind = 'hold'") == "done")
        assert shop.held == {"o-1": 1}
        assert say(orders, "o-1", "retry") == "conflict"
        assert fixtures.broken_invariants() == []
        orders.close()


@pytest.mark.parametrize("lane", ["low", "medium"])
def test_a_fulfilment_that_the_shop_refused_is_back_with_a_person_who_tries_again_refunds_or_holds(
    fixtures: Fixtures, authority_url: str, lane: str
) -> None:
    with ShopServer().running() as shop:
        orders = make_intake(fixtures, authority_url, shop_url=shop.url, shop_timeout_seconds=20.0)
        shop.forever = ("POST", False, problem(422, "out of stock"))
        names = [f"o-{number}" for number in range(4)]
        for name in names:
            orders.deliver(order_body(name, lane))
            if lane == "medium":
                assert say(orders, name, "fulfil") == "fulfil"
        orders.rounds(until=lambda: all(orders.status_and_lane(name)[0] == "SHOP_REFUSED" for name in names))
        # It stays there: nothing that time brings moves it, and the shop is not asked on.
        asked = len(shop.http.asked)
        orders.make_due()
        orders.rounds()
        assert len(shop.http.asked) == asked and {orders.status_and_lane(name) for name in names} == {
            ("SHOP_REFUSED", lane)
        }
        assert fixtures.broken_invariants() == []
        # Still refused: back again, and a viewer's or an unknown decision is none.
        assert say(orders, "o-0", "retry") == "retry" and say(orders, "o-1", "fulfil") == "conflict"
        assert say(orders, "o-1", "retry", "viewer") == "forbidden"
        orders.rounds(until=lambda: orders.status_and_lane("o-0")[0] == "SHOP_REFUSED")
        shop.forever = None
        for name, decision in (("o-0", "retry"), ("o-1", "retry"), ("o-2", "hold"), ("o-3", "refund")):
            assert say(orders, name, decision) == decision
        orders.make_due()
        orders.rounds(until=lambda: shop.held["o-2"] == 1 and orders.status_and_lane("o-1")[0] == "FULFILLED")
        orders.rounds()
        assert {name: orders.status_and_lane(name)[0] for name in names} == {
            "o-0": "FULFILLED", "o-1": "FULFILLED", "o-2": "HELD", "o-3": "REFUND_FILED",
        }  # fmt: skip
        assert (dict(shop.shipped), dict(shop.held)) == ({"o-0": 1, "o-1": 1}, {"o-2": 1})
        decided = orders.all(
            "select r.order_id, w.decision from orders.analyst_decisions w join orders.reviews r using (review_id)"
            " where w.from_status = 'SHOP_REFUSED' order by 1, w.decision_id"
        )
        assert decided == [("o-0", "retry"), ("o-0", "retry"), ("o-1", "retry"), ("o-2", "hold"), ("o-3", "refund")]
        assert fixtures.broken_invariants() == []
        orders.close()


def test_an_order_that_came_back_before_the_clock_was_set_back_is_tried_again_when_a_person_says_so(
    fixtures: Fixtures, authority_url: str
) -> None:
    """As after a failover to a server whose clock is right. The finding: each retry was answered with 503 until it had caught up."""
    with ShopServer().running() as shop:
        orders = make_intake(fixtures, authority_url, shop_url=shop.url, shop_timeout_seconds=20.0)
        shop.forever = ("POST", False, problem(422, "out of stock"))
        orders.deliver(order_body("o-1", "low"))
        orders.rounds(until=lambda: orders.status_and_lane("o-1")[0] == "SHOP_REFUSED")
        shop.forever = None
        for statement in (
            "alter table orders.reviews disable trigger check_review",
            "update orders.reviews set updated_at = updated_at + interval '1 hour'",
            "alter table orders.reviews enable trigger check_review",
        ):
            fixtures.admin.execute(statement)
        assert say(orders, "o-1", "retry") == "retry"
        orders.rounds(until=lambda: orders.status_and_lane("o-1")[0] == "FULFILLED")
        orders.close()


@pytest.mark.parametrize("verb", ["fulfil", "hold"])
def test_people_hear_of_it_once_for_each_time_that_they_have_it_tried(
    fixtures: Fixtures, authority_url: str, verb: str
) -> None:
    with ShopServer().running() as shop:
        orders = make_intake(fixtures, authority_url, shop_url=shop.url, shop_timeout_seconds=20.0)
        shop.forever = ("POST", False, problem(422, "out of stock"))
        orders.deliver(order_body("o-1", "low" if verb == "fulfil" else "high"))
        occasions = "select occasion from orders.alerts where kind = 'shop_refused' order by created_at"
        for number, occasion in enumerate((verb, f"{verb} 2", f"{verb} 3"), start=1):
            orders.rounds(
                until=lambda n=number: orders.one("select count(*) from orders.alerts where kind = 'shop_refused'") == n
            )
            # What is tried again by itself is told once.
            for _ in range(2):
                orders.make_due()
                orders.rounds()
            told = [row[0] for row in orders.all(occasions)]
            assert (len(told), told[-1]) == (number, occasion)
            assert say(orders, "o-1", "retry") == "retry"
        orders.close()


def test_the_gauges_count_what_waits_for_a_person_as_the_console_does(fixtures: Fixtures, authority_url: str) -> None:
    with ShopServer().running() as shop:
        orders = make_intake(fixtures, authority_url, shop_url=shop.url, shop_timeout_seconds=20.0)
        shop.forever = ("POST", False, problem(422, "out of stock"))
        orders.deliver(order_body("o-back"))
        for name in ("o-waits", "o-spoken"):
            orders.deliver(order_body(name, "medium"))
        assert orders.review.store.figures().queued == 3
        assert say(orders, "o-spoken", "fulfil") == "fulfil"
        fixtures.admin.execute(
            "update orders.reviews set decided_at = decided_at - interval '1 hour' where order_id = 'o-back'"
        )
        found = orders.review.store.figures()
        assert (found.queued, found.under_way, found.oldest_queued_seconds > 3000) == (2, 1, True)
        assert found.queued == queue_figures(fixtures.console_pool, fixtures.tenant_id).queued
        orders.close()


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_an_order_whose_approval_was_decided_elsewhere_waits_for_no_person(
    fixtures: Fixtures, authority_url: str, verdict: str
) -> None:
    orders = make_intake(fixtures, authority_url)
    pool, tenant_id, who = fixtures.console_pool, fixtures.tenant_id, actor(fixtures, "approver")
    for name in ("o-elsewhere", "o-waits"):
        orders.deliver(order_body(name, "medium"))
    approval_id = orders.one("select approval_id from orders.reviews where order_id = 'o-elsewhere'")
    resolve_approval(pool, who, approval_id, verdict=verdict, reason="x", digest=orders.digest("o-elsewhere"))
    assert orders.status_and_lane("o-elsewhere") == ("QUEUED", "medium")
    assert say(orders, "o-elsewhere", "hold") == "conflict"
    assert [one.order_id for one in queue(pool, tenant_id, limit=5)] == ["o-waits"]
    found = orders.review.store.figures()
    assert (found.queued, found.under_way, queue_figures(pool, tenant_id).queued) == (1, 1, 1)
    orders.close()


def test_no_program_tries_again_what_no_person_said_and_no_retry_passes_a_halt(
    fixtures: Fixtures, authority_url: str
) -> None:
    with ShopServer().running() as shop:
        orders = make_intake(fixtures, authority_url, shop_url=shop.url, shop_timeout_seconds=20.0)
        shop.forever = ("POST", False, problem(422))
        orders.deliver(order_body("o-1"))
        assert orders.status_and_lane("o-1")[0] == "SHOP_REFUSED"
        moved: Any = "update orders.reviews set status = 'STARTED', last_event = 'retried' where order_id = 'o-1'"
        with pytest.raises(Exception, match="nobody said to try again"):
            fixtures.admin.execute(moved)
        fixtures.admin.execute(
            "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
            " values (%s, gen_random_uuid(), 'action', 'order.fulfill', 'pause', 'stock', 'ann', clock_timestamp())",
            [fixtures.tenant_id],
        )
        assert say(orders, "o-1", "retry") == "conflict" and say(orders, "o-1", "hold") == "hold"
        orders.close()
