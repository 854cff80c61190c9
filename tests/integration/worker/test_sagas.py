"""A saga under every fault of its systems: one effect each, taken back or in doubt, and only in the row's own hands."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.busy import overload
from tests.support.effects_server import (
    EffectsServer,
    InMemory,
    allowed_row,
    broken,
    execute,
    taken_over,
    until_settled,
)
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.recording_server import problem
from tests.support.scripted_server import deadline_for, faults
from worker.settlement import Effect, EffectRefused, NoAnswer, Saga, Settled
from worker.settlement.effects import Effects
from worker.settlement.registry import HttpSystem
from worker.settlement.saga import effect_reference


@pytest.fixture
def records(ledger_fixtures: LedgerFixtures) -> Effects:
    return Effects(ledger_fixtures.pool, ledger_fixtures.tenant_id)


# Systems behind HTTP

FAULTS = {
    name: faults(EffectsServer.yes())[name]
    for name in ("hangs", "resets", "closes", "drips its body", "speaks no HTTP", "empty", "500", "HTML")
} | {"409": (problem(409), "answered")}


@pytest.fixture
def servers() -> Iterator[list[EffectsServer]]:
    with EffectsServer(naive=True).running() as first, EffectsServer(naive=True).running() as second:
        yield [first, second]


def over_http(
    servers: list[EffectsServer], records: Effects, *, in_flight_seconds: float = 0, patience_seconds: float = 60
) -> Saga:
    """`patience_seconds`: how long a server is waited for; short where one never answers."""
    systems = [HttpSystem(name, server.url, "k", patience_seconds) for name, server in zip("ab", servers, strict=True)]
    return Saga("a_then_b", [Effect(system) for system in systems], records, in_flight_seconds=in_flight_seconds)


@pytest.mark.parametrize("does_it", [True, False], ids=["done", "not done"])
def test_no_fault_of_a_naive_server_makes_two_effects(
    ledger_fixtures: LedgerFixtures, records: Effects, servers: list[EffectsServer], does_it: bool
) -> None:
    for number, (fault, known) in enumerate(FAULTS.values()):
        # One that answers is waited for: what it does after it was given up, it does a second time.
        saga = over_http(servers, records, patience_seconds=0.15 * overload() if known == "timeout" else 60)
        for server in servers:
            server.faults += [("POST", does_it, fault), ("GET", False, fault)]
        answer, row = until_settled(ledger_fixtures, saga, allowed_row(ledger_fixtures, f"r{number}"), claims=6)
        assert isinstance(answer, Settled)
        done = [server.done[str(effect_reference(row.start_id, n))] for n, server in enumerate(servers, start=1)]
        assert done == [1, 1]
        execute(ledger_fixtures, row)
    assert broken(ledger_fixtures) == []


def test_a_call_that_may_still_be_under_way_is_not_made_again(
    ledger_fixtures: LedgerFixtures, records: Effects, servers: list[EffectsServer]
) -> None:
    """A slow naive server does what it was asked long after we gave up: "not there" meant "not there yet"."""
    doubles = {}
    for wait in (30.0, 0.0):
        late: list[Any] = []
        servers[0].faults.append(("POST", False, lambda asked, late=late: late.append(asked)))
        row = allowed_row(ledger_fixtures, f"wait_{wait:g}")
        saga = over_http(servers, records, in_flight_seconds=wait)
        hasty = over_http(servers, records, in_flight_seconds=wait, patience_seconds=deadline_for("timeout"))
        assert isinstance(hasty.settle(row, row.start_id), NoAnswer)
        row = taken_over(ledger_fixtures, row.ledger_entry_id)
        saga.settle(row, row.start_id)
        servers[0].do(late[0])
        row = taken_over(ledger_fixtures, row.ledger_entry_id, "worker-3")
        assert isinstance(saga.settle(row, row.start_id), Settled)
        doubles[wait] = servers[0].done[str(row.start_id)]
    # Without the wait, the mutant, it is made again and done twice.
    assert doubles == {30.0: 1, 0.0: 2}


def test_a_refused_second_effect_takes_the_first_back_over_http(
    ledger_fixtures: LedgerFixtures, records: Effects, servers: list[EffectsServer]
) -> None:
    servers[1].forever = ("POST", False, problem(422, "account closed"))
    servers[0].faults.append(("DELETE", True, FAULTS["resets"][0]))
    row = allowed_row(ledger_fixtures, "r")
    saga = over_http(servers, records)
    assert saga.settle(row, row.start_id) == EffectRefused("b: 422 account closed")
    assert servers[0].gone == {str(row.start_id)}
    assert [record.state for record in records.of_entry("r")] == ["compensated", "refused"]
    assert isinstance(saga.look_up(row.start_id), EffectRefused)
    asked = len(servers[0].http.asked) + len(servers[1].http.asked)
    again = taken_over(ledger_fixtures, "r")
    assert isinstance(saga.settle(again, again.start_id), EffectRefused)
    assert asked == len(servers[0].http.asked) + len(servers[1].http.asked), "a refused saga asks nobody again"


def test_a_compensation_that_nobody_knows_of_is_in_doubt_and_tried_again(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    first, second = InMemory("a"), InMemory("b")
    second.refuses = first.keeps = True
    saga = Saga("a_then_b", [Effect(first), Effect(second)], records, in_flight_seconds=0)
    row = allowed_row(ledger_fixtures, "r")
    assert saga.settle(row, row.start_id) == NoAnswer("a: not taken back: it stays")
    assert records.of_entry("r")[0].state == "in_doubt"
    assert isinstance(saga.look_up(row.start_id), NoAnswer)
    first.keeps = False
    row = taken_over(ledger_fixtures, "r")
    assert isinstance(saga.settle(row, row.start_id), EffectRefused)
    assert not first.stands(row.start_id)


def test_a_holder_that_lost_its_row_changes_nothing_and_asks_nobody(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    first, second = InMemory("a"), InMemory("b")
    saga = Saga("a_then_b", [Effect(first), Effect(second)], records, in_flight_seconds=0)
    stale = allowed_row(ledger_fixtures, "r")
    fresh = taken_over(ledger_fixtures, "r")
    assert isinstance(saga.settle(stale, stale.start_id), NoAnswer)
    assert records.of_entry("r") == [] and first.calls == []
    assert isinstance(saga.settle(fresh, fresh.start_id), Settled)


def test_a_reference_that_is_not_the_rows_start_is_never_tried(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    system = InMemory("a")
    row = allowed_row(ledger_fixtures, "r")
    assert isinstance(Saga("a", [Effect(system)], records).settle(row, uuid.uuid4()), NoAnswer)
    assert system.calls == []


def test_what_was_begun_under_another_plan_is_left_to_a_person(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    first, second = InMemory("a"), InMemory("b")
    first.loses_answers = 2
    row = allowed_row(ledger_fixtures, "r")
    assert isinstance(Saga("a", [Effect(first)], records, in_flight_seconds=0).settle(row, row.start_id), NoAnswer)
    calls = list(first.calls)
    for other in ([Effect(second)], [Effect(first), Effect(second)]):
        assert Saga("x", other, records).settle(row, row.start_id) == NoAnswer("started under another plan")
    assert (first.calls, second.calls) == (calls, [])


def test_a_look_up_of_a_saga_changes_nothing_and_knows_only_what_is_sure(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    first, second = InMemory("a"), InMemory("b")
    saga = Saga("a_then_b", [Effect(first), Effect(second)], records, in_flight_seconds=30)
    row = allowed_row(ledger_fixtures, "r")
    assert saga.look_up(row.start_id) == EffectRefused("never tried")
    second.loses_answers = 2
    assert isinstance(saga.settle(row, row.start_id), NoAnswer)
    before = records.of_entry("r")
    second.gone.add(effect_reference(row.start_id, 2))
    assert isinstance(saga.look_up(row.start_id), NoAnswer)
    second.gone.clear()
    assert isinstance(saga.look_up(row.start_id), Settled)
    assert [record.state for record in records.of_entry("r")] == [record.state for record in before]


def test_a_database_that_is_away_is_no_answer_and_asks_nobody(
    ledger_fixtures: LedgerFixtures, records: Effects
) -> None:
    system = InMemory("a")
    row = allowed_row(ledger_fixtures, "r")
    ledger_fixtures.admin.execute("revoke all on refunds.effects from sentinel_worker")
    saga = Saga("a", [Effect(system)], records)
    assert isinstance(saga.settle(row, row.start_id), NoAnswer)
    assert isinstance(saga.look_up(row.start_id), NoAnswer)
    assert system.calls == []
