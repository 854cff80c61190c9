"""The queue of approvals and one approval's card: what is asked, why, what follows, and giving one's word.

A card is made of what the digest binds and of our own records, on the server, at one moment. While somebody looks, the page
asks every few seconds whether anything changed: then it says what, and its buttons are dead until it is shown anew.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime
from typing import Any

from flask import Blueprint, Response, request
from marshmallow import fields
from marshmallow.validate import OneOf

from ops_console.accounts.operators import PersonRow, list_people
from ops_console.api.rendering import choice, cursor_in, cursor_out, path_id
from ops_console.context import Context
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.approval_facts import facts_of
from ops_console.pages.approval_words import OFFERED, PROVEN, Asked, Given, asked, give
from ops_console.pages.limit_words import each_in_words
from ops_console.pages.rules_said import rules_of
from ops_console.pages.step_up import prove
from sentinel.authority import approval_queue
from sentinel.authority.actor import Actor, has_role
from sentinel.authority.approvals import HANDLED
from sentinel.core.decision import reason_text
from sentinel.core.errors import InvalidInput
from sentinel.platform.http.bodies import Identifier, StrictSchema, Text, load
from sentinel.store.ids import proof_id_of
from sentinel.store.uuids import uuid_or_none

ADDRESS = "/ops/approvals"
PAGE = 50
RISKS = {1: "high", 2: "medium", 3: "low"}


class WordFormSchema(StrictSchema):
    """A word on one approval. The digest is what the page showed."""

    verdict = fields.String(required=True, validate=OneOf(list(OFFERED)))
    reason = Text(most=2000, least=1, required=True)
    digest = Identifier(most=80, required=True)
    reference = Text(most=200)


_WORD = WordFormSchema()


def routes(pages: Blueprint, context: Context) -> None:
    """Add the queue, the card, what changed since, and the word."""

    @pages.get("/approvals")
    def approvals() -> Response:
        return _queue(context)

    @pages.get("/approvals/standing")
    @shell.refreshes_itself
    def approvals_standing() -> Response:
        """Nothing while the queue is as it was seen."""
        found = approval_queue.standing(context.pool, actor().tenant_id)
        if request.args.get("seen") == _seen_queue(found):
            return Response(status=204)
        return shell.fragment("approvals_changed.html", waiting=found.waiting)

    @pages.get("/approvals/<approval_id>")
    def approvals_card(approval_id: str) -> Response:
        return _card(context, approval_id)

    @pages.get("/approvals/<approval_id>/state")
    @shell.refreshes_itself
    def approvals_state(approval_id: str) -> Response:
        """Nothing while the approval is as it was seen."""
        question = asked(context, actor(), path_id(approval_id))
        if request.args.get("seen") == seen(question):
            return Response(status=204)
        return shell.fragment("approval_changed.html", question=question, row=question.row, about=question.about)

    @pages.post("/approvals/<approval_id>")
    @shell.shows(lambda told, approval_id: _card(context, approval_id, told))
    def approvals_word(approval_id: str) -> Response:
        # Before the body: who may not decide learns nothing about what a decision looks like.
        actor().must_be("approver")
        return shell.attempt(
            context, lambda: _give(context, approval_id), then=f"{ADDRESS}/{path_id(approval_id)}",
            again=lambda told: _card(context, approval_id, told),
        )  # fmt: skip


# the queue --------------------------------------------------------------------------------------------------------------


def _queue(context: Context) -> Response:
    person, kind, status = actor(), _filter("kind", approval_queue.KINDS), _filter("status", approval_queue.STATUSES)
    status = status or "waiting"
    if status == "waiting":
        rows = approval_queue.waiting_page(
            context.pool, person.tenant_id, person.operator_id, kind=kind, after=_after_waiting(), limit=PAGE + 1
        )
    else:
        rows = approval_queue.decided_page(
            context.pool, person.tenant_id, person.operator_id, kind=kind, status=status, after=_after_decided(), limit=PAGE + 1
        )  # fmt: skip
    return shell.page(
        context, "approvals.html", title="Approvals", rows=rows[:PAGE], kind=kind, state=status, kinds=approval_queue.KINDS,
        statuses=approval_queue.STATUSES, risks=RISKS, reason_text=reason_text, more=_more(rows, kind, status),
        first=not request.args.get("cursor"), unconfirmed=_unconfirmed(context), seen=_seen_queue(approval_queue.standing(context.pool, person.tenant_id)),
    )  # fmt: skip


def _unconfirmed(context: Context) -> list[PersonRow]:
    """Accounts that a second administrator has to confirm, for administrators."""
    if not has_role(actor().role, "admin"):
        return []
    people = list_people(context.pool, actor().tenant_id, idle_seconds=context.settings.idle_seconds)
    return [one for one in people if one.changed_by and one.active]


def _filter(name: str, allowed: tuple[str, ...]) -> str | None:
    """A filter of the form; its blank choice is none."""
    return choice(name, allowed) if request.args.get(name) else None


def _seen_queue(found: approval_queue.Standing) -> str:
    return f"{found.waiting}.{found.newest or 'none'}"


def _more(rows: list[approval_queue.QueueRow], kind: str | None, status: str) -> dict[str, str]:
    """The address of what comes after this page, as its query; empty where nothing does."""
    if len(rows) <= PAGE:
        return {}
    last = rows[PAGE - 1]
    at = last.expires_at if status == "waiting" else last.decided_at
    assert at is not None
    named = {"kind": kind} if kind else {}
    return {**named, "status": status, "cursor": cursor_out(at, f"{last.risk_rank}.{last.approval_id}")}


def _after_waiting() -> tuple[int, datetime, uuid.UUID] | None:
    found = _cursor()
    return (found[1], found[0], found[2]) if found else None


def _after_decided() -> tuple[datetime, uuid.UUID] | None:
    found = _cursor()
    return (found[0], found[2]) if found else None


def _cursor() -> tuple[datetime, int, uuid.UUID] | None:
    found = cursor_in()
    if found is None:
        return None
    rank, _, last = found[1].partition(".")
    last_id = uuid_or_none(last)
    if rank not in ("1", "2", "3") or last_id is None:
        raise InvalidInput.of("cursor", "is not one of ours")
    return found[0], int(rank), last_id


# the card ---------------------------------------------------------------------------------------------------------------


def seen(question: Asked) -> str:
    """A mark of everything on a card that can change: another mark, another state."""
    row, about = question.row, question.about
    words = [(vote.operator, vote.verdict) for vote in question.voices]
    state = (
        row.status, row.digest, words, about.operation_status, about.order_status, about.resolution, about.halted, about.policy_changed,
    )  # fmt: skip
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def _card(context: Context, approval_id: str, refused: shell.Refused | None = None) -> Response:
    person, question = actor(), asked(context, actor(), path_id(approval_id))
    row, about = question.row, question.about
    hindrance = question.hindrance(person)
    values: dict[str, Any] = {
        "row": row, "about": about, "question": question, "bound": question.is_bound, "hindrance": hindrance,
        "words": [] if hindrance else question.words(), "seen": seen(question), "mine": question.word_of(person),
        "facts": facts_of(about.request, accounts=has_role(person.role, "approver")), "risk": RISKS[about.risk_rank],
        "limits": context.book.limits_of(context.pool, person.tenant_id, about.request, about.moment),
        "rules": rules_of(context, row.operation_id), "each_in_words": each_in_words,
        "reason_text": reason_text, "proof_id": proof_id_of(about.decision_event_id), "proven": PROVEN,
        "following": None if question.is_open else _next(context, person),
        "seconds_left": (row.expires_at - about.moment).total_seconds(),
    }  # fmt: skip
    return shell.page(
        context, "approval.html", title=f"Approval of {row.resource}",
        refused=refused, given=request.form, **values,
    )  # fmt: skip


def _next(context: Context, person: Actor) -> approval_queue.QueueRow | None:
    """What this person would look at next."""
    rows = approval_queue.waiting_page(
        context.pool, person.tenant_id, person.operator_id, kind=None, after=None, limit=5
    )
    return next((row for row in rows if row.mine is None), None)


def _give(context: Context, approval_id: str) -> str:
    person = actor()
    given = load(_WORD, shell.typed())
    if given["verdict"] == HANDLED and "reference" not in given:
        raise InvalidInput.of("reference", "is needed: where it was handled")
    if given["verdict"] in PROVEN:
        prove(context)
    question = asked(context, person, path_id(approval_id))
    return give(context, person, question, Given(**given))
