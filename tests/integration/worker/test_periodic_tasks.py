"""What is due apart from the rows: a task that fails or hangs costs itself, never the rows and never another task."""

from __future__ import annotations

import threading

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, looping, new_row, wait_until
from worker.refunds.concurrency import PeriodicTask
from worker.refunds.ledger import LedgerUnavailable


def fails() -> None:
    raise AttributeError("an answer of a form that nobody expected")


def test_a_task_that_fails_ends_neither_the_rows_of_a_single_run_nor_the_other_tasks(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    ran: list[str] = []
    with ledger_fixtures.agent(authority.url) as agent:
        agent._periodic_tasks = [PeriodicTask(fails), PeriodicTask(lambda: ran.append("other"))]
        outcome = agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED" and ran == ["other", "other"]
    assert outcome.trouble == "a periodic task failed: AttributeError" and not outcome.row_failed


def test_a_task_without_its_database_is_for_the_run_to_say(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    def away() -> None:
        raise LedgerUnavailable("away")

    with ledger_fixtures.agent(authority.url) as agent:
        agent._periodic_tasks = [PeriodicTask(away)]
        with pytest.raises(LedgerUnavailable):
            agent.run_once()


@pytest.mark.parametrize("kind", ["hangs", "fails"])
def test_a_task_that_hangs_or_fails_holds_up_no_other_of_a_loop(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, kind: str
) -> None:
    goes_on = threading.Event()
    ran: list[int] = []
    first = PeriodicTask((lambda: goes_on.wait(60)) if kind == "hangs" else fails)
    with ledger_fixtures.agent(authority.url) as agent:
        agent._periodic_tasks = [first, PeriodicTask(lambda: ran.append(1))]
        with looping(agent):
            wait_until(lambda: len(ran) > 3)
            goes_on.set()
