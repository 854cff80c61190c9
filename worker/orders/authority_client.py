"""Calls the authority for orders, many per request: orders that arrive during a call share the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.client import (
    Client,
    GuardAnswer,
    GuardQuestion,
    NoAnswerKind,
    Outcome,
    Rejected,
    ReportReceipt,
    Unreachable,
)
from sentinel.client.answers import ApprovalDecision
from sentinel.core.errors import EngineUnavailable
from worker.orders.claims import ClaimedOrder
from worker.orders.group_commit import BatchingCommit, InFlight
from worker.orders.order import ACTION, AGENT_ID, order_key, resource_of

RISK_CLASS = "standard"
RESOLVED = "resolved-not-executed"
"""The code of a start that is refused because a person said that it was not executed."""
_MOST = 32


class AuthorityClient:
    """Guard with its start, and report, of `order.fulfill`. Thread-safe; what goes wrong is a value."""

    def __init__(self, client: Client, in_flight: InFlight | None = None, *, act_within_seconds: int = 60) -> None:
        self._act_within_seconds = act_within_seconds
        self._client, in_flight = client, in_flight or InFlight()
        self._guards: BatchingCommit[GuardAnswer | Unreachable | Rejected] = BatchingCommit(
            self._guard_many, in_flight, most=_MOST
        )

    def guard(self, work: ClaimedOrder) -> GuardAnswer | Unreachable | Rejected:
        """Ask what is stored with the order, the same at every try; a permission is started with its answer.

        Where a person has said that it was not executed the start is refused for ever; then the record is asked for alone.
        """
        try:
            answer = self._guards.record({"work": work})
        except EngineUnavailable as error:
            return Unreachable(NoAnswerKind.TIMEOUT, error.detail)
        if isinstance(answer, Rejected) and answer.code == RESOLVED:
            return self._client.guard_many([_question(work)])[0]
        return answer

    def report(self, outcomes: Sequence[Outcome]) -> list[ReportReceipt | Unreachable | Rejected]:
        """Report the outcomes of up to 64 starts."""
        return self._client.report_many(outcomes)

    def approvals_since(self, since: Any) -> list[ApprovalDecision]:
        """Approvals decided after `since`, oldest first. Raises `Unreachable` or `Rejected`."""
        return self._client.approvals_since(since, 500)

    def _guard_many(self, rows: Sequence[Mapping[str, Any]]) -> list[GuardAnswer | Unreachable | Rejected]:
        return self._client.guard_many([self._starting(row["work"]) for row in rows])

    def _starting(self, work: ClaimedOrder) -> GuardQuestion:
        return {**_question(work), "start_id": work.own_start_id, "act_within_seconds": self._act_within_seconds}


def _question(work: ClaimedOrder) -> GuardQuestion:
    return {
        "action": ACTION, "agent_id": AGENT_ID, "idempotency_key": order_key(work.source, work.order_id),
        "resource": resource_of(work.source, work.order_id), "risk_class": RISK_CLASS, "params": work.guard_params or {},
    }  # fmt: skip
