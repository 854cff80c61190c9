"""Parses the authority's responses into values. A body that is not exactly of the contract's shape is rejected.

Sources: `docs/CONTRACT.md` §2 and §3. Parsing raises `Unreachable(MALFORMED)`: half an answer is
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.client.fields import (
    flag,
    malformed,
    mapping,
    moment,
    optional_moment,
    optional_text,
    text,
    uuid_text,
)

_APPROVAL_STATUSES = ("pending", "approved", "rejected", "expired")
_HEARTBEATS = ("OK", "PAUSE", "KILL")


@dataclass(frozen=True, slots=True)
class ReportReceipt:
    """The outcome is recorded; `duplicate` when this very report was received before.

    `contradiction`: a person had said that it was not executed. People must find out; there is nothing to repeat.
    """

    receipt_event_id: str
    receipt_hash: str
    duplicate: bool
    contradiction: bool = False


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """What would be decided now. Nothing may be executed on it."""

    decision: str
    reason_code: str
    reason: str
    policy_id: str | None


@dataclass(frozen=True, slots=True)
class Headroom:
    """One limit of a policy: its cap, and what is left of it now. Amounts as on the wire, `{"value", "currency"}`."""

    limit: str
    reason_code: str
    fits: bool
    cap: Mapping[str, Any]
    left: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """One approval as its requester sees it."""

    status: str
    agent_id: str
    action: str
    approver: str | None
    reason: str | None
    decided_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """One line of the list of decided approvals; `request_id` is the approval's id."""

    request_id: str
    status: str
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whose key the client has: its tenant by id and public name, and the agent it is bound to, if it is."""

    tenant_id: str
    tenant: str
    agent_id: str | None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One request's answer within a batch: as if it had been asked alone."""

    status: int
    replayed: bool
    body: Mapping[str, Any]


def batch(body: Mapping[str, Any], wanted: int) -> list[BatchItem]:
    """The answers to `wanted` requests; another number, or a member of another shape, is no answer to any."""
    found = body.get("answers")
    if not isinstance(found, list) or len(found) != wanted:
        malformed("the batch is not answered one by one")
    answers = []
    for one in found:
        if not isinstance(one, dict) or type(one.get("status")) is not int or not isinstance(one.get("body"), dict):
            malformed("an answer in the batch is malformed")
        answers.append(BatchItem(one["status"], one.get("replayed") is True, one["body"]))
    return answers


def report_receipt(body: Mapping[str, Any]) -> ReportReceipt:
    """A 200 body of `guard/report`: it must say `received: true`."""
    if body.get("received") is not True:
        malformed("received is not true")
    return ReportReceipt(
        uuid_text(body, "receipt_event_id"), text(body, "receipt_hash"), flag(body, "duplicate"),
        "contradiction" in body and flag(body, "contradiction"),
    )  # fmt: skip


def check_answer(body: Mapping[str, Any]) -> CheckAnswer:
    """A 200 body of `action/check`."""
    decision = text(body, "decision")
    if decision not in ("ALLOW", "APPROVAL_REQUIRED", "DENY"):
        malformed(f"decision {decision[:20]!r}")
    return CheckAnswer(
        decision, text(body, "reason_code"), optional_text(body, "reason") or "", optional_text(body, "policy_id")
    )


def approval_view(body: Mapping[str, Any]) -> ApprovalView:
    """A 200 body of `approval/{id}`."""
    status = text(body, "status")
    if status not in _APPROVAL_STATUSES:
        malformed(f"approval status {status[:20]!r}")
    return ApprovalView(
        status,
        text(body, "agent_id"),
        text(body, "action"),
        optional_text(body, "approver"),
        optional_text(body, "reason"),
        optional_moment(body, "decided_at"),
        optional_moment(body, "expires_at"),
    )


def approval_decisions(body: Mapping[str, Any]) -> list[ApprovalDecision]:
    """A 200 body of `approvals/since`, oldest first."""
    found = body.get("decisions")
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        malformed("decisions is not a list of objects")
    return [
        ApprovalDecision(uuid_text(item, "request_id"), text(item, "status"), moment(item, "decided_at"))
        for item in found
    ]


def key_holder(body: Mapping[str, Any]) -> KeyHolder:
    """A 200 body of `key`."""
    return KeyHolder(uuid_text(body, "tenant_id"), text(body, "tenant"), optional_text(body, "agent_id"))


def headrooms(body: Mapping[str, Any]) -> list[Headroom]:
    """A 200 body of `action/headroom`."""
    found = body.get("limits")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        malformed("limits is not a list of objects")
    return [
        Headroom(text(one, "limit"), text(one, "reason_code"), flag(one, "fits"), mapping(one, "cap"), mapping(one, "left"))
        for one in found
    ]  # fmt: skip


def heartbeat_status(body: Mapping[str, Any]) -> str:
    """A 200 body of `heartbeat` → OK, PAUSE or KILL."""
    status = text(body, "status")
    if status not in _HEARTBEATS:
        malformed(f"heartbeat {status[:20]!r}")
    return status
