"""An intake killed with -9 at every named place: each order ends in exactly one lane and has its effect once (G46, G23)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.platform.http.bodies import read_object
from tests.support.fixtures import Fixtures
from tests.support.order_fixtures import LANES, OrderFixtures, intake_process, make_intake, order_body
from tests.support.shop_server import FlakyShop, ShopServer
from worker.failpoints import Failpoints, OrderFailpoint
from worker.orders import processor
from worker.orders.order import KnownAccount
from worker.orders.shop import Attempts, perform
from worker.orders.store import DeliveredOrder, OrderStore, TakeOutcome, TakeResult

CRASHES = [
    *(("low", place) for place in OrderFailpoint), ("medium", OrderFailpoint.AFTER_GUARD), ("medium", OrderFailpoint.AFTER_DECIDED),
    ("high", OrderFailpoint.AFTER_DECIDED), ("high", OrderFailpoint.AFTER_SHOP),
]  # fmt: skip


def crash(orders: OrderFixtures, lane: str, place: OrderFailpoint, **env: str) -> int | None:
    """Deliver one order to an intake that kills itself at `place`; what the sender got."""
    fixtures = orders.fixtures
    armed = {"SENTINEL_FAILPOINT": f"{place}:kill", "SENTINEL_ALLOW_FAILPOINTS": "1"}
    # What is left behind stays for the successor: the killed process's own replacement does not take it up.
    slow = {
        "SENTINEL_ORDERS_BUDGET_SECONDS": "60",
        "SENTINEL_ORDERS_LEASE_SECONDS": "120",
        "SENTINEL_ORDERS_POLL_SECONDS": "60",
    }
    with intake_process(fixtures, orders.authority_url, orders.key, **armed, **slow, **env) as process:
        return process.post(body_of(lane, place))


def body_of(lane: str, place: OrderFailpoint) -> bytes:
    """The one body of an order."""
    return order_body(f"{lane}-{place}", lane, account_ref=f"acct-{lane}-{place}")


def broken(orders: OrderFixtures, crashes: Sequence[tuple[str, OrderFailpoint]]) -> list[str]:
    """The checker: orders that are not in exactly their lane with exactly their effect, or whose outcome was not told."""
    wanted = {f"{lane}-{place}": (LANES[lane], lane) for lane, place in crashes}
    found = {row[0]: (row[1], row[2]) for row in orders.all("select order_id, status, lane from orders.reviews")}
    wrong = [name for name in wanted if found.get(name) != wanted[name]]
    shop = orders.all("select order_id, count(*) from orders.simulated_shop group by 1")
    wrong += [name for name, count in shop if count != 1 or wanted[name][1] == "medium"]
    done = {row[0] for row in shop}
    wrong += [name for name, (_, lane) in wanted.items() if lane != "medium" and name not in done]
    wrong += [row[0] for row in orders.all(
        "select r.order_id from orders.reviews r join orders.effects f using (review_id)"
        " where f.state <> 'done' or (f.kind = 'fulfil' and f.reported_at is null)")]  # fmt: skip
    lanes = orders.all(
        "select r.order_id from orders.reviews r join orders.events e using (review_id)"
        " where e.event in ('allowed', 'needs_analyst', 'denied') group by 1 having count(*) <> 1"
    )
    return sorted({*wrong, *(row[0] for row in lanes)})


def test_killed_at_any_place_every_order_ends_in_one_lane_with_its_effect_once(orders: OrderFixtures) -> None:
    with ThreadPoolExecutor(3) as crew:
        answers = list(crew.map(lambda one: crash(orders, *one), CRASHES))
    before_the_answer = [
        answer
        for (_, place), answer in zip(CRASHES, answers, strict=True)
        if "report" not in place and "ack" not in place
    ]
    assert set(before_the_answer) == {None}
    assert broken(orders, CRASHES), "nothing was broken: the places are not passed"
    taken = {row[0] for row in orders.all("select order_id from orders.reviews")}
    for number, (lane, place) in enumerate(CRASHES):
        # The sender of every other comes again, and of one that was never taken: an intake that finds another's report due
        # as it starts is killed by that. The rest is finished by the background.
        if number % 2 == 0 or f"{lane}-{place}" not in taken:
            orders.make_due()
            assert orders.deliver(body_of(lane, place)).status_code in (200, 202)
    for _ in range(4):
        orders.make_due()
        orders.rounds()
    assert broken(orders, CRASHES) == []
    assert orders.one("select count(*) from sentinel.operation_states where outcome = 'success'") == len(OrderFailpoint)
    assert orders.fixtures.broken_invariants() == []


INTENDED = (
    OrderFailpoint.AFTER_GUARD,
    OrderFailpoint.AFTER_DECIDED,
    OrderFailpoint.BEFORE_SHOP,
    OrderFailpoint.AFTER_SHOP,
    OrderFailpoint.AFTER_SETTLED,
)
"""Where the fulfilment is on record before the shop is asked: with a shop outside this database."""


def test_killed_around_the_call_of_a_shop_that_knows_no_keys_it_ships_once(orders: OrderFixtures) -> None:
    with ShopServer(naive=True).running() as shop:
        outside = {"SENTINEL_SHOP_URL": shop.url, "SENTINEL_SHOP_TIMEOUT_SECONDS": "10"}
        crashed = [crash(orders, "low", place, **outside) for place in INTENDED]
        assert crashed == [None] * len(INTENDED)
        assert 0 < sum(shop.shipped.values()) < len(INTENDED), "the places are on both sides of the call"
        successor = make_intake(orders.fixtures, orders.authority_url, shop_url=shop.url, shop_timeout_seconds=10.0)
        for _ in range(4):
            successor.make_due()
            successor.rounds()
        successor.close()
        assert shop.shipped == {f"low-{place}": 1 for place in INTENDED}
    assert set(orders.all("select status, lane from orders.reviews")) == {("FULFILLED", "low")}
    assert orders.one("select count(*) from sentinel.operation_states where outcome = 'success'") == len(INTENDED)
    assert orders.fixtures.broken_invariants() == []


def test_an_order_left_started_that_the_authority_does_not_have_so_is_asked_again(
    fixtures: Fixtures, authority_url: str
) -> None:
    """As one from before starts came with the answer: its permit was handed out, and nobody had used it."""
    shop = FlakyShop("down")
    orders = make_intake(fixtures, authority_url, parts={"shop": shop})
    body = order_body("o-1")
    assert orders.deliver(body).json["status"] == "fulfilling"
    fixtures.admin.execute(
        "update sentinel.operation_states set status = 'allowed', started_at = null, start_id = null, start_event_id = null"
    )
    halted = set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    orders.make_due()
    orders.rounds()
    assert (orders.status_and_lane("o-1"), shop.done) == (("DECIDED", "low"), [])
    lift_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), halted.halt_id, reason="over")
    orders.make_due()
    orders.rounds()
    assert [row[0] for row in orders.all("select event from orders.events order by event_id")] == [
        "scored", "allowed", "started", "start_refused", "started", "fulfilled",
    ]  # fmt: skip
    assert shop.done == [("fulfilled", "o-1")]
    orders.close()


def test_a_successor_that_asks_the_shop_without_looking_is_found_out(
    fixtures: Fixtures, authority_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a pipeline whose second try is like its first, before a shop that knows no keys."""

    def blind(shop, review, kind, operation_id, tried, **rest):  # type: ignore[no-untyped-def]
        return perform(shop, review, kind, operation_id, Attempts(), **rest)

    shops = {}
    for name in ("careful", "blind"):
        if name == "blind":
            monkeypatch.setattr(processor, "perform", blind)
        shop = shops[name] = FlakyShop()
        armed = make_intake(
            fixtures, authority_url, parts={"shop": shop}, failpoints=Failpoints(OrderFailpoint.AFTER_SHOP, "raise")
        )
        assert armed.deliver(order_body(f"o-{name}")).status_code == 503
        armed.make_due()
        successor = make_intake(fixtures, authority_url, parts={"shop": shop})
        successor.rounds()
        for one in (armed, successor):
            one.close()
    assert shops["careful"].done == [("fulfilled", "o-careful")]
    assert shops["blind"].done == [("fulfilled", "o-blind")] * 2


def left_unscored(orders: OrderFixtures, *bodies: bytes) -> None:
    """A process takes orders, and is gone before they have a score; somebody resumes them."""
    source = orders.review.sources.current().find("demo")
    assert source is not None
    found = orders.review.store.take(
        [DeliveredOrder(source.to_order(read_object(body)), hashlib.sha256(body).hexdigest()) for body in bodies]
    )
    assert [one.outcome for one in found if isinstance(one, TakeResult)] == [TakeOutcome.TAKEN] * len(bodies)
    orders.make_due()
    orders.rounds()


def test_an_order_left_behind_without_its_score_counts_the_orders_of_its_account(orders: OrderFixtures) -> None:
    for number in range(10):
        orders.deliver(order_body(f"o-{number}", account_ref="acct-burst"))
    orders.deliver(order_body("o-whole", account_ref="acct-burst"))
    left_unscored(orders, order_body("o-left", account_ref="acct-burst"), order_body("o-alone"))
    assert orders.status_and_lane("o-whole") == orders.status_and_lane("o-left") == ("HELD", "high")
    assert orders.status_and_lane("o-alone") == ("FULFILLED", "low")
    said = dict(
        orders.all("select order_id, signals->0->>'code' from orders.reviews where order_id in ('o-whole', 'o-left')")
    )
    assert len(set(said.values())) == 1 and None not in said.values(), said


def test_the_mutant_that_resumes_without_asking_what_is_known_of_the_account_lets_it_out(
    orders: OrderFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OrderStore, "known_accounts", lambda _, works: [KnownAccount()] * len(works))
    for number in range(10):
        orders.deliver(order_body(f"o-{number}", account_ref="acct-burst"))
    left_unscored(orders, order_body("o-left", account_ref="acct-burst"))
    assert orders.status_and_lane("o-left") == ("FULFILLED", "low")


def test_an_order_left_behind_without_an_account_or_with_dear_ones_beside_it_is_scored_as_a_new_one(
    orders: OrderFixtures,
) -> None:
    dear = {"amount": {"value": "1100.00", "currency": "USD"}, "account_ref": "acct-dear"}
    orders.deliver(order_body("o-1", **dear))
    orders.deliver(order_body("o-2", **dear))
    left_unscored(orders, order_body("o-3", **dear), order_body("o-guest", account_ref=None))
    orders.deliver(order_body("o-guest-2", account_ref=None))
    signals = dict(orders.all("select order_id, signals from orders.reviews"))
    assert [one["code"] for one in signals["o-2"]] == [one["code"] for one in signals["o-3"]]
    assert signals["o-guest"] == signals["o-guest-2"]
