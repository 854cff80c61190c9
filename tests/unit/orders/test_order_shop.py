"""A shop behind HTTP: each answer has one meaning, and whatever goes wrong an order is shipped once, or surely not yet."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from tests.support.recording_server import problem
from tests.support.scripted_server import SLACK, Asked, Script, deadline_for, faults, took
from tests.support.shop_server import ShopServer, review
from worker.orders.order import Review
from worker.orders.settings import outlet_faults
from worker.orders.shop import NOT_THERE, Attempts, EffectKind, HttpShop, Shop, ShopStatus, look, perform
from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Settled

YES = ShopServer.yes()
LONG_AGO = 3600.0


@pytest.fixture
def server() -> Iterator[ShopServer]:
    with ShopServer().canned() as canned:
        yield canned


@pytest.fixture
def wire() -> Iterator[ShopServer]:
    """The same behind a real socket: for what breaks on the way."""
    with ShopServer().running() as running:
        yield running


@pytest.fixture
def naive() -> Iterator[ShopServer]:
    with ShopServer(naive=True).running() as running:
        yield running


def until_known(shop: Shop, one: Review, kind: EffectKind, *, tries: int = 5) -> EffectResult:
    """As the intake does it: again and again, each time long after the one before, until the shop's word is known."""
    operation_id = one.operation_id or uuid.uuid4()
    answer: EffectResult = NoAnswer("not asked")
    for number in range(tries):
        answer = perform(shop, one, kind, operation_id, Attempts(number, LONG_AGO if number else 0.0))
        if not isinstance(answer, NoAnswer):
            break
    return answer


def test_a_shop_is_told_the_order_its_lane_and_its_signals_under_the_operations_key(server: ShopServer) -> None:
    one = review()
    shop = HttpShop(server.url + "/api/", "k-1")
    assert perform(shop, one, EffectKind.FULFIL, one.operation_id or uuid.uuid4()) == Settled("S-1")
    (asked,) = server.http.asked
    assert (asked.method, asked.path) == ("POST", "/api/orders/o-1/fulfill")
    assert asked.headers["idempotency-key"] == str(one.operation_id)
    assert asked.headers["authorization"] == "Bearer k-1"
    assert asked.json == {
        "order_id": "o-1", "source": "demo", "operation_id": str(one.operation_id), "amount": {"value": 20, "currency": "EUR"},
        "lane": "low", "band": "low", "signals": [{"code": "country_mismatch", "detail": "GB to NG"}],
    }  # fmt: skip


def test_a_hold_is_another_call_and_one_does_not_stand_for_the_other(server: ShopServer) -> None:
    one, shop = review(), HttpShop(server.url)
    assert perform(shop, one, EffectKind.HOLD, uuid.uuid4()) == Settled("S-1")
    assert server.http.asked[0].path == "/orders/o-1/hold"
    assert shop.look(one) == ShopStatus("held", server.keys["o-1", "hold"], "S-o-1")
    assert isinstance(perform(shop, one, EffectKind.FULFIL, uuid.uuid4()), EffectRefused)
    assert (server.shipped["o-1"], server.held["o-1"]) == (0, 1)


@pytest.mark.parametrize("order_id", ["#1001", "a/b", "x?y=1", "%2e%2e", "ä", "a b"])
def test_any_order_id_stays_one_part_of_the_address(server: ShopServer, order_id: str) -> None:
    one, shop = review(order_id), HttpShop(server.url)
    assert isinstance(perform(shop, one, EffectKind.FULFIL, uuid.uuid4()), Settled)
    assert server.shipped == {order_id: 1}
    assert all(asked.path.count("/") == 3 for asked in server.http.asked)


@pytest.mark.parametrize("order_id", [".", "..", "..."])
def test_an_order_id_that_would_be_folded_away_is_never_sent(server: ShopServer, order_id: str) -> None:
    shop = HttpShop(server.url)
    assert isinstance(perform(shop, review(order_id), EffectKind.FULFIL, uuid.uuid4()), EffectRefused)
    assert shop.look(review(order_id)) == ShopStatus("open")
    assert server.http.asked == []


def test_the_source_may_stand_in_the_shops_address(server: ShopServer) -> None:
    HttpShop(server.url + "/{source}/api").hold(review(source="shop-2"), uuid.uuid4())
    assert server.http.asked[0].path == "/shop-2/api/orders/o-1/hold"


@pytest.mark.parametrize("name", sorted(faults(YES)))
def test_whatever_the_shop_does_the_answer_is_a_value_in_time_and_never_a_made_up_yes(
    wire: ShopServer, name: str
) -> None:
    script, known = faults(YES)[name]
    wire.forever = ("POST", False, script)
    deadline = deadline_for(known)
    shop = HttpShop(wire.url, timeout_seconds=deadline)
    answer, seconds = took(lambda: shop.fulfil(review(), uuid.uuid4()))
    assert isinstance(answer, Settled) == (name == "201"), answer
    assert not isinstance(answer, EffectRefused)
    assert seconds < deadline + SLACK


@pytest.mark.parametrize(("status", "refused"), [(400, True), (422, True), (451, True), (401, False), (404, False), (409, False),
                                                 (421, False), (424, False), (429, False), (500, False), (503, False)])  # fmt: skip
def test_only_a_final_no_to_the_order_itself_is_a_refusal(server: ShopServer, status: int, refused: bool) -> None:
    server.forever = ("POST", False, problem(status, "no"))
    answer = perform(HttpShop(server.url), review(), EffectKind.FULFIL, uuid.uuid4())
    assert isinstance(answer, EffectRefused if refused else NoAnswer)
    # A page is no refusal: it is a proxy's.
    server.forever = ("POST", False, lambda asked: asked.answer(status, b"<html>no</html>", "text/html"))
    assert isinstance(perform(HttpShop(server.url), review("o-2"), EffectKind.FULFIL, uuid.uuid4()), NoAnswer)


def _lost(asked: Asked) -> None:
    asked.reset()


def _late(asked: Asked) -> None:
    asked.hang()


FAULTS: dict[str, tuple[bool, Script]] = {
    "lost before": (False, _lost), "lost after": (True, _lost), "503 before": (False, problem(503)), "503 after": (True, problem(503)),
    "409 before": (False, problem(409)), "a page after": (True, lambda asked: asked.answer(200, b"<html>", "text/html")),
    "cut off after": (True, lambda asked: asked.raw(b"HTTP/1.1 200 X\r\nContent-Length: 99\r\n\r\n{")),
    "refused after": (True, problem(422)), "an empty yes after": (True, lambda asked: asked.say({})),
}  # fmt: skip


@pytest.mark.parametrize("kind", EffectKind)
@pytest.mark.parametrize("first", sorted(FAULTS))
def test_after_any_two_faults_even_a_naive_shop_did_it_at_most_once(
    naive: ShopServer, first: str, kind: EffectKind
) -> None:
    shop = HttpShop(naive.url, timeout_seconds=30)
    for second in sorted(FAULTS):
        one = review(f"{first}-{second}".replace(" ", "_"))
        naive.faults.extend([("POST", *FAULTS[first]), ("POST", *FAULTS[second])])
        answer = until_known(shop, one, kind)
        naive.faults.clear()
        did = (naive.shipped if kind is EffectKind.FULFIL else naive.held)[one.order_id]
        assert did <= 1, (first, second)
        assert isinstance(answer, Settled) == (did == 1), (first, second, answer)


@pytest.mark.parametrize("look_fault", [problem(503), _lost, lambda asked: asked.answer(200, b"{}"), lambda asked: asked.say({"status": "gone"}),
                                        lambda asked: asked.answer(404, b"<html>", "text/html")])  # fmt: skip
def test_while_the_look_says_nothing_nothing_is_asked_again(naive: ShopServer, look_fault: Script) -> None:
    shop, one = HttpShop(naive.url, timeout_seconds=30), review()
    naive.faults.append(("POST", True, _lost))
    naive.forever = None
    operation_id = uuid.uuid4()
    perform(shop, one, EffectKind.FULFIL, operation_id)
    naive.forever = ("GET", False, look_fault)
    for number in range(1, 4):
        assert isinstance(perform(shop, one, EffectKind.FULFIL, operation_id, Attempts(number, LONG_AGO)), NoAnswer)
    assert naive.shipped[one.order_id] == 1
    naive.forever = None
    assert perform(shop, one, EffectKind.FULFIL, operation_id, Attempts(4, LONG_AGO)) == Settled("S-o-1")
    assert naive.shipped[one.order_id] == 1


def test_a_slow_shop_that_ships_after_the_deadline_ships_once(naive: ShopServer) -> None:
    shop, one, operation_id = HttpShop(naive.url, timeout_seconds=deadline_for("timeout")), review(), uuid.uuid4()
    naive.faults.append(("POST", False, _late))
    assert isinstance(perform(shop, one, EffectKind.FULFIL, operation_id), NoAnswer)
    # Nobody knows yet: it may be under way, and it is.
    assert isinstance(perform(shop, one, EffectKind.FULFIL, operation_id, Attempts(1, 1.0)), NoAnswer)
    naive.do(naive.http.asked[0])
    assert isinstance(perform(shop, one, EffectKind.FULFIL, operation_id, Attempts(2, 1.0)), Settled)
    assert naive.shipped[one.order_id] == 1


def test_an_order_that_somebody_else_fulfilled_is_no_success_of_ours(server: ShopServer) -> None:
    shop, one = HttpShop(server.url), review()
    perform(shop, one, EffectKind.FULFIL, uuid.uuid4())
    other = uuid.uuid4()
    assert look(shop, one, EffectKind.FULFIL, other) == EffectRefused("it was fulfilled under another operation")
    assert look(shop, one, EffectKind.HOLD, other) == EffectRefused("it was fulfilled before it could be held")
    assert look(shop, review("o-9"), EffectKind.FULFIL, other) is NOT_THERE
    assert isinstance(perform(shop, one, EffectKind.FULFIL, other, Attempts(1, LONG_AGO)), EffectRefused)


def test_an_operation_that_the_shop_names_in_capitals_is_ours(server: ShopServer) -> None:
    """The finding: an order that had been fulfilled came back to a person as fulfilled under another operation."""
    shop, one, ours = HttpShop(server.url), review(), uuid.UUID("01a20050-35be-7df6-b26d-7b9b84e55383")
    assert isinstance(perform(shop, one, EffectKind.FULFIL, ours), Settled)
    server.keys["o-1", "fulfill"] = str(ours).upper()
    assert look(shop, one, EffectKind.FULFIL, ours) == Settled("S-o-1")


class _NeverLooks(HttpShop):
    """The mutant: what it is unsure about it takes for not done."""

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        return ShopStatus("open")


def test_mutant_that_does_not_look_ships_twice(naive: ShopServer) -> None:
    one = review()
    naive.faults.append(("POST", True, _lost))
    until_known(_NeverLooks(naive.url, timeout_seconds=30), one, EffectKind.FULFIL)
    assert naive.shipped[one.order_id] == 2


class _Defective(HttpShop):
    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        raise RuntimeError("secret")

    look = fulfil  # type: ignore[assignment]


def test_a_defect_in_a_shops_adapter_is_no_answer_and_says_nothing_of_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for tried in (Attempts(), Attempts(1, LONG_AGO)):
        answer = perform(_Defective("http://127.0.0.1:9"), review(), EffectKind.FULFIL, uuid.uuid4(), tried)
        assert isinstance(answer, NoAnswer)
        assert "secret" not in answer.detail + caplog.text


def test_a_shop_that_is_down_is_no_answer_at_once() -> None:
    began = time.monotonic()
    assert isinstance(perform(HttpShop("http://127.0.0.1:9"), review(), EffectKind.FULFIL, uuid.uuid4()), NoAnswer)
    assert time.monotonic() - began < SLACK


GOOD = {"shop_url": "https://shop.example/{source}", "shop_key": "k",
        "slack_webhook_url": "https://hooks.slack.com/services/T/B/x", "alerts_on_this_machine": False}  # fmt: skip


@pytest.mark.parametrize(
    ("over", "named"),
    [
        ({}, None), ({"shop_url": "", "shop_key": ""}, None), ({"slack_webhook_url": ""}, None),
        ({"shop_url": "ftp://shop.example"}, "SENTINEL_SHOP_URL"), ({"shop_url": "https://u:p@shop.example"}, "SENTINEL_SHOP_URL"),
        ({"shop_url": ""}, "SENTINEL_SHOP_KEY"), ({"shop_key": "a b"}, "SENTINEL_SHOP_KEY"),
        ({"slack_webhook_url": "http://hooks.slack.com/x"}, "SLACK_WEBHOOK_URL"),
        ({"slack_webhook_url": "https://169.254.169.254/x"}, "SLACK_WEBHOOK_URL"),
        ({"slack_webhook_url": "http://127.0.0.1:9/x", "alerts_on_this_machine": True}, None),
        ({"slack_webhook_url": "https://10.0.0.1/x", "alerts_on_this_machine": True}, "SLACK_WEBHOOK_URL"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_and_no_secret_is_repeated(over: dict[str, object], named: str | None) -> None:
    found = outlet_faults(**{**GOOD, **over})  # type: ignore[arg-type]
    assert [text.split(" ")[0] for text in found] == ([named] if named else [])
    assert "p@" not in "".join(found)
    assert "169.254" not in "".join(found)
