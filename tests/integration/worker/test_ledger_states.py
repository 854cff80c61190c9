"""The database admits exactly the table of `worker/refunds/rows.py`, whoever writes."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import psycopg
import pytest

from sentinel.store.database import WORKER, with_role
from tests.support.ledger_fixtures import LedgerFixtures, claimed, new_row
from worker.refunds import sql
from worker.refunds.rows import TRANSITIONS, Change, Execution, LedgerEvent, LedgerRow, LedgerState

PAIRS = list(itertools.product(LedgerState, LedgerEvent))
TARGET = {event: state for (_, event), state in TRANSITIONS.items()}

# One statement that satisfies every other rule, so that only the way itself can be refused.
ATTEMPT = """
update refunds.ledger_entries set status = %(target)s, last_event = %(event)s, event_number = event_number + 1,
  claim_epoch = claim_epoch + %(grown)s,
  lease_until = case when %(target)s in ('GUARDING', 'ALLOWED') then clock_timestamp() + interval '30 seconds' end,
  waiting_for = case when %(target)s = 'APPROVAL_REQUIRED' then 'operator' end, last_error = 'x',
  operation_id = coalesce(operation_id, %(one)s), decision_event_id = coalesce(decision_event_id, %(one)s),
  permit_token = coalesce(permit_token, 'p'), start_id = coalesce(start_id, %(one)s)
where ledger_entry_id = %(entry)s
"""


def put_into(fixtures: LedgerFixtures, name: str, state: LedgerState) -> None:
    """A row that came to `state` the proper way."""
    fixtures.add(new_row(name))
    if state is LedgerState.NEW:
        return
    row = claimed(fixtures, name)
    reached = {
        LedgerState.APPROVAL_REQUIRED: {"event": LedgerEvent.APPROVAL_REQUIRED},
        LedgerState.DENIED: {"event": LedgerEvent.DENIED},
        LedgerState.ERROR: {"event": LedgerEvent.GAVE_UP, "last_error": "x"},
        LedgerState.ALLOWED: allowed_fields(),
        LedgerState.EXECUTED: allowed_fields(),
    }.get(state)
    if reached is not None:
        assert fixtures.ledger.apply([Change(row, LedgerState.GUARDING, **reached)])
    if state is LedgerState.EXECUTED:
        assert fixtures.ledger.record_executions([execution(row)]) == {name}
    assert fixtures.state(name) == state


def allowed_fields() -> dict[str, Any]:
    """An `allowed` event with everything it needs."""
    ids = {name: str(uuid.uuid4()) for name in ("operation_id", "decision_event_id", "start_id")}
    return {"event": LedgerEvent.ALLOWED, "permit_token": "p", "decision": "ALLOW", **ids}


def execution(row: Any) -> Execution:
    """An execution of `row`."""
    return Execution(row, uuid.uuid4(), str(uuid.uuid4()), "simulated_refund", uuid.uuid4(), {})


def admitted_pairs(fixtures: LedgerFixtures) -> set[tuple[LedgerState, LedgerEvent]]:
    """Every pair, tried on a row of its own as the worker's role."""
    found = set()
    with psycopg.connect(with_role(fixtures.url, WORKER), autocommit=True) as worker:
        for number, (state, event) in enumerate(PAIRS):
            name = f"pair_{number}"
            put_into(fixtures, name, state)
            fixtures.admin.execute(
                "update refunds.ledger_entries set lease_until = clock_timestamp() - interval '1 second'"
                " where ledger_entry_id = %s and lease_until is not null and status <> 'EXECUTED'", [name]
            )  # fmt: skip
            if attempt(fixtures, worker, name, state, event):
                found.add((state, event))
    return found


def attempt(fixtures: LedgerFixtures, worker: Any, name: str, state: LedgerState, event: LedgerEvent) -> bool:
    """Whether the database lets the event happen."""
    values = {
        "target": TARGET[event], "event": event, "entry": name, "one": uuid.uuid4(),
        "grown": int(event in (LedgerEvent.CLAIMED, LedgerEvent.RECLAIMED)),
    }  # fmt: skip
    if (state, event) == (LedgerState.ERROR, LedgerEvent.RETRIED):
        # Who and why: written by the one function that may, which the worker calls.
        fixtures.admin.execute(
            "insert into refunds.retries (tenant_id, ledger_entry_id, event_number, retried_by, login, reason, error_before)"
            " select tenant_id, ledger_entry_id, event_number + 1, 'op', 'op', 'why', last_error"
            " from refunds.ledger_entries where ledger_entry_id = %s", [name]
        )  # fmt: skip
    try:
        with worker.transaction():
            if (state, event) == (LedgerState.ALLOWED, LedgerEvent.EXECUTED):
                worker.execute(
                    "insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency,"
                    " operation_id, start_id, start_event_id, claim_epoch) select tenant_id, gen_random_uuid(), ledger_entry_id,"
                    " refund_id, amount_minor, currency, operation_id, start_id, gen_random_uuid(), claim_epoch"
                    " from refunds.ledger_entries where ledger_entry_id = %s", [name]
                )  # fmt: skip
            worker.execute(ATTEMPT, values)
    except psycopg.errors.CheckViolation:
        return False
    return True


def test_the_database_admits_exactly_the_table(ledger_fixtures: LedgerFixtures) -> None:
    assert admitted_pairs(ledger_fixtures) == set(TRANSITIONS)


def test_without_its_trigger_the_database_would_admit_more(ledger_fixtures: LedgerFixtures) -> None:
    """The mutant: the same check must notice."""
    put_into(ledger_fixtures, "before", LedgerState.DENIED)
    ledger_fixtures.admin.execute("alter table refunds.ledger_entries disable trigger write_ledger_events")
    assert attempt(ledger_fixtures, ledger_fixtures.admin, "before", LedgerState.DENIED, LedgerEvent.CLAIMED)


def test_the_table_in_the_database_is_the_one_in_the_code(ledger_fixtures: LedgerFixtures) -> None:
    rows = ledger_fixtures.all("select from_status, event, to_status from refunds.transitions")
    assert {(start, event): end for start, event, end in rows} == TRANSITIONS


def test_an_execution_needs_a_started_permit_of_this_very_claim(ledger_fixtures: LedgerFixtures) -> None:
    for state in LedgerState:
        name = f"in_{state}"
        put_into(ledger_fixtures, name, state)
        before = ledger_fixtures.executions()
        row = remembered(ledger_fixtures, name)
        ledger_fixtures.ledger.record_executions([execution(row)])
        written = ledger_fixtures.executions() - before
        assert written == (1 if state is LedgerState.ALLOWED else 0), state


@pytest.mark.parametrize("field", ["amount_minor", "currency", "refund_id", "operation_id", "start_id"])
def test_an_execution_that_differs_from_its_permit_is_refused(ledger_fixtures: LedgerFixtures, field: str) -> None:
    put_into(ledger_fixtures, "r", LedgerState.ALLOWED)
    other = {"amount_minor": "amount_minor + 1", "currency": "'EUR'", "refund_id": "'rf_other'"}.get(
        field, "gen_random_uuid()"
    )
    columns = ["refund_id", "amount_minor", "currency", "operation_id", "start_id"]
    chosen = ", ".join(other if column == field else column for column in columns)
    with pytest.raises(psycopg.errors.CheckViolation, match="no started permit"):
        ledger_fixtures.admin.execute(
            f"insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, {', '.join(columns)}, start_event_id,"
            f" claim_epoch) select tenant_id, gen_random_uuid(), ledger_entry_id, {chosen}, gen_random_uuid(), claim_epoch"
            " from refunds.ledger_entries where ledger_entry_id = 'r'".encode()
        )


def test_a_holder_whose_claim_was_taken_can_neither_change_nor_execute(ledger_fixtures: LedgerFixtures) -> None:
    put_into(ledger_fixtures, "r", LedgerState.ALLOWED)
    stale = remembered(ledger_fixtures, "r")
    ledger_fixtures.make_due()
    taker = ledger_fixtures.ledger_of("worker-2")
    fresh = taker.claim(1)[0]
    assert fresh.claim_epoch == stale.claim_epoch + 1
    assert ledger_fixtures.ledger.record_executions([execution(stale)]) == set()
    assert ledger_fixtures.ledger.apply([Change(stale, LedgerState.GUARDING, LedgerEvent.DENIED)]) == {}
    assert ledger_fixtures.state("r") == "GUARDING"
    assert ledger_fixtures.executions() == 0


def test_an_execution_after_the_lease_is_not_written_even_before_anybody_took_the_row(
    ledger_fixtures: LedgerFixtures,
) -> None:
    put_into(ledger_fixtures, "r", LedgerState.ALLOWED)
    row = remembered(ledger_fixtures, "r")
    ledger_fixtures.make_due()
    assert ledger_fixtures.ledger.record_executions([execution(row)]) == set()


def remembered(fixtures: LedgerFixtures, name: str) -> LedgerRow:
    """The row as a holder remembers it, whatever became of it meanwhile."""
    statement = f"select {sql.ROW_COLUMNS} from refunds.ledger_entries e where e.ledger_entry_id = %(name)s"
    return fixtures.ledger._rows(LedgerRow, statement, name=name)[0]


def test_a_row_in_hand_cannot_be_taken(ledger_fixtures: LedgerFixtures) -> None:
    ledger_fixtures.add(new_row("r"))
    assert len(ledger_fixtures.ledger.claim(5)) == 1
    assert ledger_fixtures.ledger_of("worker-2").claim(5) == []
    with pytest.raises(psycopg.errors.CheckViolation, match="free or lapsed"):
        ledger_fixtures.admin.execute(
            "update refunds.ledger_entries set last_event = 'reclaimed', event_number = event_number + 1, claim_epoch = claim_epoch + 1"
        )


@pytest.mark.parametrize("change", ["amount_minor = 1", "refund_id = 'x'", "agent_id = 'x'", "currency = 'EUR'"])
def test_what_an_entry_asks_for_cannot_change(ledger_fixtures: LedgerFixtures, change: str) -> None:
    ledger_fixtures.add(new_row("r"))
    with pytest.raises(psycopg.errors.CheckViolation, match="cannot change"):
        ledger_fixtures.admin.execute(f"update refunds.ledger_entries set {change}".encode())


def test_the_trail_says_every_event(ledger_fixtures: LedgerFixtures) -> None:
    put_into(ledger_fixtures, "r", LedgerState.EXECUTED)
    rows = ledger_fixtures.all(
        "select from_status, event, to_status, worker from refunds.ledger_events order by event_id"
    )
    assert rows == [
        ("NEW", "claimed", "GUARDING", "worker-1"), ("GUARDING", "allowed", "ALLOWED", "worker-1"),
        ("ALLOWED", "executed", "EXECUTED", "worker-1"),
    ]  # fmt: skip


@pytest.mark.parametrize("table", ["executions", "ledger_events"])
@pytest.mark.parametrize("statement", ["delete from refunds.{}", "truncate refunds.{} cascade"])
def test_what_happened_cannot_be_taken_back(ledger_fixtures: LedgerFixtures, table: str, statement: str) -> None:
    put_into(ledger_fixtures, "r", LedgerState.EXECUTED)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        ledger_fixtures.admin.execute(statement.format(table).encode())
