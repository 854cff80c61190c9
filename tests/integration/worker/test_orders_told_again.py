"""What is told of an order a second time corrects what it says, and takes nothing away that it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, new_row
from tests.support.workflow_fixtures import SECRETS
from worker.refunds.facts_file import read_facts, store_facts
from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.graph import Escalation

AT = datetime.now(UTC) - timedelta(days=2)
FULL = OrderFacts(
    "o", AT, 900_00, "USD", "acct_owner", delivered_at=AT, shipping_fee_minor=490, item_paid_minor=5000, price_now_minor=4000,
    note="left at the door", payment_ref="pi_1",
)  # fmt: skip
OPTIONAL = (
    "account_ref",
    "delivered_at",
    "shipping_fee_minor",
    "item_paid_minor",
    "price_now_minor",
    "note",
    "payment_ref",
)


def correct(facts: OrderFacts, **over: Any) -> OrderFacts:
    return replace(facts, **over)


def kept(fixtures: LedgerFixtures) -> dict[str, Any]:
    (found,) = fixtures.all(f"select {', '.join(OPTIONAL)} from refunds.orders")
    return dict(zip(OPTIONAL, found, strict=True))


@pytest.mark.parametrize("left_out", [*((name,) for name in OPTIONAL), OPTIONAL])
def test_an_optional_fact_that_is_left_out_keeps_its_value(
    ledger_fixtures: LedgerFixtures, left_out: tuple[str, ...]
) -> None:
    ledger_fixtures.ledger.add_orders([FULL])
    shorter = correct(FULL, **dict.fromkeys(left_out))
    assert ledger_fixtures.ledger.add_orders([shorter]) == set(), "nothing else was told, so nothing has changed"
    assert ledger_fixtures.ledger.add_orders([correct(shorter, paid_minor=800_00)]) == {"o"}
    assert kept(ledger_fixtures) == {name: getattr(FULL, name) for name in OPTIONAL}


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_fact_that_is_told_anew_replaces_the_old_one(ledger_fixtures: LedgerFixtures, name: str) -> None:
    other = AT + timedelta(hours=1) if name == "delivered_at" else 1 if name.endswith("minor") else "pi_other"
    ledger_fixtures.ledger.add_orders([correct(FULL, **{name: None})])
    for value in (getattr(FULL, name), other):
        assert ledger_fixtures.ledger.add_orders([correct(FULL, **{name: value})]) == {"o"}
        assert kept(ledger_fixtures)[name] == value
        assert ledger_fixtures.ledger.add_orders([correct(FULL, **{name: value})]) == set()


def test_amounts_of_another_currency_are_not_kept_as_numbers_of_the_new_one(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """Told in yen by mistake, 490 of them are no 4.90."""
    ledger_fixtures.ledger.add_orders([correct(FULL, currency="JPY", channel="private")])
    corrected = correct(FULL, channel="private", shipping_fee_minor=None, item_paid_minor=None, price_now_minor=None)
    assert ledger_fixtures.ledger.add_orders([corrected]) == {"o"}
    assert kept(ledger_fixtures) == {name: getattr(corrected, name) for name in OPTIONAL}
    fee = {"channel": "private", "scenario": "fee", "account_ref": "acct_owner"}
    ledger_fixtures.add(new_row("fee", 490, order_ref="o", **fee))
    with ledger_fixtures.agent(authority.url, confirm_secrets=SECRETS, notifier="log") as agent:
        agent.run_once()
    assert ledger_fixtures.all("select waiting_for, reason_code from refunds.ledger_entries") == [
        ("operator", Escalation.FEE_NOT_CHARGED)
    ]
    assert ledger_fixtures.ledger.add_orders([correct(corrected, price_now_minor=3)]) == {"o"}
    assert kept(ledger_fixtures)["price_now_minor"] == 3


def test_a_correction_that_leaves_the_owner_out_pays_no_stranger(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    line = {"kind": "order", "order_ref": "o", "ordered_at": AT.isoformat(), "paid": "900.00", "currency": "USD"}
    for fact in ({**line, "account_ref": "acct_owner"}, {**line, "delivered_at": AT.isoformat()}):
        store_facts(ledger_fixtures.ledger, list(read_facts(json.dumps(fact), Path("."))))  # type: ignore[arg-type]
    ledger_fixtures.add(new_row("theirs", order_ref="o", account_ref="acct_thief"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.executions() == 0
    assert ledger_fixtures.state("theirs") == "APPROVAL_REQUIRED", "a person is asked whose order it is"
