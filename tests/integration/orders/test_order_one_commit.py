"""What shares a commit since it can: the taking with the score, the decision with the simulated shop's row and the settlement."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support.asgi_client import InProcessApp
from tests.support.fixtures import Fixtures
from tests.support.order_fixtures import SECRET, SOURCES, NoLimit, OrderFixtures, make_intake, order_body
from worker.failpoints import Failpoints, OrderFailpoint
from worker.orders.app import create_app
from worker.orders.intake import DeliveryLimits, Intake
from worker.orders.sources import SourcesFile
from worker.orders.store import DeliveredOrder, OrderStore, TakeResult


def test_an_order_is_taken_and_scored_in_one_commit_and_its_trail_says_both(
    orders: OrderFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    unscored: list[DeliveredOrder] = []
    real = OrderStore.take

    def take(store: OrderStore, deliveries: Sequence[DeliveredOrder]) -> list[TakeResult | Exception]:
        unscored.extend(deliveries)
        return real(store, deliveries)

    monkeypatch.setattr(OrderStore, "take", take)
    assert orders.deliver(order_body("o-one")).status_code == 200
    assert unscored == []
    written = orders.all("select event, xmin::text from orders.events order by event_id")
    assert [event for event, _ in written] == ["scored", "allowed", "started", "fulfilled"]
    # The decision, the fulfilment, the shop's row and the answer for repeats stand or fall together.
    told = {
        row[0]
        for row in orders.all(
            "select xmin::text from orders.simulated_shop union select xmin::text from orders.deliveries"
        )
    }
    assert told == {transaction for _, transaction in written[1:]}


def test_an_order_left_before_its_score_is_scored_by_whoever_takes_it_up(
    orders: OrderFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = replace(
        orders.review.processor, scores_at_once=False, failpoints=Failpoints(OrderFailpoint.AFTER_TAKE, "raise")
    )
    monkeypatch.setattr(orders.review.background, "_processor", replace(processor, failpoints=Failpoints()))
    intake = Intake(
        processor, SourcesFile(SOURCES, {"ORDERS_DEMO_SECRET": SECRET}), DeliveryLimits(NoLimit(), NoLimit()),
        ThreadPoolExecutor(2),
    )  # fmt: skip
    orders.app.close()
    orders.app = InProcessApp(create_app(intake, orders.review.store, orders.review.key, orders.settings))
    assert orders.deliver(order_body("o-left")).status_code == 503
    assert orders.status_and_lane("o-left") == ("RECEIVED", None)
    orders.make_due()
    orders.rounds()
    assert orders.status_and_lane("o-left") == ("FULFILLED", "low")


def test_an_order_that_the_simulated_shop_holds_is_not_settled_as_fulfilled(
    fixtures: Fixtures, authority_url: str
) -> None:
    orders = make_intake(fixtures, authority_url)
    fixtures.admin.execute(
        "insert into orders.simulated_shop (tenant_id, source, order_id, status, operation_id, told)"
        " values (%s, 'demo', 'o-held', 'held', %s, '{}')",
        (fixtures.tenant_id, uuid.uuid4()),
    )
    assert orders.deliver(order_body("o-held")).status_code == 202
    assert orders.deliver(order_body("o-other")).status_code == 200
    assert orders.status_and_lane("o-held") == ("SHOP_REFUSED", "low")
    assert orders.status_and_lane("o-other") == ("FULFILLED", "low")
    assert orders.all("select order_id, status from orders.simulated_shop order by 1") == [
        ("o-held", "held"),
        ("o-other", "fulfilled"),
    ]
    orders.close()
