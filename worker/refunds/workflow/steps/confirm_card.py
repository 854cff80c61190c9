"""confirm_card: the customer confirmed exactly this amount for exactly this order. Until then the row waits."""

from __future__ import annotations

from collections.abc import Sequence

from worker.refunds import transitions
from worker.refunds.confirmations import CardStatus, ConfirmationRequest, Confirmations
from worker.refunds.workflow.context import RunContext, StepResult
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName
from worker.settlement.registry import Systems

_ENDED = {CardStatus.DECLINED: "customer_declined", CardStatus.EXPIRED: "confirmation_expired"}


class ConfirmCard:
    """Opens cards and reads their answers. Without `confirmations` no customer can be asked, and rows go to a person."""

    name = StepName.CONFIRM_CARD

    def __init__(self, confirmations: Confirmations | None, systems: Systems) -> None:
        self._confirmations, self._systems = confirmations, systems

    def is_confirmed(self, context: RunContext) -> bool:
        """Whether the customer has said yes to exactly this."""
        if self._confirmations is None or context.card is None:
            return False
        return context.card.says(CardStatus.CONFIRMED, self._confirmations.digest_of(ask_of(context)))

    def asks_customer(self, context: RunContext) -> bool:
        """Whether this run will ask the customer."""
        return context.route is not None and context.route.confirm_card and not self.is_confirmed(context)

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Opens a card for rows without one for these terms; none for what could not be paid."""
        if self._confirmations is None:
            return
        without = [context for context in contexts if self._wants_card(context)]
        self._confirmations.open([ask_of(context) for context in without])
        cards = self._confirmations.latest([context.row.ledger_entry_id for context in without]) if without else {}
        for context in without:
            context.card = cards.get(context.row.ledger_entry_id)

    def _wants_card(self, context: RunContext) -> bool:
        assert self._confirmations is not None
        if not self._is_ready(context):
            return False
        return context.card is None or context.card.digest != self._confirmations.digest_of(ask_of(context))

    def _is_ready(self, context: RunContext) -> bool:
        return context.route is not None and self._systems.get(context.route.settles_to).is_ready()

    def run(self, context: RunContext) -> StepResult:
        """On when confirmed; waiting, ended, or to a person otherwise."""
        card, route = context.card, context.route
        if not self._is_ready(context):
            name = route.settles_to if route else "none"
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        if self._confirmations is None or card is None:
            return StepResult({"degraded": self.name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        output = {"card": str(card.confirmation_id), "status": card.status}
        if self.is_confirmed(context):
            return StepResult(output, StepName.ASK_AUTHORITY, tool_used="confirmations")
        if card.status == CardStatus.PENDING:
            context.event = transitions.await_customer(context.row, card.expires_at)
            return StepResult(output, None, "the customer is asked", "confirmations")
        if card.status == CardStatus.EXPIRED and card.delivered_at is None:
            # The customer was never asked: that is our failure, and no answer of theirs.
            return StepResult(
                {**output, "degraded": "notifier"}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY
            )
        reason = _ENDED.get(CardStatus(card.status))
        if reason is None:
            return StepResult(output, StepName.TRANSFER_TO_HUMAN, Escalation.STEP_REFUSED)
        context.event = transitions.end_by_customer(context.row, reason)
        return StepResult(output, None, reason, "confirmations")


def ask_of(context: RunContext) -> ConfirmationRequest:
    """What the customer is asked to confirm: the row's own terms."""
    row, facts = context.row, context.facts
    return ConfirmationRequest(
        row.ledger_entry_id, row.refund_id, row.order_ref, row.amount_minor, row.currency, row.channel, row.scenario,
        facts.language, facts.contact,
    )  # fmt: skip
