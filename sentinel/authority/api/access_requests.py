"""AuthZEN's access request and approval profile (draft 1): a task to poll for an evaluation that needs an approval.

The evaluation has already requested the approval, and a task is a view of it. An approved task permits nothing by
itself: the PEP evaluates again, which decides everything again. Off unless SENTINEL_AUTHZEN_ACCESS_REQUESTS is on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from flask import Blueprint
from marshmallow import Schema, fields
from marshmallow.validate import OneOf

from sentinel.authority.api.authority_calls import amended_problem
from sentinel.authority.api.context import Context
from sentinel.authority.api.evaluation_questions import EvaluationRequestSchema, Question, question_of
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.approvals import ApprovalRow, find_approval, find_approval_of
from sentinel.authority.decisions import Recorded
from sentinel.authority.engine import Caller
from sentinel.core.errors import InvalidInput, NotFound, PermitExpired, SentinelError
from sentinel.core.moments import rfc3339
from sentinel.platform.http.bodies import JsonObject, load, without_nulls
from sentinel.platform.http.openapi import Documentation, answered_on_the_loop
from sentinel.platform.http.wire import EdgeResponse, Handler, Request, request_id_of
from sentinel.store.ids import uuid_or_none
from sentinel.tools.mapping import ToolRefused

REQUESTS = "/access/v1/requests"
_ERROR_TYPE = "urn:openid:authzen:access-request:error:"
_STATUSES = {"pending": "pending", "approved": "approved", "rejected": "denied", "expired": "expired"}


class AccessRequestSchema(EvaluationRequestSchema):
    """The evaluation that was denied, repeated, with its id in `denial`."""

    denial = JsonObject(
        required=True, metadata={"description": "`evaluation_id`: as returned by the denied evaluation."}
    )
    requested_access = JsonObject()
    client = JsonObject()


class TaskSchema(Schema):
    """A task: the approval that a denied evaluation needs."""

    id = fields.UUID(required=True)
    status = fields.String(required=True, validate=OneOf(list(_STATUSES.values())))
    status_endpoint = fields.String(required=True)
    expires_at = fields.String(required=True)


class TaskApprovalSchema(Schema):
    """An approval, as `context.approval` of the next evaluation names it."""

    id = fields.UUID(required=True)
    approved_until = fields.String(required=True)
    approved_at = fields.String()


class TaskResultSchema(Schema):
    """What to do now: evaluate again, with the approval."""

    mode = fields.String(required=True, validate=OneOf(["reevaluate"]))
    approval = fields.Nested(TaskApprovalSchema, required=True)


class TaskAnswerSchema(Schema):
    """A task, and its result once it is approved."""

    task = fields.Nested(TaskSchema, required=True)
    result = fields.Nested(TaskResultSchema)


class _Refusal(Exception):
    """An error of the profile: its name, and the error that determines its status."""

    def __init__(self, name: str, error: SentinelError) -> None:
        super().__init__(name)
        self.name, self.error = name, error


_access_request = AccessRequestSchema()


class AccessRequests:
    """Serves tasks, and adds what evaluations need: the offer of an access request, and the check of a named approval."""

    def __init__(self, context: Context, *, behind_tls: bool) -> None:
        self._context, self._behind_tls = context, behind_tls

    @staticmethod
    def metadata(base: str) -> dict[str, Any]:
        """Return the members of the discovery document about access requests."""
        return {
            "access_request_endpoint": base + REQUESTS,
            "capabilities": ["urn:openid:authzen:capability:access-request"],
        }

    def offer(self, found: Recorded, request: Request) -> dict[str, Any]:
        """Return the members of a denied evaluation that say where and until when its approval can be requested."""
        assert found.approval_expires_at is not None
        moment, endpoint = rfc3339(self._context.authority.clock()), self._base(request) + REQUESTS
        return {
            "evaluation_id": found.operation_id, "evaluated_at": moment, "reason": "approval_required",
            "access_request": {"endpoint": endpoint, "expires_at": rfc3339(found.approval_expires_at)},
        }  # fmt: skip

    async def refusal_of(self, caller: Caller, question: Question) -> dict[str, Any] | None:
        """Return the denial of an evaluation that names an unsuitable approval; None if it may be evaluated again."""
        assert question.operation is not None and question.approval_id is not None
        found = await self._context.in_thread(
            find_approval, self._context.authority.pool, caller.tenant_id, question.approval_id
        )
        if found is None or found.principal_id != caller.principal_id:
            return _denied("approval_unverifiable", "request")
        if found.digest != question.operation.digest:
            return _denied("out_of_scope", "request")
        return None

    def find(self, method: str, path: str) -> Handler | None:
        """Return the handler of a method and path, or None."""
        path = path.rstrip("/")
        if path == REQUESTS:
            return self._submit if method == "POST" else None
        task_id = path.removeprefix(REQUESTS + "/")
        if method != "GET" or task_id == path or "/" in task_id:
            return None

        async def show(request: Request) -> EdgeResponse:
            return await self._answered(request, lambda caller: self._task(caller, task_id))

        return show

    async def _submit(self, request: Request) -> EdgeResponse:
        return await self._answered(request, lambda caller: self._submitted(caller, request.json()), status=201)

    async def _answered(
        self, request: Request, call: Callable[[Caller], Awaitable[ApprovalRow]], *, status: int = 200
    ) -> EdgeResponse:
        try:
            caller = await self._context.identity.caller_async("guard", request.environ)
            return EdgeResponse(orjson.dumps(_task(await call(caller), self._base(request))), status)
        except _Refusal as refusal:
            return amended_problem(refusal.error, request_id_of(request.environ), {"type": _ERROR_TYPE + refusal.name})

    def _base(self, request: Request) -> str:
        return base_address(request.environ, behind_tls=self._behind_tls)

    async def _submitted(self, caller: Caller, body: Mapping[str, Any]) -> ApprovalRow:
        asked = load(_access_request, without_nulls(body))
        try:
            question = question_of(caller, body, self._context.tools.current)
        except ToolRefused as refused:
            raise _Refusal("not_requestable", InvalidInput.of("resource", refused.reason_code)) from None
        evaluation_id = uuid_or_none(str(asked["denial"].get("evaluation_id", "")))
        pool = self._context.authority.pool
        found = None
        if evaluation_id is not None:
            found = await self._context.in_thread(find_approval_of, pool, caller.tenant_id, evaluation_id)
        if found is None or found.principal_id != caller.principal_id or question.operation is None:
            raise _Refusal(
                "invalid_denial_binding",
                InvalidInput.of("denial.evaluation_id", "must be a denied evaluation of your own"),
            )
        if found.digest != question.operation.digest:
            raise _Refusal(
                "invalid_denial_binding", InvalidInput.of("denial.evaluation_id", "belongs to another evaluation")
            )
        if found.status == "expired":
            raise _Refusal(
                "expired_denial", PermitExpired("the approval expired before it was decided; evaluate again")
            )
        return found

    async def _task(self, caller: Caller, task_id: str) -> ApprovalRow:
        wanted = uuid_or_none(task_id)
        pool = self._context.authority.pool
        found = await self._context.in_thread(find_approval, pool, caller.tenant_id, wanted) if wanted else None
        if found is None or found.change or found.principal_id != caller.principal_id:
            raise _Refusal("unknown_task", NotFound("there is no task with this id"))
        return found


def _denied(reason: str, next_action: str) -> dict[str, Any]:
    return {"decision": False, "context": {"reason_code": reason, "reason": reason, "next_action": next_action}}


def base_address(environ: Mapping[str, Any], *, behind_tls: bool) -> str:
    """Return the base address at which the request reached this server, e.g. "https://pdp.example:7860"."""
    scheme = "https" if behind_tls else environ.get("wsgi.url_scheme", "http")
    return f"{scheme}://{environ.get('HTTP_HOST', 'localhost')}"


def _task(found: ApprovalRow, base: str) -> dict[str, Any]:
    task_id = str(found.approval_id)
    task = {
        "id": task_id, "status": _STATUSES[found.status], "status_endpoint": f"{base}{REQUESTS}/{task_id}",
        "expires_at": rfc3339(found.expires_at),
    }  # fmt: skip
    if found.status != "approved":
        return {"task": task}
    approval = {"id": task_id, "approved_until": rfc3339(found.expires_at)}
    if found.decided_at is not None:
        approval["approved_at"] = rfc3339(found.decided_at)
    return {"task": task, "result": {"mode": "reevaluate", "approval": approval}}


def routes(root: Blueprint, context: Context) -> None:
    """Add the documentation of the routes to a blueprint without a prefix."""
    identify = partial(context.identity.caller, "guard")
    problems = (400, 401, 403, 404, 410, 411, 413, 415, 429, 503)
    submit = Documentation(
        "Request access after a denied evaluation that a person may approve (AuthZEN access request profile)",
        request=_access_request, responses={201: ("The task.", TaskAnswerSchema)}, problems=problems, security=SECURITY,
    )  # fmt: skip
    show = Documentation(
        "The status of a task", description="`approved` permits nothing by itself: evaluate again.",
        responses={200: ("The task.", TaskAnswerSchema)}, problems=(401, 403, 404, 429, 503), security=SECURITY,
    )  # fmt: skip
    root.add_url_rule(REQUESTS, "access_requests", answered_on_the_loop(submit), methods=["POST"])
    root.add_url_rule(f"{REQUESTS}/<task_id>", "access_request", answered_on_the_loop(show, identify), methods=["GET"])
