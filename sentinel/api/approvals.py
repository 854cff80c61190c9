"""Approvals as their agents see them: one by id, those decided since a time, and a stream of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from flask import Blueprint, Response, request

from sentinel import metrics
from sentinel.api.context import Context
from sentinel.api.guard import SECURITY, rfc3339
from sentinel.api.schemas import ApprovalDecisionsSchema, ApprovalSchema
from sentinel.core.errors import EngineUnavailable, InvalidInput, NotFound, SentinelError
from sentinel.http.openapi import documented
from sentinel.http.responses import json_response
from sentinel.services.authority import Caller
from sentinel.store.approvals import Decided, decided_since, find_approval
from sentinel.store.uuids import uuid_or_none

POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0
# A decision's time is taken before its commit, so one may become visible after a later one: look back a little.
OVERLAP = timedelta(seconds=10)


def _own(caller: Caller) -> dict[str, Any]:
    """Whose approvals a key may read: its own, or everybody's with the scope for it."""
    return {} if "approvals:read_all" in caller.scopes else {"principal_id": caller.principal_id}


def parse_time(text: str) -> datetime | None:
    """RFC 3339 with a zone, or None. A "+" that a query string turned into a blank is understood."""
    try:
        moment = datetime.fromisoformat(text.strip().replace(" ", "+").replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def decision_fields(decided: Decided) -> dict[str, Any]:
    """A decided approval as both released clients read it."""
    return {
        "request_id": str(decided.request_id), "status": decided.status, "approver": decided.approver,
        "reason": decided.reason, "agent_id": decided.agent_id, "action": decided.action,
        "decided_at": rfc3339(decided.decided_at),
    }  # fmt: skip


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the approvals routes to a blueprint."""
    pool = context.authority.pool

    @blueprint.get("/approval/<approval_id>")
    @documented(
        "One approval", responses={200: ("The approval.", ApprovalSchema())}, problems=(401, 403, 404, 429, 503),
        security=SECURITY,
    )  # fmt: skip
    def approval(approval_id: str) -> Response:
        caller = context.identity.caller("approvals:read", request.environ)
        wanted = uuid_or_none(approval_id)
        found = find_approval(pool, caller.tenant_id, wanted) if wanted else None
        own = _own(caller)
        if found is None or (own and found.principal_id != caller.principal_id):
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
        responses={200: ("The decisions.", ApprovalDecisionsSchema())}, problems=(400, 401, 403, 429, 503),
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
        found = decided_since(pool, caller.tenant_id, moment, limit, **_own(caller))
        return json_response(orjson.dumps({"decisions": [decision_fields(one) for one in found]}))

    @blueprint.get("/approvals/stream")
    @documented(
        "Approval decisions as server-sent events",
        description="First CONNECTED, then what was decided since `last_seen`, then each decision as it falls.",
        responses={200: ("Lines `data: {json}`.", {"type": "string"})}, problems=(401, 403, 429, 503),
        security=SECURITY, content_type="text/event-stream",
        parameters=({"name": "last_seen", "in": "query", "schema": {"type": "string"}},),
    )  # fmt: skip
    def stream() -> Response:
        caller = context.identity.caller("approvals:read", request.environ)
        if not context.stream_slots.acquire(blocking=False):
            raise EngineUnavailable("every approvals stream of this process is taken")
        # A last_seen that cannot be read means "from now on": a valid key is never answered 4xx here.
        seen = parse_time(request.args.get("last_seen", "")) or None
        response = Response(_events(context, caller, seen), content_type="text/event-stream")
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        metrics.STREAMS.inc()

        @response.call_on_close
        def closed() -> None:
            metrics.STREAMS.dec()
            context.stream_slots.release()

        return response


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 500):
        raise InvalidInput.of("limit", "must be an integer from 1 to 500")
    return int(text)


def _data(fields: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def _events(context: Context, caller: Caller, last_seen: datetime | None) -> Iterator[bytes]:
    yield _data({"type": "CONNECTED"})
    opened = datetime.now(UTC)
    told: dict[str, datetime] = {}
    cursor = last_seen or opened
    if last_seen is None:
        # Without a last_seen nothing old is told: what is decided already counts as told.
        told = {one["request_id"]: opened for one, _ in _decided(context, caller, cursor - OVERLAP)}
    catching_up, spoke = last_seen is not None, time.monotonic()
    while not context.stopping():
        for fields, moment in _decided(context, caller, cursor if catching_up else cursor - OVERLAP):
            if fields["request_id"] not in told:
                told[fields["request_id"]] = moment
                timestamp = fields.pop("decided_at")
                yield _data({"type": "APPROVAL_DECISION", **fields, "timestamp": timestamp, "catchup": catching_up})
                spoke = time.monotonic()
            cursor = max(cursor, moment)
        catching_up = False
        told = {key: moment for key, moment in told.items() if moment > cursor - 2 * OVERLAP}
        if time.monotonic() - spoke > HEARTBEAT_SECONDS:
            yield b": still here\n\n"
            spoke = time.monotonic()
        time.sleep(POLL_SECONDS)


def _decided(context: Context, caller: Caller, since: datetime) -> list[tuple[dict[str, Any], datetime]]:
    try:
        found = decided_since(context.authority.pool, caller.tenant_id, since, 500, **_own(caller))
    except SentinelError:
        return []  # The database is away: the stream stays open and catches up when it is back.
    return [(decision_fields(one), one.decided_at) for one in found]
