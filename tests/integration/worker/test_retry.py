"""`worker retry`: rows in ERROR come back with who and why, and none that may have been paid."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import psycopg
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from sentinel.store import database
from sentinel.store.database import WORKER, with_role
from tests.support.busy import overload
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.ledger_fixtures import LedgerFixtures, claimed, new_row
from worker.cli import main
from worker.refunds import transitions
from worker.refunds.ledger_commands import REFUSALS
from worker.refunds.rows import Change, LedgerEvent, LedgerRow, LedgerState, ResolvedDoubt

GAVE_UP = {"event": LedgerEvent.GAVE_UP, "last_error": "x"}


def allow(fixtures: LedgerFixtures, row: LedgerRow) -> None:
    """A permit is stored, and its start id with it."""
    ids = {name: str(uuid.uuid4()) for name in ("operation_id", "decision_event_id", "start_id")}
    assert fixtures.ledger.apply(
        [Change(row, LedgerState.GUARDING, LedgerEvent.ALLOWED, permit_token="p", decision="ALLOW", **ids)]
    )


def in_error(fixtures: LedgerFixtures, name: str) -> LedgerRow:
    """A row that was given up before anything was started."""
    fixtures.add(new_row(name))
    row = claimed(fixtures, name)
    assert fixtures.ledger.apply([Change(row, LedgerState.GUARDING, **GAVE_UP)])
    return row


def started(fixtures: LedgerFixtures, name: str) -> None:
    """Permit stored, perhaps started; its workers died with it until it was given up."""
    fixtures.add(new_row(name))
    row = claimed(fixtures, name)
    allow(fixtures, row)
    fixtures.make_due()
    row = claimed(fixtures, name)
    assert fixtures.ledger.apply([transitions.give_up(row, transitions.attempts_exhausted(row))])


def started_elsewhere(fixtures: LedgerFixtures, name: str) -> None:
    fixtures.add(new_row(name))
    row = claimed(fixtures, name)
    assert fixtures.ledger.apply(
        [transitions.give_up(row, "started_elsewhere: x", reason=transitions.STARTED_ELSEWHERE)]
    )


def settlement_refused(fixtures: LedgerFixtures, name: str) -> None:
    fixtures.add(new_row(name))
    row = claimed(fixtures, name)
    allow(fixtures, row)
    assert fixtures.ledger.apply([transitions.after_settlement_refused(row, "op", system="s", reason="closed")])


def not_executed(fixtures: LedgerFixtures, name: str) -> None:
    """A person said so before anything was, of a row whose question enclosed its start."""
    fixtures.add(new_row(name))
    row = claimed(fixtures, name)
    change = transitions.give_up(row, "a person said so", reason=transitions.NOT_EXECUTED)
    assert fixtures.ledger.apply([replace(change, not_started=True)])


def effects_open(fixtures: LedgerFixtures, name: str) -> None:
    row = in_error(fixtures, name)
    fixtures.admin.execute(
        "insert into refunds.effects (tenant_id, ledger_entry_id, effect_number, operation_reference, system, reference, must_total,"
        " claim_epoch, state) values (%s, %s, 1, %s, 'platform', %s, 1, %s, 'intended')",
        [fixtures.tenant_id, name, uuid.uuid4(), uuid.uuid4(), row.claim_epoch],
    )


def executed(fixtures: LedgerFixtures, name: str) -> None:
    """A damage: an execution of a row that stands in ERROR."""
    in_error(fixtures, name)
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute(
        "insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id,"
        " start_id, start_event_id, claim_epoch) values (%s, %s, %s, 'rf', 1, 'USD', %s, %s, %s, 1)",
        [fixtures.tenant_id, uuid.uuid4(), name, uuid.uuid4(), uuid.uuid4(), uuid.uuid4()],
    )
    fixtures.admin.execute("set session_replication_role = origin")


def handled(fixtures: LedgerFixtures, name: str) -> None:
    """Given up in doubt, until the authority said that it was executed: it counts against its order as handled."""
    fixtures.add_with_orders(new_row(name))
    row = claimed(fixtures, name)
    allow(fixtures, row)
    assert fixtures.ledger.apply([transitions.after_settlement_refused(row, "op", system="s", reason="closed")])
    assert fixtures.ledger.settle_in_doubt({name: ResolvedDoubt(True, "it was executed")}) == [name]


def closed_by_analyst(fixtures: LedgerFixtures, name: str) -> None:
    """A refund that an analyst filed; then the order was held."""
    in_error(fixtures, name)
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute(
        "insert into orders.refunds (tenant_id, review_id, attempt, ledger_entry_id, reason, via, state, ended_at)"
        " values (%s, %s, 1, %s, 'called', 'console', 'closed', clock_timestamp())",
        [fixtures.tenant_id, uuid.uuid4(), name],
    )
    fixtures.admin.execute("set session_replication_role = origin")


@pytest.mark.parametrize("may_be_done", [False, True])
def test_a_worker_that_does_not_say_who_decided_frees_an_amount_and_says_nothing_of_a_person(
    ledger_fixtures: LedgerFixtures, may_be_done: bool
) -> None:
    """One of before, in a rolling upgrade; what may have been done outside waits for one that says it."""
    (effects_open if may_be_done else started)(ledger_fixtures, "r")
    ledger_fixtures.admin.execute("set session_replication_role = replica")
    ledger_fixtures.admin.execute("update refunds.ledger_entries set budget_part = 'in_doubt'")
    ledger_fixtures.admin.execute("set session_replication_role = origin")
    resolutions = json.dumps([{"ledger_entry_id": "r", "executed": False}])
    found = ledger_fixtures.all(
        "select refunds.resolve_budget_doubts(%s, %s::jsonb)", ledger_fixtures.tenant_id, resolutions
    )
    assert found == ([] if may_be_done else [("r",)])
    assert ledger_fixtures.one("select reason_code is distinct from 'not_executed' from refunds.ledger_entries")


STAYS: dict[str, Callable[[LedgerFixtures, str], None]] = {
    "start_in_doubt": started, "started_elsewhere": started_elsewhere, "settlement_refused": settlement_refused,
    "effects_open": effects_open, "executed": executed, "not_executed": not_executed,
    "handled": handled, "closed_by_analyst": closed_by_analyst,
}  # fmt: skip


@pytest.mark.parametrize("way", STAYS)
def test_what_may_have_been_paid_or_is_final_is_refused_and_says_why(ledger_fixtures: LedgerFixtures, way: str) -> None:
    STAYS[way](ledger_fixtures, "r")
    assert ledger_fixtures.state("r") == "ERROR"
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": way}
    assert ledger_fixtures.ledger.retry(None, who="op", why="w") == {"r": way}
    assert ledger_fixtures.state("r") == "ERROR"
    assert ledger_fixtures.one("select count(*) from refunds.retries") == 0


@pytest.mark.parametrize("way", STAYS)
def test_nobody_gets_round_the_check_by_an_update_of_his_own(ledger_fixtures: LedgerFixtures, way: str) -> None:
    """As the owner of everything, with who and why written down: the table itself refuses."""
    STAYS[way](ledger_fixtures, "r")
    write_down(ledger_fixtures, "r")
    why = "which is final" if way in ("not_executed", "closed_by_analyst") else "so it may have been paid"
    with pytest.raises(psycopg.errors.CheckViolation, match=f"entry r is not tried again: {way}, {why}"):
        ledger_fixtures.admin.execute(BY_HAND)


@pytest.mark.parametrize("way", STAYS)
def test_without_that_check_each_would_have_come_back(ledger_fixtures: LedgerFixtures, way: str) -> None:
    """The mutant: a function that sees no payment anywhere."""
    STAYS[way](ledger_fixtures, "r")
    ledger_fixtures.admin.execute(
        "create or replace function refunds.may_have_been_paid(e refunds.ledger_entries) returns text language plpgsql stable"
        " as $$ begin return null; end $$"
    )
    assert ledger_fixtures.ledger.retry(["r"], who="op", why="w") == {"r": None}
    assert ledger_fixtures.state("r") == "NEW"


BY_HAND = (
    "update refunds.ledger_entries set status = 'NEW', last_event = 'retried', event_number = event_number + 1"
    " where ledger_entry_id = 'r'"
)


def write_down(fixtures: LedgerFixtures, name: str) -> None:
    fixtures.admin.execute(
        "insert into refunds.retries (tenant_id, ledger_entry_id, event_number, retried_by, login, reason, error_before)"
        " select tenant_id, ledger_entry_id, event_number + 1, 'op', 'op', 'why', last_error from refunds.ledger_entries"
        " where ledger_entry_id = %s",
        [name],
    )


def test_without_who_and_why_nothing_comes_back_and_no_program_writes_them_itself(
    ledger_fixtures: LedgerFixtures,
) -> None:
    in_error(ledger_fixtures, "r")
    with psycopg.connect(with_role(ledger_fixtures.url, WORKER), autocommit=True) as worker:
        with pytest.raises(psycopg.errors.CheckViolation, match="entry r is not tried again: nobody said who and why"):
            worker.execute(BY_HAND)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute(
                "insert into refunds.retries (tenant_id, ledger_entry_id, event_number, retried_by, login, reason, error_before)"
                " values (gen_random_uuid(), 'r', 1, 'op', 'op', 'why', 'x')"
            )
    for who, why in ((" ", "why"), ("op", " ")):
        with pytest.raises(psycopg.errors.CheckViolation):
            ledger_fixtures.ledger.retry(["r"], who=who, why=why)


def test_a_row_comes_back_with_its_reason_in_the_trail_and_is_paid_once(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.misbehave = lambda exchange: exchange.path.endswith("action/guard") and answered(exchange, 422)
    with ledger_fixtures.agent(authority.url) as agent:
        assert agent.run_once().row_failed
    assert ledger_fixtures.state("r") == "ERROR"
    authority.misbehave = lambda exchange: False
    assert ledger_fixtures.ledger.retry(["r"], who="anna", why="the policy was mended") == {"r": None}
    assert ledger_fixtures.all("select status, attempts, waits, last_error from refunds.ledger_entries") == [
        ("NEW", 0, 0, None)
    ]
    assert ledger_fixtures.all(
        "select from_status, to_status, worker, note from refunds.ledger_events where event = 'retried'"
    ) == [("ERROR", "NEW", "anna", "the policy was mended")]
    with ledger_fixtures.agent(authority.url) as agent:
        assert not agent.run_once().failed
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)
    assert ledger_fixtures.ledger.retry(["r", "none"], who="a", why="w") == {"r": "not_in_error", "none": "no_such_row"}


def answered(exchange: Exchange, status: int) -> bool:
    exchange.problem(status, "invalid")
    return True


def test_a_start_that_was_surely_refused_can_be_tried_again(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = lambda exchange: exchange.path.endswith("guard/start") and answered(exchange, 400)
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "ERROR"
    authority.misbehave = lambda exchange: False
    assert ledger_fixtures.ledger.retry(None, who="op", why="w") == {"r": None}
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)


def test_the_command_names_each_row_that_stays_and_why(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    in_error(ledger_fixtures, "good")
    started(ledger_fixtures, "doubt")
    run = CliRunner().invoke
    assert run(main, ["retry", "--reason", "x"]).exit_code == 2
    assert run(main, ["retry", "good", "--reason", " "]).exit_code == 2
    found = run(main, ["retry", "good", "doubt", "--reason", "mended", "--by", "anna"])
    assert found.exit_code == 1
    assert "Back to NEW: 1 row; unchanged: 1." in found.output
    assert f"refused: doubt: start_in_doubt: {REFUSALS['start_in_doubt']}" in found.output
    absent = run(main, ["retry", "absent", "good", "--reason", "mended"])
    assert absent.exit_code == 1
    assert f"refused: absent: no_such_row: {REFUSALS['no_such_row']}" in absent.output
    assert f"refused: good: not_in_error: {REFUSALS['not_in_error']}" in absent.output
    everything = run(main, ["retry", "--all-errors", "--reason", "again", "--json"])
    assert everything.exit_code == 0
    assert json.loads(everything.stdout) == {"retried": [], "refused": {"doubt": "start_in_doubt"}}
    assert {*REFUSALS} == {*STAYS, "no_such_row", "not_in_error"}


def test_a_person_without_a_name_is_the_account_and_an_account_without_one_is_asked_for_it(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run under a number that no account has."""
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    in_error(ledger_fixtures, "r")
    run, words = CliRunner().invoke, ["retry", "r", "--reason", "mended"]
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    with monkeypatch.context() as container:
        container.setattr("os.getuid", lambda: 3_999_999_999)
        refused = run(main, words)
    assert refused.exit_code == 2 and "give --by" in refused.output
    assert ledger_fixtures.state("r") == "ERROR"
    monkeypatch.setenv("LOGNAME", "anna")
    assert run(main, [*words, "--by", " "]).exit_code == 0
    assert ledger_fixtures.one("select retried_by from refunds.retries") == "anna"


def test_many_rows_are_retried_although_that_takes_longer_than_a_statement(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an import whose rows all ended for one reason: each row takes half a millisecond."""
    run = ledger_fixtures.admin.execute
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", int(100 * overload()))
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    # A server that stands still within one statement ends that run: what takes too long ends each.
    for attempt in range(3):
        run("set session_replication_role = replica")
        run("delete from refunds.ledger_entries")
        run("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, status, last_error)"
            " select %s, 'r' || n, 'r' || n, 100, 'USD', 'ERROR', 'check_params: x' from generate_series(%s::int, %s::int) n",
            [ledger_fixtures.tenant_id, 10_000 * attempt + 1, 10_000 * attempt + 2000])  # fmt: skip
        run("set session_replication_role = origin")
        found = CliRunner().invoke(main, ["retry", "--all-errors", "--reason", "the route was corrected"])
        if found.exit_code == 0:
            break
    assert found.exit_code == 0, found.output
    assert "Back to NEW: 2,000 rows; unchanged: 0." in found.output
    assert ledger_fixtures.one("select count(*) from refunds.ledger_entries where status = 'NEW'") == 2000
