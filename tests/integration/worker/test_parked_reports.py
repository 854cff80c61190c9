"""Reports that the authority refused for good: a person sends them again or puts them away, and what was done stays counted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from sentinel.cli.scratch import listening
from sentinel.platform.resources import invariants_sql
from sentinel.store.invariants import run_invariants
from tests.support.effects_server import allowed_row, execute
from tests.support.fixtures import Fixtures, guard_body
from tests.support.ledger_fixtures import LedgerFixtures
from worker.cli import main
from worker.refunds import transitions
from worker.settlement import Settled

SAID = "discarded by anna: resolved there by hand"


def success_of_a_doubt(fixtures: LedgerFixtures, name: str) -> uuid.UUID:
    """The report of a refund that was done after a person's "not executed", not sent yet."""
    row = allowed_row(fixtures, name)
    assert set(fixtures.ledger.apply([transitions.start_refused(row, "resolved")])) == {name}
    change = transitions.after_not_executed_but(row, Settled("S-1"), system="platform_backend")
    assert set(fixtures.ledger.apply([change])) == {name}
    assert change.report_id is not None
    return change.report_id


def parked_success_of_a_doubt(fixtures: LedgerFixtures, name: str) -> uuid.UUID:
    """One that the authority does not take."""
    report = success_of_a_doubt(fixtures, name)
    park(fixtures, report)
    return report


def parked_report_of_an_execution(fixtures: LedgerFixtures, name: str) -> uuid.UUID:
    execute(fixtures, allowed_row(fixtures, name))
    report: uuid.UUID = fixtures.one("select outbox_id from refunds.outbox where ledger_entry_id = %s", name)
    park(fixtures, report)
    return report


def park(fixtures: LedgerFixtures, report: uuid.UUID) -> None:
    fixtures.ledger.postpone_reports({report: ("409 conflict", None)})


def stands_in_doctor(fixtures: LedgerFixtures) -> bool:
    """Whether the doctor names a parked report."""
    return any(
        one.violations for one in run_invariants(fixtures.admin, invariants_sql()) if one.name == "report_parked"
    )


def test_a_success_of_a_row_in_doubt_that_is_discarded_counts_against_its_order(
    ledger_fixtures: LedgerFixtures,
) -> None:
    report = parked_success_of_a_doubt(ledger_fixtures, "r")
    assert stands_in_doctor(ledger_fixtures)
    assert [(one.outbox_id, one.ledger_entry_id, one.outcome, one.status) for one in ledger_fixtures.ledger.parked_reports()] == [
        (report, "r", "success", "ERROR")
    ]  # fmt: skip
    assert ledger_fixtures.ledger.discard_reports([report, uuid.uuid4()], SAID) == [report]
    assert ledger_fixtures.all("select in_doubt_minor, handled_minor from refunds.order_budgets") == [(0, 100)]
    assert ledger_fixtures.one("select last_error from refunds.ledger_entries") == (
        f"it was done, and the report of it was {SAID}"
    )
    assert ledger_fixtures.one("select last_error from refunds.outbox") == f"{SAID}; it was refused with: 409 conflict"
    assert not stands_in_doctor(ledger_fixtures) and ledger_fixtures.ledger.parked_reports() == []
    assert ledger_fixtures.ledger.discard_reports([report], SAID) == [], "once"
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": "handled"}


def test_a_report_of_an_execution_that_is_discarded_changes_nothing_of_its_row(ledger_fixtures: LedgerFixtures) -> None:
    report = parked_report_of_an_execution(ledger_fixtures, "r")
    assert ledger_fixtures.ledger.discard_reports([report], SAID) == [report]
    assert ledger_fixtures.all("select status, budget_part, last_error from refunds.ledger_entries") == [
        ("EXECUTED", "executed", None)
    ]
    assert ledger_fixtures.ledger.figures().outbox_open == 0
    assert ledger_fixtures.ledger.take_reports(10, retry_seconds=1.0) == [], "it is sent no more"


def test_a_report_that_is_sent_again_is_due_and_says_who_did_it(ledger_fixtures: LedgerFixtures) -> None:
    report = parked_report_of_an_execution(ledger_fixtures, "r")
    assert ledger_fixtures.ledger.take_reports(10, retry_seconds=1.0) == []
    assert ledger_fixtures.ledger.resend_reports([report], "sent again by anna: mended") == [report]
    assert ledger_fixtures.one("select last_error from refunds.outbox") == (
        "sent again by anna: mended; it was refused with: 409 conflict"
    )
    assert ledger_fixtures.ledger.resend_reports([report], "again") == [], "it waits for nobody any more"
    assert [one.outbox_id for one in ledger_fixtures.ledger.take_reports(10, retry_seconds=1.0)] == [report]


def test_the_commands_name_what_they_did_and_what_was_none(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    run = CliRunner().invoke
    assert "No refused report waits for a person." in run(main, ["reports", "list"]).output
    first, second = (str(parked_success_of_a_doubt(ledger_fixtures, name)) for name in ("first", "second"))
    listed = run(main, ["reports", "list"]).output
    assert f"{first}  " in listed and "success of first (ERROR), 0 tries: 409 conflict" in listed
    assert {one["outbox_id"] for one in json.loads(run(main, ["reports", "list", "--json"]).stdout)} == {first, second}
    assert run(main, ["reports", "discard", first]).exit_code == 2, "without a reason"
    assert run(main, ["reports", "discard", first, "--reason", " "]).exit_code == 2
    assert run(main, ["reports", "resend", "no-id", "--reason", "x"]).exit_code == 2
    nothing = str(uuid.uuid4())
    found = run(main, ["reports", "discard", first, nothing, "--reason", "CASE-7", "--by", "anna"])
    assert found.exit_code == 1
    assert "1 report discarded." in found.output and f"refused: {nothing}: no such report waits" in found.output
    again = run(main, ["reports", "resend", second, "--reason", "mended", "--json"])
    assert again.exit_code == 0 and json.loads(again.stdout) == {"done": [second], "refused": []}


# What the authority itself refuses


@pytest.fixture
def reporting(fixtures: Fixtures) -> Iterator[LedgerFixtures]:
    """A ledger with a success of the row `r`, which is in doubt, to be told; the authority has nothing under its key."""
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    success_of_a_doubt(ledger, "r")
    yield ledger
    ledger.close()


def sweep(ledger: LedgerFixtures, fixtures: Fixtures, key: str) -> None:
    """One run of a worker with that key, in which the report is sent."""
    with listening(fixtures.app) as url, ledger.agent(url, key=key) as agent:
        agent.run_once()


def never_guarded(fixtures: Fixtures) -> str:
    """The authority is of a backup of before the question; the worker's key."""
    return fixtures.key


def guarded_by_another_key(fixtures: Fixtures) -> str:
    """The worker's key was revoked and another one made, which asked nothing yet; that key."""
    body = guard_body("refund:r", params={"ledger_entry_id": "r", "refund_id": "rf_r"})
    assert fixtures.start(body, fixtures.guard(body)).status_code == 200
    return fixtures.new_key()


@pytest.mark.parametrize("refused", [never_guarded, guarded_by_another_key])
def test_a_report_that_the_authority_can_never_take_waits_for_a_person(
    fixtures: Fixtures, reporting: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, refused: Callable[[Fixtures], str]
) -> None:
    sweep(reporting, fixtures, refused(fixtures))
    monkeypatch.setenv("WORKER_DATABASE_URL", fixtures.url)
    monkeypatch.setenv("SENTINEL_TENANT_ID", str(fixtures.tenant_id))
    run = CliRunner().invoke
    assert "success of r (ERROR), 1 try: 403 " in run(main, ["reports", "list"]).output
    assert reporting.ledger.figures().outbox_parked == 1
    report = str(reporting.one("select outbox_id from refunds.outbox"))
    assert run(main, ["reports", "discard", report, "--reason", "CASE-7"]).exit_code == 0
    assert reporting.ledger.figures().outbox_open == 0
    assert reporting.one("select budget_part from refunds.ledger_entries") == "handled"


def test_a_report_that_is_refused_to_a_key_is_tried_again(fixtures: Fixtures, reporting: LedgerFixtures) -> None:
    sweep(reporting, fixtures, fixtures.new_key(agent_id="another-agent"))
    assert reporting.ledger.parked_reports() == []
    assert reporting.all("select last_error like '403 %%', next_attempt_at < 'infinity' from refunds.outbox") == [
        (True, True)
    ]
