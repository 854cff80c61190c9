"""Votes on several selected approvals at once, each with its own vote, under one reason.

There is no "approve all": every line shows its approval, has its own vote and digest, and is resolved on its own. Of more
than a page of them the rest is kept, and comes after those that are listed.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from urllib.parse import urlencode

from flask import Blueprint, Response, request

from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.approval_facts import facts_of
from ops_console.pages.approval_votes import (
    CHOICES,
    NEEDS_STEP_UP,
    ApprovalDetail,
    VoteInput,
    approval_detail,
    cast_vote,
)
from ops_console.pages.approvals import ADDRESS, MOST_TOGETHER, PAGE, RISKS, kept_filter
from ops_console.pages.step_up import prove
from sentinel.authority.actor import Actor
from sentinel.authority.protected_changes import change_text
from sentinel.authority.reasons import reason_text
from sentinel.core.errors import InvalidInput, SentinelError
from sentinel.core.operation import check_identifier, check_text
from sentinel.store.ids import uuid_or_none


@dataclass(frozen=True, slots=True)
class BatchVote:
    """One approval of the list with the digest that was shown and the vote on it; the verdict "" leaves it out."""

    approval_id: uuid.UUID
    digest: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one line. `question` is None if there is no such approval or it could not be read; `is_unsure`: the
    vote may have been recorded although there was an error.
    """

    line: BatchVote
    question: ApprovalDetail | None
    done: bool
    message: str
    is_unsure: bool = False


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the list of the selected approvals, and voting on it."""

    @pages.get("/approvals/batch")
    def approvals_batch() -> Response:
        actor().must_be("approver")
        queue = shell.address(ADDRESS, kept_filter())
        try:
            ids = _ids(request.args.getlist("id"), PAGE)
        except InvalidInput as error:
            return shell.not_possible(context, error, queue)
        return _list(context, ids[:MOST_TOGETHER], ids[MOST_TOGETHER:]) if ids else shell.back_to(queue)

    @pages.post("/approvals/batch")
    @shell.shows(lambda refusal: _listed_again(context, refusal))
    def approvals_batch_vote() -> Response:
        # Before the body is parsed: a person who may not decide gets no hints about the form of a decision.
        person = actor()
        person.must_be("approver")
        lines, later, kept = _lines(), _later(), shell.address("", kept_filter())
        try:
            reason, reference = _checked(context, lines)
        except SentinelError as error:
            return _list(context, [line.approval_id for line in lines], later, shell.form_refusal(error))
        results = [_resolve(context, person, line, reason, reference) for line in lines if line.verdict]
        return shell.page(
            context, "approval_batch_done.html", title="Results", results=results, choices=CHOICES, kept=kept,
            left_out=sum(not line.verdict for line in lines), later=later, later_address=_address(later),
        )  # fmt: skip


def _listed_again(context: ConsoleContext, refusal: shell.FormRefusal) -> Response:
    actor().must_be("approver")
    return _list(context, [line.approval_id for line in _lines()], _later(), refusal)


def _list(
    context: ConsoleContext, ids: list[uuid.UUID], later: list[uuid.UUID], refusal: shell.FormRefusal | None = None
) -> Response:
    person = actor()
    questions = [approval_detail(context, person, approval_id) for approval_id in ids]
    chosen = dict(zip(request.form.getlist("id"), request.form.getlist("verdict"), strict=False))
    return shell.page(
        context, "approval_batch.html", title="Decide these", refusal=refusal,
        given=request.form, chosen=chosen, risks=RISKS, reason_text=reason_text, kept=shell.address("", kept_filter()),
        later=later, later_address=_address(later), most_together=MOST_TOGETHER,
        lines=[
            (one, one.cannot_vote_reason(person), one.choices(person), facts_of(shown, accounts=True), change_text(shown) if one.row.change else None)
            for one in questions
            for shown in [one.request_shown_to(person)]
        ],
    )  # fmt: skip


def _ids(texts: list[str], most: int) -> list[uuid.UUID]:
    found = [uuid_or_none(text) for text in texts]
    if len(found) > most:
        raise InvalidInput.of("id", f"select at most {most}, so that each can be reviewed")
    if None in found or len(set(found)) != len(found):
        raise InvalidInput.of("id", "must name each approval once")
    return [one for one in found if one is not None]


def _later() -> list[uuid.UUID]:
    """Read the approvals that were selected too and come after those of this form. Raises `InvalidInput`."""
    return _ids(request.form.getlist("later"), PAGE)


def _address(later: list[uuid.UUID]) -> str:
    """Return the address that lists what comes after this form; "" if nothing does."""
    return f"{ADDRESS}/batch?{urlencode([*kept_filter().items(), *(('id', one) for one in later)])}" if later else ""


def _lines() -> list[BatchVote]:
    """Read the form's lines: an id, the digest that was shown with it, and a vote or "". Raises `InvalidInput`."""
    ids, digests, verdicts = (request.form.getlist(name) for name in ("id", "digest", "verdict"))
    if not ids or not len(ids) == len(digests) == len(verdicts):
        raise InvalidInput.of("id", "each approval needs its digest and its decision")
    if any(verdict and verdict not in CHOICES for verdict in verdicts):
        raise InvalidInput.of("verdict", "is not one of the decisions")
    shown = [check_identifier(digest, "digest", 80) for digest in digests]
    return [BatchVote(*one) for one in zip(_ids(ids, MOST_TOGETHER), shown, verdicts, strict=True)]


def _checked(context: ConsoleContext, lines: list[BatchVote]) -> tuple[str, str | None]:
    """Return (reason, reference) for all lines. Raises `InvalidInput`, or what `prove` raises."""
    if not any(line.verdict for line in lines):
        raise InvalidInput.of("verdict", "decide at least one of them")
    reason = check_text(request.form.get("reason", "").strip().replace("\r\n", "\n"), "reason", 2000)
    if not reason:
        raise InvalidInput.of("reason", "is needed")
    reference = request.form.get("reference", "").strip() or None
    if any(line.verdict == "handled" for line in lines) and reference is None:
        raise InvalidInput.of("reference", "is needed for what was handled by a person")
    if any(line.verdict in NEEDS_STEP_UP for line in lines):
        prove(context)
    return reason, reference


def _resolve(context: ConsoleContext, person: Actor, line: BatchVote, reason: str, reference: str | None) -> Result:
    # An error concerns this line only. The results of the lines before it are shown on this page and nowhere else, so
    # they must not be lost.
    question: ApprovalDetail | None = None
    try:
        question = approval_detail(context, person, line.approval_id)
        message = cast_vote(context, person, question, VoteInput(line.verdict, reason, line.digest, reference))
    except SentinelError as error:
        refusal = shell.form_refusal(error)
        return Result(line, question, False, refusal.detail, refusal.is_unsure)
    return Result(line, question, True, message)
