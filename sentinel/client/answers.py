"""Parses the authority's responses into values. A body that is not exactly of the contract's shape is rejected.

Sources: `docs/CONTRACT.md` §2 and §3. Parsing raises `Unreachable(MALFORMED)`: half an answer is
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.client.fields import (
    flag,
    malformed,
    moment,
    optional_mapping,
    optional_moment,
    optional_text,
    text,
    uuid_text,
)

# The decisions that each status may come with; complete.
_DECISIONS_OF_STATUS = {
    "allowed": ("ALLOW",),
    "pending": ("APPROVAL_REQUIRED",),
    "approved": ("APPROVAL_REQUIRED",),
    "expired": ("APPROVAL_REQUIRED", "DENY"),
    "denied": ("DENY",),
    "already_started": ("ALLOW", "APPROVAL_REQUIRED", "DENY"),
    "completed": ("ALLOW", "APPROVAL_REQUIRED", "DENY"),
}
_WITH_PERMIT = ("allowed", "approved")
_APPROVAL_STATUSES = ("pending", "approved", "rejected", "expired")
_HEARTBEATS = ("OK", "PAUSE", "KILL")


@dataclass(frozen=True, slots=True)
class StartReceipt:
    """The start is recorded; `duplicate` when this start id was recorded before."""

    start_event_id: str
    start_hash: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """One answer to `guard`. `action`, `agent_id` and `idempotency_key` are the question's own.

    `permit_token` is there exactly when `may_start`. `start` is there when the question named a start id and the action is
    started under it, just now or (`duplicate`) before. Times are timezone-aware; ids are UUID text.
    """

    action: str
    agent_id: str
    idempotency_key: str
    decision: str
    status: str
    reason_code: str
    reason: str
    operation_id: str
    decision_event_id: str
    resource: str
    risk_class: str
    policy_version: str | None = None
    permit_token: str | None = field(default=None, repr=False)
    """A bearer token: keep it out of logs."""
    permit_expires_at: datetime | None = None
    approval_id: str | None = None
    approver: str | None = None
    expires_at: datetime | None = None
    outcome: str | None = None
    proof_pack: Mapping[str, Any] | None = None
    replayed: bool = False
    start: StartReceipt | None = None
    resolution: str | None = None
    """ "not_executed": a person said so, and nothing starts under this key any more."""

    @property
    def may_start(self) -> bool:
        """True for a permission: allowed or approved, with its permit."""
        return self.status in _WITH_PERMIT and self.permit_token is not None

    @property
    def proof_id(self) -> str | None:
        """The proof pack's public name, if a pack came along."""
        found = (self.proof_pack or {}).get("proof_id")
        return found if isinstance(found, str) else None


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
        if (
            not isinstance(one, Mapping)
            or type(one.get("status")) is not int
            or not isinstance(one.get("body"), Mapping)
        ):
            malformed("an answer in the batch is malformed")
        answers.append(BatchItem(one["status"], one.get("replayed") is True, one["body"]))
    return answers


def guard_answer(
    body: Mapping[str, Any], *, action: str, agent_id: str, idempotency_key: str, replayed: bool
) -> GuardAnswer:
    """A 200 body of `action/guard` → `GuardAnswer`. Raises `Unreachable` unless it is one of the contract's answers."""
    status = text(body, "status")
    decision = text(body, "decision")
    if decision not in _DECISIONS_OF_STATUS.get(status, ()):
        malformed(f"decision {decision[:20]!r} with status {status[:20]!r}")
    permit = text(body, "permit_token") if status in _WITH_PERMIT else None
    return GuardAnswer(
        action=action,
        agent_id=agent_id,
        idempotency_key=idempotency_key,
        decision=decision,
        status=status,
        reason_code=text(body, "reason_code"),
        reason=optional_text(body, "reason") or "",
        operation_id=uuid_text(body, "operation_id"),
        decision_event_id=uuid_text(body, "decision_event_id"),
        resource=text(body, "resource"),
        risk_class=text(body, "risk_class"),
        policy_version=optional_text(body, "policy_version"),
        permit_token=permit,
        permit_expires_at=optional_moment(body, "permit_expires_at"),
        approval_id=uuid_text(body, "approval_id") if status == "pending" or "approval_id" in body else None,
        approver=optional_text(body, "approver"),
        expires_at=optional_moment(body, "expires_at"),
        outcome=optional_text(body, "outcome"),
        proof_pack=optional_mapping(body, "proof_pack"),
        replayed=replayed,
        start=start_receipt(started) if (started := optional_mapping(body, "start")) is not None else None,
        resolution=optional_text(body, "resolution"),
    )


def start_receipt(body: Mapping[str, Any]) -> StartReceipt:
    """A 200 body of `guard/start`: it must say `started: true`."""
    if body.get("started") is not True:
        malformed("started is not true")
    return StartReceipt(uuid_text(body, "start_event_id"), text(body, "start_hash"), flag(body, "duplicate"))


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
        Headroom(text(one, "limit"), text(one, "reason_code"), flag(one, "fits"), *(_amount(one, name) for name in ("cap", "left")))
        for one in found
    ]  # fmt: skip


def _amount(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = optional_mapping(body, name)
    if found is None:
        malformed(name)
    return found


def heartbeat_status(body: Mapping[str, Any]) -> str:
    """A 200 body of `heartbeat` → OK, PAUSE or KILL."""
    status = text(body, "status")
    if status not in _HEARTBEATS:
        malformed(f"heartbeat {status[:20]!r}")
    return status
