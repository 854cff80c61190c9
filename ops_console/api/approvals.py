"""The approvals' API: listing them, showing one, and voting."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, request

from ops_console import metrics
from ops_console.api.case_schemas import ApprovalPageSchema, ApprovalViewSchema, ResolvedSchema
from ops_console.api.rendering import (
    LIMIT,
    OPERATOR,
    READING,
    WRITING,
    amount,
    choice,
    in_query,
    json_response,
    limit,
    next_page,
    path_id,
    present,
)
from ops_console.api.request_schemas import HandledSchema, VoteSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor, must_have_proved
from ops_console.webhook_addresses import shown_to
from sentinel.authority.approval_queue import list_approvals
from sentinel.authority.approvals import (
    APPROVE,
    HANDLED,
    REJECT,
    ApprovalRow,
    earlier_votes,
    known_approval,
    resolve_approval,
    votes,
)
from sentinel.authority.protected_changes import change_text, outcome_text
from sentinel.authority.reasons import reason_text
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import check_identifier
from sentinel.platform.http.bodies import json_body, load, without_nulls
from sentinel.platform.http.openapi import documented
from sentinel.store.ids import uuid_or_none

STATUSES = ("pending", "approved", "rejected", "expired")
_VOTE, _HANDLED = VoteSchema(), HandledSchema()


def approval_view(row: ApprovalRow) -> dict[str, Any]:
    """An approval as operators see it; a vote is bound to its `digest`."""
    change = shown_to(actor(), row.change) if row.change else None
    return present({
        "approval_id": row.approval_id, "operation_id": row.operation_id, "agent_id": row.agent_id, "action": row.action,
        "resource": row.resource, "amount": amount(row.amount_minor, row.currency), "digest": row.digest,
        "reasons": [{"code": code, "text": reason_text(code)} for code in row.reasons],
        "required_role": row.required_role, "required_people": row.required_people,
        "approvals_given": row.approvals_given, "status": row.status, "created_at": row.created_at,
        "expires_at": row.expires_at, "decided_at": row.decided_at, "decided_by": row.decided_by, "reason": row.reason,
        "offers": row.offers, "handled_reference": row.handled_reference, "follows": row.follows, "requested_by": row.requested_by,
        "change": json.loads(change) if change else None, "change_text": change_text(change) if change else None,
        **_outcome(row.outcome),
    })  # fmt: skip


def _outcome(outcome: str | None) -> dict[str, str]:
    return {"outcome": outcome, "outcome_text": outcome_text(outcome)} if outcome else {}


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the approval routes."""

    @blueprint.get("/approvals")
    @documented(
        "Approvals, newest first", responses={200: ("A page.", ApprovalPageSchema)}, problems=READING, security=OPERATOR,
        parameters=(in_query("status", enum=list(STATUSES)), in_query("agent_id", maxLength=128),
                    in_query("limit", **LIMIT, maximum=200, default=50), in_query("cursor")),
    )  # fmt: skip
    def show_approvals() -> Response:
        most, status = limit(50, 200), choice("status", STATUSES)
        rows = list_approvals(
            context.pool, actor().tenant_id, status=status, agent_id=_agent_id(), before=_before(), limit=most
        )
        following = next_page(rows, most, lambda row: str(row.approval_id))
        return json_response({"approvals": [approval_view(row) for row in rows], **following})

    @blueprint.get("/approvals/<approval_id>")
    @documented("One approval, with its votes", responses={200: ("The approval.", ApprovalViewSchema)},
                problems=(*READING, 404), security=OPERATOR)  # fmt: skip
    def show_approval(approval_id: str) -> Response:
        wanted, tenant_id = path_id(approval_id, "approval"), actor().tenant_id
        row = known_approval(context.pool, tenant_id, wanted)
        earlier = {"earlier_votes": earlier_votes(context.pool, tenant_id, wanted)} if row.follows else {}
        return json_response({**approval_view(row), "votes": votes(context.pool, tenant_id, wanted), **earlier})

    @blueprint.post("/approvals/<approval_id>/approve")
    @documented("Approve", request=_VOTE, responses={200: ("Approved, or the vote is recorded until enough people have approved.", ResolvedSchema)},
                problems=WRITING, security=OPERATOR)  # fmt: skip
    def approve(approval_id: str) -> Response:
        return _resolve(context, approval_id, APPROVE)

    @blueprint.post("/approvals/<approval_id>/reject")
    @documented(
        "Reject", request=_VOTE, responses={200: ("Rejected.", ResolvedSchema)}, problems=WRITING, security=OPERATOR
    )
    def reject(approval_id: str) -> Response:
        return _resolve(context, approval_id, REJECT)

    @blueprint.post("/approvals/<approval_id>/handled")
    @documented("Record that a person handled it elsewhere", request=_HANDLED,
                responses={200: ("Recorded; the agent is denied the operation.", ResolvedSchema)},
                problems=WRITING, security=OPERATOR)  # fmt: skip
    def handled(approval_id: str) -> Response:
        return _resolve(context, approval_id, HANDLED, _HANDLED)


def _resolve(context: ConsoleContext, approval_id: str, verdict: str, schema: VoteSchema = _VOTE) -> Response:
    person = actor()
    # Before the body is parsed: a person who may not decide gets no hints about the form of a decision.
    person.must_be("approver")
    if verdict == APPROVE:
        must_have_proved()
    given = load(schema, without_nulls(json_body()))
    done = resolve_approval(
        context.pool, person, path_id(approval_id, "approval"), verdict=verdict, reason=given["reason"], digest=given["digest"],
        reference=given.get("reference"),
    )  # fmt: skip
    metrics.RESOLVED.labels(done.result).inc()
    return json_response(present({**asdict(done), **_outcome(done.outcome)}))


def _agent_id() -> str | None:
    text = request.args.get("agent_id")
    return None if text is None else check_identifier(text, "agent_id", 128)


def _before() -> uuid.UUID | None:
    text = request.args.get("cursor")
    if not text:
        return None
    found = uuid_or_none(text)
    if found is None:
        raise InvalidInput.of("cursor", "is not a valid cursor")
    return found
