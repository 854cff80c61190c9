"""The stateless question and its partner report."""

from __future__ import annotations

import time

import orjson
from flask import Blueprint, Response

from sentinel.api.context import Context
from sentinel.api.guard import PROBLEMS, SECURITY, json_response, params_of, receipt_body
from sentinel.api.identity import same_agent, same_tenant
from sentinel.api.schemas import (
    CheckAnswerSchema,
    CheckReportRequestSchema,
    CheckRequestSchema,
    ReportReceiptSchema,
)
from sentinel.core.decision import reason_text
from sentinel.core.operation import build_operation, plain_json
from sentinel.http.bodies import json_body, load, without_nulls
from sentinel.http.openapi import documented
from sentinel.services.check_action import check_action
from sentinel.services.report_check import report_check

_check, _report = CheckRequestSchema(), CheckReportRequestSchema()


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add check and its report to a blueprint."""

    @blueprint.post("/action/check")
    @documented(
        "Ask what would be decided now",
        description="Reserves nothing, issues no permit; the answer cannot be executed on.",
        request=_check, responses={200: ("The answer.", CheckAnswerSchema())}, problems=PROBLEMS, security=SECURITY,
    )  # fmt: skip
    def check() -> Response:
        began = time.perf_counter()
        caller = context.identity.caller("check")
        fields = load(_check, without_nulls(json_body()))
        same_tenant(caller, fields.get("tenant_id"), "tenant_id")
        same_agent(caller, fields["agent_id"])
        operation = build_operation(
            idempotency_key="check", agent_id=fields["agent_id"], action=fields["action"], params=params_of(fields),
            resource=fields.get("resource"), risk_class=fields.get("risk_class"),
        )  # fmt: skip
        found = check_action(context.authority, caller, operation)
        return json_response(
            orjson.dumps(
                {"decision": found.decision, "reason": reason_text(found.reason_code),
                 "reason_code": found.reason_code, "policy_id": found.policy_id,
                 "latency_ms": int((time.perf_counter() - began) * 1000)}
            )
        )  # fmt: skip

    @blueprint.post("/action/report")
    @documented(
        "Report what came of a checked action", request=_report,
        responses={200: ("The report's receipt.", ReportReceiptSchema())}, problems=(*PROBLEMS, 409),
        security=SECURITY,
    )  # fmt: skip
    def report_checked() -> Response:
        caller = context.identity.caller("report")
        fields = load(_report, without_nulls(json_body()))
        same_tenant(caller, fields.pop("tenant_id", None), "tenant_id")
        same_agent(caller, fields["agent_id"])
        fields.pop("evidence_context", None)
        fields["result"] = plain_json(fields.get("result"), "result")
        receipt = report_check(context.authority, caller, content=fields)
        return json_response(receipt_body(receipt.event_id, receipt.hash, duplicate=receipt.result == "duplicate"))
