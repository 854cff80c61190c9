"""One order, however often it is delivered: one lane, each effect once (G46)."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from werkzeug.test import TestResponse

from sentinel.store.database import ORDERS
from tests import mutants
from tests.support.fixtures import Fixtures
from tests.support.harness import at_once, scaled, seeded
from tests.support.order_fixtures import LANES, OrderFixtures, make_intake, order_body
from worker.orders.order import Band, KnownAccount, Order, Score, Signal
from worker.orders.store import FORGET_DELIVERIES, FORGOTTEN_AT_ONCE

AT_ONCE, IDS = 32, scaled(20)


def doubled(orders: OrderFixtures) -> list[str]:
    """The checker: orders with anything but one review, one lane and one effect in the shop."""
    found = orders.all(
        "select r.order_id, count(distinct r.review_id), count(distinct e.to_lane) filter (where e.event in ('allowed',"
        " 'needs_analyst', 'denied')), count(distinct (f.kind, f.tries)) from orders.reviews r left join orders.events e"
        " using (review_id) left join orders.effects f using (review_id) group by r.order_id"
    )
    return [row[0] for row in found if (row[1], row[2]) != (1, 1) or row[3] > 1]


def flood(orders: OrderFixtures, seed: int) -> list[TestResponse | BaseException]:
    """32 deliveries at once of each of many orders, in all lanes."""
    shuffled: random.Random = seeded(seed, IDS)
    answers: list[TestResponse | BaseException] = []
    for number in range(IDS):
        body = order_body(f"o-{number}", shuffled.choice(list(LANES)))
        answers += at_once([lambda body=body: orders.deliver(body)] * AT_ONCE)
    return answers


@pytest.mark.usefixtures("patient")
def test_many_deliveries_at_once_have_one_effect_each(orders: OrderFixtures) -> None:
    answers = flood(orders, 20260901)
    statuses = Counter(answer.status_code if isinstance(answer, TestResponse) else repr(answer) for answer in answers)
    assert set(statuses) <= {200, 202, 409}, statuses
    for answer in answers:
        assert isinstance(answer, TestResponse)
        if answer.status_code == 409:
            assert answer.headers["Retry-After"] == "1"
    first = [
        a
        for a in answers
        if isinstance(a, TestResponse) and a.status_code != 409 and "X-Sentinel-Idempotent-Replay" not in a.headers
    ]
    assert len(first) == IDS
    assert doubled(orders) == []
    assert orders.one("select count(*) from orders.deliveries") == IDS
    assert orders.one("select count(*) from sentinel.operations") == IDS
    wanted = orders.one("select count(*) from orders.reviews where lane in ('low', 'high')")
    assert orders.one("select count(*) from orders.simulated_shop") == wanted


@pytest.mark.parametrize("lane", ["low", "high"])
def test_a_repeat_gets_the_same_bytes_and_says_that_it_is_one(orders: OrderFixtures, lane: str) -> None:
    body = order_body("o-1", lane)
    first, again = orders.deliver(body), orders.deliver(body, path="orders/created")
    assert "X-Sentinel-Idempotent-Replay" not in first.headers
    assert again.headers["X-Sentinel-Idempotent-Replay"] == "true"
    assert (first.status_code, first.data) == (again.status_code, again.data)
    assert first.content_type == again.content_type == "application/json"


def test_another_body_is_a_conflict_and_people_are_told_once(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1", "medium"))
    other = order_body("o-1", "low")
    for _ in range(2):
        answer = orders.deliver(other)
        assert (answer.status_code, answer.json["errors"].keys()) == (422, {"body"})
    assert orders.all("select kind, order_id from orders.alerts") == [("body_conflict", "o-1")]
    assert orders.status_and_lane("o-1") == ("QUEUED", "medium")


class Slow:
    """A scorer that takes as long as the test wants."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()

    def score(self, order: Order, known: KnownAccount, deadline: float, noticed: Sequence[Signal] = ()) -> Score:
        """Low, in the end."""
        self.began.set()
        assert self.go_on.wait(60)
        return Score(Band.LOW)


def test_an_order_in_hand_is_in_flight(fixtures: Fixtures, authority_url: str) -> None:
    slow = Slow()
    orders = make_intake(fixtures, authority_url, parts={"scorer": slow})
    body = order_body("o-1")
    with ThreadPoolExecutor(1) as crew:
        first = crew.submit(orders.deliver, body)
        assert slow.began.wait(60)
        answer = orders.deliver(body)
        slow.go_on.set()
        assert first.result(60).status_code == 200
    told = (answer.status_code, answer.headers["Retry-After"], answer.json["type"])
    assert told == (409, "1", "urn:sentinel:problem:in-flight")
    assert orders.deliver(body).headers["X-Sentinel-Idempotent-Replay"] == "true"
    orders.close()


def test_after_its_answer_is_forgotten_an_order_is_still_unique(orders: OrderFixtures) -> None:
    body = order_body("o-1")
    orders.deliver(body)
    orders.fixtures.admin.execute("update orders.deliveries set expires_at = clock_timestamp() - interval '1 second'")
    orders.review.store.forget_deliveries()
    assert orders.one("select count(*) from orders.deliveries") == 0
    again = orders.deliver(body)
    assert (again.status_code, again.json["status"]) == (200, "fulfilled")
    assert doubled(orders) == []
    assert orders.deliver(body).headers["X-Sentinel-Idempotent-Replay"] == "true"


OLD_ANSWERS = """
insert into orders.deliveries select d.tenant_id, d.source, 'old-' || n, d.review_id, d.response_status, d.response_body, d.is_final,
  d.recorded_at, clock_timestamp() - interval '1 second' from orders.deliveries d, generate_series(1, 6000) n
"""


def test_more_answers_than_one_delete_takes_are_forgotten_in_the_next_rounds(orders: OrderFixtures) -> None:
    orders.deliver(order_body("o-1"))
    orders.fixtures.admin.execute(OLD_ANSWERS)
    for _ in range(2):
        orders.review.background.once()
    assert orders.all("select order_id from orders.deliveries") == [("o-1",)]


def test_a_backlog_of_answers_is_forgotten_in_time_by_a_plan_made_when_there_were_few(orders: OrderFixtures) -> None:
    """A join, planned so, compared each with each: half a minute for what an hour leaves."""
    orders.deliver(order_body("o-1"))
    orders.fixtures.admin.execute("vacuum orders.deliveries")  # its size is known
    asked = {"tenant_id": orders.fixtures.tenant_id, "most": FORGOTTEN_AT_ONCE}
    with orders.fixtures.as_role(ORDERS) as connection:
        connection.execute("set plan_cache_mode = force_generic_plan")
        assert connection.execute(FORGET_DELIVERIES.encode(), asked, prepare=True).fetchone() == (0,)
        orders.fixtures.admin.execute(OLD_ANSWERS)
        assert connection.execute(FORGET_DELIVERIES.encode(), asked, prepare=True).fetchone() == (FORGOTTEN_AT_ONCE,)


def test_old_answers_of_a_tenant_whose_intake_runs_no_more_are_forgotten_too(orders: OrderFixtures) -> None:
    """The finding: they were kept for ever, and every delete of another tenant's read all of them first."""
    admin, elsewhere = orders.fixtures.admin, uuid.uuid4()
    orders.deliver(order_body("o-1"))
    admin.execute(
        "insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256, amount_minor, currency, order_facts)"
        " select %s, review_id, source, order_id, body_sha256, amount_minor, currency, order_facts from orders.reviews",
        [elsewhere],
    )
    admin.execute(
        "insert into orders.deliveries (tenant_id, source, order_id, review_id, response_status, response_body, is_final, expires_at)"
        " select %s, source, order_id, review_id, 200, '{}', true, clock_timestamp() - interval '1 second' from orders.deliveries",
        [elsewhere],
    )
    orders.review.background.once()
    assert orders.all("select tenant_id from orders.deliveries") == [(orders.fixtures.tenant_id,)]


def test_a_take_that_forgets_the_others_is_found_out(fixtures: Fixtures, authority_url: str) -> None:
    """The mutant: deliveries that each take the order under an id of its own, as if it had never come."""
    orders = make_intake(fixtures, authority_url)
    fixtures.admin.execute("alter table orders.reviews drop constraint reviews_order_once")
    mutants.cut(fixtures, "orders.delivery_states", "when r.review_id is null then 'new'", "when true then 'new'")
    mutants.cut(fixtures, "orders.take_scored", "on conflict on constraint reviews_order_once do nothing")
    body = order_body("o-1", account_ref=None)
    for _ in range(2):
        orders.deliver(body)
    assert doubled(orders) == ["o-1"]
    orders.close()
