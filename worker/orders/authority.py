"""Asks the authority about orders and reports their outcomes to it, many per request, until each is acknowledged.

Which reports are due is in the database (`orders.effects.report_due_at`); the in-memory queue only sends new ones
sooner.
"""

from __future__ import annotations

import queue
import random
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from psycopg.rows import class_row, scalar_row

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
from sentinel.core.errors import SentinelError
from sentinel.core.money import Money, money_out
from worker.failpoints import Failpoints, OrderFailpoint
from worker.orders import metrics
from worker.orders.order import ACTION, AGENT_ID, ClaimedOrder, order_key, resource_of
from worker.orders.store import OrderStore
from worker.orders.transitions import BACKOFF
from worker.outbound.guard_answers import RESOLVED
from worker.outbound.report_answers import is_refused_for_good
from worker.switch_cache import SwitchCache, halts_cover

RISK_CLASS = "standard"


class AuthorityClient:
    """Asks the authority about `order.fulfill`, with a start, and reports outcomes. Thread-safe; failures are returned, not raised."""

    def __init__(self, client: Client, *, act_within_seconds: int = 60) -> None:
        self._client, self._act_within_seconds = client, act_within_seconds
        self._switch_cache = SwitchCache(client)

    def is_halted(self) -> bool | Unreachable | Rejected:
        """Whether a halt covers `order.fulfill`; a question asked under one is denied for good.

        `Unreachable` or `Rejected`: it is not known, and the question might be answered all the same.
        """
        try:
            return halts_cover(self._switch_cache.current(), agent_id=AGENT_ID, action=ACTION, scenario="")
        except (Unreachable, Rejected) as error:
            return error

    def guard(self, works: Sequence[ClaimedOrder]) -> list[GuardAnswer | Unreachable | Rejected]:
        """Send the stored questions of up to 64 orders, the same at every attempt; an ALLOW is started at once.

        Once a person has resolved an operation as not executed its start is refused for good; its recorded decision is
        then asked for without a start.
        """
        answers = self._client.guard_many([self._question_with_start(work) for work in works])
        return [
            self._client.guard_many([_question(work)])[0]
            if isinstance(answer, Rejected) and answer.code == RESOLVED
            else answer
            for work, answer in zip(works, answers, strict=True)
        ]

    def report(self, outcomes: Sequence[Outcome]) -> list[ReportReceipt | Unreachable | Rejected]:
        """Report the outcomes of up to 64 starts."""
        return self._client.report_many(outcomes)

    def approvals_since(self, since: datetime, limit: int) -> list[ApprovalDecision]:
        """At most `limit` approvals decided after `since`, oldest first. Raises `Unreachable` or `Rejected`."""
        return self._client.approvals_since(since, limit)

    def _question_with_start(self, work: ClaimedOrder) -> GuardQuestion:
        return {**_question(work), "start_id": work.own_start_id, "act_within_seconds": self._act_within_seconds}


def _question(work: ClaimedOrder) -> GuardQuestion:
    return {
        "action": ACTION, "agent_id": AGENT_ID, "idempotency_key": order_key(work.source, work.order_id),
        "resource": resource_of(work.source, work.order_id), "risk_class": RISK_CLASS, "params": work.guard_params or {},
    }  # fmt: skip


_AT_ONCE = 64
_GATHER_SECONDS = 0.1
"""How long a report waits for others to share its call; no order waits for a report."""
_MOST_WAITING = 2000

log = structlog.get_logger("worker.orders")


@dataclass(frozen=True, slots=True)
class DueReport:
    """One outcome that the authority has not acknowledged."""

    review_id: uuid.UUID
    source: str
    order_id: str
    done: bool
    operation_id: uuid.UUID
    shop_reference: str | None
    error: str | None
    amount_minor: int
    currency: str
    tries: int


TAKE_REPORTS = "select * from orders.take_reports(%(tenant_id)s, %(limit)s, %(retry_seconds)s)"
ACKNOWLEDGE_REPORTS = """
update orders.effects set reported_at = clock_timestamp(), report_error = null
where tenant_id = %(tenant_id)s and review_id = any(%(ids)s) and kind = 'fulfil' and reported_at is null
"""
# A report that is refused for its content (no pause) is never due again, as a retry would be the same; the metrics show
# it.
POSTPONE_REPORT = """
update orders.effects set report_error = %(error)s,
  report_due_at = case when %(pause_seconds)s::float8 is null then 'infinity'
                       else clock_timestamp() + make_interval(secs => %(pause_seconds)s) end
where tenant_id = %(tenant_id)s and review_id = %(review_id)s and kind = 'fulfil' and reported_at is null
"""


class OutcomeReporter:
    """Sends outcome reports. `run` belongs in a thread of its own; without it the background's sweep sends all of them."""

    def __init__(self, store: OrderStore, authority: AuthorityClient, failpoints: Failpoints) -> None:
        self._store, self._authority, self._failpoints = store, authority, failpoints
        self._waiting: queue.Queue[DueReport | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()

    def soon(self, work: ClaimedOrder, shop_reference: str | None) -> None:
        """Queue the report of a fulfilled order; when the queue is full, the next sweep sends it."""
        assert work.operation_id is not None
        report = DueReport(
            work.review_id, work.source, work.order_id, True, work.operation_id, shop_reference, None, work.amount_minor,
            work.currency, 0,
        )  # fmt: skip
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            return

    def run(self) -> None:
        """Send queued reports until stopped."""
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
            self._deliver_or_log(batch)

    def stop(self) -> None:
        """End `run`; the next sweep sends what is still queued."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return

    def sweep(self) -> int:
        """Send the reports that are due; return how many the authority received."""
        due = self._store.rows(TAKE_REPORTS, class_row(DueReport), limit=_AT_ONCE, retry_seconds=30.0)
        return self.deliver(due) if due else 0

    def deliver(self, reports: Sequence[DueReport]) -> int:
        """Send reports and record those that the authority received; return how many. The others are postponed."""
        self._failpoints.hit(OrderFailpoint.BEFORE_REPORT)
        answers = self._authority.report([outcome_of(report) for report in reports])
        self._failpoints.hit(OrderFailpoint.AFTER_REPORT)
        pairs = list(zip(reports, answers, strict=True))
        received = [report.review_id for report, answer in pairs if isinstance(answer, ReportReceipt)]
        if received:
            self._store.rows(ACKNOWLEDGE_REPORTS, scalar_row, ids=received)
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
        for_good = isinstance(answer, Rejected) and is_refused_for_good(answer)
        if for_good:
            log.error("report_refused", review_id=str(report.review_id), error=answer.detail)
        pause = None if for_good else BACKOFF.pause_seconds(report.tries, random.random())
        self._store.rows(
            POSTPONE_REPORT, scalar_row, review_id=report.review_id, error=answer.detail[:500], pause_seconds=pause
        )

    def _deliver_or_log(self, batch: Sequence[DueReport]) -> None:
        try:
            self.deliver(batch)
        except SentinelError as error:
            log.warning("reports_not_sent", count=len(batch), error=error.detail)
        except Exception:
            # Keep the thread alive: the reports are still due in the database.
            log.exception("reports_failed")


def outcome_of(report: DueReport) -> Outcome:
    """The outcome report, made of stored values only, so it is the same at every attempt."""
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
        # "error" means unknown: the operation stays in doubt until a person finds out whether the order was fulfilled.
        outcome["error"] = f"the shop refused: {report.error or 'no reason given'}"
    return outcome
