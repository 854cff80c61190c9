"""Asking one system once, so that whatever it does comes back as a value with a meaning."""

from __future__ import annotations

import logging
import uuid

from worker.rows import LedgerRow
from worker.settlement.gateway import Answer, Compensating, NoAnswer, Refused, Settled, SettlementSystem

_log = logging.getLogger("worker")


def try_once(system: SettlementSystem, row: LedgerRow, reference: uuid.UUID, *, again: bool) -> Answer:
    """Ask for the effect; where that leaves a doubt, look whether it is there. `again` after an earlier try.

    "Not there" right after a try without an answer proves nothing, as the call may still be under way: no answer.
    """
    try:
        answer = system.settle(row, reference)
    except Exception as error:
        answer = _defect(system, error)
    if isinstance(answer, NoAnswer):
        found = is_there(system, reference)
        return found if isinstance(found, Settled) else answer
    if isinstance(answer, Refused) and again:
        # "Already done" is a refusal too; after an earlier try only the look tells the two apart.
        found = is_there(system, reference)
        return answer if isinstance(found, Refused) else found
    return answer


def is_there(system: SettlementSystem, reference: uuid.UUID) -> Answer:
    """Whether the effect is there."""
    try:
        return system.look_up(reference)
    except Exception as error:
        return _defect(system, error)


def take_back(system: SettlementSystem, reference: uuid.UUID) -> str | None:
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
