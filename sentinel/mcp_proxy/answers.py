"""What a client gets instead of a tool's result: an `isError` result with a sentence for the model and the same as data.

Always `isError`, also while an approval is pending: the tool was not called, and a client validates every other result
against the tool's output schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import mcp_types as types

from sentinel.client import ActionDenied, ApprovalPending, ClientError, GuardAnswer, Headroom
from sentinel.integrations import refusal_details, refusal_message

IN_DOUBT = "in_doubt"


class CallRefused(Exception):
    """The tool was not called. `answer` is the authority's, where there is one; `tight` are the limits that the call does not fit."""

    def __init__(self, error: ClientError, answer: GuardAnswer | None = None, tight: Sequence[Headroom] = ()) -> None:
        super().__init__(error.detail)
        self.error, self.answer, self.tight = error, answer, tight

    @property
    def waits_for_person(self) -> bool:
        """Whether an approval is pending."""
        return isinstance(self.error, ApprovalPending)


def upstream_unavailable(reason: str) -> ClientError:
    """Return the refusal of a call whose server is unreachable: nothing was started or sent."""
    why = f"the server behind the proxy cannot be reached ({reason})"
    return ActionDenied("upstream_unavailable", why, is_final=False)


def given_up() -> ClientError:
    """Return the refusal of a call that its client cancelled before it was started."""
    return ActionDenied("cancelled", "the client cancelled the call before it was started", is_final=False)


def refused_result(refused: CallRefused) -> types.CallToolResult:
    """Return a refusal as a tool's result."""
    details = {**refusal_details(refused.error), **_known(refused.answer)}
    text = refusal_message(refused.error)
    if refused.tight:
        details["limits"] = [
            {"limit": one.limit, "reason_code": one.reason_code, "left": one.left, "cap": one.cap} for one in refused.tight
        ]  # fmt: skip
        text += " " + " ".join(
            f"Left under the limit {one.limit}: {one.left['value']} {one.left['currency']}." for one in refused.tight
        )
    if refused.waits_for_person and refused.answer is not None:
        details["approval_reason_code"] = refused.answer.reason_code
        details["continuation"] = "call the same tool with the same arguments"
    return _error_result(text, details)


def in_doubt_result(answer: GuardAnswer, failure: str, *, is_sent: bool, is_reported: bool) -> types.CallToolResult:
    """Return the result of a started call whose outcome the authority does not know.

    `is_sent`: the server may have executed it. `is_reported`: an error was reported; otherwise nothing was, because the
    server may still act.
    """
    what = _sent(failure) if is_sent else f"The call was started at the authority and not sent ({failure})"
    text = f"{what} [{IN_DOUBT}]. Do not call it again for the same purpose; a person finds out what happened."
    details = {
        "decision": answer.decision,
        "reason_code": IN_DOUBT,
        "retry": "never",
        **_known(answer),
        **({"outcome": "error"} if is_reported else {}),
    }
    return _error_result(text, details)


def lost_result(failure: str) -> types.CallToolResult:
    """Return the result of an unguarded call that was sent and got no answer: the server may have executed it.

    The authority has no operation for it.
    """
    text = f"{_sent(failure)} [{IN_DOUBT}]. Do not call it again before you have found out whether it was executed."
    return _error_result(text, {"decision": "ALLOW", "reason_code": IN_DOUBT, "retry": "never"})


def _sent(failure: str) -> str:
    return f"The call was sent and its result is not known ({failure}): it may have been executed"


def _known(answer: GuardAnswer | None) -> dict[str, Any]:
    """Return the fields by which a person finds the operation, without those that are None."""
    if answer is None:
        return {}
    found: dict[str, Any] = {
        "operation_id": answer.operation_id, "proof_id": answer.proof_id, "policy_version": answer.policy_version,
        "approval_id": answer.approval_id, "outcome": answer.outcome, "resolution": answer.resolution,
        "expires_at": answer.expires_at.isoformat() if answer.expires_at else None,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _error_result(text: str, details: dict[str, Any]) -> types.CallToolResult:
    # The data is repeated as text: clients of before 2025-06-18 do not know structured content.
    content: list[types.ContentBlock] = [
        types.TextContent(type="text", text=one) for one in (text, json.dumps(details, sort_keys=True))
    ]
    return types.CallToolResult(content=content, structured_content=details, is_error=True)
