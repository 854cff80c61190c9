"""Steps that the rows of a batch have in common are stored once, and each row's trail is read whole."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.integration.worker.test_ledger_states import execution, put_into, remembered
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, new_row
from worker.refunds.rows import LedgerState

TOGETHER = ("a", "b", "c")


def run(fixtures: LedgerFixtures, authority: FakeAuthority, *names: str) -> None:
    """Pay these rows in one batch."""
    fixtures.add_with_orders(*(new_row(name) for name in names))
    with fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert {fixtures.state(name) for name in names} == {"EXECUTED"}


def trail(fixtures: LedgerFixtures, name: str) -> list[dict[str, Any]]:
    """All steps of a row's only run, as programs read them."""
    ((steps,),) = fixtures.all("select steps from refunds.trails where ledger_entry_id = %s", name)
    return list(steps)


def test_rows_of_a_batch_store_their_common_steps_once_and_are_read_whole(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    run(ledger_fixtures, authority, "alone")
    assert ledger_fixtures.all("select shared_id from refunds.step_trails") == [(None,)]
    run(ledger_fixtures, authority, *TOGETHER)
    whole = [{key: step.get(key) for key in ("step", "next", "tool")} for step in trail(ledger_fixtures, "alone")]
    for name in TOGETHER:
        steps = trail(ledger_fixtures, name)
        assert [{key: step.get(key) for key in ("step", "next", "tool")} for step in steps] == whole
        report = ledger_fixtures.one("select outbox_id::text from refunds.outbox where ledger_entry_id = %s", name)
        start = ledger_fixtures.one(
            "select start_id::text from refunds.ledger_entries where ledger_entry_id = %s", name
        )
        assert [step["output"] for step in steps[-2:]] == [{"reference": start}, {"report": report}]
    stored = ledger_fixtures.all("select shared_id, steps from refunds.step_trails where ledger_entry_id <> 'alone'")
    assert ledger_fixtures.all("select shared_id from refunds.shared_steps") == [stored[0][:1]]
    assert {shared for shared, _ in stored} == {stored[0][0]}
    for _, steps in stored:
        own = [step["step"] for step in steps if isinstance(step, dict)]
        # They name the row's own order, money movement and report.
        assert own == ["query_order", "execute_by_system", "confirm"]


def test_a_batch_of_which_nothing_is_executed_stores_no_shared_steps(ledger_fixtures: LedgerFixtures) -> None:
    common = [{"step": "ask_authority"}]
    late = []
    for name in TOGETHER:
        put_into(ledger_fixtures, name, LedgerState.ALLOWED)
        late.append(replace(execution(remembered(ledger_fixtures, name)), steps=common))
    ledger_fixtures.make_due()
    assert ledger_fixtures.ledger.record_executions(late) == set()
    assert ledger_fixtures.all("select shared_id from refunds.shared_steps") == []
    assert common == [{"step": "ask_authority"}], "it may be written again"
