"""Dry run: where rows would end, through the same graph with its last steps only checking instead of acting.

No claim, no card, no recorded question, no execution. Rows need not be in the ledger. Each row is simulated by itself:
what several rows together take from an account, a limit or a breaker is not counted; orders that they would overdraw
are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.client import CheckAnswer, CheckQuestion, Client, Rejected, Unreachable
from sentinel.core.money import Money, money_out
from sentinel.core.wording import counted
from worker.refunds.concurrency import WorkerPool
from worker.refunds.ledger import Ledger
from worker.refunds.rows import Change, KnownFacts, LedgerEvent, LedgerRow, NewRow, OrderKey
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
    order: OrderKey | None = field(default=None, repr=False)
    """The order that its amount would be taken from; None for a row without an order, or one that was asked about before."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ledger_entry_id": self.ledger_entry_id, "refund_id": self.refund_id, "amount": money_out(self.money),
            "decision": self.decision, "reason_code": self.reason_code, "detail": self.detail, "step": self.step,
            "trail": list(self.trail),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OverdrawnOrder:
    """Rows of one order that are each within what is left of it, and together exceed it."""

    order: OrderKey
    rows: tuple[str, ...]
    together: Money
    left: Money

    def __str__(self) -> str:
        return (
            f"order {self.order}: {counted(len(self.rows), 'row', 'rows')} together are {self.together}, but only {self.left} is left of it;"
            " not all of them will end as shown"
        )

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **self.order._asdict(), "ledger_entry_ids": list(self.rows), "together": money_out(self.together), "left": money_out(self.left),
        }  # fmt: skip


class ReadConfirmCard(PureStep):
    """The step confirm_card, without asking the customer."""

    name = StepName.CONFIRM_CARD

    def __init__(self, card: ConfirmCard) -> None:
        self._card = card

    def run(self, context: RunContext) -> StepResult:
        """Return the step's result for the card that is there; if it would open one, the row would wait for its customer."""
        return StepResult({}, None, "awaiting_customer") if self._card.opens_card(context) else self._card.run(context)


class CheckAuthority:
    """The step ask_authority with `check` for `guard`: nothing is recorded, nothing can be executed on the answer.

    A row that was asked about before is not checked: `check` would count the row's own operation as another one. Its
    answer on record is used.
    """

    name = StepName.ASK_AUTHORITY

    def __init__(self, client: Client, worker_pool: WorkerPool, systems: Systems) -> None:
        self._client, self._worker_pool, self._systems = client, worker_pool, systems

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Check the rows that a run would ask about for the first time."""
        here = [each for each in contexts if each.row.guard_request is None and not self._goes_to_person(each)]
        for context, answer in zip(here, self._worker_pool.map_chunks(self._check, here, AT_ONCE), strict=True):
            context.check_answer = answer

    def _check(self, contexts: Sequence[RunContext]) -> Sequence[CheckAnswer | Unreachable | Rejected]:
        return self._client.check_many([self._question(context) for context in contexts])

    def _question(self, context: RunContext) -> CheckQuestion:
        return {
            "action": context.row.action, "agent_id": context.row.agent_id, "params": params_of(context),
            "evidence_context": evidence_of(context, system=context.settles_in, is_ready=self._is_ready(context)),
        }  # fmt: skip

    def _is_ready(self, context: RunContext) -> bool:
        return self._systems.is_ready(context.settles_in)

    def _goes_to_person(self, context: RunContext) -> bool:
        """Whether a run would send the row to a person here, before asking, because its settlement system is not ready."""
        return context.escalation is None and not self._is_ready(context)

    def run(self, context: RunContext) -> StepResult:
        """End the simulation with the decision that was checked or is on record, or with none where there is no answer."""
        if self._goes_to_person(context):
            return StepResult(
                {"degraded": context.settles_in or "none"}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY
            )
        if context.row.guard_request is not None:
            return StepResult({"on_record": context.row.decision or "no answer"}, None)
        answer = context.check_answer
        if isinstance(answer, CheckAnswer):
            return StepResult({"decision": answer.decision, "code": answer.reason_code}, None)
        return StepResult({"authority": "no answer"}, None)


class UnreachableStep(PureStep):
    """A step that a simulation must not reach."""

    def __init__(self, name: StepName) -> None:
        self.name = name

    def run(self, context: RunContext) -> StepResult:
        """Always raise: a simulated run must not reach this step, and the runner reports the raise as a defect."""
        raise RuntimeError(f"a simulation reached {self.name}")


def simulation_of(context: RunContext) -> Simulation:
    """The result of a simulated run."""
    row, answer, last = context.row, context.check_answer, context.trail[-1]
    ends_asking = last["step"] == StepName.ASK_AUTHORITY
    decision = reason = detail = None
    if isinstance(context.event, Change) and context.event.event is LedgerEvent.GAVE_UP:
        decision, detail = "ERROR", context.event.last_error
    elif ends_asking and row.guard_request is not None:
        decision, reason = row.decision, row.reason_code
        detail = (
            "requested before; this answer is on record"
            if decision
            else "requested before; its answer is not on record"
        )
    elif ends_asking and isinstance(answer, CheckAnswer):
        decision, reason = answer.decision, answer.reason_code
        detail = f"escalated: {context.escalation}" if context.escalation else None
    elif isinstance(context.event, Change) and context.event.event is LedgerEvent.CUSTOMER_ENDED:
        decision, reason = context.event.decision, context.event.reason_code
    elif last.get("message") == "awaiting_customer" or (
        isinstance(context.event, Change) and context.event.event is LedgerEvent.AWAITING_CUSTOMER
    ):
        decision, reason = "APPROVAL_REQUIRED", "awaiting_customer"
    else:
        error = context.switches_error or (answer if isinstance(answer, Unreachable | Rejected) else None)
        detail = error.detail if error is not None else context.defect or "no answer"
    return Simulation(
        row.ledger_entry_id, row.refund_id, row.money, decision, reason, detail, str(last["step"]), tuple(context.trail),
        # For a row that was asked about before, the order's budget may hold the amount already.
        OrderKey(row.channel, row.source, row.order_ref) if row.order_ref and row.guard_request is None else None,
    )  # fmt: skip


class Simulator:
    """Simulates rows. Every call raises `LedgerUnavailable`."""

    def __init__(self, ledger: Ledger, context_loader: ContextLoader, runner: Runner) -> None:
        self._ledger, self._context_loader, self._runner = ledger, context_loader, runner

    def simulate_due(self, limit: int, agent: str | None = None) -> list[Simulation]:
        """Simulate up to `limit` rows that are due; with `agent`, only its rows."""
        rows = self._ledger.peek(limit, agent)
        return self._simulated(rows, self._ledger.facts([row.ledger_entry_id for row in rows]) if rows else {})

    def simulate_new(self, rows: Sequence[NewRow]) -> list[Simulation]:
        """Simulate rows that are not in the ledger, with the facts that it knows."""
        return self._simulated(*self._ledger.facts_of_new(rows))

    def overdrawn_orders(self, seen: Sequence[Simulation]) -> list[OverdrawnOrder]:
        """Return the orders of which these rows, if allowed or put to a person, would together take more than is left."""
        by_order: dict[OrderKey, list[Simulation]] = {}
        for row in seen:
            if row.order is not None and row.decision in ("ALLOW", "APPROVAL_REQUIRED"):
                by_order.setdefault(row.order, []).append(row)
        several = {order: rows for order, rows in by_order.items() if len(rows) > 1}
        found = []
        for order, left in self._ledger.left_of_orders(several.keys()).items():
            # A row that alone exceeds what is left is shown so itself, and takes nothing.
            rows = [row for row in several[order] if row.money.currency == left.currency]
            rows = [row for row in rows if row.money.amount_minor <= left.amount_minor]
            together = Money(sum(row.money.amount_minor for row in rows), left.currency)
            if together.amount_minor > left.amount_minor:
                found.append(OverdrawnOrder(order, tuple(row.ledger_entry_id for row in rows), together, left))
        return found

    def _simulated(self, rows: Sequence[LedgerRow], known: Mapping[str, KnownFacts]) -> list[Simulation]:
        """Simulate the rows; one whose facts cannot be read, which the ledger logs, is left out."""
        contexts = self._context_loader.contexts([row for row in rows if row.ledger_entry_id in known], known)
        self._runner.run(contexts)
        return [simulation_of(context) for context in contexts]
