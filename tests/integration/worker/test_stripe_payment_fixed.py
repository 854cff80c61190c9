"""The payment that a refund's first try names stays its payment: it is looked for and paid there, whatever the order names later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.support.effects_server import allowed_row, taken_over
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.recording_server import problem
from tests.support.stripe_server import StripeServer, stripe_error
from worker.refunds.rows import OrderFacts
from worker.refunds.settings import WorkerSettings
from worker.settlement import EffectRefused, EffectResult, NoAnswer, Settled
from worker.settlement.effects import Effects
from worker.settlement.registry import Systems
from worker.settlement.stripe_events import SettlementFindings


class Desk:
    """Two payments at Stripe, an order that names one, and a refund of it under way."""

    def __init__(self, fixtures: LedgerFixtures, server: StripeServer, payment: str | None) -> None:
        self.fixtures, self.server = fixtures, server
        server.pay("pi_A", 90_000)
        server.pay("pi_B", 90_000)
        settings = replace(
            WorkerSettings(), stripe_key="rk_test_x", stripe_url=server.url, settlement_timeout_seconds=30.0
        )
        self.stripe = Systems.from_settings(settings, Effects(fixtures.pool, fixtures.tenant_id)).get("stripe")
        self.row = allowed_row(fixtures, "r")
        self.name(payment)

    def name(self, payment: str | None) -> None:
        """The order's fact, told anew."""
        self.fixtures.ledger.add_orders([OrderFacts("ord_r", datetime.now(UTC), 90_000, "USD", payment_ref=payment)])

    def settle(self) -> EffectResult:
        assert self.row.start_id is not None
        return self.stripe.settle(self.row, self.row.start_id)

    def settle_later(self) -> EffectResult:
        """Another worker takes the row over, an hour later."""
        self.fixtures.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
        self.row = taken_over(self.fixtures, "r")
        return self.settle()

    def refunded(self) -> tuple[int, int]:
        return self.server.payments["pi_A"].refunded, self.server.payments["pi_B"].refunded

    def corrected(self) -> list[tuple[Any, ...]]:
        found = SettlementFindings(self.fixtures.pool, self.fixtures.tenant_id).all()
        return [(one.finding, one.ledger_entry_id, one.payment_ref, one.reason) for one in found]


@pytest.fixture
def server() -> Iterator[StripeServer]:
    with StripeServer().running() as found:
        yield found


def loses_the_answer(server: StripeServer, *, happens: bool) -> None:
    """The POST is done or not, and neither it nor the look behind it is answered."""
    real, seen = server._fault, iter(["POST", "GET"])
    wanted = [next(seen)]

    def fault(method: str) -> Any:
        if wanted and method == wanted[0]:
            wanted[:] = [each for each in [next(seen, "")] if each]
            return method, happens and method == "POST", problem(503)
        return real(method)

    server._fault = fault  # type: ignore[method-assign]


@pytest.mark.parametrize("happens", [True, False], ids=["done", "not done"])
def test_a_fact_corrected_while_the_outcome_is_unknown_pays_nothing_twice(
    ledger_fixtures: LedgerFixtures, server: StripeServer, happens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(ledger_fixtures, server, "pi_A")
    loses_the_answer(server, happens=happens)
    assert isinstance(desk.settle(), NoAnswer) and desk.corrected() == []
    desk.name("pi_B")
    assert desk.corrected() == [("payment_corrected", "r", "pi_A", "its order names pi_B by now")]
    server.forget_keys()
    assert isinstance(desk.settle_later(), Settled)
    assert desk.refunded() == (100, 0)
    assert happens or "the order of r names payment pi_B by now" in caplog.text
    assert [finding for finding, *_ in desk.corrected()] == ["payment_corrected"], "a person still looks"


@pytest.mark.parametrize("over", ["its time to act", "its lease"])
def test_what_is_read_slowly_moves_no_money_after_its_time(
    ledger_fixtures: LedgerFixtures, server: StripeServer, over: str
) -> None:
    """The finding: the reads before it were slow, and the refund was asked for after a person may have said that it was not executed."""
    desk = Desk(ledger_fixtures, server, "pi_A")
    column = {"its time to act": "act_until", "its lease": "lease_until"}[over]
    real = server._payment

    def slowly(name: str) -> Any:
        ledger_fixtures.admin.execute(f"update refunds.ledger_entries set {column} = clock_timestamp()".encode())
        return real(name)

    server._payment = slowly  # type: ignore[method-assign]
    assert isinstance(desk.settle(), NoAnswer)
    assert desk.refunded() == (0, 0)


def test_the_request_that_may_move_money_is_what_was_tried_last(
    ledger_fixtures: LedgerFixtures, server: StripeServer
) -> None:
    """For as long after it as a system may work on it, "not there" may mean "not there yet"."""
    desk = Desk(ledger_fixtures, server, "pi_A")
    loses_the_answer(server, happens=False)
    real = server._payment

    def slowly(name: str) -> Any:
        ledger_fixtures.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
        return real(name)

    server._payment = slowly  # type: ignore[method-assign]
    assert isinstance(desk.settle(), NoAnswer)
    assert desk.row.start_id is not None and isinstance(desk.stripe.look_up(desk.row.start_id), NoAnswer)


def test_a_payment_that_stripe_does_not_show_may_be_corrected_as_long_as_nothing_was_asked_of_it(
    ledger_fixtures: LedgerFixtures, server: StripeServer
) -> None:
    desk = Desk(ledger_fixtures, server, "pi_typo")
    server.forever = ("GET", False, stripe_error(404, "invalid_request_error", "resource_missing"))
    assert isinstance(desk.settle(), NoAnswer), "it may be the key that is wrong"
    assert desk.row.start_id is not None and isinstance(desk.stripe.look_up(desk.row.start_id), NoAnswer)
    ledger_fixtures.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
    assert isinstance(desk.stripe.look_up(desk.row.start_id), EffectRefused), "and a person may end it"
    server.forever = None
    desk.name("pi_A")
    assert isinstance(desk.settle_later(), Settled) and desk.refunded() == (100, 0) and desk.corrected() == []
    with pytest.raises(psycopg.errors.CheckViolation, match="begun with is fixed"):
        ledger_fixtures.admin.execute("update refunds.effects set payment_ref = 'pi_B'")


@pytest.mark.parametrize(
    ("payment", "says"), [(None, "has no known payment_ref"), ("paypal-123", "is not a Stripe payment")]
)
def test_a_row_whose_order_names_no_payment_of_stripe_is_refused_and_ends(
    ledger_fixtures: LedgerFixtures, server: StripeServer, payment: str | None, says: str
) -> None:
    desk = Desk(ledger_fixtures, server, payment)
    found = desk.settle()
    assert isinstance(found, EffectRefused) and says in found.reason
    assert ledger_fixtures.all("select state from refunds.effects") == [("refused",)]
    desk.name("pi_A")
    assert isinstance(desk.settle_later(), EffectRefused), (
        "refused for good: a fact that comes later pays nothing by itself"
    )
    assert desk.refunded() == (0, 0) and server.bodies == []
