"""A saga broken between any two of its writes and calls goes on where it stood: no effect twice, none forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.mutants.forgets_effects import SagaWithoutRecord
from tests.support.effects_server import (
    InMemory,
    allowed_row,
    broken,
    execute,
    taken_over,
    until_settled,
)
from tests.support.ledger_fixtures import LedgerFixtures
from worker.refunds.rows import LedgerRow
from worker.settlement import Effect, EffectRefused, EffectResult, NoAnswer, Saga, Settled
from worker.settlement import saga as saga_module
from worker.settlement.effects import Effects
from worker.settlement.saga import effect_reference

MOST_PLACES = 60


class Died(BaseException):
    """The process ended here."""


class Mortal:
    """Wraps anything: its process dies just before or just after its `places`-th passing of a call."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **fields: Any) -> Any:
            self._fuse.burn()
            result = found(*args, **fields)
            self._fuse.burn()
            return result

        return call


class Fuse:
    """Counts places; at the chosen one the process dies. None never does."""

    def __init__(self, place: int | None) -> None:
        self.left = place

    def burn(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Died


@pytest.fixture
def effect_records(ledger_fixtures: LedgerFixtures) -> Effects:
    return Effects(ledger_fixtures.pool, ledger_fixtures.tenant_id)


def shapes() -> dict[str, Callable[[InMemory, InMemory], None]]:
    def second_refuses(first: InMemory, second: InMemory) -> None:
        second.refuses = True

    def first_refuses(first: InMemory, second: InMemory) -> None:
        first.refuses = True

    def cannot_take_back(first: InMemory, second: InMemory) -> None:
        second.refuses = first.keeps = True

    def loses_answers(first: InMemory, second: InMemory) -> None:
        first.loses_answers = second.loses_answers = 2

    return {
        "goes well": lambda first, second: None, "second refuses": second_refuses, "first refuses": first_refuses,
        "cannot be taken back": cannot_take_back, "answers are lost": loses_answers,
    }  # fmt: skip


WANTED: dict[str, type[EffectResult]] = {
    "goes well": Settled, "second refuses": EffectRefused, "first refuses": EffectRefused, "cannot be taken back": NoAnswer,
    "answers are lost": Settled,
}  # fmt: skip


def crashed_and_resumed(
    fixtures: LedgerFixtures, make: Callable[[Any, list[Any]], Any], place: int, shape: str, *, naive: bool
) -> tuple[bool, EffectResult, LedgerRow, list[InMemory]]:
    """One row that dies at `place` and is taken up again: (whether it died, final answer, row, systems)."""
    fuse = Fuse(place)
    systems = [InMemory("a", naive=naive), InMemory("b", naive=naive)]
    shapes()[shape](*systems)
    # What cannot be taken back stays so, however many come and try.
    claims = 1 if shape == "cannot be taken back" else 3
    saga = make(fuse, [Mortal(system, fuse) for system in systems])
    row = allowed_row(fixtures, f"{shape.replace(' ', '_')}_{naive}_{place}")
    try:
        answer, row = until_settled(fixtures, saga, row, claims=claims)
    except Died:
        answer, row = until_settled(fixtures, saga, taken_over(fixtures, row.ledger_entry_id), claims=claims)
        return True, answer, row, systems
    return False, answer, row, systems


def most_often(systems: list[InMemory]) -> int:
    """How often the same entry got the same effect: the totals, whatever references were used."""
    return max(sum(system.done.values()) for system in systems)


@pytest.mark.parametrize("naive", [False, True], ids=["idempotent systems", "naive systems"])
@pytest.mark.parametrize("shape", shapes())
def test_a_saga_that_dies_anywhere_does_nothing_twice_and_forgets_nothing(
    ledger_fixtures: LedgerFixtures, effect_records: Effects, shape: str, naive: bool
) -> None:
    def make(fuse: Fuse, systems: list[Any]) -> Saga:
        effects = tuple(Effect(system) for system in systems)
        return Saga("a_then_b", effects, Mortal(effect_records, fuse), in_flight_seconds=0)

    for place in range(MOST_PLACES):
        died, answer, row, systems = crashed_and_resumed(ledger_fixtures, make, place, shape, naive=naive)
        first, second = systems
        records = {record.effect_number: record for record in effect_records.of_entry(row.ledger_entry_id)}
        assert most_often(systems) <= 1, place
        assert isinstance(answer, WANTED[shape]), (place, answer)
        for system, number in ((first, 1), (second, 2)):
            stands = any(system.stands(reference) for reference in system.done)
            state = records[number].state if number in records else None
            assert stands == (state in ("done", "in_doubt")), (place, number, state)
        if isinstance(answer, Settled):
            assert [first.stands(row.start_id), second.stands(effect_reference(row.start_id, 2))] == [True, True]
            execute(ledger_fixtures, row)
        if not died:
            break
    else:
        pytest.fail("it never came to an end")
    assert place > 8
    assert broken(ledger_fixtures) == []


def test_a_saga_without_a_record_doubles(ledger_fixtures: LedgerFixtures) -> None:
    """The mutant: the same checker must notice."""
    seen = []
    for place in range(8):
        died, _, _, systems = crashed_and_resumed(
            ledger_fixtures, lambda fuse, systems: SagaWithoutRecord(systems), place, "goes well", naive=False
        )
        seen.append(most_often(systems))
        if not died:
            break
    assert max(seen) > 1


def test_a_saga_that_does_not_look_first_doubles_at_a_naive_system(
    ledger_fixtures: LedgerFixtures, effect_records: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of looking up: nothing is ever found."""
    monkeypatch.setattr(saga_module, "is_there", lambda system, reference: EffectRefused("not there"))
    seen = []
    for place in range(12):
        _, _, _, systems = crashed_and_resumed(
            ledger_fixtures,
            lambda fuse, systems: Saga("a_then_b", [Effect(s) for s in systems], Mortal(effect_records, fuse), in_flight_seconds=0),
            place, "goes well", naive=True,
        )  # fmt: skip
        seen.append(most_often(systems))
    assert max(seen) > 1
