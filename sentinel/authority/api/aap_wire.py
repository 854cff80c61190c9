"""Wire forms of the Agent Approval Protocol: submissions, rendered requests, errors, documentation of its routes.

Submissions are read strictly, and a request is rendered exactly as it was submitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import orjson
from flask import Blueprint
from marshmallow import Schema, fields
from marshmallow.validate import Length, OneOf

from sentinel.authority.aap_requests import AapRequest
from sentinel.authority.api.authority_calls import amended_problem, retryable
from sentinel.authority.api.context import Context
from sentinel.authority.api.evaluation_questions import LOCAL
from sentinel.authority.api.guard import SECURITY
from sentinel.client.calls import GuardQuestion
from sentinel.core.errors import Conflict, InvalidInput, NotFound, RateLimited, SentinelError, Unauthenticated
from sentinel.core.moments import rfc3339
from sentinel.core.operation import UNSAFE_TEXT, Operation
from sentinel.core.strict_json import strict_json
from sentinel.platform.http.bodies import JsonObject, StrictSchema, load
from sentinel.platform.http.openapi import Documentation, answered_on_the_loop
from sentinel.platform.http.problems import status_of
from sentinel.platform.http.wire import EdgeResponse
from sentinel.tools.mapping import ToolRefused, ToolTable
from sentinel.tools.operations import operation_of

REQUESTS = "/aap/v1/requests"
LONGEST_WAIT_SECONDS, LONGEST_TIMEOUT_SECONDS = 30, 30 * 86_400
MOST_REASONING = 4000
_TIMEOUT = re.compile(r"([0-9]{1,7})([smhd])", re.ASCII)
_WAIT = re.compile(r"([0-9]{1,3})s?", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_STATUSES = ("pending", "approved", "denied", "expired", "cancelled")
_WORD = Length(min=1, max=200)
_SOME_AGENT = "agent"
"""A placeholder where only the other parts of an operation are checked."""


class AapRequestSchema(StrictSchema):
    """One tool call. `context.facts` are the program's facts for `tools.yaml`; the rest of `context` is only stored and returned."""

    tool = fields.String(required=True, validate=_WORD)
    arguments = JsonObject(required=True)
    timeout = fields.String(
        required=True,
        metadata={
            "pattern": f"^{_TIMEOUT.pattern}$",
            "description": 'From "1s" to "30d". The request expires this long after it was submitted.',
        },
    )
    server = fields.String(validate=_WORD)
    agent_reasoning = fields.String(
        metadata={
            "description": "The model's own words. The person who decides sees the first 4000 characters of them, marked as such; no policy reads"
            " them."
        }
    )
    context = JsonObject()


class AapOutcomeSchema(StrictSchema):
    """The outcome of a consumed call."""

    status = fields.String(required=True, validate=OneOf(["succeeded", "failed"]))
    note = fields.String(validate=Length(min=1, max=4000))


class AapDecisionSchema(Schema):
    """The decision on a request; an approval has `expires_at`, until when it can be consumed."""

    status = fields.String(required=True)
    decided_at = fields.String(required=True)
    note = fields.String()
    expires_at = fields.String()


class AapReportedSchema(Schema):
    """The outcome that was reported."""

    status = fields.String(required=True, validate=OneOf(["succeeded", "failed"]))
    note = fields.String()
    reported_at = fields.String(required=True)


class AapConsumptionSchema(Schema):
    """When the call was started (consumed), and its outcome if one was reported."""

    consumed_at = fields.String(required=True)
    outcome = fields.Nested(AapReportedSchema)


class AapAnswerSchema(Schema):
    """A request with everything that was submitted and its current status."""

    id = fields.UUID(required=True)
    tool = fields.String(required=True)
    arguments = fields.Dict(required=True)
    timeout = fields.String(required=True)
    server = fields.String()
    agent_reasoning = fields.String()
    context = fields.Dict()
    status = fields.String(required=True, validate=OneOf(_STATUSES))
    created_at = fields.String(required=True)
    deadline_at = fields.String(required=True)
    decision = fields.Nested(AapDecisionSchema)
    consumption = fields.Nested(AapConsumptionSchema)


class AapConflict(Conflict):
    """A conflict with an error code of the protocol, e.g. "already_consumed"."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code.replace("_", "-")


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The status of a request; `decided_at` is None while it is pending, `expires_at` is None unless it is approved."""

    status: str
    decided_at: datetime | None = None
    expires_at: datetime | None = None
    note: str | None = None


_submission, _outcome = AapRequestSchema(), AapOutcomeSchema()


def submission_of(body: Mapping[str, Any], table: ToolTable) -> dict[str, Any]:
    """Return what is stored of a submission, as fields of `aap_requests.submit`. Raises `InvalidInput`.

    They are its text, the operation that it maps to or why the tool table refuses it, its reasoning, and its timeout.
    """
    asked = load(_submission, body)
    question, refusal = _mapped(asked, table)
    reasoning = asked.get("agent_reasoning")
    return {
        "submission": _text(asked), "question": None if question is None else json.dumps(question), "refusal": refusal,
        "reasoning": None if reasoning is None else _clean(reasoning[:MOST_REASONING]),
        "timeout_seconds": _timeout_seconds(asked["timeout"]),
    }  # fmt: skip


def _mapped(asked: Mapping[str, Any], table: ToolTable) -> tuple[GuardQuestion | None, str | None]:
    """Return (operation to guard, None) or (None, the tool table's refusal); both None if the tool runs unguarded.

    A call that maps to an operation of which some value cannot be bound is refused too: it could never be guarded.
    """
    try:
        facts = asked.get("context", {}).get("facts")
        if facts is not None and not isinstance(facts, dict):
            raise ToolRefused("malformed_fact", "context.facts must be an object")
        question = table.call(asked.get("server", LOCAL), asked["tool"], asked["arguments"], facts).question
        if question is not None:
            operation_of(question, _SOME_AGENT)
        return question, None
    except InvalidInput as error:
        return None, _clean(f"mapping_failed: {error.detail}"[:500])
    except ToolRefused as refused_by_table:
        return None, _clean(f"{refused_by_table.reason_code}: {refused_by_table.reason}"[:500])


def outcome_of(body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Read a reported outcome and return (status, note). Raises `InvalidInput`."""
    told = load(_outcome, body)
    note = told.get("note")
    return told["status"], None if note is None else _clean(note)


def _clean(text: str) -> str:
    """Replace characters that the database cannot store or that are invisible, in a client's text or a refusal that quotes it."""
    return UNSAFE_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def wait_seconds(text: str) -> int:
    """Parse how many seconds a poll may wait for a decision, at most LONGEST_WAIT_SECONDS. Raises `InvalidInput`."""
    found = _WAIT.fullmatch(text)
    if found is None:
        raise InvalidInput.of("wait", 'must be a number of seconds, like "25s"')
    return min(int(found[1]), LONGEST_WAIT_SECONDS)


def stored_question(row: AapRequest) -> Operation:
    """Return the operation of a request that has a question."""
    assert row.question is not None
    return operation_of(json.loads(row.question), row.agent_id)


def refused_since(row: AapRequest, table: ToolTable) -> str | None:
    """Return why the current tool table no longer supports how a request was mapped at submission.

    Returns None if the table still maps the call to the same operation, or still lets it run unguarded.
    """
    asked = strict_json(row.submission)
    mapping = table.find(asked.get("server", LOCAL), asked["tool"])
    if mapping is None or mapping.hidden:
        return "unmapped_tool: the tool is no longer mapped"
    if row.question is None:
        return None if mapping.action is None else "guarded_since: the tool is guarded now; submit the call again"
    question, refusal = _mapped(asked, table)
    if refusal is not None or question == json.loads(row.question):
        return refusal
    return "remapped_since: the tool table now maps the call to another operation; submit the call again"


def rendered(row: AapRequest, now: RequestStatus) -> bytes:
    """Render a request for its client, which verifies it: everything that was submitted, and its status."""
    found: dict[str, Any] = {
        **json.loads(row.submission), "id": str(row.request_id), "status": now.status,
        "created_at": rfc3339(row.created_at), "deadline_at": rfc3339(row.deadline_at),
    }  # fmt: skip
    if now.decided_at is not None:
        decision = {"status": now.status, "decided_at": rfc3339(now.decided_at)}
        if now.expires_at is not None:
            decision["expires_at"] = rfc3339(now.expires_at)
        if now.note is not None:
            decision["note"] = now.note
        found["decision"] = decision
    if row.consumed_at is not None:
        found["consumption"] = {"consumed_at": rfc3339(row.consumed_at)}
        if row.outcome is not None and row.reported_at is not None:
            note = {} if row.outcome_note is None else {"note": row.outcome_note}
            found["consumption"]["outcome"] = {"status": row.outcome, **note, "reported_at": rfc3339(row.reported_at)}
    return orjson.dumps(found)


def refused(error: SentinelError, request_id: str) -> EdgeResponse:
    """Return an error as a problem document that also has the protocol's `error` member."""
    error = retryable(error)
    status, _ = status_of(error)
    told = {
        "type": _kind(error, status), "code": error.code.replace("-", "_"), "message": error.detail if status < 500 else "try again",
        "request_id": request_id,
    }  # fmt: skip
    return amended_problem(error, request_id, {"error": told})


def _kind(error: SentinelError, status: int) -> str:
    if isinstance(error, Conflict):
        return "conflict"
    if isinstance(error, NotFound):
        return "not_found"
    if isinstance(error, (Unauthenticated, RateLimited)):
        return "unauthorized" if status == 401 else "rate_limited"
    return "forbidden" if status == 403 else "unavailable" if status >= 500 else "invalid_request"


def _text(asked: Mapping[str, Any]) -> str:
    """Return a submission as JSON, with the same text for equal submissions.

    Raises `InvalidInput` for a fraction that a double cannot represent, because it could not be returned as submitted.
    """

    def exact(value: Any) -> float:
        assert isinstance(value, Decimal)
        if Decimal(repr(float(value))) != value:
            raise InvalidInput.of("body", "has a fraction with too many digits; write it as text")
        return float(value)

    return json.dumps(asked, sort_keys=True, separators=(",", ":"), default=exact, allow_nan=False)


def _timeout_seconds(text: str) -> int:
    found = _TIMEOUT.fullmatch(text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= seconds <= LONGEST_TIMEOUT_SECONDS:
        raise InvalidInput.of("timeout", 'must be a time like "10m", from "1s" to "30d"')
    return seconds


_KEY: dict[str, Any] = {
    "name": "Idempotency-Key", "in": "header", "required": True, "schema": {"type": "string", "maxLength": 255},
}  # fmt: skip
_WAIT_PARAMETER: dict[str, Any] = {
    "name": "wait", "in": "query", "schema": {"type": "string"}, "description": "How long to wait for a decision, e.g. 25s; at most 30s.",
}  # fmt: skip


def _documentation(summary: str, *, description: str = "", **rest: Any) -> Documentation:
    about = (f"{description} " if description else "") + "Agent Approval Protocol; problems also have its `error`."
    return Documentation(
        summary, description=about, responses={200: ("The request.", AapAnswerSchema), **rest.pop("responses", {})},
        problems=(400, 401, 403, 404, 409, 411, 413, 415, 429, 503), security=SECURITY, **rest,
    )  # fmt: skip


def routes(root: Blueprint, context: Context) -> None:
    """Add the documentation of the routes to a blueprint without a prefix."""
    identify = partial(context.identity.caller, "guard")
    one = f"{REQUESTS}/<request_id>"
    told: tuple[tuple[str, str, str, Documentation], ...] = (
        ("POST", REQUESTS, "aap_create", _documentation(
            "Submit a tool call", request=AapRequestSchema(), parameters=(_KEY,),
            responses={201: ("The new request.", AapAnswerSchema)},
        )),
        ("GET", one, "aap_show", _documentation("The status of a request", parameters=(_WAIT_PARAMETER,))),
        ("DELETE", one, "aap_cancel", _documentation(
            "Cancel a pending request", description="The approval that the request waits for stays pending.",
        )),
        ("POST", f"{one}/consume", "aap_consume", _documentation("Start an approved call, once", parameters=(_KEY,))),
        ("POST", f"{one}/outcome", "aap_report", _documentation("Report a call's outcome", request=AapOutcomeSchema())),
    )  # fmt: skip
    for method, path, name, documentation in told:
        root.add_url_rule(path, name, answered_on_the_loop(documentation, identify), methods=[method])
