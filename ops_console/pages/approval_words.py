"""A person's word on an approval, as pages offer and take it: the kinds of words, who may give which, and giving one.

The rules are checked where the word is recorded (`services/resolve_approval.py`, `resolve_order.py`); what is offered here
only saves a person a refusal. The digest is what was shown and always goes along.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ops_console import metrics
from ops_console.context import Context
from ops_console.pages.approval_facts import is_bound
from ops_console.resolve_order import FULFIL, HOLD, REFUND, WORDS, refund_refusal, resolve_order
from sentinel.authority import approval_queue
from sentinel.authority.actor import Actor, has_role
from sentinel.authority.approval_queue import CardRow
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
from sentinel.core.errors import Conflict, InvalidInput, NotFound

PROVEN = ("approve", FULFIL, REFUND)
"""Words after which something happens outside: who gives one proves who it is."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word as a form offers it: its name, the button's label, and what follows from it in one sentence."""

    name: str
    label: str
    follows: str


@dataclass(frozen=True, slots=True)
class Given:
    """A word as a form gave it."""

    verdict: str
    reason: str
    digest: str
    reference: str | None = None


OFFERED = {
    word.name: word
    for word in (
        Word("approve", "Approve", "The agent may do exactly this, once. Everything is asked again when it starts."),
        Word("reject", "Reject", "The agent is denied it for good. One word is enough."),
        Word(
            "handled", "Handled by a person", "Somebody did it elsewhere: the agent is denied it. Give the reference."
        ),
        Word(FULFIL, "Fulfil", "The order goes out, exactly as it is bound here."),
        Word(
            REFUND,
            "Refund",
            "The order does not go out; a refund is filed on your word. If it is denied or fails, the order comes back.",
        ),
        Word(HOLD, "Hold", "The order does not go out; the shop is told to hold it."),
    )
}
_TOLD = {
    "approved": "Approved. The agent may go on; everything is asked again when it starts.",
    "rejected": "Rejected. The agent is denied it.",
    "handled": "Recorded as handled by a person. The agent is denied it.",
    FULFIL: "Released. The order goes out.",
    REFUND: "A refund is filed on your word. The order does not go out; if the refund is denied or fails, it comes back.",
    HOLD: "Held. The shop is told so.",
}
UNBOUND = "What is stored is not what the digest names. Nobody should decide this; tell an administrator."
REPEATED = "Your word had arrived before. It counts once."


@dataclass(frozen=True, slots=True)
class Asked:
    """An approval with everything around it, as one moment of the database shows it."""

    row: ApprovalRow
    about: CardRow
    voices: list[Vote]
    earlier: list[EarlierVote]
    refund_refused: str | None = None
    """Why a refund of the order that this is about would be denied."""

    @property
    def is_bound(self) -> bool:
        """Whether what is shown is what the digest names."""
        return is_bound(self.about.request, self.row)

    @property
    def is_open(self) -> bool:
        """Whether it still waits for a word."""
        return self.row.status == "pending" and self.about.resolution is None

    def word_of(self, person: Actor) -> Vote | None:
        """What this person said already."""
        return next((vote for vote in self.voices if vote.operator == person.email), None)

    def hindrance(self, person: Actor) -> str:
        """Why this person has no say here, in a sentence; empty where there is one."""
        if not self.is_open:
            return "This was decided; nothing is left to say."
        if not self.is_bound:
            return UNBOUND
        if self.about.requested_by_reader:
            return "You answer for the key that asks this, so another person has to decide it."
        if self.word_of(person) is not None:
            return "You have given your word. Another person has to give theirs."
        if not has_role(person.role, self.row.required_role):
            return f"This needs the role {self.row.required_role}; you can look."
        return ""

    def words(self) -> list[Word]:
        """What may be said now, by whoever has a say."""
        return [OFFERED[name] for name in self._names()] if self.is_open else []

    def _names(self) -> list[str]:
        if self.about.kind != "order":
            return self.row.offers
        if self.about.order_status != "QUEUED":
            return []
        paid = (self.row.amount_minor or 0) > 0 and self.refund_refused is None
        return [name for name in WORDS if (name != FULFIL or "approve" in self.row.offers) and (name != REFUND or paid)]


def asked(context: Context, person: Actor, approval_id: uuid.UUID) -> Asked:
    """The approval and what is around it. Raises `NotFound`."""
    row = find_approval(context.pool, person.tenant_id, approval_id)
    about = approval_queue.card(context.pool, person.tenant_id, approval_id, person.operator_id)
    if row is None or about is None:
        raise NotFound("there is nothing of that id")
    earlier = earlier_votes(context.pool, person.tenant_id, approval_id) if row.follows else []
    is_order = about.kind == "order" and row.amount_minor is not None and row.currency is not None
    refused = refund_refusal(context.book, row.amount_minor or 0, row.currency or "") if is_order else None
    return Asked(row, about, votes(context.pool, person.tenant_id, approval_id), earlier, refused)


def give(context: Context, person: Actor, question: Asked, given: Given) -> str:
    """Record one word; what to tell about it. The same word sent twice counts once and is no error.

    Raises what `resolve_approval` and `resolve_order` raise, and `InvalidInput` for a word that is of another kind.
    """
    is_order = question.about.kind == "order"
    if (given.verdict in WORDS) != is_order or given.verdict not in OFFERED:
        raise InvalidInput.of("verdict", "is not one of the words for this")
    if not question.is_bound:
        raise Conflict(UNBOUND)
    try:
        return (_resolve_order if is_order else _resolve)(context, person, question, given)
    except Conflict:
        if _said_before(asked(context, person, question.row.approval_id), person, given):
            return REPEATED
        raise


def _resolve(context: Context, person: Actor, question: Asked, given: Given) -> str:
    done = resolve_approval(
        context.pool, person, question.row.approval_id, verdict=given.verdict, reason=given.reason, digest=given.digest,
        reference=given.reference if given.verdict == HANDLED else None,
    )  # fmt: skip
    metrics.RESOLVED.labels(done.result).inc()
    return _TOLD.get(done.result) or _recorded(done.approvals_given, done.people_required)


def _resolve_order(context: Context, person: Actor, question: Asked, given: Given) -> str:
    about = question.about
    assert about.source is not None and about.order_id is not None
    done = resolve_order(
        context.pool, person, about.source, about.order_id, word=given.verdict, reason=given.reason, digest=given.digest,
        book=context.book,
    )  # fmt: skip
    metrics.ORDERS_RESOLVED.labels(done.result).inc()
    return _TOLD.get(done.result) or _recorded(done.approvals_given or 0, done.people_required or 0)


def _recorded(given: int, wanted: int) -> str:
    return f"Your word is recorded: {given} of {wanted} have approved. Another person has to give theirs."


def _said_before(question: Asked, person: Actor, given: Given) -> bool:
    """Whether exactly this word of this person is what is recorded: then a repeat changes nothing and hides nothing."""
    mine = question.word_of(person)
    if mine is None or question.row.digest != given.digest:
        return False
    if given.verdict in (REFUND, HOLD):
        return (question.about.resolution, question.about.resolved_by) == (given.verdict, person.email)
    if given.verdict == HANDLED and question.row.handled_reference != given.reference:
        return False
    return mine.verdict == ("approve" if given.verdict == FULFIL else given.verdict)
