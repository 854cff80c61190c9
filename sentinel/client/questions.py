"""Request types: the keyword arguments of the client's calls, the same for single and batch calls, and their bodies."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired  # noqa: UP035 - typing of Python 3.10 has none


class GuardQuestion(TypedDict):
    """One exact action under its key. `params` is bound with it, `evidence_context` is not and can only tighten."""

    action: str
    params: Mapping[str, Any]
    idempotency_key: str
    resource: NotRequired[str | None]
    risk_class: NotRequired[str | None]
    evidence_context: NotRequired[Mapping[str, Any] | None]
    agent_id: NotRequired[str | None]
    start_id: NotRequired[str | uuid.UUID | None]
    """For who acts at once: a permission is started under this id in the same call. Stable over retries."""
    act_within_seconds: NotRequired[int | None]
    """Seconds to act, counted from before the call; "not executed" cannot be recorded before they are over."""


class CheckQuestion(TypedDict):
    """The same without a key: nothing is recorded."""

    action: str
    params: Mapping[str, Any]
    evidence_context: NotRequired[Mapping[str, Any] | None]
    agent_id: NotRequired[str | None]


class Outcome(TypedDict):
    """What came of a started action; "error" means unknown, not "not executed"."""

    idempotency_key: str
    action: str
    outcome: Literal["success", "error"]
    error: NotRequired[str | None]
    result: NotRequired[Mapping[str, Any] | None]
    resource: NotRequired[str | None]
    risk_class: NotRequired[str | None]
    permit_token: NotRequired[str | None]
    report_id: NotRequired[str | uuid.UUID | None]
    agent_id: NotRequired[str | None]


def guard_body(question: GuardQuestion, agent_id: str) -> dict[str, Any]:
    """The request of a guard.

    `resource`, `risk_class` and `evidence_context` tell the authority that this caller starts in a step of its own; without
    them, handing out the permit would already count as the start.
    """
    start_id = question.get("start_id")
    return {
        "agent_id": agent_id,
        "action": question["action"],
        "idempotency_key": question["idempotency_key"],
        "params": question["params"],
        "resource": question.get("resource") or question["action"],
        "risk_class": question.get("risk_class") or "standard",
        "evidence_context": question.get("evidence_context") or {},
        **({"start_id": str(start_id)} if start_id else {}),
        **({"act_within_seconds": seconds} if (seconds := question.get("act_within_seconds")) else {}),
    }


def question_body(fields: Mapping[str, Any], agent_id: str) -> dict[str, Any]:
    """The body of a check or report: the given fields without absent ones."""
    body = {**fields, "agent_id": agent_id}
    return {
        name: str(value) if isinstance(value, uuid.UUID) else value for name, value in body.items() if value is not None
    }
