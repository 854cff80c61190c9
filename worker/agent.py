"""The refund agent: claims what is due, keeps its claims alive, learns approvals, sends reports, answers operators.

`run_once` ends when nothing is due; `run_loop` ends when it is told to. Both survive an authority and a database that
come and go: a row in hand then comes back by its lease, and nothing is thought about it that is not known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sentinel.client import Client, Rejected, Unreachable
from worker.crew import Crew
from worker.errands import Errands
from worker.gate import AuthorityGate
from worker.hands import Hands
from worker.ledger import Ledger, LedgerUnavailable
from worker.outcomes import RowOutcome, RunOutcome
from worker.pipeline import BatchOutcome, Pipeline
from worker.reporter import Reporter
from worker.rows import LedgerRow
from worker.settings import WorkerSettings

_log = logging.getLogger("worker")

_FINISH_SECONDS = 1.2
"""What is in hand at a stop may take so long; then calls under way are broken off."""
_SHOW_SECONDS = 2.0
_WAKE_WITHIN_SECONDS = 2.0
"""Over how long the rows that waited for an outage come back, so that they do not all ask at once."""
_SWEEP_SECONDS = 2.0
_FRESH_SECONDS = 5.0
"""Reports younger than this are still being sent by whoever executed."""

OnRow = Callable[[RowOutcome], None]


class Agent:
    """One worker process. `on_row` is told of every row as it is done with, from any thread."""

    def __init__(
        self, settings: WorkerSettings, *, ledger: Ledger, client: Client, crew: Crew, reporter: Reporter,
        pipeline: Pipeline, errands: Errands, stopping: threading.Event, on_row: OnRow = lambda row: None,
    ) -> None:  # fmt: skip
        self._settings, self._ledger, self._client, self._on_row = settings, ledger, client, on_row
        self._crew, self._reporter, self._pipeline, self._errands = crew, reporter, pipeline, errands
        self._stopping = stopping
        self._gate = AuthorityGate(settings.backoff_seconds, settings.backoff_max_seconds)
        self._hands = Hands(ledger, settings.heartbeat_seconds)
        self._mode = "loop"
        self._last: tuple[str | None, str | None] = (None, None)

    @property
    def reaches_authority(self) -> bool:
        """Whether the authority answered last."""
        return self._gate.is_open

    def request_stop(self) -> None:
        """Finish what is in hand and end; safe in a signal handler."""
        self._stopping.set()
        breaker = threading.Timer(_FINISH_SECONDS, self._client.abort)
        breaker.daemon = True
        breaker.start()

    # Once

    def run_once(self, limit: int | None = None) -> RunOutcome:
        """Process what is due, at most `limit` rows. Raises `LedgerUnavailable`."""
        self._mode = "once"
        outcome = RunOutcome()
        with self._working():
            not_learnt = self._learn_approvals()
            self._wake_if_answered()
            self._errands.run_due()
            outcome.reported += self._reporter.sweep(older_than_seconds=0.0)
            # What this run itself puts back or lets lapse is for the next one: a row is tried once per run.
            budget, until = Budget(limit), self._ledger.now()
            with ThreadPoolExecutor(self._settings.lanes, thread_name_prefix="lane") as lanes:
                running = [lanes.submit(self._drain, outcome, budget, until) for _ in range(self._settings.lanes)]
            for lane in running:
                lane.result()
            self._errands.run_due()
            outcome.trouble = outcome.trouble or not_learnt
            outcome.open = self._ledger.open_counts()
        return outcome

    def _drain(self, outcome: RunOutcome, budget: Budget, until: datetime) -> None:
        """One lane: batch after batch until nothing is left of what was due."""
        while not self._stopping.is_set() and outcome.trouble is None:
            allowed = budget.take(self._settings.batch)
            rows = self._ledger.claim(allowed, until) if allowed else []
            budget.give_back(allowed - len(rows))
            if not rows:
                return
            batch = self._process(rows)
            outcome.rows += batch.rows
            outcome.reported += batch.reported
            if batch.silent and not batch.answered:
                # Asking for the rest would only keep them waiting.
                outcome.trouble = f"the authority gives no answer: {batch.detail}"

    # Loop

    def run_loop(self, limit: int | None = None) -> RunOutcome:
        """Process rows as they come until told to stop, or until `limit` rows are done."""
        outcome, budget = RunOutcome(), Budget(limit)
        with self._working():
            lanes = [
                threading.Thread(target=self._lane, args=(budget,), daemon=True, name=f"lane-{n}")
                for n in range(self._settings.lanes)
            ]
            errands = threading.Thread(target=self._run_errands, args=(budget,), daemon=True, name="errands")
            for thread in (*lanes, errands):
                thread.start()
            self._look_after(budget)
            deadline = time.monotonic() + _FINISH_SECONDS + 0.5
            for thread in (*lanes, errands):
                thread.join(max(deadline - time.monotonic(), 0.01))
        return outcome

    def _lane(self, budget: Budget) -> None:
        """Batch after batch; a failure of one is logged and costs a pause, never the lane."""
        while not self._stopping.is_set() and not budget.is_spent:
            try:
                idle = not self._turn(budget)
            except LedgerUnavailable as error:
                _log.warning("the database does not answer: %s", error)
                idle = True
            except Exception:
                # Whatever it was, the rows come back by their lease.
                _log.exception("a batch was dropped")
                idle = True
            if idle:
                self._stopping.wait(self._settings.poll_seconds)

    def _turn(self, budget: Budget) -> bool:
        allowed = budget.take(self._gate.claimable(self._settings.batch))
        rows = self._ledger.claim(allowed) if allowed else []
        budget.give_back(allowed - len(rows))
        if not rows:
            if allowed and not self._gate.is_open:
                self._probe()
            return False
        self._process(rows)
        return True

    def _probe(self) -> None:
        """Nothing is due to try with: ask for a sign of life instead."""
        try:
            self._client.heartbeat()
            self._note(answered=1, silent=0, detail=None)
        except (Unreachable, Rejected) as error:
            self._gate.note(answered=0, silent=1, detail=error.detail)

    def _look_after(self, budget: Budget) -> None:
        """Everything that is not a batch: approvals, operators' requests, left-over reports, the sign of life."""
        shown = swept = 0.0
        shown_as = ""
        while not self._stopping.is_set() and not budget.is_spent:
            try:
                status = "running" if self._gate.is_open else "authority_unreachable"
                if status != shown_as or time.monotonic() - shown >= _SHOW_SECONDS:
                    self._show(status)
                    shown, shown_as = time.monotonic(), status
                self._answer_operator()
                if self._gate.is_open:
                    if (detail := self._learn_approvals()) is not None:
                        self._gate.note(answered=0, silent=1, detail=detail)
                    if time.monotonic() - swept >= _SWEEP_SECONDS:
                        self._reporter.sweep(older_than_seconds=_FRESH_SECONDS)
                        swept = time.monotonic()
            except LedgerUnavailable as error:
                _log.warning("the database does not answer: %s", error)
            except Exception:
                _log.exception("the round was dropped")
            self._stopping.wait(self._settings.poll_seconds)

    def _run_errands(self, budget: Budget) -> None:
        while not self._stopping.is_set() and not budget.is_spent:
            try:
                self._errands.run_due()
            except LedgerUnavailable as error:
                _log.warning("the database does not answer: %s", error)
            except Exception:
                _log.exception("an errand was dropped")
            self._stopping.wait(self._settings.poll_seconds)

    def _answer_operator(self) -> None:
        """An operator wants one entry processed now: one, and the answer says what happened."""
        request_id = self._ledger.take_process_request()
        if request_id is None:
            return
        rows = self._ledger.claim(1)
        result: dict[str, Any] = {"processed": 0, "detail": "nothing is due"}
        if rows:
            batch = self._process(rows)
            result = {"processed": len(rows), **(batch.rows[0].as_json() if batch.rows else {})}
        self._ledger.finish_process_request(request_id, result)

    # Shared

    def _process(self, rows: list[LedgerRow]) -> BatchOutcome:
        with self._hands.holding([row.ledger_entry_id for row in rows]):
            batch = self._pipeline.process(rows)
        self._note(answered=batch.answered, silent=batch.silent, detail=batch.detail)
        for row in batch.rows:
            self._on_row(row)
            if row.decision:
                self._last = (f"{row.ledger_entry_id} {row.state}", row.decision)
        return batch

    def _note(self, *, answered: int, silent: int, detail: str | None) -> None:
        """What became of some calls; when the authority is back, so are the rows that waited for it."""
        if self._gate.note(answered=answered, silent=silent, detail=detail):
            self._ledger.wake_put_off(_WAKE_WITHIN_SECONDS)

    def _wake_if_answered(self) -> None:
        """A single run does not wait for what an earlier one put off, when the authority answers by now."""
        if not self._ledger.open_counts().put_off:
            return
        try:
            self._client.heartbeat()
        except (Unreachable, Rejected):
            return
        self._ledger.wake_put_off(0.0)

    def _learn_approvals(self) -> str | None:
        """Wake the rows whose approval was decided; returns what went wrong, which is no failure of a row."""
        agent_id = self._settings.agent_id
        since = self._ledger.approvals_wanted_since(agent_id)
        try:
            while since is not None:
                decided = self._client.approvals_since(since, 500)
                if decided:
                    self._ledger.wake_decided([decision.request_id for decision in decided])
                    self._ledger.move_cursor(agent_id, decided[-1].decided_at)
                # A full page whose last line is no later than what was asked for would come again for ever.
                more = len(decided) >= 500 and decided[-1].decided_at > since
                since = decided[-1].decided_at if more else None
        except (Unreachable, Rejected) as error:
            return f"decided approvals could not be learnt: {error.detail}"
        return None

    def _show(self, status: str) -> None:
        action, decision = self._last
        self._ledger.show_worker(
            agent_id=self._settings.agent_id, mode=self._mode, status=status, last_action=action, last_decision=decision
        )

    @contextmanager
    def _working(self) -> Any:
        try:
            try:
                self._show("running")
            except LedgerUnavailable as error:
                # A loop waits for its database; a single run finds out with its first claim.
                _log.warning("the database does not answer yet: %s", error)
            with self._hands.heartbeat():
                yield
        finally:
            self._crew.close()
            try:
                self._show("stopped")
            except LedgerUnavailable as error:
                _log.warning("the end could not be shown: %s", error)


class Budget:
    """How many rows may still be claimed, over all lanes; None is without end."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._lock = threading.Lock()

    @property
    def is_spent(self) -> bool:
        """Whether nothing may be claimed any more."""
        return self._left is not None and self._left <= 0

    def take(self, wanted: int) -> int:
        """How many of `wanted` may be claimed; they are taken off."""
        with self._lock:
            if self._left is None:
                return wanted
            granted = max(min(wanted, self._left), 0)
            self._left -= granted
            return granted

    def give_back(self, unused: int) -> None:
        """What was granted and not claimed."""
        with self._lock:
            if self._left is not None:
                self._left += unused
