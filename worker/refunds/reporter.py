"""Reports outcomes to the authority, and asks it about refunds in doubt.

Reports are sent from the outbox until acknowledged: sending twice is harmless, never sending is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from sentinel.client import Client, GuardAnswer, GuardQuestion, Outcome, Rejected, ReportReceipt, Unreachable
from worker.failpoints import Failpoint, Failpoints
from worker.outbound.report_answers import is_refused_for_good
from worker.refunds.concurrency import WorkerPool
from worker.refunds.ledger import Ledger
from worker.refunds.rows import RISK_CLASS, LedgerRow, Report, ResolvedDoubt
from worker.refunds.transitions import RetryPolicy, after_doubt
from worker.refunds.workflow.routes import Routes

_log = logging.getLogger("worker")

SWEEP = 128
Failure = tuple[str, float | None]


class Reporter:
    """Sends reports and records the results. `only_agent` returns the one agent whose rows' reports a sweep sends; None: every agent's."""

    def __init__(
        self, ledger: Ledger, client: Client, worker_pool: WorkerPool, retry_policy: RetryPolicy, failpoints: Failpoints,
        *, only_agent: Callable[[], str | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._ledger, self._client, self._worker_pool = ledger, client, worker_pool
        self._retry_policy, self._failpoints, self._only_agent = retry_policy, failpoints, only_agent

    def deliver(self, reports: Sequence[Report]) -> int:
        """Send reports and mark the received ones as acknowledged; returns how many. Failed ones stay in the outbox."""
        failures = {
            report.outbox_id: failure
            for report, failure in zip(reports, self._worker_pool.map_chunks(self._send, reports), strict=True)
            if failure is not None
        }
        received = [report.outbox_id for report in reports if report.outbox_id not in failures]
        self._ledger.acknowledge(received)
        self._ledger.postpone_reports(failures)
        if received:
            self._failpoints.hit(Failpoint.AFTER_ACK)
        return len(received)

    def sweep(self, *, older_than_seconds: float) -> int:
        """Send the open and due reports; returns how many were received. Stops at the first round in which none was."""
        total = 0
        while reports := self._ledger.take_reports(
            SWEEP, retry_seconds=self._retry_policy.pause_seconds(3), older_than_seconds=older_than_seconds,
            agent=self._only_agent(),
        ):  # fmt: skip
            received = self.deliver(reports)
            total += received
            if not received or len(reports) < SWEEP:
                break
        return total

    def _send(self, reports: Sequence[Report]) -> Sequence[Failure | None]:
        self._failpoints.hit(Failpoint.BEFORE_REPORT)
        found = self._client.report_many([cast(Outcome, report.payload) for report in reports])
        self._failpoints.hit(Failpoint.AFTER_REPORT)
        return [self._failure(report, one) for report, one in zip(reports, found, strict=True)]

    def _failure(self, report: Report, answer: ReportReceipt | Unreachable | Rejected) -> Failure | None:
        """None when received, else (what happened, seconds until the next try or None for never)."""
        if isinstance(answer, Unreachable):
            pause = self._retry_policy.pause_seconds(report.attempts, answer.retry_after_seconds or 0.0)
            return answer.detail[:500], pause
        if isinstance(answer, Rejected):
            for_good = is_refused_for_good(answer)
            return answer.detail[:500], None if for_good else self._retry_policy.pause_seconds(report.attempts)
        if answer.contradiction:
            # Received, and the authority has it in doubt for a person: nothing to send again.
            _log.error("entry %s was resolved as not executed before it was reported as done", report.ledger_entry_id)
        return None


LOOK_EVERY_SECONDS = 10.0
_LOOKED_AT_ONCE = 32


class InDoubtPoller:
    """Asks what became of refunds in doubt, so that their amounts are released or stay counted against the order.

    It repeats the row's own guard request to the authority; if nothing was started and the permit expired, that issues
    a new permit, once. An amount is released only if the authority has on record that a person decided "not executed",
    or that nothing was ever started and the ledger does not know better: an agent's report of an error releases
    nothing. Works on one tenant's ledger, on the rows of the agent that `only_agent` returns (None: every agent's).
    Thread-safe; `look` raises `LedgerUnavailable`.
    """

    def __init__(
        self, ledger: Ledger, client: Client, routes: Routes, *, only_agent: Callable[[], str | None] = lambda: None
    ) -> None:
        self._ledger, self._client, self._routes, self._only_agent = ledger, client, routes, only_agent

    def look(self) -> list[str]:
        """Ask about a page of the rows in doubt; returns the ids that are no longer in doubt."""
        settled: list[str] = []
        rows = [self._routes.as_asked(row) for row in self._ledger.in_doubt(agent=self._only_agent())]
        for start in range(0, len(rows), _LOOKED_AT_ONCE):
            part = rows[start : start + _LOOKED_AT_ONCE]
            answers = self._client.guard_many([_question(r) for r in part])
            settled += self._ledger.settle_in_doubt(resolved_doubts(part, answers))
        return settled


def resolved_doubts(
    rows: Sequence[LedgerRow], answers: Sequence[GuardAnswer | Unreachable | Rejected]
) -> dict[str, ResolvedDoubt]:
    """How the answers resolve the rows, by id; a row that stays in doubt is missing."""
    found = {}
    for row, answer in zip(rows, answers, strict=True):
        resolved = after_doubt(row, answer) if isinstance(answer, GuardAnswer) else None
        if resolved is not None:
            found[row.ledger_entry_id] = resolved
    return found


def _question(row: LedgerRow) -> GuardQuestion:
    return {
        "action": row.action, "params": row.asked.params if row.asked else {}, "idempotency_key": row.idempotency_key,
        "resource": row.resource, "risk_class": RISK_CLASS, "agent_id": row.agent_id,
        "evidence_context": {"correlation_id": row.ledger_entry_id},
    }  # fmt: skip
