"""Guard, start and report without HTTP, for tests that want the committed row: the pieces that the routes are made of, in a row."""

from __future__ import annotations

import uuid
from typing import Any

from sentinel.authority import guard
from sentinel.authority.decisions import Receipt, Recorded
from sentinel.authority.engine import Authority, Caller
from sentinel.core.operation import Operation
from tests.support.commit_loop import record


def guarded(
    authority: Authority, caller: Caller, operation: Operation, *, has_start_step: bool = True, start_id: uuid.UUID | None = None
) -> Recorded:  # fmt: skip
    """The committed decision on `operation`, or the one its key has had all along. Raises the guard's refusals."""
    row = guard.decided_row(
        authority, caller, operation, has_start_step=has_start_step, elapsed_ms=1, start_id=start_id
    )
    asks_start = start_id is not None or not has_start_step
    return guard.raise_if_refused(operation, record(authority.decisions, row), asks_start=asks_start)


def started(authority: Authority, caller: Caller, **asked: Any) -> Receipt:
    """The start's receipt. Raises its refusals."""
    return guard.raise_if_start_refused(record(authority.starts, guard.start_row(authority, caller, **asked)))


def reported(authority: Authority, caller: Caller, **told: Any) -> Receipt:
    """The report's receipt. Raises its refusals."""
    return guard.raise_if_report_refused(record(authority.reports, guard.report_row(authority, caller, **told)))
