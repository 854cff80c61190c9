"""Record what came of a started action. Success captures its budget; an error leaves it in doubt."""

from __future__ import annotations

import uuid
from typing import Any

from sentinel.authority.decisions import Receipt
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.start_action import asker, not_what_was_guarded
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.errors import Conflict, PermitRefused, ReportContradicts
from sentinel.store.ids import new_id


def report_outcome(
    authority: Authority,
    caller: Caller,
    *,
    idempotency_key: str,
    action: str,
    agent_id: str,
    outcome: str,
    error: str | None,
    result: Any,
    resource: str | None,
    risk_class: str | None,
    permit_token: str | None,
    report_id: uuid.UUID | None,
) -> Receipt:
    """The report's receipt; an exact repeat gets the original one with result "duplicate".

    A success after a person said "not executed" is received as "contradiction" (again: "contradiction_repeated"): the operation is
    in doubt again, holds its budget, and this action of this agent is halted.
    Raises `ReportContradicts` when an earlier report said something else, `PermitRefused` when a bound field differs
    and `Conflict` when the action was never started.
    """
    row = report_row(
        authority, caller, idempotency_key=idempotency_key, action=action, agent_id=agent_id, outcome=outcome,
        error=error, result=result, resource=resource, risk_class=risk_class, permit_token=permit_token,
        report_id=report_id,
    )  # fmt: skip
    return judged(authority.reports.record(row))


def report_row(
    authority: Authority, caller: Caller, *, outcome: str, error: str | None, result: Any, permit_token: str | None,
    **bound: Any,
) -> dict[str, Any]:  # fmt: skip
    """One row of `sentinel.report_input`; what was said is kept as a digest. Raises `PermitRefused` for a foreign slip."""
    slip = authority.permits.read(caller.tenant_id, permit_token) if permit_token is not None else None
    if permit_token is not None and slip is None:
        raise PermitRefused("permit_token is not a permit of this authority")
    content = {"outcome": outcome, "error": error, "result": result}
    return {
        **bound, "tenant_id": caller.tenant_id, **asker(caller), "permit_id": slip.permit_id if slip else None, "outcome": outcome,
        "content_digest": sha256_hex(canonical_json(content)), "event_id": new_id(),
    }  # fmt: skip


def judged(receipt: Receipt) -> Receipt:
    """The receipt of a report that counts; the refusals of `report_outcome` otherwise."""
    match receipt.result:
        case "received" | "duplicate" | "contradiction" | "contradiction_repeated":
            return receipt
        case "contradicts":
            raise ReportContradicts("another outcome was reported before; an operator resolves this")
        case "differs":
            raise PermitRefused(not_what_was_guarded(receipt.field))
        case "unknown":
            raise PermitRefused("nothing was guarded under this idempotency key")
        case _:
            raise Conflict(f"the operation is {receipt.field}: it was never started")
