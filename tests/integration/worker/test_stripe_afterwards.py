"""Refunds at Stripe afterwards: what banks send back and what was refunded elsewhere is found, once, whatever the events' order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.support.effects_server import allowed_row, execute
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.scripted_server import Script
from tests.support.stripe_server import StripeServer, stripe_error
from worker.refunds.rows import OrderFacts
from worker.refunds.settings import WorkerSettings
from worker.settlement import NoAnswer, Settled
from worker.settlement.effects import Effects
from worker.settlement.registry import Systems
from worker.settlement.stripe_events import Finding, SettlementFindings, SettlementWatch


@pytest.fixture
def server() -> Iterator[StripeServer]:
    with StripeServer().running() as found:
        yield found


class Ledger:
    """A worker's side: orders that were paid at Stripe, refunds of them, and the watch."""

    def __init__(self, fixtures: LedgerFixtures, server: StripeServer) -> None:
        self.fixtures, self.server = fixtures, server
        self.book = Effects(fixtures.pool, fixtures.tenant_id)
        settings = replace(WorkerSettings(), stripe_key="rk_test_x", stripe_url=server.url)
        self.systems = Systems.from_settings(settings, self.book)
        self.findings = SettlementFindings(fixtures.pool, fixtures.tenant_id)
        self.watch = SettlementWatch(self.findings, self.systems)

    def paid(self, name: str, amount: int = 90_000) -> str:
        payment = self.server.pay(f"pi_{name}", amount)
        self.fixtures.ledger.add_orders(
            [OrderFacts(f"ord_{name}", datetime.now(UTC), amount, "USD", payment_ref=payment)]
        )
        return payment

    def refund(self, name: str) -> str:
        """A row settled at Stripe and executed; Stripe's name of the refund."""
        row = allowed_row(self.fixtures, name)
        payment = self.paid(name)
        assert row.start_id is not None
        found = self.systems.get("stripe").settle(row, row.start_id)
        assert isinstance(found, Settled), found
        execute(self.fixtures, row)
        assert self.server.refunds_of(payment)[0]["id"] == found.reference
        return found.reference


@pytest.fixture
def ledger(ledger_fixtures: LedgerFixtures, server: StripeServer) -> Ledger:
    return Ledger(ledger_fixtures, server)


def keep(ledger: Ledger, payment: str, times: int = 1) -> None:
    """Events about a payment, as the intake keeps them."""
    for _ in range(times):
        ledger.fixtures.admin.execute(
            "select refunds.record_settlement_event(%s, 'stripe', %s, 'refund.updated', %s)",
            [ledger.fixtures.tenant_id, f"evt_{uuid.uuid4().hex}", payment],
        )


def test_a_refund_that_a_bank_sent_back_is_found_once_and_shown(ledger: Ledger) -> None:
    refund = ledger.refund("lge_1")
    keep(ledger, "pi_lge_1", 3)
    assert ledger.watch.look() == []
    ledger.server.set_status(refund, "failed", "lost_or_stolen_card")
    keep(ledger, "pi_lge_1", 3)
    (found,) = ledger.watch.look()
    assert (found.finding, found.system_refund, found.ledger_entry_id, found.reason) == (
        "refund_failed", refund, "lge_1", "lost_or_stolen_card",
    )  # fmt: skip
    keep(ledger, "pi_lge_1")
    assert ledger.watch.look() == []
    assert ledger.findings.all() == [found]
    assert ledger.fixtures.all("select 1 from refunds.settlement_events where looked_at is null") == []


def test_a_refund_made_elsewhere_of_an_order_of_ours_is_found(ledger: Ledger) -> None:
    payment, foreign = ledger.paid("other"), ledger.server.pay("pi_foreign", 700)
    for name in (payment, foreign):
        ledger.server.payments[name].refunds.append({
            "id": f"re_{name}", "object": "refund", "amount": 700, "currency": "usd", "status": "succeeded",
            "payment_intent": name, "charge": None, "metadata": {"ledger_entry_id": "lge_1", "sentinel_key": "forged"},
        })  # fmt: skip
        keep(ledger, name)
    assert [str(one) for one in ledger.watch.look()] == [
        f"stripe re_{payment} ({payment}, 700 in minor units of USD): refunded elsewhere"
    ]


@pytest.mark.parametrize(
    "fault", [stripe_error(500, "api_error"), stripe_error(401, "invalid_request_error"), lambda asked: asked.reset()]
)
def test_an_event_stays_open_while_stripe_does_not_answer(ledger: Ledger, fault: Script) -> None:
    ledger.server.set_status(ledger.refund("lge_1"), "failed")
    keep(ledger, "pi_lge_1")
    ledger.server.forever = ("GET", False, fault)
    assert ledger.watch.look() == []
    ledger.server.forever = None
    assert len(ledger.watch.look()) == 1


def test_a_payment_that_stripe_refuses_to_read_is_named_and_not_closed_in_silence(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    keep(ledger, "pi_of_another_mode", 2)
    ledger.server.forever = ("GET", False, stripe_error(404, "invalid_request_error", "resource_missing"))
    (found,) = ledger.watch.look()
    assert (found.finding, found.payment_ref, found.reason) == (
        "payment_unknown",
        "pi_of_another_mode",
        "404 resource_missing",
    )
    assert (
        str(found) == "stripe pi_of_another_mode: an event names it, and it cannot be read there: 404 resource_missing"
    )
    keep(ledger, "pi_of_another_mode")
    assert ledger.watch.look() == [] and ledger.findings.all() == [found], "once"
    assert ledger.fixtures.all("select 1 from refunds.settlement_events where looked_at is null") == []


def test_a_payment_that_is_never_answered_for_stops_no_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"lge_{number}" for number in range(6)]
    refunds = {name: ledger.refund(name) for name in names}
    for name in names:
        ledger.server.set_status(refunds[name], "failed")
        keep(ledger, f"pi_{name}")
    api = ledger.systems.adapters["stripe"].api  # type: ignore[attr-defined]
    real = api.refunds_of
    asked: list[str] = []

    def refunds_of(payment: str) -> object:
        asked.append(payment)
        return NoAnswer("timeout") if payment in ("pi_lge_0", "pi_lge_1") else real(payment)

    monkeypatch.setattr(api, "refunds_of", refunds_of)
    assert sorted(one.ledger_entry_id or "" for one in ledger.watch.look()) == names[2:]
    monkeypatch.setattr(api, "refunds_of", lambda payment: asked.append(payment) or NoAnswer("timeout"))
    for name in names:
        keep(ledger, f"pi_{name}")
    asked.clear()
    assert ledger.watch.look() == [] and len(asked) == 3, "a Stripe that is away is not asked fifty times"


def test_late_repeated_and_reordered_events_lead_to_the_same_findings(ledger: Ledger) -> None:
    chance, failed = random.Random(7), set()
    names = [f"lge_{number}" for number in range(12)]
    refunds = {name: ledger.refund(name) for name in names}
    waiting = [name for name in names for _ in range(3)]
    chance.shuffle(waiting)
    seen: list[Finding] = []
    for name in waiting:
        if chance.random() < 0.4:
            ledger.server.set_status(refunds[name], "failed")
            failed.add(name)
        keep(ledger, f"pi_{name}")
        if chance.random() < 0.5:
            seen += ledger.watch.look()
    for name in names:
        keep(ledger, f"pi_{name}")
    seen += ledger.watch.look()
    assert sorted(one.ledger_entry_id or "" for one in seen) == sorted(failed)
