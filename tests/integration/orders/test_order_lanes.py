"""An order's way through the lanes, with the real authority deciding."""

from __future__ import annotations

import pytest

from tests.order_world import LANES, OrderWorld, order_body


@pytest.mark.parametrize("lane", LANES)
def test_an_order_ends_in_the_lane_that_the_authority_decides(orders: OrderWorld, lane: str) -> None:
    body = order_body("o-1", lane)
    answer = orders.deliver(body)
    assert answer.status_code == {"low": 200, "medium": 202, "high": 200}[lane], answer.text
    assert (answer.json["lane"], answer.json["status"]) == (lane, LANES[lane].lower())
    assert orders.standing("o-1") == (LANES[lane], lane)
