"""What a row needs to be decided under the shipped policies, as docs/formats.md tells it, against the real authority."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.cli.scratch import listening
from tests.support.fixtures import Fixtures
from tests.support.ledger_fixtures import ROOT, LedgerFixtures
from tests.support.workflow_fixtures import Shop
from worker.refunds.facts_file import read_facts, store_facts
from worker.refunds.intake import Accepted, Refusal, read_objects, rows_of

PAGE = (ROOT / "docs" / "formats.md").read_text()
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(\{.*?\})\n```", PAGE)]
ORDER, ROW = EXAMPLES[:2]
OF_NOBODY = {name: value for name, value in ORDER.items() if name != "account_ref"}
IN_TIME = {"stale_window": False}
FEE = {"channel": "private", "scenario": "fee"}
FIRST = {"customer_attempts_24h": 1}


@pytest.fixture
def shop(fixtures: Fixtures) -> Iterator[Shop]:
    """A shop whose authority is the real one, with the shipped policies and a worker's key."""
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with listening(fixtures.app) as url:
        yield Shop(ledger, url, fixtures.key)
    ledger.close()


def notify_order(shop: Shop, order: dict[str, Any]) -> None:
    """As `worker facts` does it."""
    store_facts(
        shop.fixtures.ledger, [fact for fact in read_facts(json.dumps(order), ROOT) if not isinstance(fact, Refusal)]
    )


def ends(shop: Shop, order: dict[str, Any] | None, row: dict[str, Any]) -> tuple[str, str | None]:
    """(status, reason code) of the row, entered as `worker facts` and `worker enqueue` do it, after a run."""
    if order is not None:
        notify_order(shop, order)
    (read,) = rows_of(read_objects(json.dumps(row)))
    assert isinstance(read, Accepted), read
    shop.fixtures.ledger.add_rows([read.row])
    shop.run()
    status, _, reason = shop.stands(row["ledger_entry_id"])
    return status, reason


def test_the_pages_order_and_row_pass_without_a_person(shop: Shop) -> None:
    assert ends(shop, ORDER, ROW) == ("EXECUTED", "within_policy_limit")


DENIED = ("DENIED", "fact_missing")
PASSED = ("EXECUTED", "within_policy_limit")


@pytest.mark.parametrize(
    ("order", "row", "ends_as"),
    [
        pytest.param(None, {}, DENIED, id="an order that nobody knows"),
        pytest.param(None, {"risk": IN_TIME}, ("APPROVAL_REQUIRED", "order_paid_unknown"), id="unknown, in time"),
        pytest.param(None, {"order_ref": None}, DENIED, id="no order"),
        pytest.param(None, {"order_ref": None, "risk": IN_TIME}, DENIED, id="no order, in time"),
        pytest.param(
            None, {"order_ref": None, "risk": IN_TIME | {"duplicate_refund": False}}, PASSED, id="both handed in"
        ),
        pytest.param(OF_NOBODY, {"account_ref": None}, DENIED, id="no account"),
        pytest.param(OF_NOBODY, {"account_ref": None, "risk": FIRST}, PASSED, id="no account, tries handed in"),
        pytest.param(None, FEE | {"account_ref": None}, DENIED, id="a small refund without an account"),
    ],
)
def test_what_a_row_lacks_says_where_it_ends(
    shop: Shop, order: dict[str, Any] | None, row: dict[str, Any], ends_as: tuple[str, str]
) -> None:
    given = {name: value for name, value in {**ROW, "account_ref": "acct-1", **row}.items() if value is not None}
    assert ends(shop, order, given) == ends_as


def test_a_small_refund_of_an_unknown_order_waits_for_a_person(shop: Shop) -> None:
    assert ends(shop, None, {**ROW, **FEE, "account_ref": "acct-1"})[0] == "APPROVAL_REQUIRED"


def test_a_refund_that_lacked_its_order_is_asked_for_again_by_another_row(shop: Shop) -> None:
    assert ends(shop, None, ROW | {"account_ref": "acct-1"}) == DENIED
    assert ends(shop, ORDER, ROW | {"ledger_entry_id": "lge-2"}) == PASSED


def test_an_order_that_is_told_after_its_row_was_entered_counts(shop: Shop) -> None:
    (read,) = rows_of(read_objects(json.dumps(ROW)))
    assert isinstance(read, Accepted)
    shop.fixtures.ledger.add_rows([read.row])
    notify_order(shop, ORDER)
    shop.run()
    assert shop.stands(ROW["ledger_entry_id"])[0] == "EXECUTED"
