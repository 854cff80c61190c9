"""Approvals as agents see them: one by id, and those decided since a time. `approval_stream` has the stream."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response, request

from sentinel.authority.api.approval_stream import decision_fields, parse_time, whose
from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.api.schemas import ApprovalDecisionsSchema, ApprovalSchema
from sentinel.authority.approvals import decided_since, find_approval
from sentinel.core.errors import InvalidInput, NotFound
from sentinel.core.moments import rfc3339
from sentinel.platform.http.bodies import json_response
from sentinel.platform.http.openapi import Documentation, answered_on_the_loop, documented
from sentinel.store.ids import uuid_or_none


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the approvals routes to a blueprint."""
    pool = context.authority.pool

    @blueprint.get("/approval/<approval_id>")
    @documented(
        "One approval", responses={200: ("The approval.", ApprovalSchema)}, problems=(401, 403, 404, 429, 503),
        security=SECURITY,
    )  # fmt: skip
    def approval(approval_id: str) -> Response:
        caller = context.identity.caller("approvals:read", request.environ)
        wanted = uuid_or_none(approval_id)
        found = find_approval(pool, caller.tenant_id, wanted) if wanted else None
        if found is None or found.change or not whose(caller).has(found.principal_id, found.agent_id):
            raise NotFound("no such approval")
        body: dict[str, Any] = {
            "status": found.status, "agent_id": found.agent_id, "action": found.action,
            "expires_at": rfc3339(found.expires_at),
        }  # fmt: skip
        if found.decided_at is not None:
            body["decided_at"] = rfc3339(found.decided_at)
        body |= {k: v for k, v in (("approver", found.decided_by), ("reason", found.reason)) if v is not None}
        return json_response(orjson.dumps(body))

    @blueprint.get("/approvals/since")
    @documented(
        "Approvals decided since a time, oldest first",
        responses={200: ("The decisions.", ApprovalDecisionsSchema)}, problems=(400, 401, 403, 429, 503),
        security=SECURITY,
        parameters=(
            {"name": "since", "in": "query", "schema": {"type": "string", "format": "date-time"}},
            {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}},
        ),
    )  # fmt: skip
    def since() -> Response:
        caller = context.identity.caller("approvals:read", request.environ)
        limit = _limit(request.args.get("limit", "100"))
        text = request.args.get("since")
        moment = parse_time(text) if text else datetime.fromtimestamp(0, UTC)
        if moment is None:
            raise InvalidInput.of("since", "must be an RFC 3339 time with a zone")
        owner = whose(caller)
        found = decided_since(
            pool, caller.tenant_id, moment, limit, principal_id=owner.principal_id, agent_id=owner.agent_id
        )
        return json_response(orjson.dumps({"decisions": [decision_fields(one) for one in found]}))

    stream = Documentation(
        "Approval decisions as server-sent events",
        description="First CONNECTED, then what was decided after the time `last_seen`, then each new decision; a `last_seen` that is no"
        " time counts as absent. A key that is over its rate limit"
        " waits for CONNECTED, up to ten seconds.",
        responses={200: ("Lines `data: {json}`.", {"type": "string"})}, problems=(401, 403, 503),
        security=SECURITY, content_type="text/event-stream",
        parameters=({"name": "last_seen", "in": "query", "schema": {"type": "string"}},),
    )  # fmt: skip
    # Only documentation: `approval_stream` answers this route.
    blueprint.add_url_rule(
        "/approvals/stream", "stream", answered_on_the_loop(stream, partial(context.identity.caller, "approvals:read"))
    )


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 500):
        raise InvalidInput.of("limit", "must be an integer from 1 to 500")
    return int(text)
