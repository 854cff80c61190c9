"""Orders whose facts are not all there never go out by themselves (the real authority decides)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.order_fixtures import OrderFixtures, order_body
from worker.orders.store import DeliveredOrder, TakeResult

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
PLACED = {
    "no placed_at": None, "in ten years": NOW + 87600 * HOUR, "in an hour": NOW + HOUR, "now": NOW, "before the account": NOW - 9 * HOUR,
}  # fmt: skip


@pytest.mark.parametrize("when", PLACED)
def test_400_from_an_account_of_one_hour_is_never_fulfilled_whenever_it_says_it_was_placed(
    orders: OrderFixtures, when: str
) -> None:
    placed, made = PLACED[when], (NOW - HOUR).isoformat()
    for told in (None, 400):
        over = {"account_age_days": told, "account_created_at": made, "placed_at": placed and placed.isoformat()}
        body = order_body(f"o-{told}", amount={"value": "400.00", "currency": "USD"}, **over)
        answer = orders.deliver(body)
        assert (answer.status_code, answer.json["lane"]) == (200, "high")
    assert orders.one("select count(*) from orders.simulated_shop where status = 'fulfilled'") == 0


def test_the_age_is_bounded_by_the_databases_time_of_receipt_also_for_an_order_taken_up_later(
    orders: OrderFixtures,
) -> None:
    body = order_body("o-1", amount={"value": "400.00", "currency": "USD"}, account_age_days=None,
                      account_created_at=(datetime.now(UTC) - 47 * HOUR).isoformat())  # fmt: skip
    source = orders.review.sources.current().find("demo")
    assert source is not None
    order = source.to_order(json.loads(body))
    [taken] = orders.review.store.take([DeliveredOrder(order, "00" * 32)])
    assert isinstance(taken, TakeResult)
    work = taken.work
    assert work is not None and work.received_at == orders.one("select received_at from orders.reviews")
    assert work.order.account_age_days == 1


def test_an_order_whose_names_its_source_does_not_map_goes_to_a_person_as_facts_missing(orders: OrderFixtures) -> None:
    body = order_body(
        "o-1",
        billing_country=None,
        shipping_country=None,
        billing_address={"country": "DE"},
        shipping_address={"country": "NG"},
    )
    answer = orders.deliver(body)
    assert (answer.status_code, answer.json["lane"], answer.json["reason_code"]) == (202, "medium", "facts_missing")
    assert orders.one("select signals->0->>'code' from orders.reviews") == "facts_missing"
    assert orders.fixtures.broken_invariants() == []
