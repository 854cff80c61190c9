"""The way of claimed rows through the authority to executions, in stages that work on a whole batch.

Statements are set-based and calls go out several at a time; what matters is still per row: every stage hands on only the
rows that are still ours, and each row's event names the state and the epoch it expects. A workflow that does more per row
before the question belongs between `_with_questions` and `_ask`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
from psycopg import errors as pg

from sentinel.client import Client, GuardAnswer, Rejected, StartReceipt, Unreachable
from worker import next_steps, outcomes
from worker.crew import Crew
from worker.facts import guard_request
from worker.failpoints import Failpoint, Failpoints
from worker.ledger import Ledger, LedgerUnavailable
from worker.next_steps import Patience
from worker.outcomes import RowOutcome
from worker.reporter import Reporter, report_id
from worker.rows import RISK_CLASS, Change, Execution, Lapse, LedgerRow, Report
from worker.settlement import Settled, SettlementSystem
from worker.states import LedgerEvent, LedgerState


@dataclass(frozen=True, slots=True)
class Stopped:
    """Not asked: the worker is ending."""


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch; `answered` and `silent` count the calls that decide whether the authority is there."""

    rows: list[RowOutcome]
    answered: int = 0
    silent: int = 0
    detail: str | None = None
    reported: int = 0


@dataclass(frozen=True, slots=True)
class Permitted:
    """A row in ALLOWED with its permission, whose start id is stored."""

    row: LedgerRow
    answer: GuardAnswer
    start_id: uuid.UUID


AT_ONCE = 32
"""Rows per call to the authority."""


class Pipeline:
    """Processes batches; several threads may do so at once."""

    def __init__(
        self, *, ledger: Ledger, client: Client, crew: Crew, reporter: Reporter, patience: Patience,
        system: SettlementSystem, failpoints: Failpoints, stopping: threading.Event,
    ) -> None:  # fmt: skip
        self._ledger, self._client, self._crew, self._reporter = ledger, client, crew, reporter
        self._patience, self._system, self._failpoints, self._stopping = patience, system, failpoints, stopping

    def process(self, rows: Sequence[LedgerRow]) -> BatchOutcome:
        """Take claimed rows as far as they go now. Raises `LedgerUnavailable`: then leases bring the rows back."""
        self._failpoints.hit(Failpoint.AFTER_CLAIM)
        batch = BatchOutcome([])
        ready = self._ready(rows, batch)
        asked = self._with_questions(ready, batch)
        permitted = self._ask_all(asked, batch)
        started = self._start_all(permitted, batch)
        reports = self._execute_all(started, batch)
        batch.reported = self._reporter.deliver(reports)
        order = {row.ledger_entry_id: place for place, row in enumerate(rows)}
        batch.rows.sort(key=lambda outcome: order[outcome.ledger_entry_id])
        return batch

    # What cannot be asked about now

    def _ready(self, rows: Sequence[LedgerRow], batch: BatchOutcome) -> list[LedgerRow]:
        """Rows that may be asked about: not those that crashed too often, and none while nothing could settle."""
        if not self._system.is_ready():
            pause = self._patience.longest_seconds
            self._apply(
                [next_steps.put_back(row, f"degraded: {self._system.name}", pause, failures=0) for row in rows], batch
            )
            return []
        spent = [row for row in rows if row.attempts >= self._patience.max_attempts]
        self._apply([next_steps.give_up(row, next_steps.too_often(row)) for row in spent], batch)
        return [row for row in rows if row.attempts < self._patience.max_attempts]

    # Facts and the fixed question

    def _with_questions(self, rows: Sequence[LedgerRow], batch: BatchOutcome) -> list[LedgerRow]:
        fresh = [row for row in rows if row.guard_request is None]
        if not fresh:
            return list(rows)
        known = self._ledger.facts([row.ledger_entry_id for row in fresh])
        requests = {row.ledger_entry_id: guard_request(row, known[row.ledger_entry_id]) for row in fresh}
        kept = self._ledger.fix_requests(fresh, requests)
        self._failpoints.hit(Failpoint.AFTER_FACTS)
        asked = [row for row in rows if row.guard_request is not None]
        for row in fresh:
            if row.ledger_entry_id in kept:
                asked.append(replace(row, guard_request=orjson.dumps(requests[row.ledger_entry_id]).decode()))
            else:
                batch.rows.append(outcomes.lost(row, LedgerState.GUARDING))
        return asked

    # Guard

    def _ask_all(self, rows: Sequence[LedgerRow], batch: BatchOutcome) -> list[Permitted]:
        # A row that failed before is asked alone: one that breaks its call must not use up its neighbours' attempts.
        answers = self._crew.map_chunks(self._ask, rows, AT_ONCE, alone=lambda row: row.attempts > 0)
        steps: list[Change | Lapse] = []
        permissions: dict[str, GuardAnswer] = {}
        stopped: list[LedgerRow] = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, Stopped) or (isinstance(answer, Unreachable) and self._stopping.is_set()):
                stopped.append(row)
                continue
            _count(batch, answer)
            if isinstance(answer, GuardAnswer):
                permissions[row.ledger_entry_id] = answer
                steps.append(next_steps.after_guard(row, answer, self._patience))
            else:
                steps.append(next_steps.after_no_answer(row, answer, self._patience))
        self._let_go(stopped, batch)
        self._let_lapse([step for step in steps if isinstance(step, Lapse)], LedgerState.GUARDING, batch)
        return self._record_answers([step for step in steps if isinstance(step, Change)], permissions, batch)

    def _ask(self, rows: Sequence[LedgerRow]) -> Sequence[GuardAnswer | Unreachable | Rejected | Stopped]:
        if self._stopping.is_set():
            return [Stopped()] * len(rows)
        self._failpoints.hit(Failpoint.BEFORE_GUARD)
        found = self._client.guard_many([
            {
                "action": row.action, "params": row.params, "idempotency_key": row.idempotency_key,
                "resource": row.resource, "risk_class": RISK_CLASS, "agent_id": row.agent_id,
                "evidence_context": {"correlation_id": row.ledger_entry_id},
            }
            for row in rows
        ])  # fmt: skip
        self._failpoints.hit(Failpoint.AFTER_GUARD)
        return found

    def _record_answers(
        self, changes: Sequence[Change], permissions: dict[str, GuardAnswer], batch: BatchOutcome
    ) -> list[Permitted]:
        allowed = [change for change in changes if change.event is LedgerEvent.ALLOWED]
        self._apply([change for change in changes if change.event is not LedgerEvent.ALLOWED], batch)
        start_ids = self._ledger.apply(allowed)
        permitted = []
        for change in allowed:
            start_id = start_ids.get(change.row.ledger_entry_id)
            if start_id is None:
                batch.rows.append(outcomes.lost(change.row, LedgerState.GUARDING))
                continue
            # The stored start id counts, not the proposed one: it may be an earlier holder's.
            row = replace(
                change.row, start_id=start_id, decision=change.decision, reason_code=change.reason_code,
                permit_token=change.permit_token,
            )  # fmt: skip
            answer = replace(permissions[row.ledger_entry_id], permit_token=change.permit_token)
            permitted.append(Permitted(row, answer, start_id))
        if permitted:
            self._failpoints.hit(Failpoint.AFTER_ALLOWED_RECORDED)
        return permitted

    # Start

    def _start_all(self, permitted: Sequence[Permitted], batch: BatchOutcome) -> list[tuple[LedgerRow, StartReceipt]]:
        receipts = self._crew.map_chunks(self._start, permitted, AT_ONCE, alone=lambda each: each.row.attempts > 0)
        started, refused, silent = [], [], []
        for each, receipt in zip(permitted, receipts, strict=True):
            _count(batch, receipt)
            if isinstance(receipt, StartReceipt):
                started.append((each.row, receipt))
            elif isinstance(receipt, Rejected):
                refused.append(next_steps.after_start_refused(each.row, receipt, self._patience))
            else:
                silent.append(next_steps.after_silence(each.row, receipt.detail, self._patience))
        self._let_lapse(silent, LedgerState.ALLOWED, batch)
        self._ledger.apply([back for back, _ in refused])
        self._apply([then for _, then in refused], batch)
        return started

    def _start(self, permitted: Sequence[Permitted]) -> Sequence[StartReceipt | Unreachable | Rejected]:
        self._failpoints.hit(Failpoint.BEFORE_START)
        receipts = self._client.start_many([(each.answer, each.start_id) for each in permitted])
        self._failpoints.hit(Failpoint.AFTER_START)
        return receipts

    # Execution

    def _execute_all(self, started: Sequence[tuple[LedgerRow, StartReceipt]], batch: BatchOutcome) -> list[Report]:
        executions: list[Execution] = []
        unsettled: list[Lapse] = []
        for row, receipt in started:
            execution_id = uuid.uuid4()
            settled = self._system.settle(row, execution_id)
            if isinstance(settled, Settled):
                executions.append(self._execution(row, receipt, execution_id))
            else:
                unsettled.append(next_steps.after_silence(row, f"{self._system.name}: {settled}", self._patience))
        self._let_lapse(unsettled, LedgerState.ALLOWED, batch)
        if not executions:
            return []
        self._failpoints.hit(Failpoint.BEFORE_EXECUTION)
        done = self._record(executions, batch)
        self._failpoints.hit(Failpoint.AFTER_EXECUTION_COMMIT)
        return [
            Report(e.report_id, e.row.ledger_entry_id, orjson.dumps(e.report).decode(), 1)
            for e in executions
            if e.row.ledger_entry_id in done
        ]

    def _record(self, executions: Sequence[Execution], batch: BatchOutcome) -> set[str]:
        done, impossible = self._written(executions)
        for row in (execution.row for execution in executions):
            if row.ledger_entry_id in done:
                batch.rows.append(outcomes.untouched(row, LedgerState.EXECUTED, None))
            elif row.ledger_entry_id in impossible:
                detail = "the database refused the execution"
                self._let_lapse([next_steps.after_silence(row, detail, self._patience)], LedgerState.ALLOWED, batch)
            else:
                batch.rows.append(outcomes.lost(row, LedgerState.ALLOWED))
        return done

    def _written(self, executions: Sequence[Execution]) -> tuple[set[str], set[str]]:
        """(executed, refused by a constraint). One impossible row must not keep the others from being paid."""
        ids = [execution.row.ledger_entry_id for execution in executions]
        try:
            return self._ledger.record_executions(executions), set()
        except pg.IntegrityError:
            if len(executions) == 1:
                return set(), set(ids)
            parts = [self._written([execution]) for execution in executions]
            return set().union(*(done for done, _ in parts)), set().union(*(not_done for _, not_done in parts))
        except LedgerUnavailable:
            # The commit may have happened: look before anything else is thought about these rows.
            return self._ledger.executed(ids), set()

    def _execution(self, row: LedgerRow, receipt: StartReceipt, execution_id: uuid.UUID) -> Execution:
        report = report_id()
        payload = {
            "idempotency_key": row.idempotency_key, "action": row.action, "agent_id": row.agent_id, "outcome": "success",
            "result": {"execution_id": str(execution_id), "system": self._system.name}, "resource": row.resource,
            "risk_class": RISK_CLASS, "report_id": str(report),
        }  # fmt: skip
        return Execution(row, execution_id, receipt.start_event_id, self._system.name, report, payload)

    # Keeping book

    def _apply(self, changes: Sequence[Change], batch: BatchOutcome, *, harmless: bool = False) -> None:
        applied = self._ledger.apply(changes)
        for change in changes:
            if change.row.ledger_entry_id in applied:
                batch.rows.append(outcomes.of_change(change, harmless=harmless))
            else:
                batch.rows.append(outcomes.lost(change.row, change.from_state))

    def _let_go(self, rows: Sequence[LedgerRow], batch: BatchOutcome) -> None:
        """The worker ends: rows are free at once, and no attempt is counted. What may have started stays claimed."""
        why = "the worker ended"
        self._apply(
            [next_steps.put_back(row, why, 0.0, failures=0) for row in rows if row.start_id is None],
            batch,
            harmless=True,
        )
        self._let_lapse([Lapse(row, why, 0.0) for row in rows if row.start_id is not None], LedgerState.GUARDING, batch)

    def _let_lapse(self, lapses: Sequence[Lapse], state: LedgerState, batch: BatchOutcome) -> None:
        self._ledger.let_lapse(lapses)
        batch.rows.extend(outcomes.of_lapse(lapse, state) for lapse in lapses)


def _count(batch: BatchOutcome, answer: object) -> None:
    """An answer is an answer, even a refusal; but a key that is not accepted gets no row an answer."""
    if isinstance(answer, Unreachable) or (
        isinstance(answer, Rejected) and (answer.status == 401 or answer.code == "forbidden")
    ):
        batch.silent += 1
        batch.detail = answer.detail
    else:
        batch.answered += 1
