"""The queue of approvals and one approval's card: what is asked, why, what follows, and deciding it.

A card is rendered on the server from what the digest binds and from our own records. An open card polls every few
seconds whether anything changed; if so, it says what, and its buttons are disabled until the page is reloaded.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime
from typing import Any

from flask import Blueprint, Response, request
from marshmallow import fields
from marshmallow.validate import OneOf

from ops_console.accounts.collect_change import collect_change
from ops_console.accounts.operators import PersonRow, list_people
from ops_console.api.rendering import choice, cursor_in, cursor_out, path_id
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.approval_facts import READABLE, facts_of
from ops_console.pages.approval_votes import (
    CHOICES,
    NEEDS_STEP_UP,
    ApprovalDetail,
    VoteInput,
    approval_detail,
    cast_vote,
)
from ops_console.pages.ledger_reads import LedgerRead, read_ledger
from ops_console.pages.proofs import proof_link
from ops_console.pages.step_up import prove
from ops_console.pages.text import each_in_words
from ops_console.read_models.order_views import OrderBudget, budget_of_approval, budget_of_order
from ops_console.webhook_addresses import shown_to
from sentinel.authority import approval_queue
from sentinel.authority.aap_requests import reasoning_of
from sentinel.authority.actor import Actor, has_role
from sentinel.authority.approval_details import ApprovalDetails
from sentinel.authority.approvals import HANDLED, ApprovalRow
from sentinel.authority.protected_changes import ROTATE_KEY, change_text, find_change, outcome_text
from sentinel.authority.reasons import reason_text
from sentinel.core.errors import EngineUnavailable, InvalidInput, SentinelError
from sentinel.core.operation import check_identifier
from sentinel.platform.http.bodies import Identifier, StrictSchema, Text, load
from sentinel.platform.http.problems import log_unavailable, request_id
from sentinel.store.ids import proof_id_of, uuid_or_none

ADDRESS = "/ops/approvals"
PAGE = 50
MOST_TOGETHER = 20
"""How many approvals a batch lists at once: as many as a person can still look at one by one on one page."""
MAX_AGENT = 128
RISKS = {1: "high", 2: "medium", 3: "low"}


class VoteFormSchema(StrictSchema):
    """A vote on one approval, with the digest that the page showed."""

    verdict = fields.String(required=True, validate=OneOf(list(CHOICES)))
    reason = Text(most=2000, least=1, required=True)
    digest = Identifier(most=80, required=True)
    reference = Text(most=200)


_VOTE = VoteFormSchema()


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the queue, the card, their parts that poll for changes, voting, and collecting an approved change."""

    @pages.get("/approvals")
    def approvals() -> Response:
        return _queue(context)

    @pages.get("/approvals/standing")
    @shell.refreshes_itself
    def approvals_queue_state() -> Response:
        """The queue's state for an open page; 204 while it is still the `seen` one."""
        found = approval_queue.queue_state(context.pool, actor().tenant_id)
        if request.args.get("seen") == _seen_queue(found):
            return shell.unchanged()
        kept = shell.address("", kept_filter())
        return shell.fragment("approvals_changed.html", pending=found.pending, is_all=found.is_all, kept=kept)

    @pages.get("/approvals/<approval_id>")
    def approvals_card(approval_id: str) -> Response:
        return _card(context, approval_id)

    @pages.get("/approvals/<approval_id>/state")
    @shell.refreshes_itself
    def approvals_state(approval_id: str) -> Response:
        """The approval's state for an open page; 204 while it is still the `seen` one."""
        question = approval_detail(context, actor(), path_id(approval_id, "approval"))
        if request.args.get("seen") == seen(question):
            return shell.unchanged()
        kept = shell.address("", kept_filter())
        return shell.fragment(
            "approval_changed.html", question=question, row=question.row, about=question.about, kept=kept
        )

    @pages.post("/approvals/<approval_id>")
    @shell.shows(lambda refusal, approval_id: _card(context, approval_id, refusal))
    def approvals_vote(approval_id: str) -> Response:
        # Before the body is parsed: a person who may not decide gets no hints about the form of a decision.
        actor().must_be("approver")
        return shell.attempt(
            context, lambda: _give(context, approval_id), again=lambda refusal: _card(context, approval_id, refusal),
            then=shell.address(f"{ADDRESS}/{path_id(approval_id, 'approval')}", kept_filter()),
        )  # fmt: skip

    @pages.post("/approvals/<approval_id>/collect")
    @shell.shows(lambda refusal, approval_id: _card(context, approval_id, refusal))
    def approvals_collect(approval_id: str) -> Response:
        """Show the secret that an approved change made to the person who requested the change."""
        actor().must_be("admin")
        return _collect(context, approval_id)


# the queue --------------------------------------------------------------------------------------------------------------


def _queue(context: ConsoleContext) -> Response:
    person, kind, status = actor(), _filter("kind", approval_queue.KINDS), _filter("status", approval_queue.STATUSES)
    status, agent = status or "pending", _agent()
    for_reader = status == "pending" and _filter("for", ("me",)) is not None
    looked_to: approval_queue.Cursor | None = None
    if for_reader:
        rows, looked_to = approval_queue.page_for_reader(
            context.pool, person.tenant_id, person.operator_id, kind=kind, agent_id=agent, after=_after_pending(), limit=PAGE + 1
        )  # fmt: skip
    elif status == "pending":
        rows = approval_queue.pending_page(
            context.pool, person.tenant_id, person.operator_id, kind=kind, agent_id=agent, after=_after_pending(), limit=PAGE + 1
        )  # fmt: skip
    else:
        rows, looked_to = approval_queue.decided_page(
            context.pool, person.tenant_id, person.operator_id, kind=kind, agent_id=agent, status=status, after=_after_decided(), limit=PAGE + 1
        )  # fmt: skip
    asked = {
        name: text for name, text in (("kind", kind), ("agent", agent), ("for", "me" if for_reader else None)) if text
    }
    seen_now = _seen_queue(approval_queue.queue_state(context.pool, person.tenant_id))
    return shell.page(
        context, "approvals.html", title="Approvals", rows=rows[:PAGE], kind=kind, agent=agent, state=status, kinds=approval_queue.KINDS,
        statuses=approval_queue.STATUSES, risks=RISKS, reason_text=reason_text, for_reader=for_reader, most_together=MOST_TOGETHER,
        looked_at=(approval_queue.MOST_LOOKED if for_reader else approval_queue.MOST_DECIDED) if looked_to else None,
        more=_more(rows, looked_to, status, asked), asked=asked, kept=shell.address("", asked),
        first=not request.args.get("cursor"), unconfirmed=_unconfirmed(context),
        standing=shell.address(f"{ADDRESS}/standing", asked, seen=seen_now),
    )  # fmt: skip


def _unconfirmed(context: ConsoleContext) -> list[PersonRow]:
    """Accounts that a second administrator has to confirm, for administrators."""
    if not has_role(actor().role, "admin"):
        return []
    idle_seconds = context.settings.idle_seconds
    return list_people(context.pool, actor().tenant_id, idle_seconds=idle_seconds, to_be_confirmed=True)


def kept_filter() -> dict[str, str]:
    """Return the queue's filter in the query string, which cards and batches keep for the way back and for what is next.

    Raises `InvalidInput`.
    """
    found = {"kind": _filter("kind", approval_queue.KINDS), "agent": _agent(), "for": _filter("for", ("me",))}
    return {name: text for name, text in found.items() if text}


def _filter(name: str, allowed: tuple[str, ...]) -> str | None:
    """A filter of the form; None for its blank choice."""
    return choice(name, allowed) if request.args.get(name) else None


def _agent() -> str | None:
    """The agent whose approvals are shown; None for a blank field. Raises `InvalidInput`."""
    text = request.args.get("agent", "").strip()
    return check_identifier(text, "agent", MAX_AGENT) if text else None


def _seen_queue(found: approval_queue.QueueState) -> str:
    return f"{found.pending}.{found.newest or 'none'}"


def _more(
    rows: list[approval_queue.QueueRow], looked_to: approval_queue.Cursor | None, status: str, asked: dict[str, str]
) -> dict[str, str]:
    """Return the query parameters of the next page; empty if there is none. `asked` are the filters besides the status.

    `looked_to` is where a bounded scan ended, if it did not reach the end of the list.
    """
    if len(rows) > PAGE:
        last = rows[PAGE - 1]
        at = last.expires_at if status == "pending" else last.decided_at
        assert at is not None
        looked_to = last.risk_rank, at, last.approval_id
    if looked_to is None:
        return {}
    rank, at, approval_id = looked_to
    return {**asked, "status": status, "cursor": cursor_out(at, f"{rank}.{approval_id}")}


def _after_pending() -> approval_queue.Cursor | None:
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
        raise InvalidInput.of("cursor", "is not a valid cursor")
    return found[0], int(rank), last_id


# the card ---------------------------------------------------------------------------------------------------------------


def seen(question: ApprovalDetail) -> str:
    """A hash of everything on a card that can change: it differs when the state does."""
    row, about = question.row, question.about
    cast = [(vote.operator, vote.verdict) for vote in question.voices]
    state = (
        row.status, row.digest, cast, about.operation_status, about.order_status, about.resolution, about.halted, about.policy_changed,
    )  # fmt: skip
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def _card(context: ConsoleContext, approval_id: str, refusal: shell.FormRefusal | None = None) -> Response:
    person, question = actor(), approval_detail(context, actor(), path_id(approval_id, "approval"))
    row, about = question.row, question.about
    cannot_vote_reason, kept = question.cannot_vote_reason(person), kept_filter()
    values: dict[str, Any] = {
        "row": row, "about": about, "question": question, "bound": question.is_bound, "cannot_vote_reason": cannot_vote_reason,
        "choices": [] if cannot_vote_reason else question.choices(person), "mine": question.vote_of(person),
        "facts": facts_of(question.request_shown_to(person), accounts=has_role(person.role, "approver")), "readable": READABLE, "risk": RISKS[about.risk_rank],
        "each_in_words": each_in_words, "reason_text": reason_text, "proven": NEEDS_STEP_UP,
        **(_of_change(context, person, row) if row.change else _of_operation(context, person, row, about)),
        **({} if question.is_open else _next(context, person, kept)),
        "kept": shell.address("", kept), "state": shell.address(f"{ADDRESS}/{row.approval_id}/state", kept, seen=seen(question)),
        "seconds_left": (row.expires_at - about.moment).total_seconds(),
    }  # fmt: skip
    return shell.page(
        context, "approval.html", title=f"Approval of {row.resource}",
        refusal=refusal, given=request.form, **values,
    )  # fmt: skip


def _of_operation(context: ConsoleContext, person: Actor, row: ApprovalRow, about: ApprovalDetails) -> dict[str, Any]:
    assert about.decision_event_id is not None
    return {
        "change": None, "budget": read_ledger(lambda: _budget(context, person, row, about)),
        "limits": context.inspector.limits_of(
            context.pool, person.tenant_id, row.operation_id, row.principal_id, about.moment
        ),
        "reasoning": reasoning_of(context.pool, person.tenant_id, row.operation_id),
        "rules": context.inspector.rules_of_operation(context.pool, actor().tenant_id, row.operation_id),
        "proof": proof_link(context, person.tenant_id, proof_id_of(about.decision_event_id), row.agent_id),
    }  # fmt: skip


def _budget(context: ConsoleContext, person: Actor, row: ApprovalRow, about: ApprovalDetails) -> OrderBudget | None:
    """The refund budget of the order that is asked about, or of the order of the refund that is."""
    if about.kind == "order" and about.source is not None and about.order_id is not None:
        return budget_of_order(context.ledger, person.tenant_id, about.source, about.order_id)
    return budget_of_approval(context.ledger, person.tenant_id, row.approval_id)


def _of_change(context: ConsoleContext, person: Actor, row: ApprovalRow) -> dict[str, Any]:
    change = find_change(context.pool, person.tenant_id, row.approval_id)
    assert change is not None
    return {
        "change": change, "asks": change_text(shown_to(person, change.request)), "outcome": change.outcome and outcome_text(change.outcome),
        "collects": change.collectable and change.asked_by == person.operator_id, "limits": (), "rules": (), "reasoning": (),
        "proof": None, "budget": LedgerRead(),
    }  # fmt: skip


def _collect(context: ConsoleContext, approval_id: str) -> Response:
    """Make the password or key and show it in this answer, once; it is stored nowhere and shown on no other page."""
    try:
        prove(context)
        made = collect_change(context.pool, actor(), path_id(approval_id, "approval"))
    except SentinelError as error:
        return _card(context, approval_id, shell.form_refusal(error))
    if made.key_id is not None:
        return shell.page(
            context, "key_created.html", title="Key created", status=201, issued=made, rotated=made.action == ROTATE_KEY
        )
    return shell.page(context, "shown_once.html", title="Password created", what="first password",
                      about=f"For {made.email}", secret=made.secret, back="/ops/operators")  # fmt: skip


def _next(context: ConsoleContext, person: Actor, kept: dict[str, str]) -> dict[str, Any]:
    """The next pending approval of the filter that this person can still vote on, for a card; empty if the database does
    not answer.
    """
    try:
        rows, looked_to = approval_queue.page_for_reader(
            context.pool, person.tenant_id, person.operator_id, kind=kept.get("kind"), agent_id=kept.get("agent"), after=None,
            limit=1,
        )  # fmt: skip
    except EngineUnavailable as error:
        log_unavailable(error, request_id())
        return {}
    looked_at = approval_queue.MOST_LOOKED if looked_to else None
    return {
        "next_looked_for": True, "following": rows[0] if rows else None, "looked_at": looked_at,
        "is_narrowed": bool(kept.keys() - {"for"}), "further": shell.address(ADDRESS, {**kept, "for": "me"}),
    }  # fmt: skip


def _give(context: ConsoleContext, approval_id: str) -> str:
    person = actor()
    given = load(_VOTE, shell.typed())
    if given["verdict"] == HANDLED and "reference" not in given:
        raise InvalidInput.of("reference", "is needed: say where it was handled")
    if given["verdict"] in NEEDS_STEP_UP:
        prove(context)
    question = approval_detail(context, person, path_id(approval_id, "approval"))
    return cast_vote(context, person, question, VoteInput(**given))
