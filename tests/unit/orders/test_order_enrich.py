"""Looking up what an order does not say: only allowed addresses, in time, and what is not learned stays unknown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sentinel.core.money import Money
from sentinel.platform.outbound.public_addresses import LOOPBACK_CLIENT, PublicHttpClient
from tests.support.canned_answers import answering
from tests.support.scripted_server import SLACK, ScriptedServer, deadline_for, faults, times_asked, took
from worker.orders.enrich import Enricher, Lookup
from worker.orders.order import MAX_COUNT, Order

ORDER = Order(source="demo", order_id="o-1", amount=Money(4990, "USD"), account_ref="acct/7")
FIELDS = {"account_age_days": (("account", "days"),), "failed_payments": (("failed",),)}
GOOD = {"account": {"days": 12}, "failed": 3}
FAULTS = faults(json.dumps(GOOD).encode())


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as running:
        running.script = lambda asked: asked.say(GOOD)
        yield running


def lookup(server: ScriptedServer, seconds: float = 60.0, path: str = "/a/{account_ref}?o={order_id}") -> Lookup:
    return Lookup(server.url + path, FIELDS, "k-1", seconds)


def soon() -> float:
    return time.monotonic() + 60.0


ENRICHER = Enricher(LOOPBACK_CLIENT)


def test_what_an_order_does_not_say_is_asked_for_once_with_the_key(server: ScriptedServer) -> None:
    found = ENRICHER.enrich(ORDER, [lookup(server), lookup(server)], soon())
    assert (found.order.account_age_days, found.order.failed_payments, found.signals) == (12, 3, ())
    [asked] = server.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("GET", "/a/acct%2F7?o=o-1", "Bearer k-1")


def test_what_the_signed_delivery_said_stands(server: ScriptedServer) -> None:
    found = ENRICHER.enrich(replace(ORDER, account_age_days=0), [lookup(server)], soon())
    assert (found.order.account_age_days, found.order.failed_payments) == (0, 3)
    server.asked.clear()
    whole = replace(ORDER, account_age_days=0, failed_payments=0)
    assert ENRICHER.enrich(whole, [lookup(server)], soon()).order is whole
    assert server.asked == []


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_leaves_the_order_as_it_is_with_a_signal(server: ScriptedServer, fault: str) -> None:
    server.script, known = FAULTS[fault]
    deadline = deadline_for(known)
    found, seconds = took(lambda: ENRICHER.enrich(ORDER, [lookup(server, deadline)], time.monotonic() + 90))
    assert found.order == ORDER
    assert [signal.code for signal in found.signals] == ["enrichment_unavailable"]
    assert seconds < deadline + SLACK
    assert times_asked(server) == 1, "one try, no redirect followed"


SAYS_NOTHING: list[dict[str, Any]] = [{}, {"account": None}, {"account": {"days": ""}}, {"account": [12]}, {"days": 12}]
NO_NUMBERS = ["twelve", "012", "-1", "1.5", True, -1, 10**9, 1.5, [12], {"value": 12}]


@pytest.mark.parametrize("body", [*SAYS_NOTHING, *({"account": {"days": days}} for days in NO_NUMBERS)])
def test_an_answer_without_a_number_is_unknown_and_not_zero(body: dict[str, Any]) -> None:
    with answering(body) as asked:
        found = ENRICHER.enrich(ORDER, [Lookup("http://127.0.0.1/a", FIELDS, "k-1", 5.0)], soon())
    assert (found.order, len(asked)) == (ORDER, 1)
    said = [] if body in SAYS_NOTHING else [f"look-up 1: account_age_days is no whole number from 0 to {MAX_COUNT}"]
    assert [signal.detail for signal in found.signals] == said, "what cannot be read is not passed over in silence"


def test_a_number_that_is_written_as_text_counts_as_in_a_delivery() -> None:
    """The finding: it was passed over, so that the rule about failed payments did not look at seven of them."""
    with answering({"account": {"days": "12"}, "failed": "7"}):
        found = ENRICHER.enrich(ORDER, [Lookup("http://127.0.0.1/a", FIELDS, "k-1", 5.0)], soon())
    assert (found.order.account_age_days, found.order.failed_payments, found.signals) == (12, 7, ())


def test_an_answer_that_is_not_sent_as_json_is_named_so() -> None:
    """The finding: its signal said "http_200", as if the status were at fault."""
    with answering(GOOD, kind="text/html"):
        found = ENRICHER.enrich(ORDER, [Lookup("http://127.0.0.1/a", FIELDS, "k-1", 5.0)], soon())
    assert (found.order, [signal.detail for signal in found.signals]) == (ORDER, ["look-up 1: not application/json"])


@pytest.mark.parametrize("ref", [None, "..", "."])
def test_a_placeholder_that_is_unknown_or_climbs_asks_nobody(server: ScriptedServer, ref: str | None) -> None:
    found = ENRICHER.enrich(replace(ORDER, account_ref=ref), [lookup(server)], soon())
    assert found.signals[0].detail == "look-up 1: the order has no value for its URL"
    assert server.asked == []


@pytest.mark.parametrize("ref", ["@evil.example", "a/../../b", "x?y=z#f", "%2e%2e", "a\\b", "é", "a b"])
def test_a_placeholder_stays_in_its_place_in_the_path(server: ScriptedServer, ref: str) -> None:
    ENRICHER.enrich(replace(ORDER, account_ref=ref), [lookup(server, path="/a/{account_ref}/z")], soon())
    [asked] = server.asked
    assert asked.path.startswith("/a/") and asked.path.endswith("/z")
    assert asked.path.count("/") == 3


def test_no_time_left_asks_nobody(server: ScriptedServer) -> None:
    found = ENRICHER.enrich(ORDER, [lookup(server)], time.monotonic() - 0.01)
    assert (found.order, found.signals[0].detail, server.asked) == (ORDER, "look-up 1: no time left", [])


def test_in_production_loopback_and_plain_http_are_not_asked(server: ScriptedServer) -> None:
    for outward in (PublicHttpClient(), PublicHttpClient(("http", "https"), None)):
        found = Enricher(outward).enrich(ORDER, [lookup(server)], soon())
        assert found.order == ORDER and found.signals
    assert server.asked == []


def test_a_second_look_up_is_asked_when_the_first_says_nothing(server: ScriptedServer) -> None:
    first = Lookup(server.url + "/first", FIELDS)
    server.script = lambda asked: asked.answer(500, b"") if asked.path == "/first" else asked.say(GOOD)
    found = ENRICHER.enrich(ORDER, [first, lookup(server)], soon())
    assert found.order.account_age_days == 12
    assert found.signals[0].detail == "look-up 1: http_500"
