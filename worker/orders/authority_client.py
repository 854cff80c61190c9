"""Calls the authority for orders, many per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentinel.client import (
    Client,
    GuardAnswer,
    GuardQuestion,
    Outcome,
    Rejected,
    ReportReceipt,
    Unreachable,
)
from sentinel.client.answers import ApprovalDecision
from worker.orders.claims import ClaimedOrder
from worker.orders.order import ACTION, AGENT_ID, order_key, resource_of

RISK_CLASS = "standard"
RESOLVED = "resolved-not-executed"
"""The code of a start that is refused because a person said that it was not executed."""


class AuthorityClient:
    """Guard with its start, and report, of `order.fulfill`. Thread-safe; what goes wrong is a value."""

    def __init__(self, client: Client, *, act_within_seconds: int = 60) -> None:
        self._client, self._act_within_seconds = client, act_within_seconds

    def guard(self, works: Sequence[ClaimedOrder]) -> list[GuardAnswer | Unreachable | Rejected]:
        """Ask what is stored with up to 64 orders, the same at every try; a permission is started with its answer.

        Where a person has said that it was not executed the start is refused for ever; then the record is asked for alone.
        """
        answers = self._client.guard_many([self._starting(work) for work in works])
        return [
            self._client.guard_many([_question(work)])[0]
            if isinstance(answer, Rejected) and answer.code == RESOLVED
            else answer
            for work, answer in zip(works, answers, strict=True)
        ]

    def report(self, outcomes: Sequence[Outcome]) -> list[ReportReceipt | Unreachable | Rejected]:
        """Report the outcomes of up to 64 starts."""
        return self._client.report_many(outcomes)

    def approvals_since(self, since: Any) -> list[ApprovalDecision]:
        """Approvals decided after `since`, oldest first. Raises `Unreachable` or `Rejected`."""
        return self._client.approvals_since(since, 500)

    def _starting(self, work: ClaimedOrder) -> GuardQuestion:
        return {**_question(work), "start_id": work.own_start_id, "act_within_seconds": self._act_within_seconds}


def _question(work: ClaimedOrder) -> GuardQuestion:
    return {
        "action": ACTION, "agent_id": AGENT_ID, "idempotency_key": order_key(work.source, work.order_id),
        "resource": resource_of(work.source, work.order_id), "risk_class": RISK_CLASS, "params": work.guard_params or {},
    }  # fmt: skip
