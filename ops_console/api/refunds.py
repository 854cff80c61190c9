"""The refund agent and its ledger as operators see them, customers left out."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from flask import Blueprint, Response, request

from ops_console.api.case_schemas import LedgerPageSchema
from ops_console.api.control_schemas import AgentStatusSchema, ProcessedSchema
from ops_console.api.rendering import (
    LIMIT,
    OPERATOR,
    READING,
    amount,
    choice,
    cursor_in,
    cursor_out,
    in_query,
    json_response,
    limit,
    next_page,
    present,
)
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.process_one import most_waiting, process_one
from ops_console.read_models import refund_views
from ops_console.read_models.ledger_search import LedgerFilter, search_ledger
from sentinel.authority import feed
from sentinel.authority.halts import heartbeat_status
from sentinel.core.operation import check_identifier
from sentinel.core.proof import REDACTION
from sentinel.platform.http.openapi import documented

DEFAULT_AGENT = "retail-refund-agent"
_LOOKED_THROUGH = 20_000
"""How many positions of the feed are searched for an agent's last decision if no worker has reported it."""
_FACT = re.compile(r"[a-z0-9_]{1,40}")
"""The form of a risk fact's name; its value is a flag or a count. Any other value that was handed in may quote a customer."""


def entry_view(row: refund_views.LedgerEntryRow) -> dict[str, Any]:
    """A ledger row as operators see it: no customer's account, order or words."""
    return present({
        "ledger_entry_id": row.ledger_entry_id, "refund_id": row.refund_id, "agent_id": row.agent_id, "action": row.action,
        "status": row.status, "amount": amount(row.amount_minor, row.currency),
        "idempotency_key": f"refund:{row.ledger_entry_id}", "channel": row.channel, "scenario": row.scenario,
        "requested_at": row.requested_at, "risk": {name: value for name, value in row.risk.items() if isinstance(value, int) and _FACT.fullmatch(name)},
        "decision": row.decision, "reason_code": row.reason_code, "proof_id": row.proof_id,
        "operation_id": row.operation_id, "approval_id": row.approval_id, "waiting_for": row.waiting_for,
        "attempts": row.attempts, "last_error": row.last_error, "redaction_status": row.redaction_status,
        "created_at": row.created_at, "updated_at": row.updated_at,
    })  # fmt: skip


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the refund routes."""

    @blueprint.get("/refunds/agent/status")
    @documented("The refund agent: whether it runs, and its backlog", responses={200: ("Its state.", AgentStatusSchema)},
                problems=READING, security=OPERATOR, parameters=(in_query("agent_id", maxLength=128, default=DEFAULT_AGENT),))  # fmt: skip
    def agent_status() -> Response:
        agent_id = check_identifier(request.args.get("agent_id", DEFAULT_AGENT), "agent_id", 128)
        return json_response(_agent_status(context, actor().tenant_id, agent_id))

    @blueprint.get("/refunds/ledger")
    @documented(
        "Ledger rows, newest first", responses={200: ("A page.", LedgerPageSchema)}, problems=READING, security=OPERATOR,
        parameters=(in_query("status", enum=list(refund_views.STATUSES)), in_query("cursor"), in_query("limit", **LIMIT, maximum=200, default=50)),
    )  # fmt: skip
    def ledger() -> Response:
        most, status = limit(50, 200), choice("status", refund_views.STATUSES)
        wanted = LedgerFilter(status=status)
        rows = search_ledger(context.ledger, actor().tenant_id, wanted, before=cursor_in(), limit=most)
        following = next_page(rows, most, lambda row: cursor_out(row.created_at, row.ledger_entry_id))
        return json_response({"entries": [entry_view(row) for row in rows], **following})

    @blueprint.post("/refunds/process-once")
    @documented("Have the worker process one row now", responses={200: ("What happened.", ProcessedSchema)},
                problems=READING, security=OPERATOR)  # fmt: skip
    def process_once() -> Response:
        return json_response(process_one(context.ledger, actor(), most=most_waiting(context.settings.threads)))


def _agent_status(context: ConsoleContext, tenant_id: uuid.UUID, agent_id: str) -> dict[str, Any]:
    worker = refund_views.last_worker(context.ledger, tenant_id, agent_id)
    by_status = refund_views.counts(context.ledger, tenant_id, agent_id)
    reports = refund_views.outbox_lag(context.ledger, tenant_id)
    action, decision = (worker.last_action, worker.last_decision) if worker is not None else (None, None)
    if decision is None:
        latest = feed.latest_decision_of(context.pool, tenant_id, agent_id, among=_LOOKED_THROUGH)
        pack = json.loads(latest.body) if latest is not None else {}
        action, decision = pack.get("action"), pack.get("decision")
    return {
        "agent_id": agent_id,
        "status": _worker_status(worker),
        "halt": heartbeat_status(context.pool, tenant_id, agent_id),
        "last_action": action,
        "last_decision": decision,
        "redaction_status": REDACTION,
        "counts": {name: by_status[name].entries for name in refund_views.STATUSES},
        "at_least": [name for name in refund_views.STATUSES if not by_status[name].is_all],
        "lag": {
            "oldest_new_seconds": round(by_status["NEW"].oldest_seconds, 1),
            "open_reports": reports.open_reports,
            "oldest_report_seconds": round(reports.oldest_seconds, 1),
        },
    }


def _worker_status(worker: refund_views.WorkerRow | None) -> str:
    """The worker's status, or "not_running" if there is none, it stopped, or it has been silent for too long."""
    if worker is None or worker.status == "stopped" or worker.silent:
        return "not_running"
    return worker.status
