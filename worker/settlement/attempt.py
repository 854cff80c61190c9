"""One try of one system, with every failure turned into a result value."""

from __future__ import annotations

import logging
import uuid

from worker.outbound.effects import EffectResult, NoAnswer, Refused, Settled
from worker.refunds.rows import LedgerRow
from worker.settlement.gateway import Compensating, SettlementSystem

_log = logging.getLogger("worker")


def try_once(system: SettlementSystem, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
    """Ask for the effect; unless that says done, look whether it is there.

    "Not there" right after a try without an answer proves nothing, as the call may still be under way: no answer. A
    refusal is believed when the look says "not there" too: "already done" is a refusal, and so is a system's mistake.
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
    return answer if isinstance(found, Refused) else found


def is_there(system: SettlementSystem, reference: uuid.UUID) -> EffectResult:
    """Whether the effect is there."""
    try:
        return system.look_up(reference)
    except Exception as error:
        return _defect(system, error)


def compensate(system: SettlementSystem, reference: uuid.UUID) -> str | None:
    """Undo the effect. None: nothing is there any more; else what is in the way, and then it may be there or not."""
    if not isinstance(system, Compensating):
        return "it cannot be taken back"
    try:
        answer = system.compensate(reference)
    except Exception as error:
        answer = _defect(system, error)
    if isinstance(answer, Settled):
        return None
    if isinstance(answer, NoAnswer) and isinstance(is_there(system, reference), Refused):
        return None
    return answer.reason if isinstance(answer, Refused) else answer.detail


def _defect(system: SettlementSystem, error: Exception) -> NoAnswer:
    # Its text may quote what was sent; the kind and the place in the log are enough to find it.
    _log.error("settlement system %s failed: %s", system.name, type(error).__name__)
    return NoAnswer(f"its adapter failed: {type(error).__name__}")
