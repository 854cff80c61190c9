"""The state of one run of the workflow: the row, the known facts about it, and the trail of its steps; and how runs begin."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sentinel.client import CheckAnswer, GuardAnswer, Rejected, StartReceipt, Switches, Unreachable
from worker.critic.case import Opinion
from worker.refunds.confirmations import Confirmation, Confirmations
from worker.refunds.rows import Change, KeptImage, KnownFacts, LedgerRow, OrderFacts, ReleaseLease, Report
from worker.refunds.run_results import RowResult
from worker.refunds.states import LedgerState
from worker.refunds.workflow.directories import Found
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName
from worker.refunds.workflow.routes import Route, Routes
from worker.settlement import NoAnswer, Refused, Settled


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step says: facts for the trail, the step that follows (None: the run ends here for now), a word for a
    person, and the tool it used. With `next_step` TRANSFER_TO_HUMAN the message is an `Escalation`."""

    output: Mapping[str, Any] = field(default_factory=dict)
    next_step: StepName | None = None
    message: str | None = None
    tool_used: str | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """Not asked: the worker is ending."""


@dataclass(slots=True)
class RunContext:
    """One row on its way. Steps fill in what later steps need; only the runner moves it."""

    row: LedgerRow
    facts: KnownFacts
    card: Confirmation | None = None
    """The customer's confirm card, as it stood when the run began."""
    route: Route | None = None
    escalation: Escalation | None = None
    """The reason that is being put to a person; None on the straight way."""
    lifted: frozenset[Escalation] = frozenset()
    """Reasons that a person has approved; said by the authority in this run, never remembered."""

    # What the outside said, by the step that asked.
    switches: Switches | None = None
    switches_error: Unreachable | None = None
    lookup: Found | None = None
    order: OrderFacts | None = None
    images: Sequence[KeptImage] = ()
    readings: Sequence[Any] = ()
    check_answer: CheckAnswer | Unreachable | Rejected | None = None
    opinion: Opinion | None = None
    answer: GuardAnswer | Unreachable | Rejected | Stopped | None = None
    """The authority's answer; removed once it has been acted on."""
    said: GuardAnswer | Unreachable | Rejected | None = None
    """The last answer to a guard of this run."""
    not_taken: Escalation | None = None
    """Why the permission was not taken: the order's budget has no room for it, or another row has taken the order."""
    encloses_start: bool = False
    """Whether the question starts what it permits."""
    permission: Change | None = None
    """A permission that came with its start: recorded with the execution."""
    started: StartReceipt | Unreachable | Rejected | None = None
    settled: Settled | Refused | NoAnswer | None = None
    execution_id: uuid.UUID | None = None
    report: Report | None = None
    """The report that is still to be sent to the authority."""

    # How the run ends.
    event: Change | ReleaseLease | None = None
    """What is to be written down when the run ends without an execution."""
    outcome: RowResult | None = None
    """Set once the run's end is on record."""
    trail: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def state(self) -> LedgerState:
        """Where the row stands in the ledger while the run has it."""
        recorded = self.started is not None and self.permission is None
        return LedgerState.ALLOWED if recorded else LedgerState.GUARDING

    def note(self, step: StepName, result: StepResult) -> None:
        """Add a step to the trail; `at_ms` counts from the beginning of the run."""
        entry: dict[str, Any] = {"step": step, "at_ms": round((time.perf_counter() - self.began) * 1000, 3)}
        if result.output:
            entry["output"] = result.output
        if result.next_step is not None:
            entry["next"] = result.next_step
        if result.message:
            entry["message"] = result.message
        if result.tool_used:
            entry["tool"] = result.tool_used
        self.trail.append(entry)


class Step(Protocol):
    """One step of the graph. `prepare` may ask the outside for all rows that stand here at once; `run` is pure."""

    name: StepName

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Gather what `run` needs; nothing by default."""

    def run(self, context: RunContext) -> StepResult:
        """Decide where the row goes."""


class PureStep:
    """A step that needs nothing from outside."""

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Nothing to gather."""


def to_person(context: RunContext, reason: Escalation, following: StepName, **output: Any) -> StepResult:
    """A step's refusal: to a person, unless a person has approved just this reason; then on to `following`."""
    if reason in context.lifted:
        return StepResult({**output, "lifted": reason}, following)
    return StepResult(output, StepName.TRANSFER_TO_HUMAN, reason)


class ContextLoader:
    """Makes contexts. `confirmations` None: there are no cards."""

    def __init__(self, routes: Routes, confirmations: Confirmations | None) -> None:
        self._routes, self._confirmations = routes, confirmations

    def contexts(self, rows: Sequence[LedgerRow], known: Mapping[str, KnownFacts]) -> list[RunContext]:
        """One per row, in order; `known` by ledger entry id. Raises `LedgerUnavailable`."""
        cards = self._cards(rows)
        return [
            RunContext(
                replace(row, action=self._routes.action_of(row.action, row.channel, row.scenario, row.mode)),
                known[row.ledger_entry_id],
                cards.get(row.ledger_entry_id),
            )
            for row in rows
        ]

    def _cards(self, rows: Sequence[LedgerRow]) -> dict[str, Confirmation]:
        if self._confirmations is None:
            return {}
        routes = {row.ledger_entry_id: self._routes.find(row.channel, row.scenario, row.mode) for row in rows}
        asking = [row_id for row_id, route in routes.items() if route is not None and route.confirm_card]
        return self._confirmations.latest(asking) if asking else {}
