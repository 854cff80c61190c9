"""Where the effect is the execution row itself, permission and start are one answer: nothing is lost or doubled by that."""

from __future__ import annotations

import contextlib
import uuid

import psycopg
import pytest
from msgspec.structs import replace

from sentinel.client import Client
from sentinel.platform.resources import policies_dir
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fake_faults import always
from tests.support.ledger_fixtures import LedgerFixtures, claimed, new_row
from worker.refunds.build import load_routes
from worker.refunds.reporter import InDoubtPoller
from worker.refunds.rows import Change, Execution, FixedQuestion, LedgerEvent, LedgerRow, LedgerState
from worker.settlement.registry import system_names

GUARD = "action/guard"


def run(fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    """One run over what is due, as a new worker."""
    fixtures.make_due()
    with fixtures.agent(authority.url, max_attempts=3) as agent:
        agent.run_once()


def lose_answer(authority: FakeAuthority, key: str, then: int | str | None = None) -> None:
    """The next guard is decided and started, and its answer never arrives; those after it get this status, or no connection."""

    def misbehave(exchange: Exchange) -> bool:
        if not exchange.path.endswith(GUARD):
            return False
        authority.misbehave = lambda exchange: False
        if isinstance(then, int):
            authority.misbehave = always(lambda again: again.problem(then, "still-deciding"), GUARD)
        elif then is not None:
            authority.stop_listening()
        authority.lose_answer(exchange)
        assert authority.operations[key].start_id is not None
        return True

    authority.misbehave = misbehave


def events(fixtures: LedgerFixtures) -> list[tuple[str, ...]]:
    """The trail of every row, in its order."""
    return fixtures.all("select from_status, event, to_status from refunds.ledger_events order by event_id")


def test_the_trail_shows_permission_and_execution_and_the_start_is_declared(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    run(ledger_fixtures, authority)
    assert events(ledger_fixtures) == [
        ("NEW", "claimed", "GUARDING"), ("GUARDING", "allowed", "ALLOWED"), ("ALLOWED", "executed", "EXECUTED"),
    ]  # fmt: skip
    (row,) = ledger_fixtures.all(
        "select event_number, decision, reason_code, operation_id::text, start_id::text, permit_token from refunds.ledger_entries"
    )
    operation = authority.operations["refund:r"]
    assert row == (3, "ALLOW", operation.reason_code, operation.operation_id, operation.start_id, None)
    assert operation.declared == [150]


def test_a_start_whose_answer_was_lost_is_found_again_under_its_own_id(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    lose_answer(authority, "refund:r")
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    # The client repeats a broken call at once; where that too is lost, the next claim asks again.
    run(ledger_fixtures, authority)
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)
    assert (
        str(ledger_fixtures.one("select start_id from refunds.executions")) == authority.operations["refund:r"].start_id
    )


@pytest.mark.parametrize("then", [409, 429, 401, "nobody listens"])
def test_a_start_whose_answer_was_lost_stays_on_record_whatever_the_next_try_is_told(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, then: int | str
) -> None:
    """The client asks again within the same call, and is refused: that says nothing of the try before."""
    ledger_fixtures.add(new_row("r"))
    lose_answer(authority, "refund:r", then)
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    stands = "select status, attempts, act_until is not null and start_id is not null from refunds.ledger_entries"
    assert ledger_fixtures.all(stands) == [("GUARDING", 0, True)]
    with contextlib.ExitStack() as opened:
        if then == "nobody listens":
            opened.enter_context(authority.running())
        authority.misbehave = lambda exchange: False
        run(ledger_fixtures, authority)
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)


@pytest.mark.parametrize("encloses", [True, False])
def test_what_was_started_before_a_halt_is_seen_through(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, encloses: bool
) -> None:
    """The authority recorded the start, the worker went; then a halt sends every row to a person first."""
    ledger_fixtures.add(new_row("r")) if encloses else ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = always(lambda exchange: exchange.answer(500, {}), GUARD if encloses else f"{GUARD}/start")
    run(ledger_fixtures, authority)
    assert ledger_fixtures.executions() == 0
    start_id = ledger_fixtures.one("select start_id from refunds.ledger_entries")
    started_by_a_call_without_an_answer(ledger_fixtures, authority, str(start_id))
    authority.misbehave = lambda exchange: False
    authority.halts = [{"scope": "tenant", "target": "", "level": "pause"}]
    run(ledger_fixtures, authority)
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)
    assert ledger_fixtures.one("select start_id from refunds.executions") == start_id


def started_by_a_call_without_an_answer(fixtures: LedgerFixtures, authority: FakeAuthority, start_id: str) -> None:
    """Decide and start at the authority what the ledger has on record as asked."""
    if "refund:r" not in authority.operations:
        request = fixtures.one("select guard_request from refunds.ledger_entries")
        body = {"agent_id": "retail-refund-agent", "action": "refund.create", "params": request["params"], "resource": "refund/rf_r",
                "risk_class": "standard"}  # fmt: skip
        authority.operations["refund:r"] = authority._decide(body)
    authority.operations["refund:r"].start_id = start_id


def test_an_operation_that_somebody_else_started_goes_to_a_person(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.misbehave = always(lambda exchange: exchange.answer(500, {}), GUARD)
    run(ledger_fixtures, authority)
    started_by_a_call_without_an_answer(ledger_fixtures, authority, str(uuid.uuid4()))
    authority.misbehave = lambda exchange: False
    run(ledger_fixtures, authority)
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("ERROR", 0)
    assert ledger_fixtures.one("select reason_code from refunds.ledger_entries") == "started_elsewhere"


@pytest.mark.parametrize("halted", [False, True])
def test_what_a_person_called_not_executed_stays_unpaid(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, halted: bool
) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.misbehave = always(lambda exchange: exchange.answer(500, {}), GUARD)
    run(ledger_fixtures, authority)
    start_id = ledger_fixtures.one("select start_id::text from refunds.ledger_entries")
    started_by_a_call_without_an_answer(ledger_fixtures, authority, start_id)
    authority.resolve_not_executed("refund:r")
    authority.misbehave = lambda exchange: False
    if halted:
        authority.halts = [{"scope": "tenant", "target": "", "level": "pause"}]
    run(ledger_fixtures, authority)
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("ERROR", 0)
    assert ledger_fixtures.one("select reason_code from refunds.ledger_entries") == "not_executed"
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": "not_executed"}
    # One that came back before that was refused is told the same again, and not that somebody else started it.
    ledger_fixtures.admin.execute("update refunds.ledger_entries set reason_code = null")
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": None}
    run(ledger_fixtures, authority)
    assert ledger_fixtures.all("select status, reason_code, budget_part from refunds.ledger_entries") == [
        ("ERROR", "not_executed", None)
    ]


@pytest.mark.parametrize(("refused_first", "wanted"), [(True, None), (False, "start_in_doubt")])
def test_a_row_is_tried_again_by_a_person_only_where_nothing_can_be_started(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, refused_first: bool, wanted: str | None
) -> None:
    """A question without an answer may have started it; one that was refused has not."""
    ledger_fixtures.add(new_row("r"))
    if not refused_first:
        authority.misbehave = always(lambda exchange: exchange.answer(500, {}), GUARD)
        run(ledger_fixtures, authority)
    authority.misbehave = always(lambda exchange: exchange.problem(400, "invalid"), GUARD)
    run(ledger_fixtures, authority)
    assert ledger_fixtures.state("r") == "ERROR"
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": wanted}


def test_a_row_that_was_given_up_without_any_answer_is_asked_about_until_it_is_known_that_nothing_was_started(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.misbehave = always(lambda exchange: exchange.answer(500, {}), GUARD)
    run(ledger_fixtures, authority)
    ledger_fixtures.admin.execute("update refunds.ledger_entries set attempts = 99")
    run(ledger_fixtures, authority)
    assert ledger_fixtures.all("select status, budget_part, operation_id from refunds.ledger_entries") == [
        ("ERROR", "in_doubt", None)
    ]
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": "start_in_doubt"}
    authority.misbehave = lambda exchange: False
    with Client(authority.url, "key", agent_id="retail-refund-agent") as client:
        poller = InDoubtPoller(ledger_fixtures.ledger, client, load_routes(policies_dir(), system_names()))
        assert poller.look() == [], "decided just now"
        assert poller.look() == ["r"]
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": None}
    run(ledger_fixtures, authority)
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)


def test_such_an_execution_needs_the_start_on_record_and_names_no_order(ledger_fixtures: LedgerFixtures) -> None:
    ledger_fixtures.add(new_row("r"), new_row("other"), new_row("late"))
    ledger_fixtures.add_with_orders(new_row("ordered"))
    rows = {row.ledger_entry_id: row for row in ledger_fixtures.ledger.claim(10)}
    found = {name: permitted(ledger_fixtures, row) for name, row in rows.items()}
    wrong = replace(found["other"], row=replace(found["other"].row, start_id=uuid.uuid4()))
    ledger_fixtures.admin.execute(
        "update refunds.ledger_entries set act_until = clock_timestamp() where ledger_entry_id = 'late'"
    )
    stale = replace(found["r"], row=replace(found["r"].row, claim_epoch=7))
    assert ledger_fixtures.ledger.record_executions([wrong, stale, found["late"], found["ordered"]]) == set()
    assert ledger_fixtures.ledger.record_executions([found["r"]]) == {"r"}
    assert ledger_fixtures.executions() == 1


def permitted(fixtures: LedgerFixtures, row: LedgerRow) -> Execution:
    """A claimed row with its question fixed, and the execution that its answer would lead to."""
    start_id = fixtures.ledger.fix_requests([(row, FixedQuestion({}), uuid.uuid4())])[row.ledger_entry_id]
    permission = Change(
        row, LedgerState.GUARDING, LedgerEvent.ALLOWED, decision="ALLOW", operation_id=str(uuid.uuid4()),
        decision_event_id=str(uuid.uuid4()),
    )  # fmt: skip
    row = replace(row, start_id=start_id)
    return Execution(row, uuid.uuid4(), str(uuid.uuid4()), "simulated_refund", uuid.uuid4(), {}, None, permission)


def test_the_database_takes_no_second_event_at_once_where_an_order_is_named(ledger_fixtures: LedgerFixtures) -> None:
    """Its budget is taken with the permission, before the start."""
    ledger_fixtures.add_with_orders(new_row("ordered"))
    execution = permitted(ledger_fixtures, claimed(ledger_fixtures, "ordered"))
    permission = execution.permission
    assert permission is not None
    with pytest.raises(psycopg.errors.CheckViolation, match="no started permit"):
        ledger_fixtures.admin.execute(
            "insert into refunds.executions (execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id,"
            " start_event_id, claim_epoch) select gen_random_uuid(), ledger_entry_id, refund_id, amount_minor, currency, %s, start_id,"
            " gen_random_uuid(), claim_epoch from refunds.ledger_entries", [permission.operation_id]
        )  # fmt: skip
    with pytest.raises(psycopg.errors.CheckViolation, match="no way from GUARDING to EXECUTED"):
        ledger_fixtures.admin.execute(
            "update refunds.ledger_entries set status = 'EXECUTED', last_event = 'executed', event_number = event_number + 2"
        )
