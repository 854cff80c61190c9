"""Redeem a permit just before the side effect: once, in time, for exactly the guarded operation."""

from __future__ import annotations

import uuid
from typing import Any

from sentinel.authority.decisions import Receipt
from sentinel.authority.engine import Authority, Caller
from sentinel.core.errors import (
    AlreadyStarted,
    Conflict,
    InvalidInput,
    PermitExpired,
    PermitRefused,
    ResolvedNotExecuted,
)
from sentinel.store.ids import new_id


def start_action(
    authority: Authority,
    caller: Caller,
    *,
    idempotency_key: str,
    action: str,
    agent_id: str,
    resource: str,
    risk_class: str,
    permit_token: str,
    start_id: uuid.UUID,
    act_seconds: int | None = None,
) -> Receipt:
    """The start's receipt; the same `start_id` again gets the same one with result "duplicate".

    Either gives leave to act for `act_seconds`, else for the time that silence is waited for. Raises `PermitRefused` (foreign or
    altered slip, differing field, halt), `PermitExpired`, `AlreadyStarted` (redeemed under another start id),
    `ResolvedNotExecuted` or `Conflict` (nothing to redeem: denied, pending, expired).
    """
    row = start_row(
        authority, caller, idempotency_key=idempotency_key, action=action, agent_id=agent_id, resource=resource,
        risk_class=risk_class, permit_token=permit_token, start_id=start_id, act_seconds=act_seconds,
    )  # fmt: skip
    return judged(authority.starts.record(row))


def start_row(
    authority: Authority, caller: Caller, *, permit_token: str, act_seconds: int | None = None, **bound: Any
) -> dict[str, Any]:
    """One row of `sentinel.start_input`. Raises `PermitRefused` for a slip that is not ours, `InvalidInput` for too long a time."""
    slip = authority.permits.read(caller.tenant_id, permit_token)
    if slip is None:
        raise PermitRefused("permit_token is not a permit of this authority")
    return {
        **bound, "tenant_id": caller.tenant_id, **asker(caller), "permit_id": slip.permit_id, "digest": slip.digest, "event_id": new_id(),
        "act_seconds": leave_seconds(authority, act_seconds),
    }  # fmt: skip


def asker(caller: Caller) -> dict[str, Any]:
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


def judged(receipt: Receipt) -> Receipt:
    """The receipt of a start that stands; the refusals of `start_action` otherwise."""
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
