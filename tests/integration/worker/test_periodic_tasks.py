"""What is due apart from the rows: a task that fails or hangs costs itself, never the rows and never another task."""

from __future__ import annotations

import threading
import uuid

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


def test_a_slow_row_of_an_operators_request_holds_up_nothing_and_is_not_asked_of_another_worker(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The one lane has a slow row too, so the request takes the other one; the worker goes on being shown as running."""
    goes_on = threading.Event()
    authority.misbehave = lambda exchange: exchange.path.endswith("guard") and not goes_on.wait(60)
    ledger_fixtures.add(new_row("one"), new_row("other"))
    held = "select count(*) from refunds.ledger_entries where status = 'GUARDING'"
    with ledger_fixtures.agent(authority.url, batch=1, guard_timeout_seconds=60.0) as agent, looping(agent):
        wait_until(lambda: ledger_fixtures.one(held) == 1)
        ledger_fixtures.admin.execute(
            "insert into refunds.process_requests (tenant_id, request_id, requested_by) values (%s, %s, 'ann')",
            [ledger_fixtures.tenant_id, uuid.uuid4()],
        )
        wait_until(lambda: ledger_fixtures.one(held) == 2)
        taken_at = ledger_fixtures.one("select clock_timestamp()")
        wait_until(lambda: ledger_fixtures.one("select last_seen_at from refunds.workers") > taken_at)
        lease = "select lease_until > clock_timestamp() + interval '10 minutes' from refunds.process_requests"
        assert ledger_fixtures.one(lease), "as long as a row may be held"
        goes_on.set()
        wait_until(lambda: ledger_fixtures.one("select finished_at from refunds.process_requests") is not None)
    assert ledger_fixtures.one("select result ->> 'status' from refunds.process_requests") == "EXECUTED"
