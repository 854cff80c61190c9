"""The stateless question and its partner report."""

from __future__ import annotations

import time

import orjson

from sentinel.api.context import Context
from sentinel.api.guard import PROBLEMS, SECURITY, params_of, report_receipt
from sentinel.api.identity import same_agent, same_tenant
from sentinel.api.schemas import (
    CheckAnswerSchema,
    CheckReportRequestSchema,
    CheckRequestSchema,
    ReportReceiptSchema,
)
from sentinel.core.decision import reason_text
from sentinel.core.operation import build_operation, plain_json
from sentinel.http.bodies import load, without_nulls
from sentinel.http.openapi import Documentation
from sentinel.http.wire import Answer, Handler, Request
from sentinel.services.check_action import check_action
from sentinel.services.report_check import report_check

_check, _report = CheckRequestSchema(), CheckReportRequestSchema()


def handlers(context: Context) -> dict[str, Handler]:
    """Check and its report by path under a prefix."""

    def check(request: Request) -> Answer:
        began = time.perf_counter()
        caller = context.identity.caller("check", request.environ)
        fields = load(_check, without_nulls(request.json()))
        same_tenant(caller, fields.get("tenant_id"), "tenant_id")
        same_agent(caller, fields["agent_id"])
        operation = build_operation(
            idempotency_key="check", agent_id=fields["agent_id"], action=fields["action"], params=params_of(fields),
            resource=fields.get("resource"), risk_class=fields.get("risk_class"),
        )  # fmt: skip
        found = check_action(context.authority, caller, operation)
        return Answer(orjson.dumps({
            "decision": found.decision, "reason": reason_text(found.reason_code), "reason_code": found.reason_code,
            "policy_id": found.policy_id, "latency_ms": int((time.perf_counter() - began) * 1000),
        }))  # fmt: skip

    def report(request: Request) -> Answer:
        caller = context.identity.caller("report", request.environ)
        fields = load(_report, without_nulls(request.json()))
        same_tenant(caller, fields.pop("tenant_id", None), "tenant_id")
        same_agent(caller, fields["agent_id"])
        fields.pop("evidence_context", None)
        fields["result"] = plain_json(fields.get("result"), "result")
        return report_receipt(report_check(context.authority, caller, content=fields))

    return {"/action/check": check, "/action/report": report}


DOCUMENTATION = {
    "/action/check": Documentation(
        "Ask what would be decided now",
        description="Reserves nothing, issues no permit; the answer cannot be executed on.",
        request=_check, responses={200: ("The answer.", CheckAnswerSchema())}, problems=PROBLEMS, security=SECURITY,
    ),
    "/action/report": Documentation(
        "Report what came of a checked action", request=_report,
        responses={200: ("The report's receipt.", ReportReceiptSchema())}, problems=(*PROBLEMS, 409),
        security=SECURITY,
    ),
}  # fmt: skip
