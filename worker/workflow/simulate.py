"""Where rows would end, without anything happening: the same graph, with its last steps looking instead of acting.

No claim, no card, no recorded question, no execution. Rows need not even be in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.client import CheckAnswer, CheckQuestion, Client, Rejected, Unreachable
from sentinel.core.money import Money, money_out
from worker.crew import Crew
from worker.rows import Change
from worker.settlement.registry import Systems
from worker.states import LedgerEvent
from worker.workflow.context import Context, PureStep, StepResult
from worker.workflow.graph import StepName
from worker.workflow.question import evidence_of, params_of
from worker.workflow.reasons import Escalation
from worker.workflow.steps.confirm_card import ConfirmCard

AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Foresight:
    """Where a row would end now. `decision` is None when nobody answered or nobody would be asked; `step` is the last."""

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


class LookAtCard(PureStep):
    """confirm_card without asking anybody."""

    name = StepName.CONFIRM_CARD

    def __init__(self, card: ConfirmCard, systems: Systems) -> None:
        self._card, self._systems = card, systems

    def run(self, context: Context) -> StepResult:
        """On with a confirmation that is there already; else this is where the row would wait."""
        route = context.route
        if route is None or not self._systems.get(route.settles_to).is_ready():
            name = route.settles_to if route else "none"
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        if self._card.is_confirmed(context):
            return StepResult({"status": "confirmed"}, StepName.ASK_AUTHORITY)
        return StepResult({}, None, "awaiting_customer")


class AskCheck:
    """ask_authority by `check`: nothing is recorded, and nothing can be executed on the answer."""

    name = StepName.ASK_AUTHORITY

    def __init__(self, client: Client, crew: Crew, systems: Systems) -> None:
        self._client, self._crew, self._systems = client, crew, systems

    def prepare(self, contexts: Sequence[Context]) -> None:
        """Ask about all of them."""
        for context, answer in zip(contexts, self._crew.map_chunks(self._check, contexts, AT_ONCE), strict=True):
            context.early_look = answer

    def _check(self, contexts: Sequence[Context]) -> Sequence[CheckAnswer | Unreachable | Rejected]:
        return self._client.check_many([self._question(context) for context in contexts])

    def _question(self, context: Context) -> CheckQuestion:
        system = context.route.settles_to if context.route else ""
        is_ready = bool(system) and self._systems.get(system).is_ready()
        return {
            "action": context.row.action, "agent_id": context.row.agent_id, "params": params_of(context),
            "evidence_context": evidence_of(context, system=system or None, is_ready=is_ready),
        }  # fmt: skip

    def run(self, context: Context) -> StepResult:
        """The end in any case."""
        answer = context.early_look
        if isinstance(answer, CheckAnswer):
            return StepResult({"decision": answer.decision, "code": answer.reason_code}, None)
        return StepResult({"authority": "no answer"}, None)


class Never(PureStep):
    """A step that a simulation must not reach."""

    def __init__(self, name: StepName) -> None:
        self.name = name

    def run(self, context: Context) -> StepResult:
        """Reached, it is a defect: the runner reports it."""
        raise RuntimeError(f"a simulation reached {self.name}")


def foresight_of(context: Context) -> Foresight:
    """What a simulated run came to."""
    row, answer, last = context.row, context.early_look, context.trail[-1]
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
        silence = context.silence or (answer if isinstance(answer, Unreachable | Rejected) else None)
        detail = silence.detail if silence is not None else "no answer"
    return Foresight(
        row.ledger_entry_id, row.refund_id, row.money, decision, reason, detail, str(last["step"]), tuple(context.trail)
    )
