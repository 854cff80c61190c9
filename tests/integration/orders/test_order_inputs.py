"""What is not a genuine, whole, sensible order: refused by name, and nothing stored beyond a counter (G45)."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs
from werkzeug.test import EnvironBuilder, run_wsgi_app

from sentinel.platform.http import rate_limit
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.wire import address_of
from tests.support.asgi_client import InProcessApp
from tests.support.docs_page import require_docs_page
from tests.support.fixtures import Fixtures
from tests.support.order_fixtures import OrderFixtures, make_intake, order_body, signed
from tests.support.undocumented import undocumented_routes
from worker.orders.app import create_app
from worker.orders.intake import DeliveryLimits, Intake, _limit_key

PATH, HEALTH = "/webhooks/demo/orders", "http://127.0.0.1:7872"
SALT = bytes(16)
STORED = "select (select count(*) from orders.reviews) + (select count(*) from orders.deliveries) + (select count(*) from orders.alerts)"


@pytest.fixture
def clean(orders: OrderFixtures) -> Iterator[OrderFixtures]:
    """An intake that has stored nothing when the test ends."""
    yield orders
    assert orders.one(STORED) == 0
    assert orders.one("select count(*) from sentinel.operations") == 0


GOOD = order_body("o-1")


NOT_GENUINE: list[dict[str, str]] = [
    {},
    {"X-Sentinel-Signature": ""},
    {**signed(GOOD), "X-Sentinel-Signature": "sha256=" + "0" * 64},
    {**signed(GOOD), "X-Sentinel-Signature": signed(GOOD)["X-Sentinel-Signature"].removeprefix("sha256=")},
    signed(GOOD, "another-secret-that-nobody-knows-0123"),
    signed(GOOD + b" "),
]


def test_what_is_not_signed_for_is_a_plain_401(clean: OrderFixtures) -> None:
    answers = [clean.deliver(GOOD, headers={"Content-Type": "application/json", **headers}) for headers in NOT_GENUINE]
    answers += [clean.deliver(GOOD, source="nobody"), clean.deliver(GOOD, source="shop")]
    for kind in ({"Content-Type": "text/plain"}, {}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}):
        answers.append(clean.deliver(GOOD, headers=kind))
    for one in answers:
        assert one.status_code == 401
        assert {name: one.json[name] for name in ("type", "title", "status", "detail")} == {
            "type": "urn:sentinel:problem:unauthenticated", "title": "Not signed in", "status": 401,
            "detail": "Invalid or missing credentials",
        }  # fmt: skip


NO_ORDERS: list[tuple[bytes, str]] = [
    (b"{}", "order.id"),
    (b'{"order": {"amount": {"value": 1, "currency": "USD"}}}', "order.id"),
    (b'{"order": {"id": ["o-1"], "amount": {"value": 1, "currency": "USD"}}}', "order.id"),
    (b'{"order": {"id": 1.5, "amount": {"value": 1, "currency": "USD"}}}', "order.id"),
    (b'{"order": {"id": true, "amount": {"value": 1, "currency": "USD"}}}', "order.id"),
    (b'{"order": {"id": "../../x", "amount": {"value": 1, "currency": "USD"}}}', "order.id"),
    (b'{"order": {"id": "o-1"}}', "order.amount"),
    (b'{"order": {"id": "o-1", "id": "o-2", "amount": {"value": 1, "currency": "USD"}}}', "id"),
    (b'{"order": {"id": "o-1", "amount": {"value": NaN, "currency": "USD"}}}', "body"),
    (b'{"order": {"id": "o-1"}} x', "body"),
    (b"[1]", "body"),
    (b"\xff", "body"),
    (b"[" * 100 + b"]" * 100, "body"),
]


def test_what_is_no_order_is_a_400_that_names_the_place(clean: OrderFixtures) -> None:
    for body, field in NO_ORDERS:
        given = clean.deliver(body)
        assert (given.status_code, list(given.json["errors"])) == (400, [field]), (body, given.text)


def test_who_runs_the_intake_is_told_of_genuine_deliveries_that_are_no_order(clean: OrderFixtures) -> None:
    body = b'{"order": {"id": "o-1", "amount": {"value": "1.005", "currency": "USD"}}}'
    twice = b'{"kim@customer.example": 1, "kim@customer.example": 2}'
    with capture_logs() as strangers:
        clean.deliver(body, headers={"Content-Type": "application/json"})
        clean.deliver(GOOD.replace(b"o-1", b"o 1"), headers=signed(GOOD))
    assert unreadable(strangers) == [], "who has not signed is counted and fills no log"
    with capture_logs() as lines:
        assert [clean.deliver(one).status_code for one in (body, twice)] == [400, 400]
        other = {**signed(GOOD), "Content-Type": "application/vnd.shop+json"}
        assert clean.deliver(GOOD, headers=other).status_code == 415
    assert unreadable(lines) == [
        ("demo", {"order.amount.value": "has more than 2 decimal digits"}),
        ("demo", {"elsewhere": "appears twice in one object"}),
        ("demo", {"body": "Content-Type must be application/json; a charset in it must be utf-8"}),
    ]


def unreadable(lines: Iterable[Mapping[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Of the deliveries that the log says cannot be read: the source and what is wrong."""
    return [(line["source"], line["faults"]) for line in lines if line["event"] == "order_unreadable"]


@pytest.mark.parametrize("path", ["orders/", "orders/created/"])
def test_an_address_that_was_entered_with_a_slash_at_its_end_is_the_same_one(orders: OrderFixtures, path: str) -> None:
    assert orders.deliver(GOOD, path=path).status_code == 200
    assert orders.deliver(GOOD, path=path, headers={"Content-Type": "application/json"}).status_code == 401
    assert orders.deliver(GOOD, path=path + "/").status_code == 404


def test_framing_is_refused_before_anything_is_read(clean: OrderFixtures) -> None:
    big = order_body("o-1", note="x" * 70_000)
    assert clean.deliver(big).status_code == 413
    text = {**signed(GOOD), "Content-Type": "text/plain"}
    assert clean.deliver(GOOD, headers=text).status_code == 415
    builder = EnvironBuilder(path=PATH, method="POST", data=GOOD, headers=signed(GOOD))
    environ = builder.get_environ()
    del environ["CONTENT_LENGTH"]
    environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    assert run_wsgi_app(clean.app, environ)[1].startswith("411 ")


@contextmanager
def intake_of(orders: OrderFixtures, of_networks: SharedRateLimit, **salt: bytes) -> Iterator[InProcessApp]:
    """An intake of the fixtures' parts, whose sources have their limits."""
    review = orders.review
    limits = DeliveryLimits(of_networks, SharedRateLimit(per_second=1, burst=1, clock=lambda: 1000.0), **salt)
    intake = Intake(review.processor, review.sources, limits, ThreadPoolExecutor(8))
    with closing(InProcessApp(create_app(intake, review.store, review.key, orders.settings))) as app:
        yield app


def test_strangers_use_up_their_own_limit_and_not_the_shops(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url)
    with intake_of(orders, SharedRateLimit(per_second=1, burst=5, clock=lambda: 1000.0)) as app:

        def status(address: str, headers: dict[str, str]) -> tuple[int, str | None]:
            found = app.test_client().post(PATH, data=GOOD, headers=headers, environ_base={"REMOTE_ADDR": address})
            return found.status_code, found.headers.get("Retry-After")

        junk = {"Content-Type": "application/json"}
        assert [status("192.0.2.1", junk)[0] for _ in range(7)] == [401] * 5 + [429] * 2
        assert int(status("192.0.2.1", junk)[1] or 0) >= 1
        assert status("192.0.2.2", signed(GOOD))[0] == 200
    orders.close()


def test_strangers_cannot_take_the_place_of_the_shops_own_count(fixtures: Fixtures, authority_url: str) -> None:
    """Even who knew the salt could reckon which of their addresses are counted around the place of a source in vain."""
    orders = make_intake(fixtures, authority_url)
    with intake_of(orders, SharedRateLimit(per_second=1, burst=100), salt=SALT) as app:
        client = app.test_client()
        for address in addresses_around(_limit_key(SALT, "source", "demo")):
            for _ in range(12):
                client.post(PATH, data=b"{}", environ_base={"REMOTE_ADDR": address})
        found = [client.post(PATH, data=GOOD, headers=signed(GOOD)).status_code for _ in range(10)]
        assert found == [200] * 10
    orders.close()


@pytest.mark.parametrize(("salt", "status"), [({}, 200), ({"salt": SALT}, 429)], ids=["as it is", "a known salt"])
def test_strangers_cannot_take_the_place_of_the_count_of_the_shops_address(
    fixtures: Fixtures, authority_url: str, salt: dict[str, bytes], status: int
) -> None:
    """They have this code, and an intake of their own to reckon with. Where the salt is theirs too, they shut the shop out."""
    orders = make_intake(fixtures, authority_url)
    with intake_of(orders, SharedRateLimit(per_second=1, burst=5, clock=lambda: 1000.0), **salt) as app:
        client = app.test_client()
        shop = {"REMOTE_ADDR": "198.51.100.7"}
        for address in addresses_around(_limit_key(SALT, "address", shop["REMOTE_ADDR"])):
            for _ in range(5):
                assert client.post(PATH, data=b"{}", environ_base={"REMOTE_ADDR": address}).status_code != 429
        found = [client.post(PATH, data=GOOD, headers=signed(GOOD), environ_base=shop).status_code for _ in range(5)]
        assert found == [status] * 5
    orders.close()


def addresses_around(key: bytes) -> list[str]:
    """An address for each of the places that a count may have, if it is in the map of the addresses."""
    places = rate_limit._SLOTS // rate_limit._STRIPES

    def place(key: bytes) -> tuple[int, int]:
        return key[0] % rate_limit._STRIPES, int.from_bytes(key[:2], "big") % places

    stripe, start = place(key)
    wanted = {(stripe, (start + probe) % places) for probe in range(rate_limit._PROBES)}
    found: dict[tuple[int, int], str] = {}
    for number in range(1 << 20):
        address = str(ipaddress.IPv4Address(0xCB007100 + number))
        if (at := place(_limit_key(SALT, "address", address))) in wanted - found.keys():
            found[at] = address
        if len(found) == len(wanted):
            return list(found.values())
    raise AssertionError("no such addresses")


def test_addresses_of_one_ipv6_network_are_counted_as_one(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url)
    with intake_of(orders, SharedRateLimit(per_second=1, burst=5, clock=lambda: 1000.0)) as app:

        def status(address: str) -> int:
            found = app.test_client().post(PATH, data=b"{}", environ_base={"REMOTE_ADDR": address})
            return int(found.status_code)

        junk = [status(f"2001:db8:1:2::{n:x}") for n in range(8)]
        assert 429 not in junk[:5] and junk[5:] == [429] * 3
        assert status("2001:db8:1:3::1") != 429
    orders.close()


def test_a_source_has_a_limit_of_its_own(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url)
    orders.deliver(GOOD)
    with intake_of(orders, SharedRateLimit(per_second=100_000, burst=100_000)) as app:

        def repeat_delivery() -> int:
            return app.test_client().post(PATH, data=GOOD, headers=signed(GOOD)).status_code

        assert [repeat_delivery() for _ in range(122)] == [200] * 120 + [429] * 2
    orders.close()


@pytest.mark.parametrize(
    ("proxies", "told", "address"),
    [(0, "203.0.113.9", "10.0.0.1"), (1, "6.6.6.6, 203.0.113.9", "203.0.113.9"), (2, "203.0.113.9, 10.1.1.1", "203.0.113.9"),
     (1, "", "10.0.0.1")],
)  # fmt: skip
def test_an_address_is_what_the_trusted_proxies_saw(proxies: int, told: str, address: str) -> None:
    assert address_of({"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": told}, proxies) == address


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, None), ({"trusted_proxies": 1}, "max-age=31536000"), ({"behind_tls": True}, "max-age=31536000")],
)
def test_behind_tls_every_page_says_so(fixtures: Fixtures, authority_url: str, settings: Any, said: str | None) -> None:
    orders = make_intake(fixtures, authority_url, **settings)
    for path in ("/docs", "/healthz", "/nothing"):
        answer = orders.app.test_client().get(path, headers={"X-Forwarded-Proto": "https"})
        assert answer.headers.get("Strict-Transport-Security") == said, path
    orders.close()


def test_the_other_routes_answer_and_all_are_documented(fixtures: Fixtures, authority_url: str) -> None:
    orders = make_intake(fixtures, authority_url, health_port=7872)
    client = orders.app.test_client()
    assert client.get("/healthz").json == {"status": "ok"}
    assert client.get("/readyz").json["status"] == "ready"
    assert client.get("/webhooks/demo/orders").status_code == 405
    assert client.post("/webhooks/demo/other", data=GOOD, headers=signed(GOOD)).status_code == 404
    assert undocumented_routes(orders.app.flask) == []
    assert "/webhooks/{source}/orders" in json.loads(client.get("/openapi.json").data)["paths"]
    require_docs_page(client)
    orders.deliver(GOOD)
    assert client.get("/metrics").status_code == 404
    exposed = client.get("/metrics", base_url=HEALTH).text
    assert 'orders_deliveries_total{result="200",source="demo"}' in exposed
    assert "orders_database_up 1.0" in exposed and "orders_ready 1.0" in exposed
    orders.close()


def test_a_request_keeps_its_id(orders: OrderFixtures) -> None:
    assert orders.deliver(GOOD, headers={**signed(GOOD), "X-Request-ID": "r-1"}).headers["X-Request-ID"] == "r-1"
