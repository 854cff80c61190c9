"""The record of effects admits exactly its table, only from the row's holder; notices come later and undo nothing."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import psycopg
import pytest

from sentinel.store.database import WORKER, with_role
from tests.support.effects_server import InMemory, allowed_row, taken_over
from tests.support.ledger_fixtures import LedgerFixtures
from worker.refunds.rows import Change, Execution, LedgerEvent, LedgerRow, LedgerState
from worker.settlement import Effect, EffectRefused, NoAnswer, Saga, Settled, SimulatedRefund, deliver_best_effort
from worker.settlement.effects import TRANSITIONS, Effects, EffectState, PlannedEffect

S = EffectState
WAYS = {
    S.INTENDED: [], S.DONE: [S.DONE], S.REFUSED: [S.REFUSED], S.IN_DOUBT: [S.IN_DOUBT],
    S.COMPENSATING: [S.DONE, S.COMPENSATING], S.COMPENSATED: [S.DONE, S.COMPENSATING, S.COMPENSATED],
}  # fmt: skip


@pytest.fixture
def records(ledger_fixtures: LedgerFixtures) -> Effects:
    return Effects(ledger_fixtures.pool, ledger_fixtures.tenant_id)


def plan(row: LedgerRow, number: int = 1, total: int = 1) -> PlannedEffect:
    assert row.start_id is not None
    return PlannedEffect(number, row.start_id, "platform_backend", uuid.uuid4(), total)


def put_into(fixtures: LedgerFixtures, records: Effects, row: LedgerRow, number: int, state: EffectState) -> None:
    """An effect that came to `state` the proper way."""
    assert records.intend(row, plan(row, number, 20))
    before = S.INTENDED
    for after in WAYS[state]:
        assert records.move(row, number, [before], after, system_reference="S-1", last_error="x")
        before = after


def execution(row: LedgerRow) -> Execution:
    return Execution(row, uuid.uuid4(), str(uuid.uuid4()), "platform_backend", uuid.uuid4(), {})


def test_the_database_admits_exactly_the_table_of_states(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    admitted: dict[EffectState, set[EffectState]] = {state: set() for state in S}
    for number, (before, after) in enumerate(itertools.product(S, S)):
        row = allowed_row(ledger_fixtures, f"r{number}")
        put_into(ledger_fixtures, records, row, 1, before)
        with psycopg.connect(with_role(ledger_fixtures.url, WORKER), autocommit=True) as worker:
            try:
                worker.execute("update refunds.effects set state = %s, last_error = 'x', system_reference = 'S-1' where ledger_entry_id = %s", [after, f"r{number}"])  # fmt: skip
            except psycopg.errors.CheckViolation:
                continue
        if after is not before:
            admitted[before].add(after)
    assert admitted == {state: set(following) for state, following in TRANSITIONS.items()}
    rows = ledger_fixtures.all("select from_state, to_state from refunds.effect_transitions")
    assert {(before, after) for before, following in TRANSITIONS.items() for after in following} == set(rows)


def test_without_its_trigger_the_database_would_admit_more(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    """The mutant."""
    put_into(ledger_fixtures, records, allowed_row(ledger_fixtures, "r"), 1, S.REFUSED)
    ledger_fixtures.admin.execute("alter table refunds.effects disable trigger check_effect")
    ledger_fixtures.admin.execute("update refunds.effects set state = 'intended'")


def test_what_an_effect_is_cannot_change(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    row = allowed_row(ledger_fixtures, "r")
    assert records.intend(row, plan(row))
    for change in (
        "system = 'other'", "reference = gen_random_uuid()", "operation_reference = gen_random_uuid()", "effect_number = 2",
        "must_total = 2", "best_effort = true", "claim_epoch = claim_epoch - 1", "state = 'done'", "state = 'in_doubt'",
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.CheckViolation):
            ledger_fixtures.admin.execute(f"update refunds.effects set {change}".encode())
    for statement in ("delete from refunds.effects", "truncate refunds.effects"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            ledger_fixtures.admin.execute(statement.encode())


def test_the_worker_may_not_touch_what_an_effect_is(ledger_fixtures: LedgerFixtures) -> None:
    with psycopg.connect(with_role(ledger_fixtures.url, WORKER), autocommit=True) as worker:
        for column in ("system", "reference", "must_total", "best_effort", "tenant_id", "effect_number"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(f"update refunds.effects set {column} = {column}".encode())


def test_an_effect_is_on_record_once_and_begins_as_intended(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    row = allowed_row(ledger_fixtures, "r")
    first = plan(row)
    assert records.intend(row, first)
    assert records.intend(row, first), "one more try of the same"
    assert not records.intend(row, plan(row)), "another effect under the same number"
    (record,) = records.of_entry("r")
    assert (record.state, record.tries, record.plan) == (S.INTENDED, 2, first)
    assert records.move(row, 1, [S.INTENDED], S.DONE, system_reference="S-1")
    assert not records.intend(row, first), "what is done is not tried again"
    assert not records.move(row, 1, [S.INTENDED], S.REFUSED, last_error="x")


def test_a_stale_claim_changes_nothing(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    stale = allowed_row(ledger_fixtures, "r")
    planned = plan(stale)
    assert records.intend(stale, planned)
    fresh = taken_over(ledger_fixtures, "r")
    before = records.of_entry("r")[0]
    assert not records.intend(stale, planned)
    assert not records.move(stale, 1, [S.INTENDED], S.DONE, system_reference="S-1")
    records.plan_best_effort(stale, plan(stale, 2))
    assert [(r.state, r.tries) for r in records.of_entry("r")] == [(before.state, before.tries)]
    assert records.move(fresh, 1, [S.INTENDED], S.DONE, system_reference="S-1")


def test_a_claim_whose_lease_is_over_changes_nothing_even_before_anybody_took_the_row(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    row = allowed_row(ledger_fixtures, "r")
    ledger_fixtures.make_due()
    assert not records.intend(row, plan(row))


def test_no_execution_while_an_effect_is_not_done(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    for state in S:
        row = allowed_row(ledger_fixtures, f"in_{state}")
        put_into(ledger_fixtures, records, row, 1, state)
        with pytest.raises(psycopg.errors.CheckViolation, match="not done"):
            ledger_fixtures.ledger.record_executions([execution(row)])
    assert ledger_fixtures.executions() == 0


def test_no_execution_while_an_effect_was_never_begun(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    row = allowed_row(ledger_fixtures, "r")
    assert records.intend(row, plan(row, 1, total=2))
    assert records.move(row, 1, [S.INTENDED], S.DONE, system_reference="S-1")
    with pytest.raises(psycopg.errors.CheckViolation, match="not done"):
        ledger_fixtures.ledger.record_executions([execution(row)])
    assert records.intend(row, plan(row, 2, total=2))
    assert records.move(row, 2, [S.INTENDED], S.DONE, system_reference="S-2")
    assert ledger_fixtures.ledger.record_executions([execution(row)]) == {"r"}


@pytest.mark.parametrize(("event", "reason"), [(LedgerEvent.GAVE_UP, None), (LedgerEvent.DENIED, "handled_by_person")])
def test_a_row_that_is_given_up_leaves_what_was_under_way_in_doubt(
    ledger_fixtures: LedgerFixtures, records: Effects, event: LedgerEvent, reason: str | None
) -> None:
    for state in S:
        put_into(ledger_fixtures, records, allowed_row(ledger_fixtures, f"in_{state}"), 1, state)
    ledger_fixtures.make_due()
    held = ledger_fixtures.ledger.claim(len(S))
    changes = [Change(row, LedgerState.GUARDING, event, last_error="gave up", reason_code=reason) for row in held]
    assert len(ledger_fixtures.ledger.apply(changes)) == len(S)
    for state in S:
        wanted = S.IN_DOUBT if state in (S.INTENDED, S.COMPENSATING) else state
        assert [record.state for record in records.of_entry(f"in_{state}")] == [wanted]


def test_a_row_that_was_begun_outside_is_not_denied(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    for state in S:
        put_into(ledger_fixtures, records, allowed_row(ledger_fixtures, f"in_{state}"), 1, state)
    ledger_fixtures.make_due()
    refused: dict[str, str] = {}
    changes = [
        Change(row, LedgerState.GUARDING, LedgerEvent.DENIED, reason_code="approval_expired")
        for row in ledger_fixtures.ledger.claim(len(S))
    ]
    assert set(ledger_fixtures.ledger.apply(changes, refused)) == {"in_refused", "in_compensated"}
    assert set(refused) == {f"in_{state}" for state in S} - {"in_refused", "in_compensated"}


# Refund, then notice


def notified(fixtures: LedgerFixtures, records: Effects) -> tuple[Saga, InMemory, LedgerRow]:
    """A simulated refund with a notice after it, settled but not yet executed."""
    notice = InMemory("notice")
    saga = Saga("refund_then_notice", [Effect(SimulatedRefund()), Effect(notice, best_effort=True)], records)
    row = allowed_row(fixtures, "r")
    notice.ready = False
    assert saga.is_ready(), "a notice that cannot go out holds up no refund"
    assert isinstance(saga.settle(row, row.start_id), Settled)
    return saga, notice, row


def due(fixtures: LedgerFixtures) -> None:
    fixtures.admin.execute("update refunds.effects set next_attempt_at = clock_timestamp()")


def test_a_notice_waits_for_the_refund_and_is_sent_again_until_it_is_through(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    _, notice, row = notified(ledger_fixtures, records)
    assert deliver_best_effort(records, {"notice": notice}) == 0 and notice.calls == [], (
        "no notice of what is not on record"
    )
    assert ledger_fixtures.ledger.record_executions([execution(row)]) == {"r"}
    assert deliver_best_effort(records, {"notice": notice}) == 0, "it is not ready"
    notice.ready, notice.loses_answers = True, 4
    for _ in range(2):
        assert deliver_best_effort(records, {"notice": notice}) == 0, "not due yet"
    for _ in range(5):
        due(ledger_fixtures)
        deliver_best_effort(records, {"notice": notice})
    assert [record.state for record in records.of_entry("r")] == [S.DONE]
    assert sum(notice.done.values()) == 1
    assert (ledger_fixtures.state("r"), ledger_fixtures.executions()) == ("EXECUTED", 1)


def test_a_refused_notice_undoes_nothing(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    _, notice, row = notified(ledger_fixtures, records)
    ledger_fixtures.ledger.record_executions([execution(row)])
    notice.ready = notice.refuses = True
    assert deliver_best_effort(records, {"notice": notice}) == 0
    assert [record.state for record in records.of_entry("r")] == [S.REFUSED]
    assert ledger_fixtures.state("r") == "EXECUTED" and notice.calls == ["settle", "look_up"]


def test_a_notice_is_recorded_once_however_often_its_refund_is_settled(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    saga, _, _ = notified(ledger_fixtures, records)
    again = taken_over(ledger_fixtures, "r")
    assert isinstance(saga.settle(again, again.start_id), Settled)
    assert len(records.of_entry("r")) == 1


def test_a_notice_for_a_system_that_is_gone_stays_on_record(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    _, _, row = notified(ledger_fixtures, records)
    ledger_fixtures.ledger.record_executions([execution(row)])
    assert deliver_best_effort(records, {}) == 0
    assert [record.state for record in records.of_entry("r")] == [S.IN_DOUBT]


def test_two_deliverers_do_not_share_a_try(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    _, _, row = notified(ledger_fixtures, records)
    ledger_fixtures.ledger.record_executions([execution(row)])
    ((_, mine),) = records.claim_best_effort(5, retry_seconds=600)
    assert records.claim_best_effort(5, retry_seconds=600) == []
    due(ledger_fixtures)
    ((_, theirs),) = records.claim_best_effort(5, retry_seconds=600)
    assert not records.finish_best_effort(mine, S.DONE, system_reference="S-1"), "it was taken again meanwhile"
    assert records.finish_best_effort(theirs, S.DONE, system_reference="S-1")


def test_a_refund_and_an_outside_effect_are_settled_together(ledger_fixtures: LedgerFixtures, records: Effects) -> None:
    """What is in the ledger needs no record; what is outside keeps its own."""
    outside = InMemory("a")
    saga: Any = Saga("both", [Effect(SimulatedRefund()), Effect(outside)], records)
    row = allowed_row(ledger_fixtures, "r")
    outside.refuses = True
    assert isinstance(saga.settle(row, row.start_id), EffectRefused)
    assert [record.system for record in records.of_entry("r")] == ["a"]
    assert not isinstance(saga.look_up(row.start_id), NoAnswer)
