"""The guard's answer, declared once: each member with its type, its reader and a sentence.

The client's value, the authority's OpenAPI schema and docs/guard-answer.md are made from it. A body that is not exactly of
the contract's shape (`docs/CONTRACT.md` §2) raises `Unreachable(MALFORMED)`: half an answer is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from sentinel.client.fields import (
    flag,
    malformed,
    optional_count,
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


@dataclass(frozen=True, slots=True)
class StartReceipt:
    """The start is recorded; `duplicate` when this start id was recorded before."""

    start_event_id: str
    start_hash: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the answer's body. `required`: the authority always sends it; otherwise it is left out, never null."""

    description: str
    read: Callable[[Mapping[str, Any], str], Any]
    required: bool = True
    values: tuple[str, ...] = ()


def _required(description: str, read: Callable[..., Any], *values: str) -> dict[str, Member]:
    return {"member": Member(description, read, True, values)}


def _optional(description: str, read: Callable[..., Any], *values: str) -> dict[str, Member]:
    return {"member": Member(description, read, False, values)}


def start_receipt(body: Mapping[str, Any]) -> StartReceipt:
    """A 200 body of `guard/start`: it must say `started: true`."""
    if body.get("started") is not True:
        malformed("started is not true")
    return StartReceipt(uuid_text(body, "start_event_id"), text(body, "start_hash"), flag(body, "duplicate"))


def _optional_uuid(body: Mapping[str, Any], name: str) -> str | None:
    return uuid_text(body, name) if name in body or body["status"] == "pending" else None


def _permit(body: Mapping[str, Any], name: str) -> str | None:
    return text(body, name) if body["status"] in _WITH_PERMIT else None


def _enclosed_start(body: Mapping[str, Any], name: str) -> StartReceipt | None:
    started = optional_mapping(body, name)
    return None if started is None else start_receipt(started)


def _reason(body: Mapping[str, Any], name: str) -> str:
    return optional_text(body, name) or ""


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """One answer to `guard`. `action`, `agent_id` and `idempotency_key` are the question's own.

    `permit_token` is there exactly when `may_start`. `start` is there when the question named a start id and the action is
    started under it, just now or (`duplicate`) before. Times are timezone-aware; ids are UUID text.
    """

    action: str
    agent_id: str
    idempotency_key: str
    decision: str = field(metadata=_required("The recorded decision.", text, "ALLOW", "APPROVAL_REQUIRED", "DENY"))
    status: str = field(metadata=_required("Where the operation stands now.", text, *_DECISIONS_OF_STATUS))
    reason_code: str = field(metadata=_required("Why, as a stable name.", text))
    reason: str = field(metadata=_required("Why, as a sentence.", _reason))
    operation_id: str = field(metadata=_required("The operation that the key is bound to.", uuid_text))
    decision_event_id: str = field(metadata=_required("The recorded event of the decision.", uuid_text))
    resource: str = field(metadata=_required("As asked; the action where nothing was.", text))
    risk_class: str = field(metadata=_required('As asked; "standard" where nothing was.', text))
    policy_id: str | None = field(default=None, metadata=_required("The policy that decided.", optional_text))
    policy_version: str | None = field(default=None, metadata=_required("Its version.", optional_text))
    policy_label: str | None = field(default=None, metadata=_required("Its name for people.", optional_text))
    latency_ms: int | None = field(
        default=None, metadata=_required("How long the decision took, in milliseconds.", optional_count)
    )
    decided_at: datetime | None = field(
        default=None,
        metadata=_required("When it was decided, by the database's clock; the same in every replay.", optional_moment),
    )
    permit_token: str | None = field(
        default=None, repr=False, metadata=_optional("The permit, a bearer token: keep it out of logs.", _permit)
    )
    permit_expires_at: datetime | None = field(
        default=None, metadata=_optional("Until when the permit may be redeemed.", optional_moment)
    )
    approval_id: str | None = field(
        default=None, metadata=_optional("The approval that was asked for.", _optional_uuid)
    )
    expires_at: datetime | None = field(
        default=None, metadata=_optional("Until when people may decide the approval.", optional_moment)
    )
    approver: str | None = field(default=None, metadata=_optional("Who approved it.", optional_text))
    approved_at: datetime | None = field(default=None, metadata=_optional("When it was approved.", optional_moment))
    outcome: str | None = field(
        default=None, metadata=_optional('What was reported; "error" means unknown.', optional_text, "success", "error")
    )
    resolution: str | None = field(
        default=None,
        metadata=_optional(
            "A person said that it was not executed: it is never started again under this key.",
            optional_text, "not_executed",
        ),
    )  # fmt: skip
    start: StartReceipt | None = field(
        default=None, metadata=_optional("With `start_id`: the start under it, if it is recorded.", _enclosed_start)
    )
    proof_pack: Mapping[str, Any] | None = field(
        default=None, metadata=_required("The public, hash-only record of the decision (§5).", optional_mapping)
    )
    replayed: bool = False
    """The decision was recorded before (header `Idempotent-Replayed`)."""

    @property
    def may_start(self) -> bool:
        """True for a permission: allowed or approved, with its permit."""
        return self.status in _WITH_PERMIT and self.permit_token is not None

    @property
    def proof_id(self) -> str | None:
        """The proof pack's public name, if a pack came along."""
        found = (self.proof_pack or {}).get("proof_id")
        return found if isinstance(found, str) else None


MEMBERS: dict[str, Member] = {
    one.name: one.metadata["member"] for one in fields(GuardAnswer) if "member" in one.metadata
}
"""The members of the answer's body by name, in the order of the document."""

_OF_THE_STATUS = (_permit, _optional_uuid)
_ALWAYS_READ = tuple((name, one.read) for name, one in MEMBERS.items() if one.required or one.read in _OF_THE_STATUS)
_READ_WHERE_PRESENT = tuple((name, one.read) for name, one in MEMBERS.items() if name not in dict(_ALWAYS_READ))
"""What is left out of a body is None; only whether a permit or an approval may be left out depends on the status."""


def guard_answer(
    body: Mapping[str, Any], *, action: str, agent_id: str, idempotency_key: str, replayed: bool
) -> GuardAnswer:
    """A 200 body of `action/guard` → `GuardAnswer`. Raises `Unreachable` unless it is one of the contract's answers."""
    status = text(body, "status")
    decision = text(body, "decision")
    if decision not in _DECISIONS_OF_STATUS.get(status, ()):
        malformed(f"decision {decision[:20]!r} with status {status[:20]!r}")
    found = {name: read(body, name) for name, read in _ALWAYS_READ}
    for name, read in _READ_WHERE_PRESENT:
        if name in body:
            found[name] = read(body, name)
    return GuardAnswer(action=action, agent_id=agent_id, idempotency_key=idempotency_key, replayed=replayed, **found)
