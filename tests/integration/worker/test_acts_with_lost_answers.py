"""What a person does by a command of the worker, and whose answer is lost with the connection: it is not told as refused, nor done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel.store.database import WORKER, Pool
from tests.integration.worker.test_parked_reports import parked_report_of_an_execution
from tests.integration.worker.test_retry import in_error
from tests.support.ledger_fixtures import LedgerFixtures, new_row
from tests.support.logins import program_url
from tests.support.lost_connections import LosesConnection
from worker.cli import main

NOT_KNOWN = "error: the database connection was lost, and the change may or may not be recorded: check before you send it again\n"
WHO = ("--reason", "CASE-7", "--by", "anna")


def back(fixtures: LedgerFixtures) -> tuple[str, ...]:
    in_error(fixtures, "r")
    return ("retry", "r")


def all_back(fixtures: LedgerFixtures) -> tuple[str, ...]:
    in_error(fixtures, "r")
    return ("retry", "--all-errors")


def handled(fixtures: LedgerFixtures) -> tuple[str, ...]:
    fixtures.add(new_row("r"))
    return ("handled", "r", "--reference", "re_1")


def resent(fixtures: LedgerFixtures) -> tuple[str, ...]:
    return ("reports", "resend", str(parked_report_of_an_execution(fixtures, "r")))


def discard(fixtures: LedgerFixtures) -> tuple[str, ...]:
    return ("reports", "discard", str(parked_report_of_an_execution(fixtures, "r")))


BACK = "select status = 'NEW' from refunds.ledger_entries"
ACTS: dict[str, tuple[Callable[[LedgerFixtures], tuple[str, ...]], str]] = {
    "a row back to NEW": (back, BACK),
    "all rows back to NEW": (all_back, BACK),
    "a row handled elsewhere": (handled, "select status = 'DENIED' from refunds.ledger_entries"),
    "a report sent again": (resent, "select next_attempt_at < 'infinity' from refunds.outbox"),
    "a report discarded": (discard, "select acknowledged_at is not null from refunds.outbox"),
}
"""Name → what arranges it and gives the command's words, and the query that says whether it is done."""


def answered(
    fixtures: LedgerFixtures, words: tuple[str, ...], patched: pytest.MonkeyPatch, who: tuple[str, ...] = WHO, **lost: bool
) -> Result:  # fmt: skip
    """The command on a pool whose first connection is lost, where `lost` says when."""
    patched.setenv("WORKER_DATABASE_URL", program_url(fixtures.url, WORKER))
    patched.setenv("SENTINEL_TENANT_ID", str(fixtures.tenant_id))
    if lost:

        def losing(*given: Any, **named: Any) -> LosesConnection:
            return LosesConnection(Pool(*given, **named), **lost)

        patched.setattr("worker.refunds.build.Pool", losing)
    return CliRunner().invoke(main, [*words, *who])


@pytest.mark.parametrize("name", ACTS)
def test_what_was_committed_is_not_told_as_refused(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arrange, done = ACTS[name]
    words = arrange(ledger_fixtures)
    assert ledger_fixtures.one(done) is False
    with monkeypatch.context() as patched:
        answer = answered(ledger_fixtures, words, patched, is_committed=True)
    assert (answer.exit_code, answer.stderr, answer.stdout) == (3, NOT_KNOWN, "")
    assert ledger_fixtures.one(done) is True
    events = ledger_fixtures.one("select count(*) from refunds.ledger_events")
    answered(ledger_fixtures, words, monkeypatch)
    assert ledger_fixtures.one("select count(*) from refunds.ledger_events") == events, "it is done once"


@pytest.mark.parametrize("name", ACTS)
def test_what_was_never_sent_is_done_by_the_second_try(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arrange, done = ACTS[name]
    answer = answered(ledger_fixtures, arrange(ledger_fixtures), monkeypatch, is_committed=False)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert ledger_fixtures.one(done) is True


def test_rows_that_were_entered_are_not_told_as_in_the_ledger_before(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ledger_entry_id": "r", "refund_id": "r", "amount": {"value": "1.00", "currency": "USD"}}\n')
    words = ("enqueue", str(file))
    with monkeypatch.context() as patched:
        answer = answered(ledger_fixtures, words, patched, (), is_committed=True)
    assert (answer.exit_code, answer.stderr, answer.stdout) == (3, NOT_KNOWN, "")
    assert ledger_fixtures.state("r") == "NEW"
    again = answered(ledger_fixtures, words, monkeypatch, ())
    assert again.exit_code == 1 and "r): ledger_entry_id: is already in the ledger" in again.stderr


def test_rows_that_were_never_sent_are_entered_by_the_second_try(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ledger_entry_id": "r", "refund_id": "r", "amount": {"value": "1.00", "currency": "USD"}}\n')
    assert answered(ledger_fixtures, ("enqueue", str(file)), monkeypatch, (), is_committed=False).exit_code == 0
    assert ledger_fixtures.state("r") == "NEW"
