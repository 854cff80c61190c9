"""Effects in settlement systems: the systems' interface, attempts, the record of effects, and best-effort effects.

An effect is recorded before it is tried. Every change of the record names the state it expects and is fenced by epoch and
lease: it happens only while the caller's claim still holds the ledger row. A caller that lost its claim changes nothing and
gets `False`. A system's answer is a value, whatever goes wrong.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

import psycopg
from psycopg.rows import class_row, kwargs_row, scalar_row

from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import Pool, first_line
from sentinel.store.sql_template import SqlTemplate
from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Settled
from worker.refunds.ledger import LedgerUnavailable, storable
from worker.refunds.rows import LedgerRow
from worker.refunds.sql import ROW_COLUMNS
from worker.settlement.stripe_refunds import Payment

# The interface of a settlement system.


class SettlementSystem(Protocol):
    """One way of giving something back to a customer. Thread-safe; nothing here raises.

    `reference` is the idempotency key towards the system: the ledger row's start id, the same at every attempt, and
    also after the database was restored to a state from before the start.
    """

    name: str
    moves_money: bool
    """False where the effect is no refund: a coupon, a ticket, a notice."""

    def is_ready(self) -> bool:
        """Whether the system can be asked now; checked before the permit is redeemed. The result may be cached for 5 seconds."""

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Settle the row's refund, once per reference however often it is called."""

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        """Look whether the effect was done: `Settled`, `EffectRefused` (certainly not there) or `NoAnswer`."""


@runtime_checkable
class Compensating(Protocol):
    """A system that can undo its effects."""

    def compensate(self, reference: uuid.UUID) -> EffectResult:
        """Undo an effect: `Settled` when it is not there any more, `EffectRefused` when it stays, `NoAnswer` otherwise."""


@dataclass(frozen=True, slots=True)
class Left:
    """Some effects are done and cannot be undone; `what` says which and why."""

    what: str
    moves_money: bool


@runtime_checkable
class Ending(Protocol):
    """A system that can end a settlement that was begun in it and will not be finished."""

    def end(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult | Left:
        """End the settlement without trying anything more.

        `Settled`: all effects were done, and stay. `EffectRefused`: nothing was done, or all of it is undone. `Left`:
        some effects stay. `NoAnswer`: not known or not undone yet.
        """


# One attempt in one system, with every failure turned into a result value.

_log = logging.getLogger("worker")


def try_once(system: SettlementSystem, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
    """Ask for the effect; unless the answer says done, look whether it is there.

    "Not there" right after a call without an answer proves nothing, as the call may still be in flight: the result is
    no answer. A refusal counts only if the look says "not there" too, as a system may refuse because the effect was
    done already, or by mistake.
    """
    try:
        answer = system.settle(row, reference)
    except Exception as error:
        answer = _defect(system, error)
    if isinstance(answer, Settled):
        return answer
    found = is_there(system, reference)
    if isinstance(answer, NoAnswer):
        return found if isinstance(found, Settled) else answer
    return answer if isinstance(found, EffectRefused) else found


def is_there(system: SettlementSystem, reference: uuid.UUID) -> EffectResult:
    """Look whether the effect is there; an adapter that raises gives `NoAnswer`."""
    try:
        return system.look_up(reference)
    except Exception as error:
        return _defect(system, error)


def compensate(system: SettlementSystem, reference: uuid.UUID) -> EffectRefused | NoAnswer | None:
    """Undo the effect. None: it is not there any more; `EffectRefused`: it stays; `NoAnswer`: it may be there or not."""
    if not isinstance(system, Compensating):
        return EffectRefused("it cannot be taken back")
    try:
        answer = system.compensate(reference)
    except Exception as error:
        answer = _defect(system, error)
    if isinstance(answer, Settled):
        return None
    if isinstance(answer, NoAnswer) and isinstance(is_there(system, reference), EffectRefused):
        return None
    return answer


def _defect(system: SettlementSystem, error: Exception) -> NoAnswer:
    # Log only the error's type: its text may quote what was sent.
    _log.error("settlement system %s failed: %s", system.name, type(error).__name__)
    return NoAnswer(f"its adapter failed: {type(error).__name__}")


# The record of effects.

Value = TypeVar("Value")


class EffectState(StrEnum):
    """The state of a recorded effect."""

    INTENDED = "intended"
    """On record, and perhaps tried: after a crash only the system knows whether it was done."""
    DONE = "done"
    REFUSED = "refused"
    """Certainly not done."""
    COMPENSATING = "compensating"
    """Done, and being undone."""
    COMPENSATED = "compensated"
    IN_DOUBT = "in_doubt"
    """Tried, with unknown outcome, until the system or a person knows it."""


_S = EffectState
TRANSITIONS: Mapping[EffectState, frozenset[EffectState]] = MappingProxyType(
    {
        _S.INTENDED: frozenset({_S.DONE, _S.REFUSED, _S.IN_DOUBT}),
        _S.IN_DOUBT: frozenset({_S.INTENDED, _S.DONE, _S.REFUSED, _S.COMPENSATING}),
        _S.DONE: frozenset({_S.COMPENSATING}),
        _S.COMPENSATING: frozenset({_S.COMPENSATED, _S.IN_DOUBT}),
        _S.REFUSED: frozenset(),
        _S.COMPENSATED: frozenset(),
    }
)
"""State → the states that may follow it. The database holds the same table (`refunds.effect_transitions`)."""


@dataclass(frozen=True, slots=True)
class PlannedEffect:
    """An effect to be recorded. `reference` is the idempotency key towards `system`; `must_total` is the number of
    effects that the entry's settlement needs done."""

    effect_number: int
    operation_reference: uuid.UUID
    system: str
    reference: uuid.UUID
    must_total: int


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """A recorded effect; `quiet_seconds` are the seconds since its last attempt."""

    ledger_entry_id: str
    effect_number: int
    operation_reference: uuid.UUID
    system: str
    reference: uuid.UUID
    best_effort: bool
    must_total: int
    state: EffectState
    system_reference: str | None
    last_error: str | None
    tries: int
    quiet_seconds: float

    @property
    def plan(self) -> PlannedEffect:
        """The plan that this effect was recorded under, to be compared with the present one."""
        return PlannedEffect(self.effect_number, self.operation_reference, self.system, self.reference, self.must_total)


_COLUMNS = """f.ledger_entry_id, f.effect_number, f.operation_reference, f.system, f.reference, f.best_effort, f.must_total,
  f.state, f.system_reference, f.last_error, f.tries, extract(epoch from clock_timestamp() - f.tried_at)::float as quiet_seconds"""

# The fence: the ledger row is locked, so another worker's takeover either waits for this change, or is seen by it.
_HELD = """
with held as materialized (
  select tenant_id, ledger_entry_id, claim_epoch, start_id, act_until from refunds.ledger_entries
  where tenant_id = %(tenant_id)s and ledger_entry_id = %(entry)s and claim_epoch = %(epoch)s and status = 'ALLOWED'
    and lease_until > clock_timestamp() for update)"""

_OF_ENTRY = SqlTemplate("""
select {columns} from refunds.effects f
where f.tenant_id = %(tenant_id)s and f.ledger_entry_id = %(entry)s order by f.effect_number""").fill(columns=_COLUMNS)

_OF_OPERATION = SqlTemplate("""
select {columns} from refunds.effects f
where f.tenant_id = %(tenant_id)s and f.operation_reference = %(reference)s order by f.effect_number""").fill(
    columns=_COLUMNS
)

# Record a first or a further attempt of exactly the same effect, only until the row's time to act (`act_until`) is
# over. The call may then be in flight for `saga.in_flight_seconds`, which the start declared on top of it. The
# operation's reference must be the row's own start id: a new reference at every attempt would not prevent a second
# effect.
_INTEND = SqlTemplate("""{held}
insert into refunds.effects as f (tenant_id, ledger_entry_id, effect_number, operation_reference, system, reference, must_total,
  claim_epoch)
select h.tenant_id, h.ledger_entry_id, %(effect_number)s, h.start_id, %(system)s, %(reference)s, %(must_total)s, h.claim_epoch
from held h where h.start_id = %(operation_reference)s and h.act_until > clock_timestamp()
on conflict on constraint effects_once do update set state = 'intended', tries = f.tries + 1, tried_at = clock_timestamp(),
  claim_epoch = excluded.claim_epoch
where f.state in ('intended', 'in_doubt') and f.system = excluded.system and f.reference = excluded.reference
returning f.effect_number
""").fill(held=_HELD)

_MOVE = SqlTemplate("""{held}
update refunds.effects f set state = %(to_state)s, claim_epoch = h.claim_epoch, last_error = %(last_error)s,
  system_reference = coalesce(%(system_reference)s, f.system_reference)
from held h
where f.tenant_id = h.tenant_id and f.ledger_entry_id = h.ledger_entry_id and f.effect_number = %(effect_number)s
  and f.state = any (%(from_states)s::text[])
returning f.effect_number
""").fill(held=_HELD)

# Best-effort effects are recorded before the execution is, and tried only once the execution is on record.
_PLAN_LATER = SqlTemplate("""{held}
insert into refunds.effects (tenant_id, ledger_entry_id, effect_number, operation_reference, system, reference, best_effort,
  must_total, claim_epoch, tries)
select h.tenant_id, h.ledger_entry_id, %(effect_number)s, h.start_id, %(system)s, %(reference)s, true, %(must_total)s,
  h.claim_epoch, 0
from held h where h.start_id = %(operation_reference)s
on conflict on constraint effects_once do nothing
""").fill(held=_HELD)

# Claim due effects for one attempt each; the next one is due after a backoff that doubles up to an hour.
_TAKE_LATER = SqlTemplate("""
with due as materialized (
  select f.tenant_id, f.ledger_entry_id, f.effect_number from refunds.effects f
  where f.tenant_id = %(tenant_id)s and f.best_effort and f.state in ('intended', 'in_doubt')
    and f.next_attempt_at <= statement_timestamp()
    and exists (select from refunds.executions x where x.tenant_id = f.tenant_id and x.ledger_entry_id = f.ledger_entry_id)
  order by f.next_attempt_at limit %(limit)s for update of f skip locked)
update refunds.effects f set tries = f.tries + 1, tried_at = clock_timestamp(),
  next_attempt_at = clock_timestamp() + make_interval(secs => least(3600, %(retry_seconds)s * 2.0 ^ least(f.tries, 20)))
from due where f.tenant_id = due.tenant_id and f.ledger_entry_id = due.ledger_entry_id and f.effect_number = due.effect_number
returning {columns}
""").fill(columns=_COLUMNS)

# The number of the attempt is the fence here: the ledger row has ended and nobody claims it any more.
_FINISH_LATER = """
update refunds.effects set state = %(to_state)s, last_error = %(last_error)s,
  system_reference = coalesce(%(system_reference)s, system_reference)
where tenant_id = %(tenant_id)s and ledger_entry_id = %(entry)s and effect_number = %(effect_number)s and best_effort
  and tries = %(tries)s and state in ('intended', 'in_doubt')
returning effect_number
"""

# The payment that was fixed for the entry's refund; until one is, the payment that the order's facts name. An entry
# without an order has none.
_PAYMENT = """
select coalesce(t.payment_ref, o.payment_ref) as payment_ref, e.idempotency_key, t.payment_ref is not null as is_fixed,
  o.payment_ref as named_now
from refunds.ledger_entries e
left join refunds.orders o on (o.tenant_id, o.channel, o.source, o.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
left join lateral (
  select x.payment_ref from refunds.effects x
  where x.tenant_id = e.tenant_id and x.ledger_entry_id = e.ledger_entry_id and x.payment_ref is not null
  order by x.effect_number limit 1) t on true
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = coalesce(%(entry)s, (
  select f.ledger_entry_id from refunds.effects f
  where f.tenant_id = %(tenant_id)s and f.system = %(system)s and f.reference = %(reference)s))
"""

# Fix the payment once, before the request that may move money; a later call gets the payment that was fixed first.
# Reading the payment took time, so claim and time to act are checked again here, and `tried_at` is set to now.
_FIX_PAYMENT = SqlTemplate("""{held}
update refunds.effects f set payment_ref = coalesce(f.payment_ref, %(payment_ref)s), tried_at = clock_timestamp()
from held h
where f.tenant_id = h.tenant_id and f.ledger_entry_id = h.ledger_entry_id and f.system = %(system)s and f.state = 'intended'
  and h.act_until > clock_timestamp()
returning f.payment_ref
""").fill(held=_HELD)

_ROWS = SqlTemplate("""
select {row_columns} from refunds.ledger_entries e
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = any (%(ids)s::text[])""").fill(row_columns=ROW_COLUMNS)


class Effects:
    """The recorded effects of one tenant. Thread-safe. Every call is one transaction and raises `LedgerUnavailable`."""

    def __init__(self, pool: Pool, tenant_id: uuid.UUID) -> None:
        self._pool, self.tenant_id = pool, tenant_id

    def of_entry(self, ledger_entry_id: str) -> list[EffectRecord]:
        """Read the recorded effects of an entry, in the order of the plan."""
        return self._records(_OF_ENTRY, entry=ledger_entry_id)

    def of_operation(self, reference: uuid.UUID) -> list[EffectRecord]:
        """Read the effects recorded under an operation's reference, in the order of the plan."""
        return self._records(_OF_OPERATION, reference=reference)

    def payment_of(self, ledger_entry_id: str) -> Payment | None:
        """Find the payment that was fixed for the entry's refund, else the one that its order names; None for an unknown entry."""
        return self._payment(entry=ledger_entry_id, system=None, reference=None)

    def payment_of_reference(self, system: str, reference: uuid.UUID) -> Payment | None:
        """Find the payment of the entry whose effect in `system` is recorded under `reference`, as `payment_of`."""
        return self._payment(entry=None, system=system, reference=reference)

    def fix_payment(self, system: str, row: LedgerRow, payment_ref: str) -> str | None:
        """Fix the payment of the row's effect in `system`, unless one is fixed already; return the fixed one.

        None: the claim was lost or the time to act is over, so the refund must not be asked for.
        """
        fields = {
            "entry": row.ledger_entry_id,
            "epoch": row.claim_epoch,
            "system": system,
            "payment_ref": payment_ref,
        }
        return next(iter(self._run(_FIX_PAYMENT, scalar_row, **fields)), None)

    def _payment(self, **fields: Any) -> Payment | None:
        return next(iter(self._run(_PAYMENT, class_row(Payment), **fields)), None)

    def intend(self, row: LedgerRow, plan: PlannedEffect) -> bool:
        """Record that the effect is tried now, for the first time or again.

        False: the claim was lost, the time to act is over, or the effect is no longer open.
        """
        return self._changed(_INTEND, row, **_fields(plan))

    def move(
        self, row: LedgerRow, effect_number: int, from_states: Sequence[EffectState], to_state: EffectState, *,
        system_reference: str | None = None, last_error: str | None = None,
    ) -> bool:  # fmt: skip
        """Move an effect to another state. False: the claim was lost, or the effect is in none of `from_states`."""
        return self._changed(
            _MOVE, row, effect_number=effect_number, from_states=list(from_states), to_state=to_state,
            system_reference=system_reference, last_error=_cut(last_error),
        )  # fmt: skip

    def plan_best_effort(self, row: LedgerRow, plan: PlannedEffect) -> None:
        """Record a best-effort effect; `claim_best_effort` returns it once the row's execution is on record."""
        self._run(_PLAN_LATER, scalar_row, entry=row.ledger_entry_id, epoch=row.claim_epoch, **_fields(plan))

    def claim_best_effort(self, limit: int, *, retry_seconds: float) -> list[tuple[LedgerRow, EffectRecord]]:
        """Claim the best-effort effects that are due, with their rows, for one attempt each."""
        taken = self._records(_TAKE_LATER, limit=limit, retry_seconds=retry_seconds)
        ids = [record.ledger_entry_id for record in taken]
        rows = {row.ledger_entry_id: row for row in self._run(_ROWS, class_row(LedgerRow), ids=ids)} if ids else {}
        return [(rows[record.ledger_entry_id], record) for record in taken]

    def finish_best_effort(
        self, record: EffectRecord, to_state: EffectState, *, system_reference: str | None = None,
        last_error: str | None = None,
    ) -> bool:  # fmt: skip
        """Record the result of the attempt that `record` was claimed for. False: the effect was claimed for another one meanwhile."""
        found = self._run(
            _FINISH_LATER, scalar_row, entry=record.ledger_entry_id, effect_number=record.effect_number, tries=record.tries,
            to_state=to_state, system_reference=system_reference, last_error=_cut(last_error),
        )  # fmt: skip
        return bool(found)

    def _records(self, statement: str, **fields: Any) -> list[EffectRecord]:
        return self._run(statement, kwargs_row(_record), **fields)

    def _changed(self, statement: str, row: LedgerRow, **fields: Any) -> bool:
        return bool(self._run(statement, scalar_row, entry=row.ledger_entry_id, epoch=row.claim_epoch, **fields))

    def _run(self, statement: str, row_factory: Any, **fields: Any) -> list[Any]:
        """Run one statement, twice if the connection fails.

        Repeating is safe: after a commit whose answer was lost, the second run at most counts one more attempt.
        """
        failed: Exception | None = None
        for _ in range(2):
            try:
                with self._pool.connection() as connection, connection.cursor(row_factory=row_factory) as cursor:
                    cursor.execute(statement.encode(), {"tenant_id": self.tenant_id, **fields})
                    return cursor.fetchall() if cursor.description else []
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                failed = error
            except (psycopg.Error, EngineUnavailable) as error:
                # Refused by a constraint, so nothing was written; or no connection could be had.
                raise LedgerUnavailable(first_line(error)) from error
        assert failed is not None
        raise LedgerUnavailable(first_line(failed)) from failed


def _record(*, state: str, **fields: Any) -> EffectRecord:
    return EffectRecord(state=EffectState(state), **fields)


def _fields(plan: PlannedEffect) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in PlannedEffect.__dataclass_fields__}


def _cut(text: str | None) -> str | None:
    return text and str(storable(text))[:500]


# Best-effort effects, such as a notice after a refund: tried once the execution is on record; a failure undoes nothing.


def deliver_best_effort(
    effects: Effects, systems: Mapping[str, SettlementSystem], *, limit: int = 32, retry_seconds: float = 5.0
) -> int:
    """Attempt up to `limit` due effects once; return how many were done. Raises `LedgerUnavailable`.

    `systems` are the adapters by name (`Systems.adapters`). After a failed attempt the effect is due again after a
    backoff.
    """
    done = 0
    for row, record in effects.claim_best_effort(limit, retry_seconds=retry_seconds):
        answer = _ask(systems.get(record.system), row, record)
        done += isinstance(answer, Settled) and effects.finish_best_effort(
            record, EffectState.DONE, system_reference=answer.reference
        )
        if isinstance(answer, EffectRefused):
            effects.finish_best_effort(record, EffectState.REFUSED, last_error=answer.reason)
        elif isinstance(answer, NoAnswer):
            effects.finish_best_effort(record, EffectState.IN_DOUBT, last_error=answer.detail)
    return done


def _ask(system: SettlementSystem | None, row: LedgerRow, record: EffectRecord) -> EffectResult:
    if system is None or not system.is_ready():
        return NoAnswer(f"{record.system} is not ready")
    reference: uuid.UUID = record.reference
    if record.tries > 1:
        found = is_there(system, reference)
        if not isinstance(found, EffectRefused):
            return found
    return try_once(system, row, reference)
