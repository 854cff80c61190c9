"""Refunds at Stripe, driven through the released `stripe` package against a server of our own."""

from __future__ import annotations

import dataclasses
import itertools
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from sentinel.core.stripe_units import our_amount, stripe_amount
from tests.support.harness import scaled
from tests.support.scripted_server import deadline_for, faults
from tests.support.stripe_server import StripeServer, stripe_error
from worker.outbound.effects import EffectRefused, NoAnswer, Settled
from worker.refunds.rows import LedgerRow
from worker.settlement import stripe_refunds
from worker.settlement.effects import try_once
from worker.settlement.stripe_api import result_of_error
from worker.settlement.stripe_refunds import Payment, StripeRefunds, idempotency_key

pytestmark = pytest.mark.slow

TENANT = uuid.UUID(int=7)
_ROW = LedgerRow(
    tenant_id=TENANT, ledger_entry_id="lge_1", refund_id="rf_1", agent_id="a", action="refund.create", amount_minor=1250, currency="USD",
    idempotency_key="refund:lge_1", channel="retail", scenario="standard", mode=None, account_ref=None, order_ref="o-1",
    claim_epoch=1, attempts=0, guard_request=None, operation_id=None, decision_event_id=None, decision=None,
    reason_code=None, permit_token=None, start_id=None, last_error=None,
)  # fmt: skip


class Payments:
    """Payments of entries, in memory; references are remembered as the record of effects does."""

    tenant_id = TENANT

    def __init__(self) -> None:
        self.payments: dict[str, Payment] = {}
        self.entries: dict[uuid.UUID, str] = {}

    def payment_of(self, ledger_entry_id: str) -> Payment | None:
        return self.payments.get(ledger_entry_id)

    def fix_payment(self, system: str, row: LedgerRow, payment_ref: str) -> str | None:
        known = self.payments[row.ledger_entry_id]
        self.payments[row.ledger_entry_id] = dataclasses.replace(
            known, payment_ref=known.payment_ref or payment_ref, is_fixed=True
        )
        return self.payments[row.ledger_entry_id].payment_ref

    def payment_of_reference(self, system: str, reference: uuid.UUID) -> Payment | None:
        return self.payments.get(self.entries.get(reference, ""))


@pytest.fixture
def server() -> Iterator[StripeServer]:
    with StripeServer().canned() as found:
        found.pay("pi_1", 5000)
        yield found


@pytest.fixture
def wire() -> Iterator[StripeServer]:
    """The same behind a real socket: for what breaks on the way."""
    with StripeServer().running() as found:
        found.pay("pi_1", 5000)
        yield found


@pytest.fixture
def payments() -> Payments:
    found = Payments()
    found.payments["lge_1"] = Payment("pi_1", "refund:lge_1")
    return found


def system(server: StripeServer, payments: Payments, seconds: float = 5.0) -> StripeRefunds:
    return StripeRefunds("rk_test_x", payments, seconds, url=server.url)


def row(name: str = "lge_1", amount: int = 1250, currency: str = "USD") -> LedgerRow:
    return replace(_ROW, ledger_entry_id=name, idempotency_key=f"refund:{name}", amount_minor=amount, currency=currency)


def test_a_refund_is_made_once_with_our_key_and_our_names(server: StripeServer, payments: Payments) -> None:
    (reference, stripe) = (uuid.uuid4(), system(server, payments))
    found = stripe.settle(row(), reference)
    (refund,) = server.refunds_of("pi_1")
    assert found == Settled(refund["id"])
    assert (refund["amount"], refund["metadata"]["ledger_entry_id"]) == (1250, "lge_1")
    post = next(asked for asked in server.http.asked if asked.method == "POST")
    assert (
        post.headers["idempotency-key"] == idempotency_key(TENANT, "refund:lge_1") == refund["metadata"]["sentinel_key"]
    )
    assert post.headers["authorization"] == "Bearer rk_test_x"
    # Another reference, as after a restored database, and Stripe's keys forgotten: still the same refund.
    server.forget_keys()
    assert stripe.settle(row(), uuid.uuid4()) == found
    assert len(server.refunds_of("pi_1")) == 1


def test_partial_refunds_of_one_payment_up_to_the_whole(server: StripeServer, payments: Payments) -> None:
    stripe = system(server, payments)
    for name in ("lge_1", "lge_2", "lge_3", "lge_4"):
        payments.payments[name] = Payment("pi_1", f"refund:{name}")
        assert isinstance(stripe.settle(row(name), uuid.uuid4()), Settled)
    payments.payments["lge_5"] = Payment("pi_1", "refund:lge_5")
    assert try_once(stripe, row("lge_5"), uuid.uuid4()) == NoAnswer("the record names no payment")
    reference = uuid.uuid4()
    payments.entries[reference] = "lge_5"
    assert try_once(stripe, row("lge_5"), reference) == EffectRefused("400 charge_already_refunded")
    assert server.payments["pi_1"].refunded == 5000


@pytest.mark.parametrize(("status", "result"), [
    ("succeeded", Settled), ("pending", Settled), ("requires_action", NoAnswer), ("failed", EffectRefused), ("canceled", EffectRefused),
    ("new_word", NoAnswer),
])  # fmt: skip
def test_what_a_refund_says_of_itself(server: StripeServer, payments: Payments, status: str, result: type) -> None:
    server.next_status = status
    reference, stripe = uuid.uuid4(), system(server, payments)
    payments.entries[reference] = "lge_1"
    assert isinstance(stripe.settle(row(), reference), result)
    assert isinstance(stripe.look_up(reference), result)
    assert len(server.refunds_of("pi_1")) == 1


_NOT_FOUND = (404, "invalid_request_error", "resource_missing")


@pytest.mark.parametrize(("status", "kind", "code", "result"), [
    (400, "invalid_request_error", "charge_already_refunded", EffectRefused),
    (400, "invalid_request_error", "charge_disputed", EffectRefused),
    (400, "invalid_request_error", "balance_insufficient", EffectRefused),
    (400, "invalid_request_error", None, EffectRefused),
    (402, "card_error", "card_declined", EffectRefused),
    (*_NOT_FOUND, EffectRefused),
    (400, "invalid_request_error", "lock_timeout", NoAnswer),
    (400, "invalid_request_error", "rate_limit", NoAnswer),
    (400, "idempotency_error", None, NoAnswer),
    (401, "invalid_request_error", "api_key_expired", NoAnswer),
    (403, "invalid_request_error", None, NoAnswer),
    (409, "idempotency_error", "idempotency_key_in_use", NoAnswer),
    (409, "invalid_request_error", None, NoAnswer),
    (424, "api_error", None, NoAnswer),
    (429, "invalid_request_error", "rate_limit", NoAnswer),
    (429, "invalid_request_error", "lock_timeout", NoAnswer),
    (500, "api_error", None, NoAnswer),
    (502, "api_error", None, NoAnswer),
    (503, "api_error", None, NoAnswer),
    (504, "api_error", None, NoAnswer),
])  # fmt: skip
def test_each_documented_error_is_not_done_or_unknown(
    server: StripeServer, payments: Payments, status: int, kind: str, code: str | None, result: type
) -> None:
    assert isinstance(result_of_error(status, code, {"error": {"type": kind, "code": code}}), result)
    server.forever = ("POST", False, stripe_error(status, kind, code))
    assert isinstance(system(server, payments).settle(row(), uuid.uuid4()), result)
    assert server.refunds_of("pi_1") == []


@pytest.mark.parametrize("status", range(400, 600))
def test_no_status_without_stripes_own_error_says_anything(status: int) -> None:
    for body in (None, "<html>", {}, {"error": "no"}, {"title": "x", "status": status}):
        assert isinstance(result_of_error(status, None, body), NoAnswer)


# They wait for time limits, beside the rest of this file.
@pytest.mark.xdist_group("broken answers of Stripe")
@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("name", sorted(faults(b"{}")))
def test_a_broken_answer_is_never_done_and_the_next_look_knows(
    wire: StripeServer, payments: Payments, name: str, happens: bool
) -> None:
    script, known = faults(b'{"id":"re_1"')[name]
    reference, hasty, stripe = uuid.uuid4(), system(wire, payments, seconds=deadline_for(known)), system(wire, payments)
    payments.entries[reference] = "lge_1"
    wire.faults.append(("POST", happens, script))
    # A server that hangs keeps the call until its deadline; whatever came, what is there is found.
    first = hasty.settle(row(), reference)
    assert isinstance(first, NoAnswer)
    assert isinstance(stripe.look_up(reference), Settled if happens else EffectRefused)
    assert isinstance(stripe.settle(row(), reference), Settled)
    assert len(wire.refunds_of("pi_1")) == 1


def test_a_look_that_is_refused_proves_nothing(server: StripeServer, payments: Payments) -> None:
    reference, stripe = uuid.uuid4(), system(server, payments)
    payments.entries[reference] = "lge_1"
    payments.fix_payment("stripe", row(), "pi_1")
    server.forever = ("GET", False, stripe_error(*_NOT_FOUND[:2], _NOT_FOUND[2]))
    assert isinstance(stripe.look_up(reference), NoAnswer)
    assert isinstance(stripe.settle(row(), reference), NoAnswer)
    assert server.bodies == []


def test_our_refund_is_found_behind_many_others(server: StripeServer, payments: Payments) -> None:
    server.page = 3
    stripe = system(server, payments)
    assert isinstance(stripe.settle(row(amount=100), uuid.uuid4()), Settled)
    for number in range(20):
        payments.payments[f"o{number}"] = Payment("pi_1", f"refund:o{number}")
        stripe.settle(row(f"o{number}", 100), uuid.uuid4())
    reference = uuid.uuid4()
    payments.entries[reference] = "lge_1"
    assert stripe.look_up(reference) == Settled(server.refunds_of("pi_1")[0]["id"])


@pytest.mark.parametrize(
    ("payment", "says"),
    [(None, "no known payment_ref"), ("order-7", "not a Stripe payment"), ("pi_1/../x", "not a Stripe payment"), ("re_1", "not a Stripe payment")],
)  # fmt: skip
def test_without_a_payment_of_stripe_nothing_is_asked(
    server: StripeServer, payments: Payments, payment: str | None, says: str
) -> None:
    payments.payments["lge_1"] = Payment(payment, "refund:lge_1")
    found = system(server, payments).settle(row(), uuid.uuid4())
    assert isinstance(found, EffectRefused)
    assert says in found.reason
    assert server.http.asked == []


def test_a_payment_in_another_currency_is_not_refunded(server: StripeServer, payments: Payments) -> None:
    found = system(server, payments).settle(row(currency="EUR"), uuid.uuid4())
    assert found == EffectRefused("the payment was in USD")
    assert server.refunds_of("pi_1") == []


@pytest.mark.parametrize(("currency", "minor", "stripes"), [
    ("USD", 1250, 1250), ("JPY", 500, 500), ("UGX", 500, 50000), ("ISK", 7, 700), ("MGA", 1200, 12), ("MGA", 1250, None),
    ("KWD", 1230, 1230), ("KWD", 1234, None), ("IQD", 1234, 1234),
])  # fmt: skip
def test_amounts_in_stripes_units(currency: str, minor: int, stripes: int | None) -> None:
    assert stripe_amount(minor, currency) == stripes
    assert stripes is None or our_amount(stripes, currency) == minor


def test_it_is_ready_when_the_key_may_read_refunds(server: StripeServer, payments: Payments) -> None:
    now = itertools.count(0, 3)
    stripe = StripeRefunds("rk_test_x", payments, url=server.url, now=lambda: float(next(now)))
    assert stripe.is_ready()
    server.forever = ("GET", False, stripe_error(401, "invalid_request_error"))
    assert stripe.is_ready()  # as it said three seconds ago
    assert not stripe.is_ready()
    assert not StripeRefunds("", payments, url=server.url).is_ready()
    assert not StripeRefunds("rk_test_x", None, url=server.url).is_ready()


def test_without_a_key_nobody_is_asked_and_what_was_begun_says_that_it_is_not_configured(
    server: StripeServer, payments: Payments
) -> None:
    """The key was taken out of the settings while a refund is under way: that is no refused key."""
    payments.payments["lge_1"] = Payment("pi_1", "refund:lge_1", is_fixed=True)
    payments.entries[reference := uuid.uuid4()] = "lge_1"
    stripe = StripeRefunds(None, payments, url=server.url)
    assert stripe.settle(row(), reference) == stripe.look_up(reference) == NoAnswer("not configured")
    assert server.http.asked == []


def test_keys_differ_by_tenant_and_entry() -> None:
    keys = {idempotency_key(uuid.UUID(int=t), f"refund:{e}") for t in range(20) for e in range(20)}
    assert len(keys) == 400
    assert all(len(key) <= 255 for key in keys)


_ERRORS: tuple[Any, ...] = (
    stripe_error(500, "api_error"), stripe_error(429, "invalid_request_error", "rate_limit"),
    stripe_error(409, "idempotency_error", "idempotency_key_in_use"), stripe_error(400, "invalid_request_error", "lock_timeout"),
    lambda asked: asked.reset(), lambda asked: asked.answer(502, b"<html>", "text/html"), lambda asked: asked.raw(b""),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_no_refund_is_made_twice_and_none_is_lost_whatever_fails(payments: Payments, seed: int) -> None:
    """Entries tried until they end, with failures before and after the effect, in any order, and keys that are forgotten."""
    chance, entries = random.Random(seed), scaled(40)
    with StripeServer().running() as server:
        stripe = system(server, payments)
        for number in range(entries):
            name, reference = f"e{number}", uuid.uuid4()
            server.pay(f"pi_{number}", 1250)
            payments.payments[name], payments.entries[reference] = Payment(f"pi_{number}", f"refund:{name}"), name
            for _ in range(40):
                server.faults.clear()
                if chance.random() < 0.6:
                    server.faults.append(
                        (chance.choice(("POST", "GET")), chance.random() < 0.5, chance.choice(_ERRORS))
                    )
                if chance.random() < 0.2:
                    server.forget_keys()
                if isinstance(try_once(stripe, row(name), reference), Settled):
                    break
            else:
                pytest.fail(f"{name} never ended")
        assert [len(server.refunds_of(f"pi_{number}")) for number in range(entries)] == [1] * entries


def test_a_naive_stripe_and_no_look_would_pay_twice(payments: Payments, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before the effect is what holds once keys are forgotten: without it this fails."""
    with StripeServer(naive=True).canned() as server:
        server.pay("pi_1", 5000)
        stripe = system(server, payments)
        monkeypatch.setattr(stripe, "_look", lambda found: stripe_refunds._ABSENT)
        for _ in range(2):
            assert isinstance(stripe.settle(row(), uuid.uuid4()), Settled)
        assert len(server.refunds_of("pi_1")) == 2


_ODD: tuple[Any, ...] = (
    {"foo": 1}, {"object": "list", "data": [{"id": "re_1", "metadata": "none"}]}, {"object": "list", "data": 7},
    {"object": "list", "data": [{"id": "re_1", "amount": "1250"}]}, {"id": "pi_1", "object": "payment_intent", "currency": 7},
    {"id": "pi_1", "object": "payment_intent"}, {"object": "list", "data": ["re_1"]},
)  # fmt: skip


@pytest.mark.parametrize("body", _ODD, ids=str)
def test_a_whole_answer_of_another_form_is_no_answer_and_nothing_raises(
    server: StripeServer, payments: Payments, body: dict[str, Any]
) -> None:
    reference, stripe = uuid.uuid4(), system(server, payments)
    payments.entries[reference] = "lge_1"
    server.forever = ("GET", False, lambda asked: asked.say(body))
    assert isinstance(stripe.api.currency_of("pi_1"), NoAnswer)
    assert isinstance(stripe.settle(row(), reference), NoAnswer)
    assert isinstance(try_once(stripe, row(), reference), NoAnswer)
    server.forever = ("POST", True, lambda asked: asked.say(body))
    assert isinstance(stripe.settle(row(), reference), NoAnswer)
    server.forever = None
    assert isinstance(stripe.settle(row(), reference), Settled) and len(server.refunds_of("pi_1")) == 1
