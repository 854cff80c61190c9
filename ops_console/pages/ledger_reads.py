"""Reads of the ledger by pages about other things: while its database is down, halts and approvals still work."""

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
    """The result of a read. `is_away`: the ledger's database did not answer, and `value` is None."""

    value: Value | None = None
    is_away: bool = False


def read_ledger(read: Callable[[], Value]) -> LedgerRead[Value]:
    """Call `read` on the ledger, which may be in another database that is down. The cause of an outage goes to the log."""
    try:
        return LedgerRead(read())
    except (EngineUnavailable, StillDeciding) as error:
        log.warning("ledger_away", cause=error.detail)
        return LedgerRead(is_away=True)
