"""ask_authority, limit_check and confirm_card: the questions to the authority and to the customer before an execution.

ask_authority is the one guard request that can lead to an execution: for a permit, or (escalated) for a person's
approval. An escalated request never leads to an execution by itself: once approved, the run begins again without that
reason, and every other step runs again. Where the effect is the execution row itself, the question encloses the start:
permission and start are one commit of the authority, and the ledger records both with the execution.

A customer confirms exactly this amount for exactly this order; until then the row waits. Before that, the authority is
asked what it would answer, so that nobody confirms a refund that it refuses. The reservation itself is made at
ask_authority. Where no customer is asked, limit_check and confirm_card are skipped.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from sentinel.client import CheckAnswer, Client, GuardAnswer, GuardQuestion, Rejected, Unreachable
from sentinel.core.money import Money, money_out
from worker.failpoints import Failpoint, Failpoints
from worker.refunds import transitions
from worker.refunds.concurrency import WorkerPool
from worker.refunds.confirmations import CardStatus, ConfirmationRequest, Confirmations
from worker.refunds.ledger import Ledger
from worker.refunds.risk_facts import risk_facts
from worker.refunds.rows import RISK_CLASS, Change, FixedQuestion, LedgerEvent, LedgerRow, LedgerState, ReleaseLease
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.graph import FIRST, Escalation, StepName, next_step
from worker.refunds.workflow.routes import IN_PARTS
from worker.refunds.workflow.runner import PureStep, RunContext, StepResult, Stopped, lease_lost, to_person
from worker.refunds.workflow.steps.order_and_image import paid_of
from worker.settlement.registry import Systems
from worker.switch_cache import SwitchCache, halts_cover

# ask_authority.


class TransferToHuman(PureStep):
    """Writes the reason, which the runner has set, into the trail. Every row passes it before a person is asked."""

    name = StepName.TRANSFER_TO_HUMAN

    def __init__(self, card: ConfirmCard) -> None:
        self._card = card

    def run(self, context: RunContext) -> StepResult:
        """Go on to the authority, with the reason in the trail; end a row that its customer did not confirm, as confirm_card does."""
        ended = self._card.ended_by_customer(context)
        if ended is not None:
            return ended
        context.escalation = context.escalation or Escalation.UNKNOWN
        return StepResult({"escalation": context.escalation}, StepName.ASK_AUTHORITY)


_NEVER_LIFTED = (
    Escalation.SYSTEM_NOT_READY,
    Escalation.NO_ROUTE,
    Escalation.MODE_NEEDS_PERSON,
    Escalation.ORDER_OVERDRAWN,
    Escalation.ORDER_OTHER_CURRENCY,
    Escalation.ORDER_UNKNOWN,
    Escalation.STEP_REFUSED,
    Escalation.UNKNOWN,
)
"""No approval makes these payable: there is no automatic way, or the order's budget has no room."""


class AskAuthority:
    """Records the question, sends it to the authority, and turns the answer into the row's next step."""

    name = StepName.ASK_AUTHORITY

    def __init__(
        self, *, ledger: Ledger, client: Client, worker_pool: WorkerPool, retry_policy: RetryPolicy, systems: Systems, failpoints: Failpoints,
        stopping: threading.Event, switch_cache: SwitchCache, act_within_seconds: int = 150,
    ) -> None:  # fmt: skip
        self._act_within_seconds, self._switch_cache = act_within_seconds, switch_cache
        self._ledger, self._client, self._worker_pool, self._retry_policy = ledger, client, worker_pool, retry_policy
        self._systems, self._failpoints, self._stopping = systems, failpoints, stopping

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Record and send the questions of the rows that are escalated or whose settlement system is ready."""
        for context in self._halted_meanwhile(contexts):
            context.event = transitions.let_go(context.row, transitions.HALTED)
        here = [
            context for context in contexts
            if context.event is None and (context.escalation is not None or self._is_ready(context))
        ]  # fmt: skip
        for context in here:
            context.encloses_start = context.escalation is None and self._encloses_start(context)
        self._fix_questions(here)
        here = [context for context in here if context.outcome is None]
        self._ask_all(here)
        _leave_orders_to_people(here)
        # Rows that an earlier question started whose answer was lost: they are asked about again with the start
        # enclosed, so that the receipt comes back. That also begins a new time to act, so it is not done for rows of
        # which nothing more will be tried; one whose outcome is known has no time to act any more.
        begun = [
            each for each in here
            if _lacks_receipt(each) and (_status_of(each) == "completed" or self._why_untried(each) is None)
        ]  # fmt: skip
        for context in begun:
            context.encloses_start = True
        self._fix_questions(begun)
        self._ask_all([context for context in begun if context.outcome is None])

    def _halted_meanwhile(self, contexts: Sequence[RunContext]) -> list[RunContext]:
        """The rows that would be asked about for the first time, under a halt that was set since the run began.

        The authority would deny them for good. Put back they go to a person, or on, as kill_switch then finds.
        """
        new = [each for each in contexts if each.escalation is None and _is_never_asked(each)]
        if not new:
            return []
        try:
            switches = self._switch_cache.current()
        except (Unreachable, Rejected):
            return []  # the authority itself knows it
        return [
            each for each in new
            if halts_cover(switches, agent_id=each.row.agent_id, action=each.row.action, scenario=each.row.scenario)
        ]  # fmt: skip

    def _ask_all(self, contexts: Sequence[RunContext]) -> None:
        # A row that got no answer before is asked alone: one that breaks its call must not keep its neighbours waiting.
        answers = self._worker_pool.map_chunks(self._ask, contexts, alone=lambda each: each.row.failed_before)
        for context, answer in zip(contexts, answers, strict=True):
            cut_off = isinstance(answer, Unreachable) and self._stopping.is_set()
            if context.encloses_start and isinstance(answer, transitions.FAILURES):
                may_be_started = context.row.may_be_started or answer.may_have_arrived
                context.row = replace(context.row, may_be_started=may_be_started)
            context.answer = Stopped() if cut_off else answer
            if not isinstance(context.answer, Stopped):
                context.last_answer = context.answer

    def _encloses_start(self, context: RunContext) -> bool:
        """Whether the question encloses the start: only if the execution row is the effect and no order's budget is taken first."""
        if context.row.permit_token is not None or context.row.order_ref is not None:
            return False
        system = self._systems.find(context.settles_in)
        return getattr(system, "settles_in_ledger", False) and self._is_ready(context)

    def _why_untried(self, context: RunContext) -> str | None:
        return self._systems.why_untried(context.row, context.settles_in)

    def _is_ready(self, context: RunContext) -> bool:
        # A row that settles nowhere may come here from an earlier step.
        return self._systems.is_ready(context.settles_in)

    def _fix_questions(self, contexts: Sequence[RunContext]) -> None:
        fresh = [each for each in contexts if each.encloses_start or _is_never_asked(each)]
        if not fresh:
            return
        questions = [(each, params_of(each)) for each in fresh]
        kept = self._ledger.fix_requests(
            [(each.row, FixedQuestion(params, each.row.action), _start_id(each)) for each, params in questions]
        )
        self._failpoints.hit(Failpoint.AFTER_FACTS)
        for context, params in questions:
            row_id = context.row.ledger_entry_id
            # Set only after it is stored: what is not on record is not asked.
            context.params = params
            if row_id in kept:
                context.row = replace(context.row, start_id=kept[row_id])
            else:
                context.outcome = lease_lost(context.row, LedgerState.GUARDING)

    def _ask(self, contexts: Sequence[RunContext]) -> Sequence[GuardAnswer | Unreachable | Rejected | Stopped]:
        if self._stopping.is_set():
            return [Stopped()] * len(contexts)
        self._failpoints.hit(Failpoint.BEFORE_GUARD)
        found = self._client.guard_many([self._question(context) for context in contexts])
        self._failpoints.hit(Failpoint.AFTER_GUARD)
        return found

    def _question(self, context: RunContext) -> GuardQuestion:
        row = context.row
        question: GuardQuestion = {
            "action": row.action, "params": params_of(context), "idempotency_key": row.idempotency_key, "resource": row.resource,
            "risk_class": RISK_CLASS, "agent_id": row.agent_id,
        }  # fmt: skip
        if context.encloses_start:
            question["start_id"], question["act_within_seconds"] = row.start_id, self._act_within_seconds
            question["evidence_context"] = {"correlation_id": row.ledger_entry_id}
            return question
        is_ready = context.escalation not in _NEVER_LIFTED and self._is_ready(context)
        question["evidence_context"] = evidence_of(context, system=context.settles_in, is_ready=is_ready)
        return question

    def run(self, context: RunContext) -> StepResult:
        """Go on to the execution with a permit, or back to the first step with an approved reason; else end the run."""
        row, answer, reason = context.row, context.answer, context.escalation
        if context.outcome is not None:
            return StepResult({"claim": "lost"})
        if context.event is not None:
            return StepResult({"halt": "set meanwhile"})
        if answer is None:
            name = context.settles_in or "none"
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        is_open = row.may_be_started and _status_of(context) == "already_started" and _lacks_receipt(context)
        untried = self._why_untried(context) if is_open else None
        context.answer, context.escalation = None, None
        if isinstance(answer, Stopped):
            context.event = transitions.nothing_started(row, transitions.let_go(row, transitions.ENDED))
            return StepResult({"worker": "ending"})
        if not isinstance(answer, GuardAnswer):
            context.event = transitions.nothing_started(
                row, transitions.after_no_answer(row, answer, self._retry_policy)
            )
            return StepResult({"authority": "no answer"})
        if untried is not None and not transitions.was_not_executed(answer):
            context.event = transitions.after_unknown_outcome(row, untried, self._retry_policy)
            return _answered(answer.decision, answer.status, answer.reason_code, None)
        return self._follow_answer(context, answer, transitions.after_guard(row, answer, self._retry_policy), reason)

    def _follow_answer(
        self, context: RunContext, answer: GuardAnswer, then: Change | ReleaseLease, reason: Escalation | None
    ) -> StepResult:
        may_start = isinstance(then, Change) and then.event is LedgerEvent.ALLOWED
        if not may_start:
            context.event = then
            return _answered(answer.decision, answer.status, answer.reason_code, None)
        if reason is None or transitions.was_started_before(answer):
            context.answer = answer
            _keep_permission(context, then, answer)
            return _answered(answer.decision, answer.status, answer.reason_code, StepName.EXECUTE_BY_SYSTEM)
        output = {"decision": answer.decision, "status": answer.status, "code": answer.reason_code}
        if answer.status == "approved" and reason not in _NEVER_LIFTED:
            context.lifted |= {reason}
            return StepResult({**output, "lifts": reason}, FIRST, tool_used="action/guard")
        context.event = transitions.permit_instead_of_approval(context.row, reason, self._retry_policy)
        return StepResult(output, None, "no person was asked", "action/guard")


def _leave_orders_to_people(contexts: Sequence[RunContext]) -> None:
    """Mark permissions as not taken if, in the same batch, a person is asked about another refund of the order.

    Only for orders that are refunded once without a person. The ledger learns of the question only when these runs end.
    """
    once = [each for each in contexts if each.row.order_ref is not None and each.row.channel not in IN_PARTS]
    asked = {
        _order_of(each) for each in once if isinstance(each.answer, GuardAnswer) and each.answer.status == "pending"
    }
    for context in once:
        allowed = isinstance(context.answer, GuardAnswer) and context.answer.status == "allowed"
        context.not_taken = Escalation.REFUNDED_BEFORE if allowed and _order_of(context) in asked else None


def _order_of(context: RunContext) -> tuple[str, str, str | None]:
    return context.row.channel, context.row.source, context.row.order_ref


def _lacks_receipt(context: RunContext) -> bool:
    """Whether an earlier question of the row may have enclosed the start that the authority has on record.

    Judged by the row and not by its route, which may have been closed since, or may settle elsewhere now.
    """
    answer, row = context.answer, context.row
    if not isinstance(answer, GuardAnswer) or row.start_id is None or row.permit_token is not None:
        return False
    is_executed = (answer.status, answer.outcome, answer.resolution) == ("completed", "success", None)
    return answer.start is None and (answer.status == "already_started" or is_executed)


def _is_never_asked(context: RunContext) -> bool:
    """Whether no question about the row is fixed, in an earlier run or in this one."""
    return context.row.guard_request is None and context.params is None


def _status_of(context: RunContext) -> str | None:
    return context.answer.status if isinstance(context.answer, GuardAnswer) else None


@lru_cache(256)
def _answered(decision: str, status: str, code: str, following: StepName | None) -> StepResult:
    return StepResult({"decision": decision, "status": status, "code": code}, following, tool_used="action/guard")


def _start_id(context: RunContext) -> uuid.UUID | None:
    """The start id that the row's question encloses; None if the start is a separate call."""
    return context.row.own_start_id if context.encloses_start else None


def _keep_permission(context: RunContext, permission: Change | ReleaseLease, answer: GuardAnswer) -> None:
    """Keep the permission in the context: to be recorded before the start, or, where the answer encloses the start, with the execution."""
    if answer.start is None or not isinstance(permission, Change):
        context.event = permission
        return
    context.permission, context.started = permission, answer.start
    context.row = replace(
        context.row, decision=permission.decision, reason_code=permission.reason_code, may_be_started=True
    )


def params_of(context: RunContext) -> Mapping[str, Any]:
    """Return the question's params (`docs/CONTRACT.md` §2): the fixed ones, or else built from the row's facts.

    The customer's text is examined here and never sent. Risk facts are those of `risk_facts.py`; an unknown one is left
    out.
    """
    if context.params is not None:
        return context.params
    row, facts = context.row, context.facts
    if (asked := row.asked) is not None:
        context.params = asked.params
        return context.params
    # A row that is asked about before query_order ran takes the order from its facts, so that every attempt asks the
    # same.
    paid = paid_of(facts) if context.order is None else Money(context.order.paid_minor, context.order.currency)
    paid = paid if paid is not None and paid.amount_minor > 0 else None
    optional = {
        "mode": row.mode,
        "account_ref": facts.account_ref,
        "order_ref": row.order_ref,
        "source": row.source or None,
        "order": {"paid": money_out(paid)} if paid is not None and row.channel not in IN_PARTS else None,
    }
    return {
        "amount": money_out(row.money),
        "ledger_entry_id": row.ledger_entry_id,
        "refund_id": row.refund_id,
        "channel": row.channel,
        "scenario": row.scenario,
        **{name: value for name, value in optional.items() if value is not None},
        "risk": risk_facts(facts, in_parts=row.channel in IN_PARTS),
    }


def evidence_of(context: RunContext, *, system: str | None, is_ready: bool) -> Mapping[str, Any]:
    """Return the evidence context, which can only tighten the answer: why a person is asked, and which system could pay."""
    evidence: dict[str, Any] = {"correlation_id": context.row.ledger_entry_id}
    if context.escalation is not None:
        evidence |= {"escalation": context.escalation, "settlement": system or "none", "settlement_ready": is_ready}
    return evidence


# limit_check and confirm_card.

_AFTER_LIMIT_CHECK = next_step(StepName.LIMIT_CHECK)
_NOT_ASKED = StepResult({"look": "left to the decision"}, _AFTER_LIMIT_CHECK)


class LimitCheck:
    """Asks the authority by `check` about the rows whose customer will be asked next."""

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
        """Check the rows whose customer would be asked next."""
        # A row that was asked about before is not checked: the authority would count the row's own operation, which
        # holds its refund id and, once a person has approved it, its budget, as another one.
        here = [
            each
            for each in contexts
            if each.row.guard_request is None and not each.lifted and self._asks_customer(each)
        ]
        answers = self._worker_pool.map_chunks(self._check, here)
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
        """Go on if it would be allowed or was not checked; without an answer the row waits; otherwise it goes to a person."""
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
    """Opens cards and reads their answers. Where no customer can be asked, rows go to a person."""

    name = StepName.CONFIRM_CARD

    def __init__(self, confirmations: Confirmations, systems: Systems) -> None:
        self._confirmations, self._systems = confirmations, systems

    def is_confirmed(self, context: RunContext) -> bool:
        """Whether the customer confirmed exactly these terms."""
        if context.card is None:
            return False
        return context.card.says(CardStatus.CONFIRMED, self._confirmations.digest_of(ask_of(context)))

    def asks_customer(self, context: RunContext) -> bool:
        """Whether this run will ask the customer."""
        return _asks(context) and not self.is_confirmed(context) and not _is_begun(context.row)

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Open a card for each row without one for these terms, unless the row could not be paid."""
        without = [context for context in contexts if self.opens_card(context)]
        self._confirmations.open([ask_of(context) for context in without])
        cards = self._confirmations.latest([context.row.ledger_entry_id for context in without]) if without else {}
        for context in without:
            context.card = cards.get(context.row.ledger_entry_id)

    def opens_card(self, context: RunContext) -> bool:
        """Whether this run will open a card for its customer: there is none for these terms, and it could be paid."""
        if not self._confirmations.can_ask or not _asks(context):
            return False
        if not self._is_ready(context) or _is_begun(context.row):
            return False
        return context.card is None or context.card.digest != self._confirmations.digest_of(ask_of(context))

    def _is_ready(self, context: RunContext) -> bool:
        return self._systems.is_ready(context.settles_in)

    def ended_by_customer(self, context: RunContext) -> StepResult | None:
        """End a row whose customer declined these terms, or was asked and did not answer in time; None for any other row."""
        card = context.card
        if card is None or _is_begun(context.row):
            return None
        reason = _ENDED.get(CardStatus(card.status))
        if reason is None or card.digest != self._confirmations.digest_of(ask_of(context)):
            return None
        if card.status == CardStatus.EXPIRED and card.delivered_at is None:
            # The customer was never asked: that is our failure, and no answer of theirs.
            return None
        context.event = transitions.end_by_customer(context.row, reason)
        return StepResult({"card": str(card.confirmation_id), "status": card.status}, None, reason, "confirmations")

    def run(self, context: RunContext) -> StepResult:
        """Go on if confirmed, or begun already; otherwise the row waits, ends, or goes to a person."""
        card = context.card
        if _is_begun(context.row):
            # It may have been paid already, whatever the customer answers: the authority says what became of it.
            return StepResult({"card": "started before"}, StepName.ASK_AUTHORITY)
        if not _asks(context):
            # Its customer was asked before the route was changed: a "no" counts, and a "yes" is not needed any more.
            ended = self.ended_by_customer(context)
            return ended if ended is not None else StepResult({"card": "not needed"}, StepName.ASK_AUTHORITY)
        if not self._is_ready(context):
            name = context.settles_in or "none"
            return StepResult({"degraded": name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        if not self._confirmations.can_ask or card is None:
            return StepResult({"degraded": self.name}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY)
        output = {"card": str(card.confirmation_id), "status": card.status}
        if self.is_confirmed(context):
            return StepResult(output, StepName.ASK_AUTHORITY, tool_used="confirmations")
        if card.status == CardStatus.PENDING:
            context.event = transitions.await_customer(context.row, card.expires_at)
            return StepResult(output, None, "the customer is asked", "confirmations")
        if (ended := self.ended_by_customer(context)) is not None:
            return ended
        if card.status == CardStatus.EXPIRED and card.delivered_at is None:
            return StepResult(
                {**output, "degraded": "notifier"}, StepName.TRANSFER_TO_HUMAN, Escalation.SYSTEM_NOT_READY
            )
        return StepResult(output, StepName.TRANSFER_TO_HUMAN, Escalation.STEP_REFUSED)


def _asks(context: RunContext) -> bool:
    """Whether the row's route asks its customer now."""
    return context.route is not None and context.route.confirm_card


def _is_begun(row: LedgerRow) -> bool:
    return row.may_be_started or row.is_begun_outside


def ask_of(context: RunContext) -> ConfirmationRequest:
    """What the customer is asked to confirm: the row's own terms."""
    row, facts = context.row, context.facts
    return ConfirmationRequest(
        row.ledger_entry_id, row.refund_id, row.order_ref, row.amount_minor, row.currency, row.channel, row.scenario,
        facts.language, facts.contact,
    )  # fmt: skip
