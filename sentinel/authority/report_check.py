"""Record what came of an action that was only checked: kept once per request id."""

from __future__ import annotations

from typing import Any

from sentinel.authority.decisions import Receipt, record_check_report
from sentinel.authority.engine import Authority, Caller
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.errors import ReportContradicts
from sentinel.store.ids import new_id


def report_check(authority: Authority, caller: Caller, *, content: dict[str, Any]) -> Receipt:
    """The receipt of `content` (request_id, agent_id, action, status, …). Raises `ReportContradicts`."""
    receipt = record_check_report(
        authority.pool, tenant_id=caller.tenant_id, request_id=content["request_id"],
        digest=sha256_hex(canonical_json(content)), event_id=new_id(), agent_id=content["agent_id"],
        action=content["action"], status=content["status"],
    )  # fmt: skip
    if receipt.result == "contradicts":
        raise ReportContradicts("another report was received under this request_id")
    return receipt
