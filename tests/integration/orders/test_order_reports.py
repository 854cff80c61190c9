"""Reports of orders that the authority refused for good: a person has them sent again or puts them away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel.platform.resources import invariants_sql
from sentinel.store.database import Pool
from sentinel.store.invariants import run_invariants
from tests.integration.worker.test_budgets_with_real_authority import restore_before_the_decision
from tests.support.lost_connections import LosesConnection
from tests.support.order_fixtures import OrderFixtures, order_body
from worker.cli import main
from worker.orders.metrics import OrderGauges

PARKED = (
    "update orders.effects set reported_at = null, report_due_at = 'infinity', report_tries = 1, report_error = '409 conflict'"
    " where kind = 'fulfil'"
)
OPEN = (
    "select report_due_at < 'infinity', reported_at is not null, report_error from orders.effects where kind = 'fulfil'"
)


@pytest.fixture
def parked(orders: OrderFixtures, monkeypatch: pytest.MonkeyPatch) -> OrderFixtures:
    """An order that was fulfilled, and whose report the authority does not take."""
    orders.deliver(order_body("o-1"))
    assert orders.status_and_lane("o-1") == ("FULFILLED", "low")
    orders.fixtures.admin.execute(PARKED)
    monkeypatch.setenv("ORDERS_DATABASE_URL", orders.settings.database_url)
    monkeypatch.setenv("SENTINEL_TENANT_ID", str(orders.fixtures.tenant_id))
    return orders


def reports(*words: str) -> Result:
    return CliRunner().invoke(main, ["order-review", "reports", *words])


def test_a_report_that_waits_for_a_person_is_listed_and_discarded_once(parked: OrderFixtures) -> None:
    assert reports("list").output == "demo o-1  done, 1 try: 409 conflict\n"
    (listed,) = json.loads(reports("list", "--json").stdout)
    assert (listed["source"], listed["order_id"], listed["last_error"]) == ("demo", "o-1", "409 conflict")
    assert reports("discard", "demo", "o-1").exit_code == 2, "without a reason"
    done = reports("discard", "demo", "o-1", "--reason", "CASE-7", "--by", "anna")
    assert (done.exit_code, done.output) == (0, "The report of order o-1 of demo is discarded.\n")
    said = "discarded by anna: CASE-7; it was refused with: 409 conflict"
    assert parked.all(OPEN) == [(False, True, said)]
    assert reports("list").output == "No refused report waits for a person.\n"
    again = reports("discard", "demo", "o-1", "--reason", "CASE-7")
    assert again.exit_code == 1 and "refused: no report of order o-1 of demo waits for a person" in again.output


def test_a_report_that_waits_for_a_person_is_named_by_the_doctor_and_raises_an_alert(parked: OrderFixtures) -> None:
    """The finding: the order is FULFILLED everywhere, so nobody who did not run `reports list` learnt of it."""

    def named() -> list[str]:
        found = run_invariants(parked.fixtures.admin, invariants_sql())
        return [told for one in found if one.name == "order_report_parked" for told in one.damaged]

    def figure() -> dict[str, float]:
        samples = (one for metric in OrderGauges(parked.review.store).collect() for one in metric.samples)
        return {one.name: one.value for one in samples if one.name.startswith("orders_reports")}

    assert named() == ["report of order o-1 of demo"]
    assert figure() == {"orders_reports_open": 1, "orders_reports_parked": 1}
    assert reports("discard", "demo", "o-1", "--reason", "CASE-7").exit_code == 0
    assert named() == [] and figure() == {"orders_reports_open": 0, "orders_reports_parked": 0}


def test_a_report_that_is_sent_again_is_due_and_is_taken(parked: OrderFixtures) -> None:
    assert reports("resend", "demo", "o-1", "--reason", "mended", "--by", "anna").exit_code == 0
    said = "sent again by anna: mended; it was refused with: 409 conflict"
    assert parked.all(OPEN) == [(True, False, said)]
    assert parked.review.processor.reports.sweep() == 1
    assert parked.all("select reported_at is not null, report_error from orders.effects where kind = 'fulfil'") == [
        (True, None)
    ]


@pytest.mark.parametrize(
    ("verb", "left"), [("discard", "reported_at is not null"), ("resend", "report_due_at < 'infinity'")]
)
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_command_whose_answer_was_lost_is_not_told_as_refused(
    parked: OrderFixtures, monkeypatch: pytest.MonkeyPatch, verb: str, left: str, is_committed: bool
) -> None:
    def losing(*given: Any, **named: Any) -> LosesConnection:
        return LosesConnection(Pool(*given, **named), is_committed=is_committed)

    monkeypatch.setattr("sentinel.store.database.Pool", losing)
    answer = reports(verb, "demo", "o-1", "--reason", "CASE-7")
    assert parked.one(f"select {left} from orders.effects where kind = 'fulfil'") is True
    if is_committed:
        assert (answer.exit_code, "may or may not be recorded" in answer.stderr) == (3, True), answer.output
    else:
        assert answer.exit_code == 0, answer.output


def test_a_report_that_the_authority_can_never_take_waits_for_a_person(parked: OrderFixtures) -> None:
    """It was restored from a backup of before the question, and the orders were not."""
    restore_before_the_decision(parked.fixtures)
    assert reports("resend", "demo", "o-1", "--reason", "sent to the restored one").exit_code == 0
    assert parked.review.processor.reports.sweep() == 0
    assert reports("list").output.startswith("demo o-1  done, 2 tries: 403 ")
    assert reports("discard", "demo", "o-1", "--reason", "CASE-7").exit_code == 0
    assert parked.all("select reported_at is not null from orders.effects where kind = 'fulfil'") == [(True,)]
