"""Settlement systems for tests: one behind HTTP on loopback, one in memory, and a claimed row to settle.

Both count what they really did by reference. A naive one does not know a reference again: it does whatever it is asked.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from sentinel.platform.resources import invariants_sql
from sentinel.store.invariants import check_invariant, read_invariants
from tests.support.ledger_fixtures import LedgerFixtures, new_row
from tests.support.recording_server import RecordingServer, problem
from tests.support.scripted_server import Asked
from worker.refunds.rows import Change, Execution, LedgerEvent, LedgerRow, LedgerState, OrderFacts
from worker.refunds.sql import ROW_COLUMNS
from worker.settlement import EffectRefused, EffectResult, NoAnswer, Settled


class EffectsServer(RecordingServer):
    """A settlement system that counts what it did by idempotency key."""

    def __init__(self, *, naive: bool = False) -> None:
        super().__init__(naive=naive)
        self.done: Counter[str] = Counter()
        self.gone: set[str] = set()

    def do(self, asked: Asked) -> None:
        with self.lock:
            if asked.method == "POST":
                key = asked.headers["idempotency-key"]
                self.bodies.append(asked.json)
                if self.naive or not self.done[key]:
                    self.done[key] += 1
            elif asked.method == "DELETE":
                self.gone.add(asked.path.rpartition("/")[2])

    def act(self, asked: Asked) -> None:
        if asked.path == "/ready":
            return asked.say({})
        key = asked.headers["idempotency-key"]
        if asked.method == "GET" and (not self.done[key] or key in self.gone):
            return problem(404)(asked)
        self.do(asked)
        if asked.method == "DELETE":
            return asked.answer(204, b"")
        return asked.answer(201 if asked.method == "POST" else 200, self.yes(key))

    @staticmethod
    def yes(key: str = "x") -> bytes:
        """The answer that says done."""
        return json.dumps({"status": "done", "reference": f"S-{key[:8]}"}).encode()


class InMemory:
    """A system in this process. `answers` replaces what the next calls of a verb say, after or without doing it."""

    moves_money = True

    def __init__(self, name: str, *, naive: bool = False) -> None:
        self.name, self.naive = name, naive
        self.done: Counter[uuid.UUID] = Counter()
        self.gone: set[uuid.UUID] = set()
        self.calls: list[str] = []
        self.refuses = False
        self.keeps = False
        self.loses_answers = 0
        self.ready = True

    def is_ready(self) -> bool:
        return self.ready

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        self.calls.append("settle")
        if self.refuses:
            return EffectRefused("no")
        if self.naive or not self.done[reference]:
            self.done[reference] += 1
        if self.loses_answers:
            self.loses_answers -= 1
            return NoAnswer("lost")
        return Settled(f"{self.name}-{str(reference)[:8]}")

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        self.calls.append("look_up")
        if self.loses_answers:
            self.loses_answers -= 1
            return NoAnswer("lost")
        return Settled(f"{self.name}-{str(reference)[:8]}") if self.stands(reference) else EffectRefused("not there")

    def compensate(self, reference: uuid.UUID) -> EffectResult:
        self.calls.append("compensate")
        if self.keeps:
            return EffectRefused("it stays")
        self.gone.add(reference)
        return Settled(str(reference))

    def stands(self, reference: uuid.UUID) -> bool:
        """Whether the effect is there now."""
        return bool(self.done[reference]) and reference not in self.gone


def allowed_row(fixtures: LedgerFixtures, name: str) -> LedgerRow:
    """A new row in ALLOWED whose start id is stored, in the hands of worker-1."""
    fixtures.ledger.add_orders([OrderFacts(f"ord_{name}", datetime.now(UTC), 90_000, "USD")])
    fixtures.add(new_row(name, order_ref=f"ord_{name}"))
    return _held(fixtures, name, "worker-1")


def taken_over(fixtures: LedgerFixtures, name: str, worker_id: str = "worker-2") -> LedgerRow:
    """The row, lapsed and taken by another worker, in ALLOWED again with the start id it had."""
    fixtures.admin.execute(
        "update refunds.ledger_entries set lease_until = clock_timestamp() - interval '1 second' where ledger_entry_id = %s",
        [name],
    )
    return _held(fixtures, name, worker_id)


def _held(fixtures: LedgerFixtures, name: str, worker_id: str) -> LedgerRow:
    ledger = fixtures.ledger_of(worker_id)
    row = next(row for row in ledger.claim(1000) if row.ledger_entry_id == name)
    ids = {field: str(uuid.uuid4()) for field in ("operation_id", "decision_event_id", "start_id")}
    change = Change(row, LedgerState.GUARDING, LedgerEvent.ALLOWED, permit_token="p", decision="ALLOW", **ids)
    start_id = ledger.apply([change])[name]
    (found,) = ledger._rows(LedgerRow, _HELD, name=name)
    assert found.start_id == start_id
    return found


_HELD = f"select {ROW_COLUMNS} from refunds.ledger_entries e where e.ledger_entry_id = %(name)s"


def broken(fixtures: LedgerFixtures) -> list[str]:
    """Invariants about effects that do not hold; those of the authority are nobody's here."""
    mine = (
        "executed_without_effects",
        "effect_forgotten",
        "refund_half_undone",
        "effect_of_another",
        "executed_without_execution",
    )
    asked = [one for one in read_invariants(invariants_sql()) if one.name in mine]
    assert len(asked) == len(mine)
    with fixtures.admin.transaction():
        return [one.name for one in asked if check_invariant(fixtures.admin, one).violations]


def execute(fixtures: LedgerFixtures, row: LedgerRow) -> None:
    """The execution row that follows a settlement."""
    name = row.ledger_entry_id
    worker_id = str(fixtures.one("select claimed_by from refunds.ledger_entries where ledger_entry_id = %s", name))
    execution = Execution(row, uuid.uuid4(), str(uuid.uuid4()), "a_then_b", uuid.uuid4(), {})
    assert fixtures.ledger_of(worker_id).record_executions([execution]) == {row.ledger_entry_id}


def until_settled(
    fixtures: LedgerFixtures, saga: Any, row: LedgerRow, *, claims: int
) -> tuple[EffectResult, LedgerRow]:
    """Settle, and while nobody knows, let the next worker take the row and go on."""
    answer = saga.settle(row, row.start_id)
    for number in range(2, 2 + claims):
        if not isinstance(answer, NoAnswer):
            break
        row = taken_over(fixtures, row.ledger_entry_id, f"worker-{number}")
        answer = saga.settle(row, row.start_id)
    return answer, row
