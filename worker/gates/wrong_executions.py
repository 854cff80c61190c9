"""Finds wrong executions: compares the execution rows only with the labels, never with the workflow's own results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sentinel.core.money import Money
from worker.gates.cases import Case, CaseFile
from worker.gates.fixtures import names_of


@dataclass(frozen=True, slots=True)
class Executed:
    """One row of `refunds.executions`."""

    ledger_entry_id: str
    refund_id: str
    amount_minor: int
    currency: str
    system: str

    @property
    def money(self) -> Money:
        """The amount that was paid."""
        return Money(self.amount_minor, self.currency)


@dataclass(frozen=True, slots=True)
class MoneyMovement:
    """Money that an outside system says it moved."""

    ledger_entry_id: str
    system: str


@dataclass(frozen=True, slots=True)
class WrongExecution:
    """One wrong execution. `case` is None for an execution that belongs to no case."""

    case: str | None
    what: str
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The wrong execution as JSON for the report."""
        return asdict(self)


def wrong_executions(
    file: CaseFile, executed: Sequence[Executed], moved: Sequence[MoneyMovement] = ()
) -> list[WrongExecution]:
    """Find every execution that contradicts the labels, in the order of the cases; a gate passes only with []."""
    by_entry: dict[str, list[Executed]] = {}
    for row in executed:
        by_entry.setdefault(row.ledger_entry_id, []).append(row)
    found: list[WrongExecution] = []
    for case in file.cases:
        rows = by_entry.pop(names_of(case).entry, [])
        found += _of_case(case, file, rows)
    found += [WrongExecution(None, "of_no_case", row.ledger_entry_id) for rows in by_entry.values() for row in rows]
    return found + _outside(executed, moved) + _twice(executed)


def _of_case(case: Case, file: CaseFile, rows: Sequence[Executed]) -> Iterable[WrongExecution]:
    if case.want.end != "execute":
        return [
            WrongExecution(case.id, "executed_against_label", f"{row.money} by {row.system}, wanted {case.want}")
            for row in rows
        ]
    asked, system = Money(case.given.amount_minor, case.given.currency), file.systems[case.given.channel]
    found = [WrongExecution(case.id, "executed_twice", f"{len(rows)} times")] if len(rows) > 1 else []
    for row in rows:
        if row.money != asked:
            found.append(WrongExecution(case.id, "other_amount", f"{row.money} instead of {asked}"))
        if row.system != system:
            found.append(WrongExecution(case.id, "other_system", f"{row.system} instead of {system}"))
    return found


def _outside(executed: Sequence[Executed], moved: Sequence[MoneyMovement]) -> list[WrongExecution]:
    """Find money that an outside system moved without an execution row, or twice for one entry."""
    rows = {row.ledger_entry_id for row in executed}
    times = Counter(one.ledger_entry_id for one in moved)
    found = [WrongExecution(None, "moved_without_execution", entry) for entry in times if entry not in rows]
    return found + [WrongExecution(None, "moved_twice", entry) for entry, number in times.items() if number > 1]


def _twice(executed: Sequence[Executed]) -> list[WrongExecution]:
    entries: dict[str, set[str]] = {}
    for row in executed:
        entries.setdefault(row.refund_id, set()).add(row.ledger_entry_id)
    return [WrongExecution(None, "refund_executed_twice", refund) for refund, held in entries.items() if len(held) > 1]
