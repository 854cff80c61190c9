"""Shared by the routes of other protocols: one guard, check or report at a time, and problem documents with extra members."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import orjson

from sentinel.authority.api.calls import count_unavailable
from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import DecisionTally, accepted_report, check_decision
from sentinel.authority.decisions import Peeked, Receipt, Recorded
from sentinel.authority.engine import Caller
from sentinel.authority.guard import decided_row, report_row
from sentinel.authority.guard_rows import GuardRow
from sentinel.core.errors import SentinelError, StillDeciding, TryLater
from sentinel.core.operation import Operation
from sentinel.platform.http.problems import problem_of
from sentinel.platform.http.wire import EdgeResponse


class AuthorityCalls:
    """Calls the authority for a route; rows of all routes share commits."""

    def __init__(self, context: Context) -> None:
        self._authority = context.authority
        self._tally = DecisionTally(context.authority.policies)

    async def guard(
        self, caller: Caller, operation: Operation, *, request_id: str, has_start_step: bool = True,
        start_id: uuid.UUID | None = None, trace: bytes | None = None,
    ) -> Recorded:  # fmt: skip
        """Guard an operation and return the committed decision, or the one that its key already had.

        Raises as `decided_row`, the commit and `check_decision`.
        """
        began = time.perf_counter()
        row = decided_row(
            self._authority,
            caller,
            operation,
            has_start_step=has_start_step,
            elapsed_ms=0,
            start_id=start_id,
            trace=trace,
        )
        try:
            found = await self._authority.decisions.recorded(row)
        except SentinelError as error:
            count_unavailable(error)
            raise
        check_decision(caller, operation, found, asks_start=start_id is not None or not has_start_step)
        self._tally.add(operation, found, time.perf_counter() - began, request_id)
        return found

    async def check(self, caller: Caller, operation: Operation) -> tuple[Peeked, GuardRow]:
        """Return what the decision would be now, and the row that would be recorded."""
        row = decided_row(self._authority, caller, operation, has_start_step=True, elapsed_ms=0)
        return await self._authority.checks.recorded(row), row

    async def report(
        self, caller: Caller, *, request_id: str, outcome: str, error: str | None, **bound: Any
    ) -> Receipt:
        """Record a report and return its receipt; `bound` names the operation. Raises the report's refusals."""
        row = report_row(
            self._authority, caller, outcome=outcome, error=error, result=None, permit_token=None, report_id=None, **bound
        )  # fmt: skip
        return accepted_report(await self._authority.reports.recorded(row), outcome, request_id, self._tally)


def retryable(error: SentinelError) -> SentinelError:
    """Turn `StillDeciding` (409) into `TryLater` (503): clients of other protocols retry a 503, but treat a conflict as final."""
    return TryLater(error.detail) if isinstance(error, StillDeciding) else error


def amended_problem(error: SentinelError, request_id: str, members: Mapping[str, Any]) -> EdgeResponse:
    """Return the problem document of a refusal with additional members, or with members replaced."""
    body, status, content_type, headers = problem_of(error, request_id)
    return EdgeResponse(orjson.dumps({**orjson.loads(body), **members}), status, content_type, headers)
