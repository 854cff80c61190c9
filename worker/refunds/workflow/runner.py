"""A run of the workflow: each row's context, the runner that moves a batch through the graph, and the result.

Rows at the same step share its outside calls. A step's result is taken only if the graph declares it: a defect in a step
sends its row to a person, never on.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
import psycopg

from sentinel.client import CheckAnswer, GuardAnswer, Rejected, StartReceipt, Switches, Unreachable
from sentinel.core.money import Money, money_out
from sentinel.core.wording import counted
from sentinel.platform.ongoing_failures import raised_at
from sentinel.store.migrate import SchemaNotReady
from worker.critic.case import Opinion
from worker.failpoints import FailpointHit, Failpoints, step_place
from worker.refunds.confirmations import Confirmation, Confirmations
from worker.refunds.ledger import ROW_REFUSED, LedgerUnavailable
from worker.refunds.rows import (
    Change,
    KeptImage,
    KnownFacts,
    LedgerRow,
    LedgerState,
    OpenCounts,
    OrderFacts,
    ReleaseLease,
    Report,
)
from worker.refunds.workflow.graph import FIRST, SUCCESSORS, Escalation, StepName
from worker.refunds.workflow.routes import Route, Routes
from worker.settlement import EffectRefused, NoAnswer, Settled

# The result for operators: what happened to each row.

_NEXT = {
    LedgerState.EXECUTED: "done",
    LedgerState.DENIED: "done",
    LedgerState.APPROVAL_REQUIRED: "waits for a person's decision",
    LedgerState.NEW: "is tried again later",
    LedgerState.ERROR: "needs a person",
    LedgerState.GUARDING: "continues when its claim expires",
    LedgerState.ALLOWED: "continues when its claim expires",
}


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row after a run. `detail` says why, where something did not go through."""

    ledger_entry_id: str
    refund_id: str
    action: str
    money: Money
    decision: str | None
    reason_code: str | None
    state: LedgerState
    detail: str | None = None
    harmless: bool = False
    waiting_for: str | None = None
    put_off: bool = False
    """The row waits for something outside, which says nothing about the row; no attempt was counted."""

    @property
    def failed(self) -> bool:
        """Whether something went wrong, in contrast to being refused or waiting."""
        return self.state is LedgerState.ERROR or (self.detail is not None and not self.harmless)

    @property
    def what_next(self) -> str:
        """What happens to the row next, in words for a person."""
        return "waits for its customer" if self.waiting_for == "customer" else _NEXT[self.state]

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the operators' requests."""
        return {
            "ledger_entry_id": self.ledger_entry_id, "refund_id": self.refund_id, "amount": money_out(self.money),
            "decision": self.decision, "reason_code": self.reason_code, "status": str(self.state), "next": self.what_next,
            "failed": self.failed, "detail": self.detail,
        }  # fmt: skip


@dataclass(slots=True)
class RunResult:
    """What a run did. `trouble` is why it ended early, if it did; `untaken` names due rows that this worker leaves and no other takes."""

    rows: list[RowResult] = field(default_factory=list)
    reported: int = 0
    open: OpenCounts | None = None
    trouble: str | None = None
    untaken: str | None = None

    @property
    def failed(self) -> bool:
        """Whether anything went wrong, with a row or outside."""
        return self.trouble is not None or any(row.failed for row in self.rows)

    @property
    def row_failed(self) -> bool:
        """Whether a row failed for a reason of its own, not for an outage."""
        return any(row.failed and not row.put_off for row in self.rows)

    @property
    def why_outside(self) -> str | None:
        """Why the run ended early, or rows without a fault are put off or untaken, in one line; None if neither."""
        waiting = [row for row in self.rows if row.put_off]
        if self.trouble is None and not waiting:
            return self.untaken
        why = self.trouble or f"no answer: {waiting[0].detail}"
        return f"{why}; {counted(len(waiting), 'row waits', 'rows wait')}, no attempt was counted" if waiting else why


def result_of_change(change: Change, *, harmless: bool = False) -> RowResult:
    """The result of a row whose event was applied."""
    row = change.row
    return RowResult(
        row.ledger_entry_id, row.refund_id, row.action, row.money, change.decision or row.decision, change.reason_code or row.reason_code,
        change.to_state, change.last_error, harmless, change.waiting_for, change.outside,
    )  # fmt: skip


def result_of_release(release: ReleaseLease, state: LedgerState) -> RowResult:
    """The result of a row whose lease was released in `state`."""
    return replace(untouched(release.row, state, release.last_error), put_off=release.outside)


def lease_lost(row: LedgerRow, state: LedgerState) -> RowResult:
    """The result of a row whose lease was taken over meanwhile: no failure, the other worker goes on."""
    return untouched(row, state, "another worker took the lease over", harmless=True)


def untouched(row: LedgerRow, state: LedgerState, detail: str | None, *, harmless: bool = False) -> RowResult:
    """The result of a row that ended in `state` without an event of this worker."""
    return RowResult(
        row.ledger_entry_id,
        row.refund_id,
        row.action,
        row.money,
        row.decision,
        row.reason_code,
        state,
        detail,
        harmless,
    )


# The run.

_log = logging.getLogger("worker")

_PLACE = {name: place for place, name in enumerate(StepName)}
_FAILPOINT = {name: step_place(name) for name in StepName}
_ROUNDS = len(Escalation) + 2
"""The most rounds of a run, which begins again once per approved reason; more rounds are a defect."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's result: facts for the trail, the step that follows (None: the run ends here for now), a message for a
    person, and the tool that it used. With `next_step` TRANSFER_TO_HUMAN the message is an `Escalation`."""

    output: Mapping[str, Any] = field(default_factory=dict)
    next_step: StepName | None = None
    message: str | None = None
    tool_used: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownOrder:
    """The directory answered: there is no such order."""


@dataclass(frozen=True, slots=True)
class NoDirectoryAnswer:
    """The directory did not answer; `detail` is for the trail."""

    detail: str


Found = OrderFacts | UnknownOrder | NoDirectoryAnswer


@dataclass(frozen=True, slots=True)
class Stopped:
    """The authority was not asked, because the worker is stopping."""


@dataclass(frozen=True, slots=True)
class Untried:
    """The start is not asked for again, because nothing would be tried under it: a new time to act would only keep a
    person from resolving the operation as not executed."""

    why: str


@dataclass(slots=True)
class RunContext:
    """One row in a run. Steps fill in what later steps need; only the runner moves it to another step."""

    row: LedgerRow
    facts: KnownFacts
    card: Confirmation | None = None
    """The customer's confirm card, as it stood when the run began; also where the route asks no customer any more."""
    route: Route | None = None
    escalation: Escalation | None = None
    """The reason for which a person is being asked; None if none is."""
    lifted: frozenset[Escalation] = frozenset()
    """Reasons that a person has approved, as the authority answered in this run; never stored."""

    # Answers from outside, by the step that asked.
    switches: Switches | None = None
    switches_error: Unreachable | None = None
    is_route_open: bool = False
    """Whether the route's switches are on for everybody, and nothing is halted."""
    lookup: Found | None = None
    order: OrderFacts | None = None
    images: Sequence[KeptImage] = ()
    readings: Sequence[Any] = ()
    check_answer: CheckAnswer | Unreachable | Rejected | None = None
    opinion: Opinion | None = None
    answer: GuardAnswer | Unreachable | Rejected | Stopped | None = None
    """The authority's answer; removed once it has been acted on."""
    last_answer: GuardAnswer | Unreachable | Rejected | None = None
    """The last answer to a guard of this run."""
    not_taken: Escalation | None = None
    """Why the permission was not recorded: the order's budget has no room for it, or another row has taken the order."""
    counted_first: bool = False
    """Whether the permission was not recorded because another refund of the order was counted first, and nothing blocks it now."""
    encloses_start: bool = False
    """Whether the question encloses the start: a permission is then redeemed in the same call."""
    permission: Change | None = None
    """A permission that came with its start; it is recorded with the execution."""
    started: StartReceipt | Unreachable | Rejected | Untried | None = None
    settled: Settled | EffectRefused | NoAnswer | None = None
    execution_id: uuid.UUID | None = None
    report: Report | None = None
    """The report that is still to be sent to the authority."""

    # How the run ends.
    event: Change | ReleaseLease | None = None
    """What to write to the ledger when the run ends without an execution."""
    outcome: RowResult | None = None
    """Set once the run's end is on record."""
    defect: str | None = None
    """Where the run failed for this row alone. Without an event it costs the row an attempt, or its lease if it may be started."""
    trail: list[dict[str, Any]] = field(default_factory=list)
    began: float = 0.0
    """When its batch entered the graph, by `time.perf_counter`."""
    params: Mapping[str, Any] | None = None
    """The params of the question, once they are fixed."""

    @property
    def settles_in(self) -> str | None:
        """The settlement system of the row's branch; None without a route, or if the route goes to a person."""
        return self.route.settles_to if self.route is not None and self.route.to_person is None else None

    @property
    def state(self) -> LedgerState:
        """The row's state in the ledger during the run."""
        recorded = self.started is not None and self.permission is None
        return LedgerState.ALLOWED if recorded else LedgerState.GUARDING


def trail_entry(step: StepName, result: StepResult, began: float) -> dict[str, Any]:
    """A step's line in the trail; `at_ms` counts from `began`, the beginning of the run by `time.perf_counter`."""
    entry: dict[str, Any] = {"step": step, "at_ms": round((time.perf_counter() - began) * 1000, 3)}
    if result.output:
        entry["output"] = result.output
    if result.next_step is not None:
        entry["next"] = result.next_step
    if result.message:
        entry["message"] = result.message
    if result.tool_used:
        entry["tool"] = result.tool_used
    return entry


class Step(Protocol):
    """One step of the graph. `prepare` may call outside systems for all rows at this step at once; `run` decides for one row."""

    name: StepName

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Gather what `run` needs; nothing by default. If it raises, it is called again for each row alone, so it must be repeatable."""

    def run(self, context: RunContext) -> StepResult:
        """Decide to which step the row goes."""


class PureStep:
    """A step that needs nothing from outside."""

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Gather nothing."""


def to_person(context: RunContext, reason: Escalation, following: StepName, **output: Any) -> StepResult:
    """Send the row to a person for `reason`, or on to `following` if a person has approved exactly this reason."""
    if reason in context.lifted:
        return StepResult({**output, "lifted": reason}, following)
    return StepResult(output, StepName.TRANSFER_TO_HUMAN, reason)


class ContextLoader:
    """Makes contexts."""

    def __init__(self, routes: Routes, confirmations: Confirmations) -> None:
        self._routes, self._confirmations = routes, confirmations

    def contexts(self, rows: Sequence[LedgerRow], known: Mapping[str, KnownFacts]) -> list[RunContext]:
        """Return one context per row, in order; `known` has the facts by ledger entry id. Raises `LedgerUnavailable`."""
        cards = self._cards(rows)
        return [
            RunContext(self._routes.as_asked(row), known[row.ledger_entry_id], cards.get(row.ledger_entry_id))
            for row in rows
        ]

    def _cards(self, rows: Sequence[LedgerRow]) -> dict[str, Confirmation]:
        asking = [row.ledger_entry_id for row in rows if _was_claimed_before(row) or self._asks_customer(row)]
        return self._confirmations.latest(asking) if asking else {}

    def _asks_customer(self, row: LedgerRow) -> bool:
        route = self._routes.find(row.channel, row.scenario, row.mode)
        return route is not None and route.confirm_card


def _was_claimed_before(row: LedgerRow) -> bool:
    """Whether an earlier run may have asked its customer, whatever its route says by now. A simulated row is not claimed."""
    return row.claim_epoch > 1 or row.reason_code is not None


class UndeclaredSteps(Exception):
    """The steps given are not those of the graph."""


class Runner:
    """Runs contexts through `steps`, one per step of the graph. Raises `UndeclaredSteps`."""

    def __init__(self, steps: Iterable[Step], failpoints: Failpoints | None = None) -> None:
        self._failpoints = failpoints or Failpoints()
        self._armed = self._failpoints.place
        self._steps: Mapping[StepName, Step] = {step.name: step for step in steps}
        if set(self._steps) != set(SUCCESSORS):
            raise UndeclaredSteps(f"steps without a graph or the reverse: {set(self._steps) ^ set(SUCCESSORS)}")

    def run(self, contexts: Sequence[RunContext]) -> None:
        """Run every context to its end. A defect costs its own row only.

        Raises what a step's `prepare` raises that is about no row, such as `LedgerUnavailable`.
        """
        began = time.perf_counter()
        for context in contexts:
            context.began = began
        standing: dict[StepName, list[RunContext]] = {FIRST: list(contexts)}
        for _ in range(_ROUNDS):
            again: dict[StepName, list[RunContext]] = {}
            for name in StepName:
                if here := standing.pop(name, None):
                    self._pass(self._steps[name], here, standing, again)
            standing = again
            if not standing:
                return
        for context in (context for here in standing.values() for context in here):
            # A defect of this row alone, so that it does not hold up the others.
            context.defect = "the workflow did not leave a loop of steps"
            _log.error("the workflow went round in circles for %s", context.row.ledger_entry_id)

    def _pass(
        self,
        step: Step,
        here: list[RunContext],
        ahead: dict[StepName, list[RunContext]],
        again: dict[StepName, list[RunContext]],
    ) -> None:
        """Run one step for all rows at it, and put each into `ahead`, or into `again` for the next round."""
        is_armed = _FAILPOINT[step.name] == self._armed
        if is_armed:
            self._failpoints.hit(_FAILPOINT[step.name])
        failed = frozenset[str]() if isinstance(step, PureStep) else _prepare(step, here)
        # Many rows share one result object: it is checked once, and all their trails get the same line. `seen` keeps
        # the object, so that no later one can have the same `id`.
        seen: dict[int, tuple[object, dict[str, Any], list[RunContext] | None, Escalation | None]] = {}
        run = step.run
        for context in here:
            try:
                is_refused = failed and context.row.ledger_entry_id in failed
                said: object = _refused(step.name, context) if is_refused else run(context)
            except Exception as error:
                _note_defect(step.name, context, error)
                said = _refused(step.name, context)
            known = seen.get(id(said))
            if known is None:
                result = _declared(step.name, said, context)
                following, onto, reason = result.next_step, None, None
                if following is not None:
                    onto = (ahead if _PLACE[following] > _PLACE[step.name] else again).setdefault(following, [])
                if following is StepName.TRANSFER_TO_HUMAN:
                    reason = _reason(result.message)
                known = seen[id(said)] = said, trail_entry(step.name, result, context.began), onto, reason
            _, line, onto, reason = known
            context.trail.append(line)
            if reason is not None:
                context.escalation = reason
            if onto is not None:
                onto.append(context)
        if is_armed:
            self._failpoints.hit(_FAILPOINT[step.name])


def _declared(step: StepName, said: object, context: RunContext) -> StepResult:
    """Return the step's result if the graph declares its next step; else the refusal that sends the row to a person."""
    if not isinstance(said, StepResult) or not (said.next_step is None or isinstance(said.next_step, StepName)):
        _log.error("step %s gave no answer that can be followed for %s", step, context.row.ledger_entry_id)
        return _refused(step, context)
    if said.next_step is None or said.next_step in SUCCESSORS[step]:
        return said
    _log.error("step %s named %s, which may not follow it", step, said.next_step)
    return _refused(step, context)


def _prepare(step: Step, here: Sequence[RunContext]) -> frozenset[str]:
    """Prepare the step; returns the ids of the rows for which that failed. One row's data must not fail the batch of the others."""
    try:
        step.prepare(here)
    except Exception as error:
        if _speaks_of_no_row(error):
            raise
        if len(here) > 1:
            return frozenset[str]().union(*(_prepare(step, [context]) for context in here))
        _note_defect(step.name, here[0], error)
        return frozenset({here[0].row.ledger_entry_id})
    return frozenset()


def _speaks_of_no_row(error: Exception) -> bool:
    """Whether the error is about no row: the database is unreachable, not migrated or denies access; or a failpoint was hit."""
    if isinstance(error, psycopg.Error):
        return not isinstance(error, ROW_REFUSED)
    return isinstance(error, LedgerUnavailable | SchemaNotReady | FailpointHit)


def _note_defect(step: StepName, context: RunContext, error: Exception) -> None:
    # Its text may quote the row; where it happened is enough to find the defect.
    context.defect = f"step {step} failed: {raised_at(error)}"
    _log.error("step %s failed for %s: %s", step, context.row.ledger_entry_id, raised_at(error))


def _refused(step: StepName, context: RunContext) -> StepResult:
    """Return the result for a step that failed: to a person, if the graph allows it without leading back to the step.

    A row that may be started is not put to a person as if it were not: its run ends here, and it comes back when its
    lease expires.
    """
    context.event = None
    if context.encloses_start and context.row.start_id is not None:
        context.row = msgspec.structs.replace(context.row, may_be_started=True)
    leads_back = step is StepName.ASK_AUTHORITY or (step is StepName.EXECUTE_BY_SYSTEM and context.row.may_be_started)
    if StepName.TRANSFER_TO_HUMAN in SUCCESSORS[step] and not leads_back:
        return StepResult({}, StepName.TRANSFER_TO_HUMAN, Escalation.STEP_REFUSED)
    context.defect = context.defect or f"step {step} gave no answer that can be followed"
    return StepResult({})


def _reason(message: str | None) -> Escalation:
    try:
        return Escalation(message or "")
    except ValueError:
        return Escalation.UNKNOWN
