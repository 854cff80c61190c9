"""The check, which asks for a decision without recording it, its report, and headroom: what is left of limits."""

from __future__ import annotations

import time
from typing import Any

import orjson

from sentinel.authority.api.calls import Call, batch_documentation
from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import CHECK, PROBLEMS, SECURITY, CheckBody, report_receipt, to_operation
from sentinel.authority.api.identity import require_own
from sentinel.authority.api.schemas import (
    CheckAnswerSchema,
    CheckReportRequestSchema,
    CheckRequestSchema,
    HeadroomSchema,
    ReportReceiptSchema,
)
from sentinel.authority.decisions import Peeked
from sentinel.authority.engine import Caller
from sentinel.authority.guard import decided_row, report_check
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.headroom import find_headroom
from sentinel.authority.reasons import reason_text
from sentinel.platform.http.bodies import load, read_report, without_nulls
from sentinel.platform.http.openapi import Documentation
from sentinel.platform.http.wire import EdgeResponse, Handler, Request

_check, _report = CheckRequestSchema(), CheckReportRequestSchema()


def calls(context: Context) -> dict[str, Call]:
    """Return the check by its path under a prefix."""
    authority = context.authority

    def prepare(caller: Caller, body: CheckBody, began: float, _: bytes | None) -> tuple[GuardRow, Any]:
        require_own(caller, body.tenant_id, body.agent_id)
        row = decided_row(authority, caller, to_operation(body, "check"), has_start_step=True, elapsed_ms=0)
        return row, (row.terms.policy_id, began)

    def render(caller: Caller, prepared: Any, found: Peeked, request_id: str) -> EdgeResponse:
        policy_id, began = prepared
        return EdgeResponse(orjson.dumps({
            "decision": found.decision, "reason": reason_text(found.reason_code), "reason_code": found.reason_code,
            "policy_id": policy_id, "latency_ms": int((time.perf_counter() - began) * 1000),
        }))  # fmt: skip

    return {"/action/check": Call("check", CHECK, prepare, authority.checks, render)}


def handlers(context: Context) -> dict[str, Handler]:
    """Return the handlers of the check's report and of headroom by their path under a prefix."""
    authority = context.authority

    async def report(request: Request) -> EdgeResponse:
        caller = await context.identity.caller_async("report", request.environ)
        fields = load(_report, without_nulls(read_report(request.body())))
        require_own(caller, fields.pop("tenant_id", None), fields["agent_id"])
        fields.pop("evidence_context", None)
        if not fields.get("action"):
            fields.pop("action", None)  # empty counts as absent, so that both forms of a report have the same digest
        return report_receipt(await context.in_thread(report_check, authority, caller, content=fields))

    async def headroom(request: Request) -> EdgeResponse:
        caller = await context.identity.caller_async("check", request.environ)
        body = CHECK.read(request.body())
        require_own(caller, body.tenant_id, body.agent_id)
        found = await context.in_thread(find_headroom, authority, caller, to_operation(body, "headroom"))
        return EdgeResponse(orjson.dumps({"limits": found}))

    return {"/action/report": report, "/action/headroom": headroom}


DOCUMENTATION = {
    "/action/check": Documentation(
        "Ask what would be decided now",
        description="A check reserves nothing and issues no permit, so its answer does not permit an execution.",
        request=_check, responses={200: ("The answer.", CheckAnswerSchema)}, problems=PROBLEMS, security=SECURITY,
    ),
    "/action/headroom": Documentation(
        "Ask how much is left of the limits that apply",
        description="For each limit that would count the action: its cap, what is left of it now, and whether the amount fits."
        " Nothing is reserved. The list is empty if the policy denies the action whatever is left.",
        request=_check, responses={200: ("The limits.", HeadroomSchema)}, problems=PROBLEMS, security=SECURITY,
    ),
    "/action/report": Documentation(
        "Report the outcome of a checked action", request=_report,
        responses={200: ("The report's receipt.", ReportReceiptSchema)}, problems=(*PROBLEMS, 409),
        security=SECURITY,
    ),
}  # fmt: skip
DOCUMENTATION["/action/check/batch"] = batch_documentation(DOCUMENTATION["/action/check"], problems=PROBLEMS)
