"""What pages read of the ledger where it is no page of the ledger: without it the console still stops and decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from sentinel.core.errors import EngineUnavailable, StillDeciding

Value = TypeVar("Value")

log = structlog.get_logger("console.ledger")


@dataclass(frozen=True, slots=True)
class LedgerRead(Generic[Value]):
    """What was read. `is_away`: the ledger gave no answer, and `value` is None."""

    value: Value | None = None
    is_away: bool = False


def read_ledger(read: Callable[[], Value]) -> LedgerRead[Value]:
    """What `read` asks of the ledger, whose database may be another one and be away. Why it is away is for the log."""
    try:
        return LedgerRead(read())
    except (EngineUnavailable, StillDeciding) as error:
        log.warning("ledger_away", cause=error.detail)
        return LedgerRead(is_away=True)
