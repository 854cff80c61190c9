"""The AuthZEN Authorization API 1.0: evaluation, evaluations and discovery.

The decision "true" means that the action may be done now. It is never given while an approval is missing, nor by a mere
check of an action whose budget would have to be reserved. `docs/wires.md` says how a request becomes an operation.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from flask import Blueprint, Response, request
from marshmallow import Schema, fields

from sentinel.authority.api.access_requests import AccessRequests, base_address
from sentinel.authority.api.authority_calls import AuthorityCalls, amended_problem, retryable
from sentinel.authority.api.context import Context
from sentinel.authority.api.evaluation_questions import (
    MOST_EVALUATIONS,
    EvaluationRequestSchema,
    EvaluationsRequestSchema,
    Question,
    merged,
    question_of,
)
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.api.identity import requests_of
from sentinel.authority.api.traced import trace_of
from sentinel.authority.decisions import Peeked, Recorded
from sentinel.authority.engine import Caller
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.reasons import reason_text, started_before_text
from sentinel.core.errors import (
    EngineUnavailable,
    InvalidInput,
    KeyReused,
    LengthRequired,
    ResolvedNotExecuted,
    SentinelError,
    UnsupportedMediaType,
)
from sentinel.core.moments import rfc3339
from sentinel.platform.http.bodies import json_response, load, without_nulls
from sentinel.platform.http.openapi import Documentation, answered_on_the_loop, documented
from sentinel.platform.http.problems import status_of
from sentinel.platform.http.wire import EdgeResponse, Handler, Request, request_id_of
from sentinel.store.ids import proof_id_of
from sentinel.tools.mapping import ToolRefused

EVALUATION, EVALUATIONS = "/access/v1/evaluation", "/access/v1/evaluations"
DISCOVERY = "/.well-known/authzen-configuration"
UNRECORDED = "idempotency_key_required"
_UNRECORDED_TEXT = "This action must be reserved or counted, which a check does not do: ask with context.idempotency_key, or as a mapped tool."

_SHARED = ("subject", "action", "resource", "context")
_OF_OPERATION = (
    "operation_id", "idempotency_key", "action", "agent_id", "resource", "risk_class", "policy_id", "policy_version", "proof_id",
    "approval_id",
)  # fmt: skip

Decision = dict[str, Any]
"""The answer to one evaluation: {"decision": bool, "context": {…}}."""

Starts = dict[tuple[str, str, uuid.UUID], "asyncio.Task[Decision]"]
"""The starts of one request: (idempotency key, operation digest, start id) → the task that gives the decision."""

_evaluations = EvaluationsRequestSchema()


class EvaluationSchema(Schema):
    """One decision; `context` has its reasons."""

    decision = fields.Boolean(required=True)
    context = fields.Dict()


class EvaluationsSchema(Schema):
    """The decisions in the order of the evaluations, up to where their semantic stopped; for a single one, its decision."""

    evaluations = fields.List(fields.Nested(EvaluationSchema))
    decision = fields.Boolean()
    context = fields.Dict()


class Evaluations:
    """Answers evaluations. `access_requests` is None if the access request profile is off."""

    def __init__(self, context: Context, calls: AuthorityCalls, access_requests: AccessRequests | None) -> None:
        self._context, self._calls, self._access_requests = context, calls, access_requests

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by path."""
        return {EVALUATION: self._evaluation, EVALUATIONS: self._evaluations}

    async def _evaluation(self, request: Request) -> EdgeResponse:
        try:
            caller = await self._context.identity.caller_async("guard", request.environ)
            return _answered(await self._decision(caller, json_of(request), request))
        except SentinelError as error:
            return _refused(error, request)

    async def _evaluations(self, request: Request) -> EdgeResponse:
        try:
            caller = await self._context.identity.caller_async("guard", request.environ)
            body = load(_evaluations, without_nulls(json_of(request)))
            several = body.get("evaluations")
            if not several:
                return _answered(await self._decision(caller, body, request))
            if len(several) > MOST_EVALUATIONS:
                raise InvalidInput.of("evaluations", f"must have at most {MOST_EVALUATIONS} items")
            # What they share is stored with each of them, so its bytes count for each.
            shared = orjson.dumps({name: body[name] for name in _SHARED if name in body}, default=str)
            self._context.identity.charge_batch(request.environ, len(several) * requests_of(len(shared)))
            semantic = body.get("options", {}).get("evaluations_semantic", "execute_all")
            return _answered({"evaluations": await self._go_through(caller, body, several, semantic, request)})
        except SentinelError as error:
            return _refused(error, request)

    async def _go_through(
        self, caller: Caller, body: Mapping[str, Any], several: list[Any], semantic: str, request: Request
    ) -> list[Decision]:
        starts: Starts = {}
        if semantic == "execute_all":
            return list(await asyncio.gather(*(self._one_of(caller, body, one, request, starts) for one in several)))
        found: list[Decision] = []
        stops_at = semantic == "permit_on_first_permit"
        for one in several:
            found.append(await self._one_of(caller, body, one, request, starts))
            if found[-1]["decision"] is stops_at:
                if not stops_at:
                    found[-1]["context"] = {"code": "200", **found[-1]["context"], "stopped_by": semantic}
                break
        return found

    async def _one_of(
        self, caller: Caller, body: Mapping[str, Any], one: Any, request: Request, starts: Starts
    ) -> Decision:
        """Return the decision on one of several evaluations; an error becomes the decision false with `context.error`."""
        try:
            return await self._decision(caller, merged(body, one), request, starts)
        except SentinelError as error:
            status, title = status_of(retryable(error))
            told = title if isinstance(error, EngineUnavailable) else error.detail
            return {"decision": False, "context": {"error": {"status": status, "message": told}}}

    async def _decision(
        self, caller: Caller, body: Mapping[str, Any], request: Request, starts: Starts | None = None
    ) -> Decision:
        """Return the decision on one evaluation; `starts` are those of the other evaluations in the same request.

        Raises as `question_of`, except `ToolRefused`, which is a decision, and as the authority's guard and check.
        """
        try:
            question = question_of(caller, body, self._context.tools.current)
        except ToolRefused as refused:
            return _no(refused.reason_code, refused.reason)
        if question.operation is None:
            return _decision(True, "unguarded", "The tool table lets this tool run unguarded.")
        if not question.is_recorded:
            return _checked(*await self._calls.check(caller, question.operation))
        if starts is None or question.start_id is None:
            return await self._guarded(caller, question, request)
        # A start id is meant for a retry in another request. Within one request, the same start twice means two calls,
        # of which only one may act.
        start = (question.operation.idempotency_key, question.operation.digest, question.start_id)
        if start in starts:
            return _repeated(await starts[start])
        starts[start] = asyncio.ensure_future(self._guarded(caller, question, request))
        return await starts[start]

    async def _guarded(self, caller: Caller, question: Question, request: Request) -> Decision:
        """Guard the question's operation and return the decision. Raises as `AuthorityCalls.guard`."""
        assert question.operation is not None
        if self._access_requests is not None and question.approval_id is not None:
            refusal = await self._access_requests.refusal_of(caller, question)
            if refusal is not None:
                return refusal
        try:
            found = await self._calls.guard(
                caller, question.operation, request_id=request_id_of(request.environ),
                has_start_step=question.has_start_step, start_id=question.start_id, trace=trace_of(request.environ),
            )  # fmt: skip
        except (KeyReused, ResolvedNotExecuted) as error:
            return _no(error.code.replace("-", "_"), error.detail)
        return self._recorded(caller, question, found, request)

    def _recorded(self, caller: Caller, question: Question, found: Recorded, request: Request) -> Decision:
        assert question.operation is not None
        may = may_act(question, found)
        is_over = found.status in ("already_started", "completed") and not may
        code = found.status if is_over else found.reason_code
        answer = _decision(may, code, started_before_text(found.outcome) if is_over else reason_text(code))
        told = answer["context"]
        told |= {
            "status": found.status, "operation_id": found.operation_id, "idempotency_key": question.operation.idempotency_key,
            # The start and the report must name these; for a tool they come from the tool table.
            "action": question.operation.action, "agent_id": question.operation.agent_id, "resource": question.operation.resource,
            "risk_class": question.operation.risk_class,
            "policy_id": found.policy_id, "policy_version": found.policy_version,
            "proof_id": proof_id_of(found.decision_event_id),
        }  # fmt: skip
        if found.approval_id is not None:
            told["approval_id"] = found.approval_id
        if found.status == "pending" and found.approval_expires_at is not None:
            told["expires_at"] = rfc3339(found.approval_expires_at)
            if self._access_requests is not None:
                told |= self._access_requests.offer(found, request)
        if may and question.has_start_step and found.permit_id is not None and found.permit_expires_at is not None:
            permits = self._context.authority.permits
            told["permit_token"] = permits.issue(caller.tenant_id, found.permit_id, found.digest)
            told["permit_expires_at"] = rfc3339(found.permit_expires_at)
        return answer


def may_act(question: Question, found: Recorded) -> bool:
    """Return whether a recorded decision lets the caller act now.

    With a start id, that start is recorded and not reported as done; otherwise a permit is issued and unused.
    """
    if question.start_id is not None:
        return found.may_act_on_start
    return found.status in ("allowed", "approved") and found.permit_id is not None


def json_of(request: Request) -> dict[str, Any]:
    """Return the request's JSON body. Raises `InvalidInput` and `BodyTooLarge`.

    Missing length and other media types are `InvalidInput` too, because this protocol requires the status 400 for them.
    """
    try:
        return request.json()
    except (LengthRequired, UnsupportedMediaType) as error:
        raise InvalidInput.of("body", error.detail) from None


def _checked(found: Peeked, row: GuardRow) -> Decision:
    """Turn a check into a decision; it reserves nothing, so it is true only if a guard would reserve and count nothing either."""
    if found.decision == "ALLOW" and (row.limits or row.terms.shared or row.once_key):
        return _no(UNRECORDED, _UNRECORDED_TEXT)
    may = found.decision == "ALLOW"
    return _decision(may, found.reason_code, reason_text(found.reason_code))


def _repeated(first: Decision) -> Decision:
    """Return the decision on a repeated start within one request: never true, because the first one may act."""
    if not first["decision"]:
        return dict(first)
    kept = {name: first["context"][name] for name in _OF_OPERATION if name in first["context"]}
    answer = _no("already_started", started_before_text(None))
    answer["context"] |= {"status": "already_started", **kept}
    return answer


def _no(code: str, sentence: str) -> Decision:
    return _decision(False, code, sentence)


def _decision(may: bool, code: str, sentence: str) -> Decision:
    """Make a decision, with the reason under every name by which clients of this protocol look for it."""
    return {
        "decision": may,
        "context": {"reason_code": code, "reason": sentence, "reasons": [code], "reason_admin": {"en": f"{sentence} [{code}]"}},
    }  # fmt: skip


def _answered(found: dict[str, Any]) -> EdgeResponse:
    return EdgeResponse(orjson.dumps(found))


def _refused(error: SentinelError, request: Request) -> EdgeResponse:
    """Return an error as a problem document.

    Problems that say "decision": "DENY" say false here: a careless PEP may take any non-empty text for true.
    """
    told = {"decision": False} if isinstance(error, EngineUnavailable) else {}
    return amended_problem(retryable(error), request_id_of(request.environ), told)


def routes(root: Blueprint, *, behind_tls: bool, has_access_requests: bool) -> None:
    """Add the discovery route and the documentation of the other routes to a blueprint without a prefix."""
    for path, documentation in DOCUMENTATION.items():
        root.add_url_rule(path, path.rpartition("/")[2], answered_on_the_loop(documentation), methods=["POST"])

    @root.get(DISCOVERY)
    @documented(
        "The metadata of this policy decision point",
        responses={200: ("The metadata.", {"type": "object"})},
        problems=(400,),
    )
    def authzen_configuration() -> Response:
        base = base_address(request.environ, behind_tls=behind_tls)
        found: dict[str, Any] = {
            "policy_decision_point": base, "access_evaluation_endpoint": base + EVALUATION,
            "access_evaluations_endpoint": base + EVALUATIONS,
        }  # fmt: skip
        if has_access_requests:
            found |= AccessRequests.metadata(base)
        return json_response(orjson.dumps(found))


PROBLEMS = (400, 401, 403, 413, 429, 503)
DOCUMENTATION = {
    EVALUATION: Documentation(
        "May this be done now? (AuthZEN)",
        description="A mapped tool, and every evaluation with `context.idempotency_key`, is guarded; the answer `true` is then the start, unless"
        " `context.start_step` is true. Every other evaluation is only checked, and is `true` only if nothing would be reserved.",
        request=EvaluationRequestSchema(), responses={200: ("The decision.", EvaluationSchema)}, problems=PROBLEMS,
        security=SECURITY,
    ),
    EVALUATIONS: Documentation(
        "Up to 64 evaluations at once (AuthZEN)",
        description="An evaluation takes the members that it lacks from the top level. One that cannot be decided is `false` with `context.error`.",
        request=EvaluationsRequestSchema(), responses={200: ("The decisions.", EvaluationsSchema)}, problems=PROBLEMS,
        security=SECURITY,
    ),
}  # fmt: skip
