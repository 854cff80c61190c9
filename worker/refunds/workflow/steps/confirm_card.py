"""limit_check and confirm_card: the customer confirms exactly this amount for exactly this order. Until then the row waits.

Before a customer is asked, the authority is asked what it would answer, so that nobody confirms a refund that it refuses. The
reservation itself is made at ask_authority. Where no customer is asked, both are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sentinel.client import CheckAnswer, Client, Rejected, Unreachable
from worker.refunds import transitions
from worker.refunds.concurrency import WorkerPool
from worker.refunds.confirmations import CardStatus, ConfirmationRequest, Confirmations
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.runner import RunContext, StepResult, to_person
from worker.refunds.workflow.steps.ask_authority import params_of
from worker.settlement.registry import Systems

_AT_ONCE = 64


_AFTER_LIMIT_CHECK = next_step(StepName.LIMIT_CHECK)
_NOT_ASKED = StepResult({"look": "left to the decision"}, _AFTER_LIMIT_CHECK)


class LimitCheck:
    """One `check` for all rows that a customer will be asked about."""

    name = StepName.LIMIT_CHECK

    def __init__(
        self,
        client: Client,
        worker_pool: WorkerPool,
        retry_policy: RetryPolicy,
        asks_customer: Callable[[RunContext], bool],
    ) -> None:
        self._client, self._worker_pool, self._retry_policy, self._asks_customer = (
            client,
            worker_pool,
            retry_policy,
            asks_customer,
        )

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Ask for those who wait for a customer afterwards."""
        # What a person has approved holds its budget already: the authority has just looked, and would count it twice.
        here = [context for context in contexts if not context.lifted and self._asks_customer(context)]
        answers = self._worker_pool.map_chunks(self._check, here, _AT_ONCE)
        for context, answer in zip(here, answers, strict=True):
            context.check_answer = answer

    def _check(self, contexts: Sequence[RunContext]) -> Sequence[CheckAnswer | Unreachable | Rejected]:
        return self._client.check_many(
            [
                {"action": each.row.action, "params": params_of(each), "agent_id": each.row.agent_id}
                for each in contexts
            ]
        )  # fmt: skip

    def run(self, context: RunContext) -> StepResult:
        """On when it would be allowed, or was not asked; to a person otherwise."""
        look = context.check_answer
        if look is None:
            return _NOT_ASKED
        if not isinstance(look, CheckAnswer):
            context.event = transitions.after_no_answer(context.row, look, self._retry_policy)
            return StepResult({"authority": "no answer"})
        if look.decision == "ALLOW":
            return StepResult({"look": look.decision}, _AFTER_LIMIT_CHECK, tool_used="action/check")
        return to_person(
            context, Escalation.OVER_LIMIT_EARLY, _AFTER_LIMIT_CHECK, look=look.decision, code=look.reason_code
        )


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
