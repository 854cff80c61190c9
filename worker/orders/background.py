"""Periodic work besides deliveries: orders to resume, decided approvals, holds, outcome reports and alerts that are due.

Each process has one thread for it, and one each for alerts and for new reports, which only wait for outside calls.
Items are leased in the database, so several processes share the work, and another process takes over from one that
died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from sentinel.client import ClientError
from sentinel.core.errors import SentinelError
from sentinel.platform.ongoing_failures import OngoingFailures
from worker.orders.alerts import Alerts
from worker.orders.processor import OrderProcessor
from worker.orders.shop import Attempts
from worker.orders.store import DueHold
from worker.outbound.decided_approvals import decided_pages

_AT_ONCE = 8
_HOUSEKEEPING_SECONDS = 600.0

log = structlog.get_logger("worker.orders")
T = TypeVar("T")


class Background:
    """Runs the periodic tasks. Call `start` and `stop` once each; `once` runs each task once, for tests."""

    def __init__(self, processor: OrderProcessor, alerts: Alerts, *, poll_seconds: float) -> None:
        self._processor, self._alerts, self._poll_seconds = processor, alerts, poll_seconds
        self._store, self._reports = processor.store, processor.reports
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._housekeeping_due = 0.0
        self._failures = OngoingFailures(SentinelError, ClientError)

    def start(self) -> None:
        """Start the background work in daemon threads."""
        for name, target in (
            ("order-rounds", self._run),
            ("order-alerts", self._run_alerts),
            ("order-reports", self._reports.run),
        ):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the threads, waiting up to 2 seconds for each; unfinished work can be resumed from what is recorded."""
        self._stopping.set()
        self._reports.stop()
        for thread in self._threads:
            thread.join(2.0)

    def once(self) -> int:
        """Run every task once; return how many orders, holds and filed refunds were processed. A failing task does not stop the others."""
        return self._round() + self._run_task(self._alert)

    def _round(self) -> int:
        tasks = (self._fetch_approvals, self._resume, self._hold, self._follow, self._report, self._housekeeping)
        return sum(self._run_task(task) for task in tasks)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Where this round processed something, more may be due: start the next round without a pause.
            if not self._round():
                self._stopping.wait(self._poll_seconds)

    def _run_alerts(self) -> None:
        # A channel that does not answer costs its whole timeout per alert: in a thread of its own it delays no order.
        while not self._stopping.is_set():
            self._run_task(self._alert)
            self._stopping.wait(self._poll_seconds)

    def _run_task(self, task: Callable[[], int]) -> int:
        name, done = task.__name__.strip("_"), 0
        with self._failures.logged(log, "task", name, task=name):
            done = task()
        return done

    def _fetch_approvals(self) -> int:
        for decided in decided_pages(self._processor.authority.approvals_since, self._store.approvals_wanted_since()):
            self._store.wake([decision.request_id for decision in decided])
            self._store.move_cursor(decided[-1].decided_at)
        return 0

    def _resume(self) -> int:
        runs = self._processor.left_behind(self._store.claim(_AT_ONCE))
        if runs:
            self._processor.run_all(runs)
        for run in runs:
            if run.error is not None:
                log.info("order_waits", error=str(run.error))
        return len(runs)

    def _hold(self) -> int:
        return self._each(self._hold_one, self._store.claim_holds(_AT_ONCE))

    def _hold_one(self, due: DueHold) -> None:
        # The process that recorded the hold may have died during its first attempt: count one, so that the shop is
        # looked at first.
        self._processor.hold(due.work, Attempts(max(1, due.tries), due.seconds_ago))

    def _follow(self) -> int:
        return self._store.track_filed_refunds(_AT_ONCE)

    def _each(self, do: Callable[[T], None], found: list[T]) -> int:
        if not found:
            return 0
        with ThreadPoolExecutor(min(_AT_ONCE, len(found)), thread_name_prefix="order") as worker_pool:
            list(worker_pool.map(lambda one: _run_or_log(do, one), found))
        return len(found)

    def _report(self) -> int:
        self._reports.sweep()
        return 0

    def _alert(self) -> int:
        self._alerts.deliver_due()
        return 0

    def _housekeeping(self) -> int:
        # One batch per round, so that no round takes long; the rest is deleted in the next rounds.
        if time.monotonic() >= self._housekeeping_due and self._store.forget_deliveries():
            self._housekeeping_due = time.monotonic() + _HOUSEKEEPING_SECONDS
        return 0


def _run_or_log(do: Callable[[T], None], one: T) -> None:
    try:
        do(one)
    except SentinelError as error:
        log.info("order_waits", error=error.detail)
    except Exception:
        log.exception("order_failed")
