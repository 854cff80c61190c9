"""Refunds at Stripe afterwards: what banks send back and what was refunded elsewhere is found, once, whatever the events' order."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import click
import psycopg
import pytest
from click.testing import CliRunner

from sentinel.platform.resources import invariants_sql
from sentinel.store.database import WORKER
from sentinel.store.invariants import run_invariants
from tests.integration.worker.test_worker_reads_do_not_grow import blocks
from tests.support.effects_server import allowed_row, execute
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, claimed, new_row
from tests.support.logins import program_url
from tests.support.scripted_server import Script
from tests.support.stripe_server import StripeServer, stripe_error
from worker import cli, retail_refund_agent
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.reconcile import FIND_BUDGETS
from worker.refunds.rows import Change, LedgerEvent, LedgerRow, LedgerState, OrderFacts
from worker.refunds.settings import WorkerSettings
from worker.refunds.sql import FIND_ROWS
from worker.settlement import NoAnswer, Settled, stripe_events
from worker.settlement.effects import Effects
from worker.settlement.registry import Systems
from worker.settlement.stripe_events import SettlementFindings, SettlementWatch, StripeMismatch


@pytest.fixture
def server() -> Iterator[StripeServer]:
    with StripeServer().running() as found:
        yield found


class Ledger:
    """A worker's side: orders that were paid at Stripe, refunds of them, and the watch."""

    def __init__(self, fixtures: LedgerFixtures, server: StripeServer) -> None:
        self.fixtures, self.server = fixtures, server
        self.book = Effects(fixtures.pool, fixtures.tenant_id)
        settings = replace(
            WorkerSettings(), stripe_key="rk_test_x", stripe_url=server.url, settlement_timeout_seconds=30.0
        )
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


@pytest.mark.parametrize(
    ("command", "words"),
    [(retail_refund_agent.main, []), (cli.main, ["run"])],
    ids=["retail-refund-agent", "worker run"],
)
def test_a_finding_is_logged_on_standard_error_and_json_stays_json(
    ledger: Ledger, authority: FakeAuthority, command: click.Command, words: list[str]
) -> None:
    """The finding: the log's lines stood before the object on standard output."""
    ledger.server.set_status(ledger.refund("lge_1"), "failed", "lost_or_stolen_card")
    keep(ledger, "pi_lge_1")
    env = {
        "WORKER_DATABASE_URL": program_url(ledger.fixtures.url, WORKER), "SENTINEL_REFUND_AGENT_API_KEY": "key",
        "SENTINEL_URL": authority.url, "WORKER_STRIPE_KEY": "rk_test_x", "WORKER_STRIPE_URL": ledger.server.url,
    }  # fmt: skip
    done = CliRunner().invoke(command, [*words, "--once", "--json"], env=env)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == []
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [(one["level"], one["event"]) for one in told] == [
        ("error", "settlement_finding"),
        ("error", "refund_sent_back"),
    ]


def test_a_refund_that_a_bank_sent_back_is_counted_as_paid_back_no_more(ledger: Ledger) -> None:
    fixtures = ledger.fixtures
    refund = ledger.refund("lge_1")
    assert (executed_of(fixtures), part(fixtures, "lge_1")) == (100, "executed")
    assert not permitted(fixtures, "whole", 90_000), "nothing is left of it for the whole order"
    ledger.server.set_status(refund, "failed", "lost_or_stolen_card")
    keep(ledger, "pi_lge_1")
    assert len(ledger.watch.look()) == 1
    assert (executed_of(fixtures), part(fixtures, "lge_1")) == (0, "returned")
    assert ledger.watch.look() == [] and fixtures.state("lge_1") == "EXECUTED", "it was executed all the same"
    assert permitted(fixtures, "anew", 90_000)
    execute(fixtures, held(fixtures, "anew"))
    assert (executed_of(fixtures), part(fixtures, "anew")) == (90_000, "executed")
    with fixtures.pool.connection() as worker:
        assert worker.execute(FIND_BUDGETS.encode(), {"tenant_id": fixtures.tenant_id}).fetchall() == []
    broken = [one.name for one in run_invariants(fixtures.admin, invariants_sql()) if one.violations]
    assert [name for name in broken if name.startswith("order_")] == []


def settled_and_sent_back(ledger: Ledger) -> LedgerRow:
    """A row that is settled at Stripe and not recorded, and whose refund a bank then sent back; an event tells of its payment."""
    row = allowed_row(ledger.fixtures, "lge_1")
    ledger.paid("lge_1")
    assert row.start_id is not None
    found = ledger.systems.get("stripe").settle(row, row.start_id)
    assert isinstance(found, Settled), found
    ledger.server.set_status(found.reference, "failed")
    keep(ledger, "pi_lge_1")
    return row


def test_a_refund_that_was_sent_back_before_it_was_recorded_is_counted_no_more_once_it_is(ledger: Ledger) -> None:
    fixtures, row = ledger.fixtures, settled_and_sent_back(ledger)
    assert len(ledger.watch.look()) == 1 and part(fixtures, "lge_1") == "reserved"
    execute(fixtures, row)
    assert ledger.watch.look() == [] and (executed_of(fixtures), part(fixtures, "lge_1")) == (0, "returned")


def test_what_was_sent_back_is_counted_no_more_though_the_look_at_another_payment_fails(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures, row = ledger.fixtures, settled_and_sent_back(ledger)
    assert len(ledger.watch.look()) == 1
    execute(fixtures, row)
    keep(ledger, ledger.paid("another"))

    def fails(*_: object) -> set[str]:
        raise LedgerUnavailable("the database took too long")

    monkeypatch.setattr(ledger.findings, "keep", fails)
    with pytest.raises(LedgerUnavailable):
        ledger.watch.look()
    assert (executed_of(fixtures), part(fixtures, "lge_1")) == (0, "returned")


def test_no_amount_is_let_go_as_sent_back_without_the_finding(ledger: Ledger) -> None:
    ledger.refund("lge_1")
    assert ledger.findings.let_sent_back_go() == []
    with pytest.raises(psycopg.errors.CheckViolation, match="no way from executed to returned"):
        ledger.fixtures.admin.execute("update refunds.ledger_entries set budget_part = 'returned'")
    # Of another refund than the one that it was executed by.
    ledger.fixtures.admin.execute(
        "insert into refunds.settlement_findings (tenant_id, system, system_refund, finding, payment_ref, amount_minor, currency,"
        " ledger_entry_id) values (%s, 'stripe', 're_another', 'refund_failed', 'pi_lge_1', 100, 'USD', 'lge_1')",
        [ledger.fixtures.tenant_id],
    )
    assert ledger.findings.let_sent_back_go() == [] and part(ledger.fixtures, "lge_1") == "executed"


def executed_of(fixtures: LedgerFixtures) -> int:
    """What counts as executed of the order of `lge_1`."""
    return int(fixtures.one("select executed_minor from refunds.order_budgets where order_ref = 'ord_lge_1'"))


def part(fixtures: LedgerFixtures, name: str) -> str:
    return str(fixtures.one("select budget_part from refunds.ledger_entries where ledger_entry_id = %s", name))


def permitted(fixtures: LedgerFixtures, name: str, value: int) -> bool:
    """Whether another refund of that order finds room."""
    fixtures.add(new_row(name, value, order_ref="ord_lge_1"))
    ids = {field: str(uuid.uuid4()) for field in ("operation_id", "decision_event_id", "start_id")}
    change = Change(
        claimed(fixtures, name), LedgerState.GUARDING, LedgerEvent.ALLOWED, permit_token="p", decision="ALLOW", **ids
    )
    return set(fixtures.ledger.apply([change])) == {name}


def held(fixtures: LedgerFixtures, name: str) -> LedgerRow:
    """The row as its holder sees it."""
    (row,) = fixtures.ledger._rows(LedgerRow, FIND_ROWS, ids=[name])
    return row


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


PAID_ELSEWHERE = """
insert into refunds.orders (tenant_id, order_ref, ordered_at, paid_minor, currency, payment_ref)
select %s, 'o_' || n, now(), 100, 'USD', 'pi_o_' || n from generate_series(%s::integer, %s::integer) n
"""


@pytest.mark.fresh_database  # counts what is read
def test_whether_a_payment_is_an_orders_is_known_without_a_look_at_all_orders(ledger: Ledger) -> None:
    fixtures, read = ledger.fixtures, []
    for first, last in ((1, 100), (101, 20_000)):
        with fixtures.admin.transaction():
            fixtures.admin.execute("set local session_replication_role = replica")
            fixtures.admin.execute(PAID_ELSEWHERE, [fixtures.tenant_id, first, last])
        fixtures.admin.execute("vacuum analyze refunds.orders")
        read.append(blocks(fixtures, stripe_events._IS_KNOWN, names=["pi_unknown", "ch_unknown"]))
    assert read[1] <= read[0] + 10, read
    assert ledger.findings.is_payment_known(["pi_unknown", "pi_o_9"])


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
        str(found)
        == "stripe pi_of_another_mode: an event names this payment, but it cannot be read there: 404 resource_missing"
    )
    keep(ledger, "pi_of_another_mode")
    assert ledger.watch.look() == [] and ledger.findings.all() == [found], "once"
    assert ledger.fixtures.all("select 1 from refunds.settlement_events where looked_at is null") == []


def test_a_payment_that_stripe_refused_to_read_is_looked_at_again_once_the_key_is_another(ledger: Ledger) -> None:
    """Its events are closed and Stripe sends them no second time: what they were about was never found."""
    refund = ledger.refund("lge_1")
    ledger.server.set_status(refund, "failed", "lost_or_stolen_card")
    keep(ledger, "pi_lge_1")
    ledger.server.forever = ("GET", False, stripe_error(404, "invalid_request_error", "resource_missing"))
    assert [one.finding for one in ledger.watch.look()] == ["payment_unknown"]
    restarted = SettlementWatch(ledger.findings, ledger.systems)
    ledger.server.forever = ("GET", False, stripe_error(500, "api_error"))
    assert restarted.look() == [], "it stays to be looked at while Stripe does not answer"
    ledger.server.forever = None
    assert [(one.finding, one.ledger_entry_id) for one in restarted.look()] == [("refund_failed", "lge_1")]
    ledger.server.faults.append(("GET", False, stripe_error(500, "api_error")))
    assert restarted.look() == [] and len(ledger.server.faults) == 1, "once for each start"


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


def test_payments_that_are_never_answered_for_hold_back_none_that_is_to_be_looked_at_once_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: three of them ended each look before it came to those that an earlier key was refused."""
    ledger.server.set_status(ledger.refund("lge_1"), "failed", "lost_or_stolen_card")
    keep(ledger, "pi_lge_1")
    ledger.server.forever = ("GET", False, stripe_error(404, "invalid_request_error", "resource_missing"))
    assert [one.finding for one in ledger.watch.look()] == ["payment_unknown"]
    ledger.server.forever = None
    for number in range(3):
        keep(ledger, f"pi_silent_{number}")
    api = ledger.systems.adapters["stripe"].api  # type: ignore[attr-defined]
    real = api.refunds_of

    def refunds_of(payment: str) -> object:
        return NoAnswer("timeout") if payment.startswith("pi_silent") else real(payment)

    monkeypatch.setattr(api, "refunds_of", refunds_of)
    restarted = SettlementWatch(ledger.findings, ledger.systems)
    # In random order: one time in four it comes after all three.
    found = [one for _ in range(40) for one in restarted.look()]
    assert [(one.finding, one.ledger_entry_id) for one in found] == [("refund_failed", "lge_1")]


def test_late_repeated_and_reordered_events_lead_to_the_same_findings(ledger: Ledger) -> None:
    chance, failed = random.Random(7), set()
    names = [f"lge_{number}" for number in range(12)]
    refunds = {name: ledger.refund(name) for name in names}
    waiting = [name for name in names for _ in range(3)]
    chance.shuffle(waiting)
    seen: list[StripeMismatch] = []
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
