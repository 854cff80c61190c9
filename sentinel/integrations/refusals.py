"""Refusals for the model, in place of a tool's result: as one sentence, and as data."""

from __future__ import annotations

from typing import Any

from sentinel.client.errors import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    ClientError,
    KeyConflict,
    Rejected,
    StartedTooLate,
    Unreachable,
)
from sentinel.tools import ToolRefused


def refusal_details(error: ClientError) -> dict[str, Any]:
    """Return `decision` (DENY or APPROVAL_REQUIRED), `reason_code`, `reason`, `retry` (never, later or after_approval),
    `approval_id`.

    `retry` is about the same call: "never" means that it will not be done under this key, "later" that it may be once
    the obstacle has passed. `approval_id` is there only with APPROVAL_REQUIRED.
    """
    if isinstance(error, ApprovalPending) and not error.is_of_tool:
        return {
            "decision": "APPROVAL_REQUIRED", "reason_code": "approval_pending", "retry": "after_approval",
            "reason": error.reason or "A person must decide first.", "approval_id": error.approval_id,
        }  # fmt: skip
    code, reason = _denied(error)
    retry = "never" if error.is_final or error.is_of_tool else "later"
    return {"decision": "DENY", "reason_code": code, "reason": reason, "retry": retry}


def is_outage(error: ClientError) -> bool:
    """Whether the call's state is unknown: the authority gave no answer or refused the program's key (401), or facts could
    not be read. A call that waits for a person then keeps waiting.

    A halt is no outage: it is an answer, and the model is told.
    """
    return isinstance(error, (Unreachable, Rejected, ToolRefused)) and not error.is_final


def refusal_message(error: ClientError) -> str:
    """Return one to three sentences for the model. The tool was not called, was not called again, or failed by itself."""
    details = refusal_details(error)
    advice = {
        "after_approval": "Do not call it with other arguments; the same call can be executed once a person has approved it.",
        "later": "Nothing was done. The same call may be made again later.",
        "never": "Do not call it again for the same purpose.",
    }[details["retry"]]
    approval = f" (approval {details['approval_id']})" if "approval_id" in details else ""
    said = "Failed" if error.is_of_tool else "Not executed"
    return f"{said}: {details['reason']} [{details['reason_code']}]{approval}. {advice}"


def _started_before(error: AlreadyStarted) -> str:
    if error.outcome == "success":
        return "this call was executed before"
    if error.resolution == "not_executed":
        return "this call was started before, and a person has found that it was not executed"
    return "this call was started before and may have been executed"


def _denied(error: ClientError) -> tuple[str, str]:
    """Return (reason code, sentence)."""
    if error.is_of_tool:
        return "tool_failed", "the tool ran and failed, and may have taken effect"
    if isinstance(error, ActionDenied):
        return error.reason_code, error.reason.rstrip(".")
    if isinstance(error, AlreadyStarted):
        return "already_started", _started_before(error)
    if isinstance(error, ActionExpired):
        return "expired", "nobody decided in time" if error.is_final else "the permit expired before it was used"
    if isinstance(error, StartedTooLate):
        return "started_too_late", "the start was confirmed too late to make the call"
    if isinstance(error, KeyConflict):
        return "idempotency_key_reused", "the same idempotency key was used before with other arguments or facts"
    if isinstance(error, Rejected):
        return error.code, "the authority refused the request"
    return "authority_unreachable", "the authority gave no answer"
