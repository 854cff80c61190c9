"""Best-effort effects (a notice after a refund): retried after the execution is on record; a failure undoes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from worker.outbound.effects import EffectResult, NoAnswer, Refused, Settled
from worker.refunds.rows import LedgerRow
from worker.settlement.attempt import is_there, try_once
from worker.settlement.effects import EffectRecord, Effects, EffectState
from worker.settlement.gateway import SettlementSystem


def deliver_best_effort(
    book: Effects, systems: Mapping[str, SettlementSystem], *, limit: int = 32, retry_seconds: float = 5.0
) -> int:
    """One try for up to `limit` due effects; returns how many were done. Raises `LedgerUnavailable`.

    `systems` are the adapters by name (`Systems.adapters`). A failed try comes due again after a growing pause.
    """
    done = 0
    for row, record in book.claim_best_effort(limit, retry_seconds=retry_seconds):
        answer = _ask(systems.get(record.system), row, record)
        done += isinstance(answer, Settled) and book.finish_best_effort(
            record, EffectState.DONE, system_reference=answer.reference
        )
        if isinstance(answer, Refused):
            book.finish_best_effort(record, EffectState.REFUSED, last_error=answer.reason)
        elif isinstance(answer, NoAnswer):
            book.finish_best_effort(record, EffectState.IN_DOUBT, last_error=answer.detail)
    return done


def _ask(system: SettlementSystem | None, row: LedgerRow, record: EffectRecord) -> EffectResult:
    if system is None or not system.is_ready():
        return NoAnswer(f"{record.system} is not ready")
    reference: uuid.UUID = record.reference
    if record.tries > 1:
        found = is_there(system, reference)
        if not isinstance(found, Refused):
            return found
    return try_once(system, row, reference)
