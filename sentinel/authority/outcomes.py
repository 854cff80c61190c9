"""Start a permitted action once, and record what came of it; of a mere check too."""

from __future__ import annotations

from typing import Any

from sentinel.authority.decisions import Receipt, record_check_report
from sentinel.authority.engine import Authority, Caller
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.errors import (
    AlreadyStarted,
    Conflict,
    InvalidInput,
    PermitExpired,
    PermitRefused,
    ReportContradicts,
    ResolvedNotExecuted,
)
from sentinel.store.ids import new_id


def start_row(
    authority: Authority, caller: Caller, *, permit_token: str, act_seconds: int | None = None, **bound: Any
) -> dict[str, Any]:
    """One row of `sentinel.start_input`; `bound` is {idempotency_key, action, agent_id, resource, risk_class, start_id}.

    Raises `PermitRefused` for a slip that is not ours, `InvalidInput` for too long a time.
    """
    slip = authority.permits.read(caller.tenant_id, permit_token)
    if slip is None:
        raise PermitRefused("permit_token is not a permit of this authority")
    return {
        **bound, "tenant_id": caller.tenant_id, **requester(caller), "permit_id": slip.permit_id, "digest": slip.digest, "event_id": new_id(),
        "act_seconds": leave_seconds(authority, act_seconds),
    }  # fmt: skip


def requester(caller: Caller) -> dict[str, Any]:
    """The fields of a row that say whose key it is."""
    bound = {} if caller.agent_id is None else {"bound_agent": caller.agent_id}
    return {"principal_id": caller.principal_id, **bound}


def not_what_was_guarded(field: str | None) -> str:
    """The sentence of a refusal because `field` differs from what was guarded."""
    if field == "key":
        return "another key asked for this; only that key, or one bound to its agent, may act on it"
    return f"{field} is not what was guarded"


def leave_seconds(authority: Authority, declared: int | None) -> int:
    """For how long an answered start gives leave to act: as declared, else until silence counts as doubt."""
    if declared is None:
        return authority.report_deadline_seconds
    if declared > authority.longest_act_seconds:
        raise InvalidInput.of("act_within_seconds", f"must be at most {authority.longest_act_seconds} here")
    return declared


def raise_if_start_refused(receipt: Receipt) -> Receipt:
    """The receipt of a start that stands; for a `start_id` that was seen before the same one, with result "duplicate".

    Raises `PermitRefused` (differing field, halt, nothing guarded), `PermitExpired`, `AlreadyStarted` (redeemed under another
    start id), `ResolvedNotExecuted` or `Conflict` (nothing to redeem: denied, pending, expired).
    """
    match receipt.result:
        case "started" | "duplicate":
            return receipt
        case "resolved_not_executed":
            raise ResolvedNotExecuted
        case "already_started":
            raise AlreadyStarted("this permit was redeemed under another start_id")
        case "expired":
            raise PermitExpired("the permit's time is over; guard again with the same key")
        case "halted":
            raise PermitRefused("a halt covers this action; nothing may start")
        case "differs":
            raise PermitRefused(not_what_was_guarded(receipt.field))
        case "unknown":
            raise PermitRefused("nothing was guarded under this idempotency key")
        case _:
            raise Conflict(f"the operation is {receipt.field}: there is no permit to redeem")


def report_row(
    authority: Authority, caller: Caller, *, outcome: str, error: str | None, result: Any, permit_token: str | None,
    **bound: Any,
) -> dict[str, Any]:  # fmt: skip
    """One row of `sentinel.report_input`; what was said is kept as a digest. Raises `PermitRefused` for a foreign slip.

    `bound` is {idempotency_key, action, agent_id, resource, risk_class, report_id}, the last three maybe None.
    """
    slip = authority.permits.read(caller.tenant_id, permit_token) if permit_token is not None else None
    if permit_token is not None and slip is None:
        raise PermitRefused("permit_token is not a permit of this authority")
    content = {"outcome": outcome, "error": error, "result": result}
    return {
        **bound, "tenant_id": caller.tenant_id, **requester(caller), "permit_id": slip.permit_id if slip else None, "outcome": outcome,
        "content_digest": sha256_hex(canonical_json(content)), "event_id": new_id(),
    }  # fmt: skip


def raise_if_report_refused(receipt: Receipt) -> Receipt:
    """The receipt of a report that counts; of an exact repeat the original one, with result "duplicate".

    A success after a person said "not executed" is received as "contradiction" (again: "contradiction_repeated"): the operation is
    in doubt again, holds its budget, and this action of this agent is halted.
    Raises `ReportContradicts` when an earlier report said something else, `PermitRefused` when a bound field differs
    and `Conflict` when the action was never started.
    """
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
