"""Stripe's webhooks at the intake: only what Stripe signed just now, kept once, and the refund looked up at Stripe itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import TestResponse

from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.store.database import WORKER, Pool, with_role
from tests.support.fixtures import Fixtures
from tests.support.logins import program_url
from tests.support.order_fixtures import OrderFixtures, make_intake
from tests.support.stripe_server import StripeServer
from worker.settlement.stripe_events import PATH, event_of, verified

SECRET, OLDER = "whsec_" + "n" * 32, "whsec_" + "o" * 32


@pytest.fixture
def server() -> Iterator[StripeServer]:
    with StripeServer().running() as found:
        yield found


@pytest.fixture
def intake(fixtures: Fixtures, authority_url: str) -> Iterator[OrderFixtures]:
    made = make_intake(fixtures, authority_url, stripe_webhook_secrets=(SECRET, OLDER))
    yield made
    made.close()


def post(intake: OrderFixtures, body: bytes, signature: str | None) -> TestResponse:
    headers = {"Content-Type": "application/json"} | ({"Stripe-Signature": signature} if signature else {})
    response: TestResponse = intake.app.test_client().post(PATH, data=body, headers=headers)
    return response


def test_a_signed_event_is_kept_once(intake: OrderFixtures, server: StripeServer) -> None:
    body = server.event("refund.failed", {"object": "refund", "id": "re_1", "payment_intent": "pi_1"}, "evt_1")
    answers = [post(intake, body, server.signature(body, secret)) for secret in (SECRET, OLDER, SECRET)]
    assert [(a.status_code, a.get_json()["duplicate"]) for a in answers] == [(200, False), (200, True), (200, True)]
    assert intake.all("select event_id, event_type, payment_ref, looked_at from refunds.settlement_events") == [
        ("evt_1", "refund.failed", "pi_1", None)
    ]


def test_what_is_about_no_refund_is_taken_and_forgotten(intake: OrderFixtures, server: StripeServer) -> None:
    body = server.event("customer.created", {"object": "customer", "id": "cus_1"})
    answer = post(intake, body, server.signature(body, SECRET))
    assert (answer.status_code, answer.get_json()) == (200, {"received": True, "used": False, "duplicate": False})
    assert intake.all("select 1 from refunds.settlement_events") == []


@pytest.mark.parametrize(
    "way",
    ["none", "other secret", "another body", "old", "from the future", "no time", "two times", "empty", "not ASCII"],
)
def test_nothing_that_stripe_did_not_just_sign_is_kept(intake: OrderFixtures, server: StripeServer, way: str) -> None:
    body = server.event("refund.failed", {"object": "refund", "id": "re_1", "payment_intent": "pi_1"})
    now = int(time.time())
    good = server.signature(body, SECRET)
    # The future is well beyond what is allowed, because the time until it is checked brings it nearer.
    signature = {
        "none": None, "other secret": server.signature(body, "whsec_" + "x" * 32), "another body": server.signature(body + b" ", SECRET),
        "old": server.signature(body, SECRET, now - 301), "from the future": server.signature(body, SECRET, now + 900),
        "no time": good.partition(",")[2], "two times": f"t={now - 999}," + good, "empty": "t=,v1=",
        "not ASCII": f"t={now},v1=\xe9",
    }[way]  # fmt: skip
    assert post(intake, body, signature).status_code == 401
    assert intake.all("select 1 from refunds.settlement_events") == []


def test_what_a_body_is_said_to_be_is_looked_at_once_it_is_signed(intake: OrderFixtures, server: StripeServer) -> None:
    body = server.event("refund.failed", {"object": "refund", "id": "re_1", "payment_intent": "pi_1"})

    def status(**headers: str) -> int:
        text = {"Content-Type": "text/plain"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return int(intake.app.test_client().post(PATH, data=body, headers=text).status_code)

    assert (status(), status(Stripe_Signature=server.signature(body, SECRET))) == (401, 415)
    assert intake.all("select 1 from refunds.settlement_events") == []


@pytest.mark.parametrize("change", [
    {"id": 7}, {"id": "evt_'x"}, {"data": None}, {"data": {"object": []}}, {"data": {"object": {"object": "refund", "payment_intent": "x y"}}},
    {"data": {"object": {"object": "refund"}}},
])  # fmt: skip
def test_a_signed_body_of_another_form_is_refused_by_field(
    intake: OrderFixtures, server: StripeServer, change: dict[str, Any]
) -> None:
    body = json.dumps(
        json.loads(server.event("refund.failed", {"object": "refund", "payment_intent": "pi_1"})) | change
    ).encode()
    answer = post(intake, body, server.signature(body, SECRET))
    assert answer.status_code == 400
    assert answer.get_json()["errors"]


def test_strangers_use_up_the_limit_of_their_own_address(
    fixtures: Fixtures, authority_url: str, server: StripeServer
) -> None:
    limit = SharedRateLimit(per_second=1, burst=3, clock=lambda: 1000.0)
    intake = make_intake(fixtures, authority_url, limit=limit, stripe_webhook_secrets=(SECRET,))
    body = server.event("refund.failed", {"object": "refund", "id": "re_1", "payment_intent": "pi_1"})

    def status(address: str, signature: str) -> int:
        headers = {"Content-Type": "application/json", "Stripe-Signature": signature}
        found = intake.app.test_client().post(PATH, data=body, headers=headers, environ_base={"REMOTE_ADDR": address})
        return int(found.status_code)

    assert [status("192.0.2.1", "t=1,v1=00") for _ in range(5)] == [401] * 3 + [429] * 2
    assert status("192.0.2.2", server.signature(body, SECRET)) == 200
    intake.close()


def test_without_a_secret_there_is_no_such_route(orders: OrderFixtures, server: StripeServer) -> None:
    body = server.event("refund.failed", {"object": "refund", "payment_intent": "pi_1"})
    assert post(orders, body, server.signature(body, SECRET)).status_code == 404


def test_a_charge_names_its_payment() -> None:
    about = {"object": "charge", "id": "ch_1", "payment_intent": None}
    found = event_of({"id": "evt_1", "type": "charge.refunded", "data": {"object": about}})
    assert found is not None
    assert found.payment_ref == "ch_1"
    about["payment_intent"] = "pi_1"
    found = event_of({"id": "evt_1", "type": "charge.refunded", "data": {"object": about}})
    assert found is not None
    assert found.payment_ref == "pi_1"


def test_a_signature_of_another_scheme_is_none() -> None:
    signature = StripeServer.signature(b"{}", SECRET)
    assert verified(b"{}", signature, [SECRET], time.time())
    assert not verified(b"{}", signature.replace("v1=", "v0="), [SECRET], time.time())
    assert not verified(b"\xff", signature, [SECRET], time.time())


@pytest.mark.parametrize(
    "way", ["t={old}=x, t={now},v1={mac}", "t={old} , t={now},v1={mac}", "t={old}=,x=y, t={now},v1={mac}"]
)
def test_an_old_signature_is_not_made_fresh_by_another_time_beside_it(way: str) -> None:
    now = int(time.time())
    mac = StripeServer.signature(b"{}", SECRET, now - 9999).partition("v1=")[2]
    assert not verified(b"{}", way.format(old=now - 9999, now=now, mac=mac), [SECRET], now)
    rolled = StripeServer.signature(b"{}", SECRET, now) + ",v1=00,v0=11"
    assert verified(b"{}", rolled, [OLDER, SECRET], now)


def test_who_receives_events_can_do_nothing_else_there(fixtures: Fixtures, intake: OrderFixtures) -> None:
    for statement in ("select * from refunds.settlement_events", "select * from refunds.settlement_findings",
                      "update refunds.settlement_events set looked_at = null"):  # fmt: skip
        with pytest.raises(Exception, match="permission denied"), intake.review.pool.connection() as connection:
            connection.execute(statement.encode())
    pool = Pool(with_role(program_url(fixtures.url, WORKER), WORKER, application_name="test"), size=1)
    try:
        with pytest.raises(Exception, match="permission denied"), pool.connection() as connection:
            connection.execute("update refunds.settlement_findings set finding = 'refund_failed'")
    finally:
        pool.close()
