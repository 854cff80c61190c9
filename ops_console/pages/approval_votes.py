"""A person's vote on an approval, as pages offer and record it: the kinds of votes, who may cast which, and casting
one.

The rules are enforced where the vote is recorded (`authority/approvals.py`, `resolve_order.py`); offering only what is
allowed just saves a person a refusal. A vote always carries the digest that was shown.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ops_console import metrics
from ops_console.context import ConsoleContext
from ops_console.pages.approval_facts import is_bound
from ops_console.resolve_order import DECISIONS, FULFIL, HOLD, REFUND, refund_refusal, resolve_order
from ops_console.webhook_addresses import shown_to
from sentinel.authority import approval_details
from sentinel.authority.actor import Actor, has_role
from sentinel.authority.approval_details import ApprovalDetails
from sentinel.authority.approvals import (
    HANDLED,
    ApprovalRow,
    EarlierVote,
    Vote,
    earlier_votes,
    find_approval,
    resolve_approval,
    votes,
)
from sentinel.authority.protected_changes import approved_text
from sentinel.core.errors import Conflict, InvalidInput, MayBeRecorded, NotFound

NEEDS_STEP_UP = ("approve", FULFIL, REFUND)
"""Decisions with an effect outside, for which a step-up is required."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice as a form offers it: its name, the button's label, and its effect in one sentence."""

    name: str
    label: str
    follows: str


@dataclass(frozen=True, slots=True)
class VoteInput:
    """A vote as a form sent it."""

    verdict: str
    reason: str
    digest: str
    reference: str | None = None


CHOICES = {
    choice.name: choice
    for choice in (
        Choice(
            "approve", "Approve", "The agent may do exactly this, once. Everything is checked again when it starts."
        ),
        Choice("reject", "Reject", "The agent is denied it permanently. One vote is enough."),
        Choice(
            "handled", "Handled by a person", "A person did it elsewhere; the agent is denied it. Give the reference."
        ),
        Choice(
            FULFIL,
            "Fulfil",
            "The shop is asked to fulfil the order, exactly as shown here. Everything is checked again before.",
        ),
        Choice(
            REFUND,
            "Refund",
            "The order is not fulfilled; a refund is filed on your decision. If it is denied or fails, the order comes back.",
        ),
        Choice(HOLD, "Hold", "The order is not fulfilled; the shop is told to hold it."),
    )
}
_OF_CHANGE = {
    "approve": Choice(
        "approve",
        "Approve",
        "The change is made exactly as shown here. Only its requester gets the password or key.",
    ),
    "reject": Choice("reject", "Reject", "Nothing is changed. One vote is enough."),
}
_CHANGE_REJECTED = "Rejected. Nothing was changed."
_TOLD = {
    "approved": "Approved. The agent may continue; everything is checked again when it starts.",
    "rejected": "Rejected. The agent is denied it.",
    "handled": "Recorded as handled by a person. The agent is denied it.",
    FULFIL: "Released. Everything is checked again; then the shop is asked to fulfil the order.",
    REFUND: "A refund is filed on your decision. The order is not fulfilled; if the refund is denied or fails, it comes back.",
    HOLD: "Held. The shop is told to hold the order.",
}
UNBOUND = "The stored operation does not match the digest. Do not decide this; tell an administrator."
REPEATED = "Your vote was already recorded. It counts once."


@dataclass(frozen=True, slots=True)
class ApprovalDetail:
    """An approval with everything that its card needs: its details, votes and earlier votes."""

    row: ApprovalRow
    about: ApprovalDetails
    voices: list[Vote]
    earlier: list[EarlierVote]
    refund_refused: str | None = None
    """The reason code with which a refund of the approval's order would be denied; None if it may be filed."""

    @property
    def is_bound(self) -> bool:
        """Whether the stored operation that is shown is the one that the digest names."""
        return is_bound(self.about.request, self.row)

    def request_shown_to(self, person: Actor) -> str:
        """The operation or requested change that the digest names, as this person may read it."""
        return shown_to(person, self.about.request) if self.row.change else self.about.request

    @property
    def is_open(self) -> bool:
        """Whether it is still pending."""
        return self.row.status == "pending" and self.about.resolution is None

    def vote_of(self, person: Actor) -> Vote | None:
        """This person's recorded vote."""
        return next((vote for vote in self.voices if vote.operator == person.email), None)

    def is_decided_by_repeating(self, person: Actor) -> bool:
        """Whether enough people have approved because votes count again since the last one: then whoever approved decides
        by approving again.
        """
        mine = self.vote_of(person)
        return (
            mine is not None
            and mine.verdict == "approve"
            and mine.counts
            and self.is_open
            and self.row.approvals_given >= self.row.required_people
        )

    def cannot_vote_reason(self, person: Actor) -> str:
        """Why this person cannot vote here, in a sentence; empty where they can."""
        if not self.is_open:
            return "This was already decided."
        if not self.is_bound:
            return UNBOUND
        if self.about.requested_by_reader and self.row.change:
            return "You, or an account that counts as yours, requested this: another administrator has to decide it."
        if self.about.requested_by_reader:
            return "You own the key that requested this, so another person has to decide it."
        if self.vote_of(person) is not None and not self.is_decided_by_repeating(person):
            return "You have voted. Another person has to decide."
        if not has_role(person.role, self.row.required_role):
            return f"Deciding this needs the role {self.row.required_role}; you can only read it."
        return ""

    def choices(self, person: Actor) -> list[Choice]:
        """The votes that are offered to this person now; to one who may only repeat theirs, approving alone."""
        offered = {**CHOICES, **_OF_CHANGE} if self.row.change else CHOICES
        names = self._names() if self.is_open else []
        if self.is_decided_by_repeating(person):
            names = [name for name in names if name in ("approve", FULFIL)]
        return [offered[name] for name in names]

    def _names(self) -> list[str]:
        if self.about.kind != "order":
            return self.row.offers
        if self.about.order_status != "QUEUED":
            return []
        paid = (self.row.amount_minor or 0) > 0 and self.refund_refused is None
        return [
            name for name in DECISIONS if (name != FULFIL or "approve" in self.row.offers) and (name != REFUND or paid)
        ]


def approval_detail(context: ConsoleContext, person: Actor, approval_id: uuid.UUID) -> ApprovalDetail:
    """Read an approval with its details and votes. Raises `NotFound`."""
    row = find_approval(context.pool, person.tenant_id, approval_id)
    about = approval_details.card(context.pool, person.tenant_id, approval_id, person.operator_id)
    if row is None or about is None:
        raise NotFound("there is no approval with this id")
    earlier = earlier_votes(context.pool, person.tenant_id, approval_id) if row.follows else []
    is_order = about.kind == "order" and row.amount_minor is not None and row.currency is not None
    refused = None
    if is_order:
        refused = refund_refusal(context.inspector.in_force(context.pool), row.amount_minor or 0, row.currency or "")
    return ApprovalDetail(row, about, votes(context.pool, person.tenant_id, approval_id), earlier, refused)


def cast_vote(context: ConsoleContext, person: Actor, question: ApprovalDetail, given: VoteInput) -> str:
    """Record one vote and return the text to show. The same vote sent twice counts once and is no error.

    Raises what `resolve_approval` and `resolve_order` raise, `InvalidInput` for a verdict that does not apply to this
    kind of approval, and `Conflict` if the digest does not name what is stored.
    """
    is_order = question.about.kind == "order"
    if (given.verdict in DECISIONS) != is_order or given.verdict not in CHOICES:
        raise InvalidInput.of("verdict", "is not one of the decisions offered for this")
    if not question.is_bound:
        raise Conflict(UNBOUND)
    try:
        return (_resolve_order if is_order else _resolve)(context, person, question, given)
    except (Conflict, MayBeRecorded):
        if _is_repeat(approval_detail(context, person, question.row.approval_id), person, given):
            return REPEATED
        raise


def _resolve(context: ConsoleContext, person: Actor, question: ApprovalDetail, given: VoteInput) -> str:
    done = resolve_approval(
        context.pool, person, question.row.approval_id, verdict=given.verdict, reason=given.reason, digest=given.digest,
        reference=given.reference if given.verdict == HANDLED else None,
    )  # fmt: skip
    metrics.RESOLVED.labels(done.result).inc()
    if question.row.change and done.result in ("approved", "rejected"):
        return f"Approved. {approved_text(done.outcome)}" if done.result == "approved" else _CHANGE_REJECTED
    return _TOLD.get(done.result) or _recorded(done.approvals_given, done.people_required)


def _resolve_order(context: ConsoleContext, person: Actor, question: ApprovalDetail, given: VoteInput) -> str:
    about = question.about
    assert about.source is not None and about.order_id is not None
    done = resolve_order(
        context.pool, person, about.source, about.order_id, decision=given.verdict, reason=given.reason, digest=given.digest,
        status="QUEUED", approval_id=question.row.approval_id, inspector=context.inspector,
    )  # fmt: skip
    metrics.ORDERS_RESOLVED.labels(done.result).inc()
    return _TOLD.get(done.result) or _recorded(done.approvals_given or 0, done.people_required or 0)


def _recorded(given: int, wanted: int) -> str:
    return f"Your vote is recorded: {given} of {wanted} have approved. Another person has to decide."


def _is_repeat(question: ApprovalDetail, person: Actor, given: VoteInput) -> bool:
    """Whether exactly this vote of this person is already recorded, so that the refused vote was a repeat."""
    mine = question.vote_of(person)
    if mine is None or question.row.digest != given.digest:
        return False
    if given.verdict in (REFUND, HOLD):
        return (question.about.resolution, question.about.resolved_by) == (given.verdict, person.email)
    if given.verdict == HANDLED and question.row.handled_reference != given.reference:
        return False
    return mine.verdict == ("approve" if given.verdict == FULFIL else given.verdict)
