"""The refund agent's loop: claims due rows, renews leases, fetches approvals, sends reports, answers operators.

`run_once` ends when nothing is due; `run_loop` ends when it is told to. Both survive outages of the authority and of the
database: rows in progress then come back when their lease expires, and nothing is assumed about them.

A batch gives up rows without attempts left, runs the workflow and writes the results. Only the workflow leads to an
execution. A run ends with one event per row, written with the run's trail; a row without an event keeps its state and comes
back when its lease expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from sentinel.client import Client, Rejected, Unreachable
from sentinel.core.wording import counted
from sentinel.platform.ongoing_failures import OngoingFailures, raised_at
from sentinel.platform.tracing import Tracing
from worker.failpoints import Failpoint, Failpoints
from worker.outbound.decided_approvals import decided_pages
from worker.refunds import transitions
from worker.refunds.concurrency import LONGEST_HOLD_SECONDS, CircuitBreaker, LeaseKeeper, PeriodicTask, WorkerPool
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.reporter import Reporter
from worker.refunds.rows import Change, KnownFacts, LedgerEvent, LedgerRow, ReleaseLease, Report
from worker.refunds.settings import WorkerSettings
from worker.refunds.transitions import RetryPolicy, is_outside, is_refused_alone
from worker.refunds.workflow.runner import (
    ContextLoader,
    RowResult,
    RunContext,
    Runner,
    RunResult,
    lease_lost,
    result_of_change,
    result_of_release,
)

# A batch of claimed rows.


@dataclass(slots=True)
class BatchResult:
    """What became of a batch; `answered` and `unanswered` count rows with and without an answer of the authority."""

    rows: list[RowResult]
    answered: int = 0
    unanswered: int = 0
    detail: str | None = None
    reported: int = 0


class BatchProcessor:
    """Processes batches; several threads may do so at once."""

    def __init__(
        self, *, ledger: Ledger, context_loader: ContextLoader, runner: Runner, reporter: Reporter, retry_policy: RetryPolicy,
        failpoints: Failpoints,
    ) -> None:  # fmt: skip
        self._ledger, self._context_loader, self._runner = ledger, context_loader, runner
        self._reporter, self._retry_policy, self._failpoints = reporter, retry_policy, failpoints

    def process(self, rows: Sequence[LedgerRow]) -> BatchResult:
        """Process claimed rows as far as they can go now. Raises `LedgerUnavailable`: the rows come back when their leases expire."""
        self._failpoints.hit(Failpoint.AFTER_CLAIM)
        batch = BatchResult([])
        able = [row for row in rows if row.attempts < self._retry_policy.max_attempts]
        known = self._ledger.facts([row.ledger_entry_id for row in able]) if able else {}
        contexts = self._context_loader.contexts([row for row in able if row.ledger_entry_id in known], known)
        self._runner.run(contexts)
        self._write_results(contexts)
        ended = [RunContext(row, _nothing_known(row)) for row in rows if row.ledger_entry_id not in known]
        for context in ended:
            if context.row.attempts < self._retry_policy.max_attempts:
                context.defect = "its facts cannot be read"
            else:
                context.event = transitions.give_up(context.row, transitions.attempts_exhausted(context.row))
        self._write_results(ended)
        by_id = {context.row.ledger_entry_id: context for context in (*contexts, *ended)}
        for row in rows:
            self._count(batch, by_id[row.ledger_entry_id])
        try:
            batch.reported = self._reporter.deliver([c.report for c in contexts if c.report is not None])
        except LedgerUnavailable as error:
            # The rows are done, and are told as done. What is not on record as received is sent again from the outbox.
            _log.warning("reports could not be recorded as received: %s", error)
        return batch

    # Writing results

    def _write_results(self, contexts: Collection[RunContext]) -> None:
        """Write the event of each run that the graph's last steps did not record themselves."""
        changes: list[tuple[RunContext, Change]] = []
        releases: list[tuple[RunContext, ReleaseLease]] = []
        impossible: dict[str, str] = {}
        for context in contexts:
            if context.event is None and context.outcome is None and context.defect is not None:
                context.event = transitions.after_defect(context.row, context.defect, self._retry_policy)
            event, trail = context.event, context.trail or None
            if event is not None and _waits_as_before(context.row, event):
                trail = None
            if context.outcome is None and isinstance(event, Change):
                changes.append((context, replace(event, steps=trail)))
            elif context.outcome is None and isinstance(event, ReleaseLease):
                releases.append((context, replace(event, steps=trail)))
        applied = self._ledger.apply([change for _, change in changes], impossible)
        for context, change in changes:
            if context.row.ledger_entry_id in applied:
                context.outcome = result_of_change(change, harmless=change.last_error in transitions.HARMLESS)
                context.report = _report_of(change) or context.report
            elif context.row.ledger_entry_id not in impossible:
                context.outcome = lease_lost(context.row, change.from_state)
        released = self._ledger.release_leases([release for _, release in releases])
        for context, release in releases:
            is_held = context.row.ledger_entry_id in released
            context.outcome = (
                result_of_release(release, context.state) if is_held else lease_lost(context.row, context.state)
            )
        self._write_impossible(
            [context for context, _ in changes if context.row.ledger_entry_id in impossible], impossible
        )

    def _write_impossible(self, contexts: Sequence[RunContext], why: Mapping[str, str]) -> None:
        """Count an attempt, or release the lease, of rows whose event the database refused to record.

        If it refuses that too, the row comes back when its lease expires.
        """
        for context in contexts:
            row = context.row
            event = transitions.after_defect(
                row, f"the database refused it: {why[row.ledger_entry_id]}", self._retry_policy
            )
            if isinstance(event, ReleaseLease):
                is_held = bool(self._ledger.release_leases([event]))
                context.outcome = result_of_release(event, context.state) if is_held else lease_lost(row, context.state)
            elif self._ledger.apply([event], {}):
                context.outcome = result_of_change(event)
            else:
                context.outcome = lease_lost(row, event.from_state)

    def _count(self, batch: BatchResult, context: RunContext) -> None:
        """Count the row as answered or unanswered: a refusal of the row is an answer, a failure outside is none.

        A call that this key may not make, or not now because it has too much open, counts as neither: such a row must
        not keep the rest waiting, nor be woken because others are answered.
        """
        if context.outcome is not None:
            batch.rows.append(context.outcome)
        for said in (context.switches_error, context.check_answer, context.last_answer, context.started):
            if said is not None and is_outside(said):
                if not is_refused_alone(said):
                    batch.unanswered += 1
                    batch.detail = said.detail
                return
        batch.answered += context.last_answer is not None or context.started is not None


def _waits_as_before(row: LedgerRow, event: Change | ReleaseLease) -> bool:
    """Whether the row goes on waiting for what it was last put back or released for: the trail of that run is on record.

    It may wait without end, and be tried each minute.
    """
    is_wait = isinstance(event, ReleaseLease) or (event.event is LedgerEvent.PUT_BACK and not event.failures)
    return is_wait and event.last_error == row.last_error


def _report_of(change: Change) -> Report | None:
    if change.report is None or change.report_id is None:
        return None
    return Report.just_written(change.row, change.report_id, change.report)


def _nothing_known(row: LedgerRow) -> KnownFacts:
    return KnownFacts(row.ledger_entry_id, "{}", None, None, False, None, 0)


def _fetch_failure(error: Unreachable | Rejected | None) -> str | None:
    return None if error is None else f"decided approvals could not be fetched: {error.detail}"


# The loop.

_log = logging.getLogger("worker.loop")
"""The logger whose lines of level INFO the program shows."""

_FINISH_SECONDS = 1.2
"""How long rows in progress may take after a stop; then open calls are aborted."""
_SHOW_SECONDS = 2.0
_WAKE_WITHIN_SECONDS = 2.0
"""The rows that waited out an outage become due spread over this time, so that they do not all ask at once."""
_SWEEP_SECONDS = 2.0
_SILENT_SECONDS = 10.0
"""A loop that was not seen for this long is not expected to answer an operator's request."""
_UNTAKEN_EVERY_SECONDS = 60.0
_DUE_SECONDS, _UNHEARD_SECONDS = 60.0, 3600.0
"""Rows are untaken if they have been due for `_DUE_SECONDS` and no worker of their agent was seen for `_UNHEARD_SECONDS`."""
_FRESH_SECONDS = 5.0
"""Younger reports are still being sent by the batch that executed them."""
_OVERLAP_SECONDS = 60.0
"""Decisions are fetched from this long before the last one fetched: they may become visible out of order."""
_LOOK_BACK_EVERY_SECONDS = 30.0
"""How often decisions are fetched from further back, by the longest time that a batch may hold a row.

A row waits for a person only once its batch is over, so the decision may be older than the wait."""

OnRow = Callable[[RowResult], None]


class Agent:
    """One worker process. `on_row` is called with every processed row, from any thread.

    `only_agent` returns the one agent whose rows it takes, or None for every agent's. The reporter and the in-doubt
    poller get the same function for reports and rows in doubt.
    """

    def __init__(
        self, settings: WorkerSettings, *, ledger: Ledger, client: Client, worker_pool: WorkerPool, reporter: Reporter,
        processor: BatchProcessor, periodic_tasks: Sequence[PeriodicTask], stopping: threading.Event, on_row: OnRow | None = None,
        tracing: Tracing | None = None, only_agent: Callable[[], str | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._tracing, self._only_agent = tracing, only_agent
        self._settings, self._ledger, self._client, self._on_row = settings, ledger, client, on_row
        self._worker_pool, self._reporter, self._processor = worker_pool, reporter, processor
        self._periodic_tasks, self._stopping = periodic_tasks, stopping
        self._circuit_breaker = CircuitBreaker(settings.backoff_seconds, settings.backoff_max_seconds)
        self._leases = LeaseKeeper(ledger, settings.heartbeat_seconds)
        self._outages, self._defects = OngoingFailures(), OngoingFailures()
        self._mode = "loop"
        self._last: tuple[str | None, str | None] = (None, None)
        self._looked_back_at = float("-inf")
        self._not_fetched: str | None = None

    @property
    def reaches_authority(self) -> bool:
        """Whether the authority answered the last call."""
        return self._circuit_breaker.is_closed

    def request_stop(self) -> None:
        """Finish the rows in progress and end; safe in a signal handler."""
        self._stopping.set()
        abort = threading.Timer(_FINISH_SECONDS, self._client.abort)
        abort.daemon = True
        abort.start()

    # Once

    def run_once(self, limit: int | None = None, outcome: RunResult | None = None) -> RunResult:
        """Process what is due, at most `limit` rows, and return `outcome` with what was done.

        Raises `LedgerUnavailable`; a given `outcome` then has what was done before.
        """
        self._mode = "once"
        outcome = RunResult() if outcome is None else outcome
        with self._running():
            not_fetched = _fetch_failure(self._fetch_approvals())
            self._wake_if_answered()
            failed = self._run_due_tasks()
            outcome.reported += self._reporter.sweep(older_than_seconds=0.0)
            # Rows that this run itself puts back or releases are for the next one: a row is tried once per run.
            budget, until = RowLimit(limit), self._ledger.now()
            with ThreadPoolExecutor(self._settings.lanes, thread_name_prefix="lane") as lanes:
                running = [lanes.submit(self._drain, outcome, budget, until) for _ in range(self._settings.lanes)]
            for lane in running:
                lane.result()
            failed = self._run_due_tasks() or failed
            outcome.trouble = outcome.trouble or not_fetched or failed
            outcome.open = self._ledger.open_counts()
            outcome.untaken = self._untaken()
            if self._stopping.is_set() and outcome.open.due:
                outcome.trouble = outcome.trouble or "stopped before it was done"
        return outcome

    def _drain(self, outcome: RunResult, budget: RowLimit, until: datetime) -> None:
        """Run one lane: process batch after batch until no row is left that was due at `until`."""
        while not self._stopping.is_set() and outcome.trouble is None:
            with budget.lend(self._settings.batch) as lent:
                rows = self._ledger.claim(lent.rows, until, self._only_agent()) if lent.rows else []
                if not rows:
                    return
                batch = self._process(rows)
                lent.done = len(rows)
            outcome.rows += batch.rows
            outcome.reported += batch.reported
            if batch.unanswered and not batch.answered:
                # Without the authority, claiming the rest would only postpone them.
                outcome.trouble = f"the authority does not respond: {batch.detail}"

    # Loop

    def run_loop(self, limit: int | None = None) -> RunResult:
        """Process rows as they come until told to stop, or until `limit` rows are done."""
        outcome, budget = RunResult(), RowLimit(limit)
        with self._running():
            lanes = [
                threading.Thread(target=self._lane, args=(n, budget), daemon=True, name=f"lane-{n}")
                for n in range(self._settings.lanes)
            ]
            # Each in a thread of its own: one that waits for something outside holds up no other, nor the maintenance.
            tasks = [
                threading.Thread(
                    target=self._run_periodic_task, args=(n, task, budget), daemon=True, name=f"periodic-{n}"
                )
                for n, task in enumerate((*self._periodic_tasks, PeriodicTask(self._answer_operator)))
            ]
            for thread in (*lanes, *tasks):
                thread.start()
            self._maintain(budget)
            deadline = time.monotonic() + _FINISH_SECONDS + 0.5
            for thread in (*lanes, *tasks):
                thread.join(max(deadline - time.monotonic(), 0.01))
        return outcome

    def _lane(self, number: int, budget: RowLimit) -> None:
        """Process batch after batch; a failed batch is followed by a pause, and its rows come back when their leases expire."""
        while not self._stopping.is_set() and not budget.is_spent:
            idle = True
            with self._logging_failures(("lane", number), "a batch was dropped"):
                idle = not self._process_one_batch(budget)
            if idle:
                self._stopping.wait(self._settings.poll_seconds)

    @contextmanager
    def _logging_failures(self, work: Hashable, said: str) -> Iterator[None]:
        """Log what the block raises instead of raising it: the work goes on. `said` is for an unexpected error."""
        try:
            yield
        except LedgerUnavailable as error:
            if self._outages.should_log(work, str(error)):
                _log.warning("the database does not answer: %s", error)
        except Exception as error:
            if self._defects.should_log(work, raised_at(error)):
                _log.exception(said)
        else:
            # A block may have had nothing to ask the database.
            if not self._ledger.is_away and self._outages.recovered(work):
                _log.info("the database answers again")

    def _process_one_batch(self, budget: RowLimit) -> bool:
        with budget.lend(self._circuit_breaker.claimable(self._settings.batch)) as lent:
            rows = self._ledger.claim(lent.rows, None, self._only_agent()) if lent.rows else []
            batch = self._process(rows) if rows else BatchResult([])
            lent.done = len(rows)
        if lent.rows and not self._circuit_breaker.is_closed and not (batch.answered or batch.unanswered):
            self._probe()
        return bool(rows)

    def _probe(self) -> None:
        """Probe the authority with a heartbeat, because no row was due, or none about which the authority was asked."""
        try:
            self._client.heartbeat()
        except (Unreachable, Rejected) as error:
            # A key without the scope for it is an answer of the authority all the same.
            if not is_refused_alone(error):
                self._circuit_breaker.note(answered=0, unanswered=1, detail=error.detail)
                return
        self._record_answers(answered=1, unanswered=0, detail=None)

    def _maintain(self, budget: RowLimit) -> None:
        """What is about no single batch: approvals, left-over reports, the worker's status."""
        shown = swept = 0.0
        shown_as = ""
        looked, untaken = float("-inf"), None
        while not self._stopping.is_set() and not budget.is_spent:
            with self._logging_failures("maintenance", "the round was dropped"):
                status = "running" if self._circuit_breaker.is_closed else "authority_unreachable"
                if status != shown_as or time.monotonic() - shown >= _SHOW_SECONDS:
                    self._publish_status(status)
                    shown, shown_as = time.monotonic(), status
                if self._circuit_breaker.is_closed:
                    self._poll_approvals()
                    if time.monotonic() - swept >= _SWEEP_SECONDS:
                        self._reporter.sweep(older_than_seconds=_FRESH_SECONDS)
                        swept = time.monotonic()
                if time.monotonic() - looked >= _UNTAKEN_EVERY_SECONDS:
                    looked, before = time.monotonic(), untaken
                    untaken = self._untaken()
                    if untaken is not None and untaken != before:
                        _log.warning("%s", untaken)
            self._stopping.wait(self._settings.poll_seconds)

    def _run_periodic_task(self, number: int, task: PeriodicTask, budget: RowLimit) -> None:
        while not self._stopping.is_set() and not budget.is_spent:
            with self._logging_failures(("periodic", number), "a periodic task was dropped"):
                task.run_due()
            self._stopping.wait(self._settings.poll_seconds)

    def _run_due_tasks(self) -> str | None:
        """Run the due periodic tasks, each even if another failed; returns why the first failed, or None. Raises `LedgerUnavailable`."""
        failures = [_run_due(task) for task in self._periodic_tasks]
        return next((failure for failure in failures if failure is not None), None)

    def _answer_operator(self) -> None:
        """Process one due row for an operator's request, if there is one, and store the result."""
        only = self._only_agent()
        request_id = self._ledger.take_process_request(
            only, silent_seconds=_SILENT_SECONDS, hold_seconds=LONGEST_HOLD_SECONDS + self._settings.lease_seconds
        )
        if request_id is None:
            return
        rows = self._ledger.claim(1, None, only)
        if rows:
            batch = self._process(rows)
            result: dict[str, Any] = {"processed": len(rows), **(batch.rows[0].as_json() if batch.rows else {})}
        else:
            left = self._untaken()
            result = {"processed": 0, "detail": "nothing is due" if left is None else f"nothing is due here; {left}"}
        self._ledger.finish_process_request(request_id, result)

    def _untaken(self) -> str | None:
        """Describe in one line the due rows left to workers of other agents, none of which was seen; None if there are none."""
        only = self._only_agent()
        found = [] if only is None else self._ledger.untaken(
            only, due_seconds=_DUE_SECONDS, silent_seconds=_UNHEARD_SECONDS
        )  # fmt: skip
        if not found:
            return None
        rows = ", ".join(f"{counted(one.entries, 'due row')} of the agent {one.agent_id}" for one in found)
        return (
            f"no worker of their own for {rows}: this key is bound to {only}, and no worker of that agent was seen for an hour;"
            " a worker whose key is not bound to an agent takes them"
        )

    # Shared

    def _process(self, rows: list[LedgerRow]) -> BatchResult:
        span = (
            self._tracing.working("worker.refunds.batch", {"worker.rows": len(rows)})
            if self._tracing
            else nullcontext()
        )
        with self._leases.holding([row.ledger_entry_id for row in rows]), span:
            batch = self._processor.process(rows)
        self._record_answers(answered=batch.answered, unanswered=batch.unanswered, detail=batch.detail)
        for row in batch.rows:
            if self._on_row is not None:
                self._on_row(row)
        last = next((row for row in reversed(batch.rows) if row.decision), None)
        if last is not None:
            self._last = (last.action, last.decision)
        return batch

    def _record_answers(self, *, answered: int, unanswered: int, detail: str | None) -> None:
        """Record the results of some calls; when the authority is back, wake the rows that waited for it."""
        if self._circuit_breaker.note(answered=answered, unanswered=unanswered, detail=detail):
            self._ledger.wake_put_off(_WAKE_WITHIN_SECONDS)

    def _wake_if_answered(self) -> None:
        """Wake the rows that an earlier run postponed, if the authority answers again. For single runs."""
        if not self._ledger.open_counts().put_off:
            return
        try:
            self._client.heartbeat()
        except (Unreachable, Rejected) as error:
            # As in `_probe`.
            if not is_refused_alone(error):
                return
        self._ledger.wake_put_off(0.0)

    def _poll_approvals(self) -> None:
        """Wake decided rows. A failed fetch opens the circuit breaker, unless only this call is refused to this key."""
        error = self._fetch_approvals()
        before, self._not_fetched = self._not_fetched, _fetch_failure(error)
        if self._not_fetched is not None and self._not_fetched != before:
            _log.warning("%s", self._not_fetched)
        if error is not None and not is_refused_alone(error):
            self._circuit_breaker.note(answered=0, unanswered=1, detail=self._not_fetched)

    def _fetch_approvals(self) -> Unreachable | Rejected | None:
        """Wake the rows whose approval was decided; returns why the decisions could not be fetched, or None."""
        agent_id, now = self._settings.agent_id, time.monotonic()
        looks_back = now - self._looked_back_at >= _LOOK_BACK_EVERY_SECONDS
        held = LONGEST_HOLD_SECONDS + self._settings.lease_seconds if looks_back else 0.0
        since = self._ledger.approvals_wanted_since(agent_id, _OVERLAP_SECONDS + held)
        try:
            for decided in decided_pages(self._client.approvals_since, since):
                self._ledger.wake_decided([decision.request_id for decision in decided])
                self._ledger.move_cursor(agent_id, decided[-1].decided_at)
        except (Unreachable, Rejected) as error:
            return error
        if looks_back:
            self._looked_back_at = now
        return None

    def _publish_status(self, status: str) -> None:
        action, decision = self._last
        self._ledger.show_worker(
            agent_id=self._settings.agent_id, mode=self._mode, status=status, last_action=action, last_decision=decision
        )

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            try:
                self._publish_status("running")
            except LedgerUnavailable as error:
                # A loop waits for its database; a single run finds out with its first claim.
                _log.warning("the database does not answer yet: %s", error)
            with self._leases.heartbeat():
                yield
        finally:
            self._worker_pool.close()
            try:
                self._publish_status("stopped")
            except LedgerUnavailable as error:
                _log.warning("the end could not be shown: %s", error)


def _run_due(task: PeriodicTask) -> str | None:
    """Run a task if it is due; returns what it failed with, or None. Raises `LedgerUnavailable`.

    A defect in one task must end neither the run nor the other tasks.
    """
    try:
        task.run_due()
    except LedgerUnavailable:
        raise
    except Exception as error:
        _log.exception("a periodic task was dropped")
        return f"a periodic task failed: {type(error).__name__}"
    return None


@dataclass(slots=True)
class Lent:
    """A part of the row limit, lent to one batch: `rows` may be claimed, `done` were processed."""

    rows: int
    done: int = 0


class RowLimit:
    """How many rows may still be processed, over all lanes; None means no limit. Thread-safe."""

    def __init__(self, limit: int | None) -> None:
        self._left = self._undone = limit
        self._lock = threading.Lock()

    @property
    def is_spent(self) -> bool:
        """Whether the limit is reached; rows lent to a batch that is still running do not count as done."""
        return self._undone is not None and self._undone <= 0

    @contextmanager
    def lend(self, wanted: int) -> Iterator[Lent]:
        """Lend up to `wanted` rows of what is left for the block. Rows not `done` at its end, for whatever reason, may be lent again."""
        with self._lock:
            lent = Lent(wanted if self._left is None else min(wanted, self._left))
            if self._left is not None:
                self._left -= lent.rows
        try:
            yield lent
        finally:
            with self._lock:
                if self._left is not None and self._undone is not None:
                    self._left += lent.rows - lent.done
                    self._undone -= lent.done
