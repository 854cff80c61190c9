"""Dry run: where rows would end, through the same graph with its last steps only checking instead of acting.

No claim, no card, no recorded question, no execution. Rows need not be in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.client import CheckAnswer, CheckQuestion, Client, Rejected, Unreachable
from sentinel.core.money import Money, money_out
from worker.refunds.concurrency import WorkerPool
from worker.refunds.ledger import Ledger
from worker.refunds.rows import Change, KnownFacts, LedgerEvent, LedgerRow, NewRow
from worker.refunds.workflow.graph import Escalation, StepName
from worker.refunds.workflow.runner import ContextLoader, PureStep, RunContext, Runner, StepResult
from worker.refunds.workflow.steps.ask_authority import ConfirmCard, evidence_of, params_of
from worker.settlement.registry import Systems

AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Simulation:
    """Where a row would end now. `decision` is None without an answer or where none would be asked for; `step` is the last."""

    ledger_entry_id: str
    refund_id: str
    money: Money
    decision: str | None
    reason_code: str | None
    detail: str | None
    step: str | None = None
    trail: Sequence[dict[str, Any]] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ledger_entry_id": self.ledger_entry_id, "refund_id": self.refund_id, "amount": money_out(self.money),
            "decision": self.decision, "reason_code": self.reason_code, "detail": self.detail, "step": self.step,
            "trail": list(self.trail),
        }  # fmt: skip


class ReadConfirmCard(PureStep):
    """confirm_card without asking anybody."""

    name = StepName.CONFIRM_CARD

    def __init__(self, card: ConfirmCard, systems: Systems) -> None:
        self._card, self._systems = card, systems

    def run(self, context: RunContext) -> StepResult:
        """On with a confirmation that is there already; else this is where the row would wait."""
        system = self._systems.find(context.settles_in)
        if system is None or not system.is_ready():
            name = context.settles_in or "none"
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        if self._card.is_confirmed(context):
            return StepResult({"status": "confirmed"}, StepName.ASK_AUTHORITY)
        return StepResult({}, None, "awaiting_customer")


class CheckAuthority:
    """ask_authority by `check`: nothing is recorded, and nothing can be executed on the answer."""

    name = StepName.ASK_AUTHORITY

    def __init__(self, client: Client, worker_pool: WorkerPool, systems: Systems) -> None:
        self._client, self._worker_pool, self._systems = client, worker_pool, systems

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Ask about all of them."""
        for context, answer in zip(contexts, self._worker_pool.map_chunks(self._check, contexts, AT_ONCE), strict=True):
            context.check_answer = answer

    def _check(self, contexts: Sequence[RunContext]) -> Sequence[CheckAnswer | Unreachable | Rejected]:
        return self._client.check_many([self._question(context) for context in contexts])

    def _question(self, context: RunContext) -> CheckQuestion:
        system = self._systems.find(context.settles_in)
        return {
            "action": context.row.action, "agent_id": context.row.agent_id, "params": params_of(context),
            "evidence_context": evidence_of(
                context, system=context.settles_in, is_ready=system is not None and system.is_ready()
            ),
        }  # fmt: skip

    def run(self, context: RunContext) -> StepResult:
        """End the simulation with the decision that was checked, or with none where the authority did not answer."""
        answer = context.check_answer
        if isinstance(answer, CheckAnswer):
            return StepResult({"decision": answer.decision, "code": answer.reason_code}, None)
        return StepResult({"authority": "no answer"}, None)


class UnreachableStep(PureStep):
    """A step that a simulation must not reach."""

    def __init__(self, name: StepName) -> None:
        self.name = name

    def run(self, context: RunContext) -> StepResult:
        """Raise: the runner reports the defect."""
        raise RuntimeError(f"a simulation reached {self.name}")


def simulation_of(context: RunContext) -> Simulation:
    """The result of a simulated run."""
    row, answer, last = context.row, context.check_answer, context.trail[-1]
    ends_asking = last["step"] == StepName.ASK_AUTHORITY
    decision = reason = detail = None
    if isinstance(context.event, Change) and context.event.event is LedgerEvent.GAVE_UP:
        decision, detail = "ERROR", context.event.last_error
    elif ends_asking and isinstance(answer, CheckAnswer):
        decision, reason = answer.decision, answer.reason_code
        detail = f"escalated: {context.escalation}" if context.escalation else None
    elif last.get("message") == "awaiting_customer":
        decision, reason = "APPROVAL_REQUIRED", "awaiting_customer"
    else:
        error = context.switches_error or (answer if isinstance(answer, Unreachable | Rejected) else None)
        detail = error.detail if error is not None else context.defect or "no answer"
    return Simulation(
        row.ledger_entry_id, row.refund_id, row.money, decision, reason, detail, str(last["step"]), tuple(context.trail)
    )


class Simulator:
    """Simulates rows. Every call raises `LedgerUnavailable`."""

    def __init__(self, ledger: Ledger, context_loader: ContextLoader, runner: Runner) -> None:
        self._ledger, self._context_loader, self._runner = ledger, context_loader, runner

    def simulate_due(self, limit: int) -> list[Simulation]:
        """Simulate up to `limit` rows that a claim would take."""
        rows = self._ledger.peek(limit)
        return self._simulated(rows, self._ledger.facts([row.ledger_entry_id for row in rows]) if rows else {})

    def simulate_new(self, rows: Sequence[NewRow]) -> list[Simulation]:
        """Simulate rows that are not in the ledger, with the facts that it knows."""
        return self._simulated(*self._ledger.facts_of_new(rows))

    def _simulated(self, rows: Sequence[LedgerRow], known: Mapping[str, KnownFacts]) -> list[Simulation]:
        contexts = self._context_loader.contexts(rows, known)
        self._runner.run(contexts)
        return [simulation_of(context) for context in contexts]
