"""Orders that come together are processed together, and each gets what it would have got alone."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.orders.test_order_crashes import broken
from tests.support.fixtures import Fixtures
from tests.support.harness import at_once
from tests.support.order_fixtures import SECRET, OrderFixtures, intake_process, make_intake, order_body
from worker.failpoints import OrderFailpoint
from worker.orders import processor

COUNT = 24
KILLED = (
    OrderFailpoint.AFTER_TAKE,
    OrderFailpoint.BEFORE_GUARD,
    OrderFailpoint.AFTER_GUARD,
    OrderFailpoint.BEFORE_SHOP,
    OrderFailpoint.AFTER_DECIDED,
    OrderFailpoint.AFTER_SETTLED,
    OrderFailpoint.AFTER_REPORT,
)


def commits(orders: OrderFixtures, event: str) -> int:
    """In how many commits the orders made this step."""
    return int(orders.one("select count(distinct xmin::text) from orders.events where event = %s", event))


@pytest.mark.usefixtures("patient")
def test_orders_that_come_while_a_set_is_under_way_share_the_next_ones(orders: OrderFixtures) -> None:
    answers = at_once([lambda n=n: orders.deliver(order_body(f"o-{n}")).status_code for n in range(COUNT)])
    assert answers == [200] * COUNT
    assert commits(orders, "scored") <= COUNT // 2
    assert commits(orders, "fulfilled") <= COUNT // 2
    assert orders.fixtures.broken_invariants() == []


def test_a_single_one_waits_for_nobody(fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "GATHER_SECONDS", 3600.0)
    orders = make_intake(fixtures, authority_url)
    assert orders.deliver(order_body("o-1")).status_code == 200
    orders.close()


@pytest.mark.usefixtures("patient")
def test_the_orders_of_one_account_in_a_set_count_each_other(orders: OrderFixtures) -> None:
    at_once([lambda n=n: orders.deliver(order_body(f"o-{n}", account_ref="acct-one")) for n in range(12)])
    lanes = Counter(row[0] for row in orders.all("select lane from orders.reviews"))
    # As one after the other: the first few of a day are low, whatever order they are looked at in.
    one_by_one = 3
    assert lanes["low"] <= one_by_one and sum(lanes.values()) == 12


@pytest.mark.parametrize("scored_with_the_taking", [True, False], ids=["one commit", "steps"])
def test_the_customers_of_two_sources_are_not_one_account(
    fixtures: Fixtures, authority_url: str, scored_with_the_taking: bool
) -> None:
    secrets = {"ORDERS_DEMO_SECRET": SECRET, "SHOP_WEBHOOK_SECRET": "only-for-tests-shop-secret-0123456789"}
    orders = make_intake(fixtures, authority_url, secrets=secrets)
    orders.review.processor.scores_at_once = scored_with_the_taking
    for number in range(10):
        orders.deliver(order_body(f"o-{number}", account_ref="1001"))
    body = order_body("o-other", account_ref="1001")
    digest = hmac.new(secrets["SHOP_WEBHOOK_SECRET"].encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Shop-Hmac-Sha256": digest, "Content-Type": "application/json"}
    assert orders.deliver(body, headers=headers, source="shop").status_code == 200
    assert orders.status_and_lane("o-other") == ("FULFILLED", "low")
    orders.close()


def test_rules_alone_score_an_order_in_any_budget(
    fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_intake(fixtures, authority_url, budget_seconds=10.0)
    monkeypatch.setattr(orders.review.store, "take_scored", lambda scored: [None] * len(scored))
    assert orders.deliver(order_body("o-1")).status_code == 200
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low")
    orders.close()


@pytest.mark.parametrize("table", ["orders.reviews", "orders.simulated_shop"], ids=["not taken", "not shipped"])
@pytest.mark.usefixtures("patient")
def test_what_the_database_refuses_of_one_order_the_others_do_not_feel(orders: OrderFixtures, table: str) -> None:
    orders.fixtures.admin.execute(f"alter table {table} add constraint refused check (order_id <> 'o-3')")
    at_once([lambda n=n: orders.deliver(order_body(f"o-{n}")) for n in range(8)])
    found = dict(orders.all("select order_id, status from orders.reviews where order_id <> 'o-3'"))
    assert found == {f"o-{n}": "FULFILLED" for n in range(8) if n != 3}
    assert orders.one("select count(*) from orders.simulated_shop where order_id = 'o-3'") == 0


@pytest.mark.parametrize("place", KILLED)
def test_killed_in_the_middle_of_a_set_every_order_ends_in_one_lane_with_its_effect_once(
    orders: OrderFixtures, place: OrderFailpoint
) -> None:
    lanes = ["low", "medium", "low", "high", "low", "low"]
    bodies = [order_body(f"{lane}-{n}", lane, account_ref=f"acct-{n}") for n, lane in enumerate(lanes)]
    armed = {
        "SENTINEL_FAILPOINT": f"{place}:kill:2", "SENTINEL_ALLOW_FAILPOINTS": "1", "SENTINEL_ORDERS_BUDGET_SECONDS": "60",
        "SENTINEL_ORDERS_LEASE_SECONDS": "120", "SENTINEL_ORDERS_POLL_SECONDS": "60",
    }  # fmt: skip
    with intake_process(orders.fixtures, orders.authority_url, orders.key, **armed) as process:
        with ThreadPoolExecutor(len(bodies)) as senders:
            answers = list(senders.map(process.post, bodies))
    if place is not OrderFailpoint.AFTER_REPORT:
        assert None in answers, "the place was not passed"
    for _ in range(4):
        orders.make_due()
        assert {orders.deliver(body).status_code for body in bodies} <= {200, 202}
        orders.rounds()
    assert broken(orders, [(lane, str(n)) for n, lane in enumerate(lanes)]) == []  # type: ignore[list-item]
    assert orders.fixtures.broken_invariants() == []
