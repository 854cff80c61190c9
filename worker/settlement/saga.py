"""A saga: one or several effects in outside systems as one settlement, with a record that survives every crash.

Each effect is recorded before it is tried, under a reference of its own that never changes. Resuming reads the record first:
an effect that is done is not tried again, one that may have been tried is looked up, a refused one has those before it
compensated, and one whose outcome is unknown is in doubt until its system or a person knows it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Settled
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.rows import LedgerRow
from worker.settlement.effects import (
    EffectRecord,
    Effects,
    EffectState,
    Left,
    PlannedEffect,
    SettlementSystem,
    compensate,
    is_there,
    try_once,
)

WORKED_ON_SECONDS = 25.0
"""Longer than any system keeps processing a call after we gave up on it."""

_S = EffectState
_LOST = NoAnswer("another worker took the lease over, or the time to act has ended")


def in_flight_seconds(timeout_seconds: float) -> float:
    """Seconds from the start of an attempt during which it may still take effect, so that "not there" may mean "not there yet"."""
    return timeout_seconds + WORKED_ON_SECONDS


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of a saga. A best-effort one (a notice) is tried after the execution row, retried, and never undoes the others."""

    system: SettlementSystem
    best_effort: bool = False


class Saga:
    """A `SettlementSystem` that makes effects in the given order, the best-effort ones last. Thread-safe.

    An effect that is the execution row itself (`settles_in_ledger`) needs no record of its own.
    """

    def __init__(
        self,
        name: str,
        effects: Sequence[Effect],
        record: Effects | None,
        *,
        in_flight_seconds: float = 5.0 + WORKED_ON_SECONDS,
    ) -> None:
        self.name = name
        self.moves_money = any(effect.system.moves_money for effect in effects if not effect.best_effort)
        self._must = [each.system for each in effects if not each.best_effort]
        self._later = [each.system for each in effects if each.best_effort]
        self._recorded = [system for system in self._must if not getattr(system, "settles_in_ledger", False)]
        self._record, self._in_flight_seconds = record, in_flight_seconds

    @property
    def reaches(self) -> tuple[str, ...]:
        """The names of the systems that the saga uses."""
        return tuple(system.name for system in (*self._must, *self._later))

    def is_ready(self) -> bool:
        """Whether the systems of all mandatory effects are ready, and there is a record to write to."""
        return self._record is not None and all(system.is_ready() for system in self._must)

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Settle as far as possible now; a later call with the same reference resumes. `reference` is the row's start id."""
        if self._record is None:
            return NoAnswer("there is no record to write to")
        try:
            return _Run(self._record, row, self._in_flight_seconds).settle(
                self._plan(reference), self._plan_later(reference), self._own_references(row, reference)
            )
        except LedgerUnavailable as error:
            return NoAnswer(f"the record: {error}")

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        """Read the record, and look up in the systems the effects that are still open. Changes nothing."""
        if self._record is None:
            return NoAnswer("there is no record to read")
        try:
            records = {each.effect_number: each for each in self._record.of_operation(reference)}
        except LedgerUnavailable as error:
            return NoAnswer(f"the record: {error}")
        return self._known(records)

    def end(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult | Left:
        """Try nothing more, and undo the effects that are done, unless all of them are (`Ending.end`)."""
        if self._record is None:
            return NoAnswer("there is no record to read")
        try:
            return _Run(self._record, row, self._in_flight_seconds).end(self._plan(reference))
        except LedgerUnavailable as error:
            return NoAnswer(f"the record: {error}")

    def has_planned(self, reference: uuid.UUID, plans: Sequence[PlannedEffect]) -> bool:
        """Whether all these effects of an operation belong to this saga's plan."""
        return set(plans) <= {planned for _, planned in (*self._plan(reference), *self._plan_later(reference))}

    def _known(self, records: dict[int, EffectRecord]) -> EffectResult:
        must = [record for record in records.values() if not record.best_effort]
        if any(each.state in (_S.REFUSED, _S.COMPENSATED) for each in must):
            back = all(each.state in (_S.REFUSED, _S.COMPENSATED) for each in must)
            return EffectRefused("refused, nothing is left of it") if back else NoAnswer("being taken back")
        found: list[str] = []
        for number, system in enumerate(self._recorded, start=1):
            answer = self._seen(system, records.get(number))
            if not isinstance(answer, Settled):
                # If the first effect is not there, none is; if a later one is not, those before it are, so that is no
                # refusal.
                return answer if number == 1 or isinstance(answer, NoAnswer) else NoAnswer(f"{system.name}: not yet")
            found.append(answer.reference)
        return Settled(", ".join(found)) if found else NoAnswer("the effect is the execution row: look there")

    def _seen(self, system: SettlementSystem, record: EffectRecord | None) -> EffectResult:
        if record is None:
            return EffectRefused("never tried")
        if record.state is _S.DONE:
            return Settled(record.system_reference or "")
        return _look(system, record.reference, record, self._in_flight_seconds)

    def _plan(self, reference: uuid.UUID) -> list[tuple[SettlementSystem, PlannedEffect]]:
        return self._numbered(self._recorded, reference, first=1)

    def _plan_later(self, reference: uuid.UUID) -> list[tuple[SettlementSystem, PlannedEffect]]:
        return self._numbered(self._later, reference, first=len(self._recorded) + 1)

    def _numbered(
        self, systems: Sequence[SettlementSystem], reference: uuid.UUID, *, first: int
    ) -> list[tuple[SettlementSystem, PlannedEffect]]:
        total = len(self._recorded)
        return [
            (system, PlannedEffect(number, reference, system.name, effect_reference(reference, number), total))
            for number, system in enumerate(systems, start=first)
        ]

    def _own_references(self, row: LedgerRow, reference: uuid.UUID) -> list[str]:
        inside = [system for system in self._must if system not in self._recorded]
        answers = [system.settle(row, reference) for system in inside]
        return [answer.reference for answer in answers if isinstance(answer, Settled)]


def effect_reference(reference: uuid.UUID, effect_number: int) -> uuid.UUID:
    """The idempotency key of one effect towards its system: the operation's reference for the first, derived from it for others."""
    return reference if effect_number == 1 else uuid.uuid5(reference, f"effect {effect_number}")


def _look(
    system: SettlementSystem, reference: uuid.UUID, record: EffectRecord, in_flight_seconds: float
) -> EffectResult:
    """Look whether an effect is there; "not there" while a call for it may be in flight is `NoAnswer`."""
    found = is_there(system, reference)
    if isinstance(found, EffectRefused) and record.quiet_seconds < in_flight_seconds:
        return NoAnswer("not there, but may still be on its way")
    return found


def _why(trouble: EffectRefused | NoAnswer) -> str:
    return trouble.reason if isinstance(trouble, EffectRefused) else trouble.detail


class _Run:
    """One attempt to carry out the plan of one row. Raises `LedgerUnavailable`."""

    def __init__(self, record: Effects, row: LedgerRow, in_flight_seconds: float) -> None:
        self._record, self._row, self._in_flight_seconds = record, row, in_flight_seconds

    def settle(
        self, plan: list[tuple[SettlementSystem, PlannedEffect]], later: list[tuple[SettlementSystem, PlannedEffect]],
        references: list[str],
    ) -> EffectResult:  # fmt: skip
        records = {each.effect_number: each for each in self._record.of_entry(self._row.ledger_entry_id)}
        known = {planned.effect_number: planned for _, planned in plan + later}
        if any(known.get(number) != record.plan for number, record in records.items()):
            # The configuration changed since the row was begun: effects of another plan must not be continued under
            # this one.
            return NoAnswer("started under another plan")
        refused = next((each for each in records.values() if each.state is _S.REFUSED and not each.best_effort), None)
        if refused is not None:
            return self._take_back(plan, refused.last_error or "refused")
        for system, planned in plan:
            answer = self._reach(system, planned, records.get(planned.effect_number))
            if isinstance(answer, EffectRefused):
                return self._take_back(plan, f"{system.name}: {answer.reason}")
            if isinstance(answer, NoAnswer):
                return NoAnswer(f"{system.name}: {answer.detail}")
            references = [*references, answer.reference]
        for _, planned in later:
            self._record.plan_best_effort(self._row, planned)
        return Settled(", ".join(references)[:200])

    def end(self, plan: list[tuple[SettlementSystem, PlannedEffect]]) -> EffectResult | Left:
        """Find out which effects are done; unless all of them are, undo those."""
        records = {each.effect_number: each for each in self._record.of_entry(self._row.ledger_entry_id)}
        seen: list[EffectResult] = []
        for system, planned in plan:
            seen.append(self._find_out(system, planned, records.get(planned.effect_number)))
            if isinstance(seen[-1], NoAnswer):
                return NoAnswer(f"{system.name}: {seen[-1].detail}")
        done = [answer.reference for answer in seen if isinstance(answer, Settled)]
        if len(done) == len(plan):
            return Settled(", ".join(done)[:200])
        left = []
        for system, planned, trouble in self._undo_all(plan):
            if isinstance(trouble, NoAnswer):
                return trouble
            left.append((system, f"{planned.system} is done and not taken back: {trouble.reason}"))
        if not left:
            return EffectRefused("nothing is left of it")
        return Left("; ".join(what for _, what in left), any(system.moves_money for system, _ in left))

    def _find_out(self, system: SettlementSystem, planned: PlannedEffect, record: EffectRecord | None) -> EffectResult:
        """Find out and record whether an effect that is not tried any more is done."""
        if record is None or record.state in (_S.REFUSED, _S.COMPENSATED, _S.COMPENSATING):
            return EffectRefused("never tried, or taken back")
        if record.state is _S.DONE:
            return Settled(record.system_reference or "")
        return self._write(planned, _look(system, planned.reference, record, self._in_flight_seconds))

    def _reach(self, system: SettlementSystem, planned: PlannedEffect, record: EffectRecord | None) -> EffectResult:
        """Carry out one effect, continuing from its recorded state."""
        if record is not None and record.state is _S.DONE:
            return Settled(record.system_reference or "")
        if record is not None:
            found = _look(system, planned.reference, record, self._in_flight_seconds)
            if not isinstance(found, EffectRefused):
                return self._write(planned, found)
        if not self._record.intend(self._row, planned):
            return _LOST
        return self._write(planned, try_once(system, self._row, planned.reference))

    def _write(self, planned: PlannedEffect, answer: EffectResult) -> EffectResult:
        number, open_states = planned.effect_number, (_S.INTENDED, _S.IN_DOUBT)
        if isinstance(answer, Settled):
            kept = self._move(number, open_states, _S.DONE, reference=answer.reference)
        elif isinstance(answer, EffectRefused):
            kept = self._move(number, open_states, _S.REFUSED, error=f"{planned.system}: {answer.reason}")
        else:
            kept = self._move(number, open_states, _S.IN_DOUBT, error=answer.detail)
        return answer if kept else _LOST

    def _take_back(self, plan: list[tuple[SettlementSystem, PlannedEffect]], why: str) -> EffectResult:
        """Undo the done effects, the last first. The settlement is refused only once all are undone; until then it is no answer."""
        for system, _, trouble in self._undo_all(plan):
            if trouble is _LOST:
                return _LOST
            return NoAnswer(f"{system.name}: not taken back: {_why(trouble)}")
        return EffectRefused(why)

    def _undo_all(
        self, plan: list[tuple[SettlementSystem, PlannedEffect]]
    ) -> Iterator[tuple[SettlementSystem, PlannedEffect, EffectRefused | NoAnswer]]:
        """Undo the done effects, the last first; yield each that could not be undone, with the reason."""
        records = {each.effect_number: each for each in self._record.of_entry(self._row.ledger_entry_id)}
        for system, planned in reversed(plan):
            record = records.get(planned.effect_number)
            if record is None or record.state in (_S.REFUSED, _S.COMPENSATED):
                continue
            trouble = self._undo(system, planned, record.state)
            if trouble is not None:
                yield system, planned, trouble

    def _undo(
        self, system: SettlementSystem, planned: PlannedEffect, state: EffectState
    ) -> EffectRefused | NoAnswer | None:
        number = planned.effect_number
        if state is not _S.COMPENSATING and not self._move(number, (_S.DONE, _S.IN_DOUBT), _S.COMPENSATING):
            return _LOST
        trouble = compensate(system, planned.reference)
        if trouble is None:
            return None if self._move(number, (_S.COMPENSATING,), _S.COMPENSATED) else _LOST
        kept = self._move(number, (_S.COMPENSATING,), _S.IN_DOUBT, error=f"not taken back: {_why(trouble)}")
        return trouble if kept else _LOST

    def _move(
        self, number: int, from_states: Sequence[EffectState], to_state: EffectState, *, reference: str | None = None,
        error: str | None = None,
    ) -> bool:  # fmt: skip
        return self._record.move(self._row, number, from_states, to_state, system_reference=reference, last_error=error)
