"""Reports outcomes of starts to the authority: at once, many per call, and again until acknowledged.

What is due is in the database (`orders.effects.report_due_at`); the queue here only makes it quick.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence

import structlog

from sentinel.client import Outcome, Rejected, ReportReceipt, Unreachable
from sentinel.core.errors import SentinelError
from sentinel.core.money import Money, money_out
from worker.failpoints import Failpoints
from worker.orders import metrics
from worker.orders.authority_client import RISK_CLASS, AuthorityClient
from worker.orders.claims import ClaimedOrder, DueReport
from worker.orders.failpoints import OrderFailpoint
from worker.orders.order import ACTION, AGENT_ID, order_key, resource_of
from worker.orders.store import OrderStore
from worker.orders.transitions import pause_seconds

_AT_ONCE = 32
_GATHER_SECONDS = 0.05
"""Outcomes within this time share one call; nothing waits for it."""
_MOST_WAITING = 2000
_REFUSED_FOR_GOOD = (400, 409, 422)

log = structlog.get_logger("worker.orders")


class OutcomeReporter:
    """Sends reports. `run` in a thread of its own; without it the background's sweep does all of them."""

    def __init__(self, store: OrderStore, authority: AuthorityClient, failpoints: Failpoints) -> None:
        self._store, self._authority, self._failpoints = store, authority, failpoints
        self._waiting: queue.Queue[DueReport | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()

    def soon(self, work: ClaimedOrder, *, done: bool, reference: str | None, error: str | None) -> None:
        """This one was just settled. Too many waiting: the sweep finds it."""
        assert work.operation_id is not None
        report = DueReport(
            work.review_id, work.source, work.order_id, done, work.operation_id, reference, error, work.amount_minor,
            work.currency, 0,
        )  # fmt: skip
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            return

    def run(self) -> None:
        """Send what comes until stopped."""
        while not self._stopping.is_set():
            first = self._waiting.get()
            if first is None:
                return
            self._stopping.wait(_GATHER_SECONDS)
            batch = [first]
            while len(batch) < _AT_ONCE and not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    self._stopping.set()
                    break
                batch.append(following)
            self._quietly(batch)

    def stop(self) -> None:
        """End `run`; what is left is sent by the next sweep."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return

    def sweep(self) -> int:
        """Send what is due; returns how many were received."""
        due = self._store.take_reports(_AT_ONCE, retry_seconds=30.0)
        return self.deliver(due) if due else 0

    def deliver(self, reports: Sequence[DueReport]) -> int:
        """Send and acknowledge; returns how many were received."""
        self._failpoints.hit(OrderFailpoint.BEFORE_REPORT)
        answers = self._authority.report([outcome_of(report) for report in reports])
        self._failpoints.hit(OrderFailpoint.AFTER_REPORT)
        pairs = list(zip(reports, answers, strict=True))
        received = [report.review_id for report, answer in pairs if isinstance(answer, ReportReceipt)]
        self._store.acknowledge(received)
        self._failpoints.hit(OrderFailpoint.AFTER_ACK)
        metrics.REPORTS.labels("received").inc(len(received))
        for report, answer in pairs:
            if isinstance(answer, ReportReceipt) and answer.contradiction:
                log.error("report_contradicts_resolution", review_id=str(report.review_id))
            if isinstance(answer, (Unreachable, Rejected)):
                self._postpone(report, answer)
        return len(received)

    def _postpone(self, report: DueReport, answer: Unreachable | Rejected) -> None:
        metrics.REPORTS.labels("failed").inc()
        for_good = isinstance(answer, Rejected) and answer.status in _REFUSED_FOR_GOOD
        if for_good:
            log.error("report_refused", review_id=str(report.review_id), error=answer.detail)
        pause = None if for_good else pause_seconds(report.tries, random.random())
        self._store.postpone_report(report.review_id, answer.detail, pause)

    def _quietly(self, batch: Sequence[DueReport]) -> None:
        try:
            self.deliver(batch)
        except SentinelError as error:
            log.warning("reports_not_sent", count=len(batch), error=error.detail)
        except Exception:
            # The thread stays: what is due is in the database.
            log.exception("reports_failed")


def outcome_of(report: DueReport) -> Outcome:
    """The outcome report; the same at every try, because it is made of what is stored."""
    outcome: Outcome = {
        "idempotency_key": order_key(report.source, report.order_id), "action": ACTION, "agent_id": AGENT_ID,
        "resource": resource_of(report.source, report.order_id), "risk_class": RISK_CLASS,
        "outcome": "success" if report.done else "error", "report_id": report.review_id,
    }  # fmt: skip
    if report.done:
        outcome["result"] = {
            "order_id": report.order_id, "shop_reference": report.shop_reference,
            "amount": money_out(Money(report.amount_minor, report.currency)),
        }  # fmt: skip
    else:
        # Only a person can find out whether it happened: the operation stays in doubt.
        outcome["error"] = f"the shop refused: {report.error or 'no reason given'}"
    return outcome
