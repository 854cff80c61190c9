"""The authority's answers as values, each member read strictly.

The guard's answer is declared once, each member with its type, its reader and a sentence: the client's value, the authority's
OpenAPI schema and docs/guard-answer.md are made from it. A body that is not exactly of the contract's shape
(`docs/CONTRACT.md` §2 and §3) raises `Unreachable(MALFORMED)`: a partly readable answer counts as none.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, NoReturn

from sentinel.client.errors import NoAnswerKind, Unreachable

# Every status with all decisions that it may come with.
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
_SCOPES = ("global", "tenant", "agent", "action", "scenario", "agent_action")
_LEVELS = ("pause", "kill")


_USUAL_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def malformed(what: str) -> NoReturn:
    """Raise `Unreachable` for a response that is not of the contract's shape."""
    raise Unreachable(NoAnswerKind.MALFORMED, what)


def text(body: Mapping[str, Any], name: str) -> str:
    """Read a member that must be a text and not empty."""
    found = body.get(name)
    if not isinstance(found, str) or not found:
        malformed(f"{name} is missing or not text")
    return found


def optional_text(body: Mapping[str, Any], name: str) -> str | None:
    """Read as `text`, or None where the member is absent or null."""
    return None if body.get(name) is None else text(body, name)


def mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Read a member that must be an object."""
    found = body.get(name)
    if not isinstance(found, dict):
        malformed(f"{name} is not an object")
    return found


def optional_mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Read as `mapping`, or None where the member is absent or null."""
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        malformed(f"{name} is not an object")
    return found


def uuid_text(body: Mapping[str, Any], name: str) -> str:
    """Read a member that must be a UUID, as text in its usual spelling."""
    found = text(body, name)
    if _USUAL_UUID(found):
        return found
    try:
        return str(uuid.UUID(found))
    except ValueError:
        malformed(f"{name} is not a UUID")


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Read a member that must be true or false; False where it is absent."""
    found = body.get(name, False)
    if not isinstance(found, bool):
        malformed(f"{name} is not true or false")
    return found


def optional_count(body: Mapping[str, Any], name: str) -> int | None:
    """Read a member that must be an integer of 0 or more; None where it is absent or null."""
    found = body.get(name)
    if found is not None and (type(found) is not int or found < 0):
        malformed(f"{name} is not a count")
    return found


def moment(body: Mapping[str, Any], name: str) -> datetime:
    """Read a member that must be a time with its zone."""
    found = text(body, name)
    try:
        # Python 3.10 does not parse a trailing Z.
        read = datetime.fromisoformat(found[:-1] + "+00:00" if found.endswith("Z") else found)
    except ValueError:
        malformed(f"{name} is not a time")
    if read.tzinfo is None:
        malformed(f"{name} has no time zone")
    return read


def optional_moment(body: Mapping[str, Any], name: str) -> datetime | None:
    """Read as `moment`, or None where the member is absent or null."""
    return None if body.get(name) is None else moment(body, name)


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
    """Read a 200 body of `guard/start`: it must say `started: true`."""
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
    status: str = field(metadata=_required("The operation's current status.", text, *_DECISIONS_OF_STATUS))
    reason_code: str = field(metadata=_required("The reason, as a stable name.", text))
    reason: str = field(metadata=_required("The reason, as a sentence.", _reason))
    operation_id: str = field(metadata=_required("The operation that the key is bound to.", uuid_text))
    decision_event_id: str = field(metadata=_required("The recorded event of the decision.", uuid_text))
    resource: str = field(metadata=_required("As in the request; the action if the request has none.", text))
    risk_class: str = field(metadata=_required('As in the request; "standard" if the request has none.', text))
    policy_id: str | None = field(default=None, metadata=_required("The policy that decided.", optional_text))
    policy_version: str | None = field(default=None, metadata=_required("The policy's version.", optional_text))
    policy_label: str | None = field(default=None, metadata=_required("The policy's name for people.", optional_text))
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
        default=None, metadata=_optional("The approval that the operation needs.", _optional_uuid)
    )
    expires_at: datetime | None = field(
        default=None, metadata=_optional("Until when people may decide the approval.", optional_moment)
    )
    approver: str | None = field(
        default=None, metadata=_optional("The person who approved the operation.", optional_text)
    )
    approved_at: datetime | None = field(
        default=None, metadata=_optional("When the operation was approved.", optional_moment)
    )
    outcome: str | None = field(
        default=None,
        metadata=_optional(
            'The reported outcome; "error" means that it is unknown.', optional_text, "success", "error"
        ),
    )
    resolution: str | None = field(
        default=None,
        metadata=_optional(
            "A person resolved the operation as not executed: it is never started again under this key. With the outcome `success`, a report says the"
            " contrary and is not resolved yet; absent once a person resolves the operation as executed.",
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
    """The decision was recorded by an earlier request (header `Idempotent-Replayed`)."""

    @property
    def may_start(self) -> bool:
        """True for a permission: allowed or approved, with its permit."""
        return self.status in _WITH_PERMIT and self.permit_token is not None

    @property
    def is_halted_for_now(self) -> bool:
        """True where a halt covers what was permitted before it: the recorded decision is unchanged, and the same key
        can go on once the halt is lifted."""
        recorded = (self.proof_pack or {}).get("decision") or self.decision
        return self.status == "denied" and self.reason_code == "halted" and recorded != "DENY"

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
"""Members that are None if absent. The others are always read: they are required, or whether they may be absent depends on the status."""


def guard_answer(
    body: Mapping[str, Any], *, action: str, agent_id: str, idempotency_key: str, replayed: bool
) -> GuardAnswer:
    """Read a 200 body of `action/guard`. Raises `Unreachable` unless it is one of the contract's answers."""
    status = text(body, "status")
    decision = text(body, "decision")
    if decision not in _DECISIONS_OF_STATUS.get(status, ()):
        malformed(f"decision {decision[:20]!r} with status {status[:20]!r}")
    found = {name: read(body, name) for name, read in _ALWAYS_READ}
    for name, read in _READ_WHERE_PRESENT:
        if name in body:
            found[name] = read(body, name)
    return GuardAnswer(action=action, agent_id=agent_id, idempotency_key=idempotency_key, replayed=replayed, **found)


@dataclass(frozen=True, slots=True)
class ReportReceipt:
    """The outcome is recorded; `duplicate` when this very report was received before.

    `contradiction`: a person had recorded that it was not executed. People must resolve that; do not retry the report.
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
    """Whose key the client has: its tenant by id and public name, the agent it is bound to, if it is, and its scopes.

    `scopes` is empty if the authority does not send them.
    """

    tenant_id: str
    tenant: str
    agent_id: str | None
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One request's answer within a batch: as if it had been asked alone."""

    status: int
    replayed: bool
    body: Mapping[str, Any]


def batch(body: Mapping[str, Any], wanted: int) -> list[BatchItem]:
    """Read the answers to `wanted` requests, in order. Raises `Unreachable` for all if their number or any one's shape is wrong."""
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
    """Read a 200 body of `guard/report`: it must say `received: true`."""
    if body.get("received") is not True:
        malformed("received is not true")
    return ReportReceipt(
        uuid_text(body, "receipt_event_id"), text(body, "receipt_hash"), flag(body, "duplicate"),
        "contradiction" in body and flag(body, "contradiction"),
    )  # fmt: skip


def check_answer(body: Mapping[str, Any]) -> CheckAnswer:
    """Read a 200 body of `action/check`."""
    decision = text(body, "decision")
    if decision not in ("ALLOW", "APPROVAL_REQUIRED", "DENY"):
        malformed(f"decision {decision[:20]!r}")
    return CheckAnswer(
        decision, text(body, "reason_code"), optional_text(body, "reason") or "", optional_text(body, "policy_id")
    )


def approval_view(body: Mapping[str, Any]) -> ApprovalView:
    """Read a 200 body of `approval/{id}`."""
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
    """Read a 200 body of `approvals/since`, oldest first."""
    found = body.get("decisions")
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        malformed("decisions is not a list of objects")
    return [
        ApprovalDecision(uuid_text(item, "request_id"), text(item, "status"), moment(item, "decided_at"))
        for item in found
    ]


def key_holder(body: Mapping[str, Any]) -> KeyHolder:
    """Read a 200 body of `key`."""
    scopes = body.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        malformed("scopes is not a list of texts")
    return KeyHolder(uuid_text(body, "tenant_id"), text(body, "tenant"), optional_text(body, "agent_id"), tuple(scopes))


def headrooms(body: Mapping[str, Any]) -> list[Headroom]:
    """Read a 200 body of `action/headroom`."""
    found = body.get("limits")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        malformed("limits is not a list of objects")
    return [
        Headroom(text(one, "limit"), text(one, "reason_code"), flag(one, "fits"), mapping(one, "cap"), mapping(one, "left"))
        for one in found
    ]  # fmt: skip


def heartbeat_status(body: Mapping[str, Any]) -> str:
    """Read a 200 body of `heartbeat`: OK, PAUSE or KILL."""
    status = text(body, "status")
    if status not in _HEARTBEATS:
        malformed(f"heartbeat {status[:20]!r}")
    return status


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The state of a switch; while on, it is on for `canary_percent` (0 to 100) of the accounts."""

    is_on: bool
    canary_percent: int
    unproven: tuple[str, ...] = ()
    """Outside systems that its launch gate did not try for real: whether the switch's refunds work with them is not proven."""


@dataclass(frozen=True, slots=True)
class HaltInForce:
    """A halt in force: scope global, tenant, agent, action, scenario or agent_action ("AGENT ACTION"), "" or the target's name, level pause or kill."""

    scope: str
    target: str
    level: str


@dataclass(frozen=True, slots=True)
class Switches:
    """What is switched on and halted, and the digest of each policy in force. A switch that is not there is off."""

    switches: Mapping[str, SwitchState]
    halts: tuple[HaltInForce, ...]
    policies: Mapping[str, str]

    def is_on(self, name: str) -> bool:
        """Whether the switch is on at all; the caller has to check its canary."""
        found = self.switches.get(name)
        return found is not None and found.is_on


def switches_answer(body: Mapping[str, Any]) -> Switches:
    """Read a 200 body of `switches`. A halt with an unknown scope raises `Unreachable`: it might cover this caller."""
    named, policies, halts = (mapping(body, "switches"), mapping(body, "policies"), body.get("halts"))
    if not isinstance(halts, list) or not all(isinstance(halt, dict) for halt in halts):
        malformed("halts is not a list of objects")
    return Switches(
        switches={name: _switch(mapping(named, name)) for name in named},
        halts=tuple(_halt(halt) for halt in halts),
        policies={name: text(policies, name) for name in policies},
    )


def switched_off(body: Mapping[str, Any], name: str) -> bool:
    """Read a 200 body of `switches/off` about this switch. Returns False if it was off already."""
    if body.get("switch") != name or body.get("on") is not False:
        malformed("the answer does not say that the switch is off")
    return not flag(body, "already")


def _switch(body: Mapping[str, Any]) -> SwitchState:
    percent = body.get("canary_percent")
    if type(percent) is not int or not 0 <= percent <= 100:
        malformed("canary_percent is not between 0 and 100")
    if "on" not in body:
        malformed("on is missing")
    unproven = body.get("unproven", [])
    if not isinstance(unproven, list) or not all(isinstance(name, str) for name in unproven):
        malformed("unproven is not a list of names")
    return SwitchState(flag(body, "on"), percent, tuple(unproven))


def _halt(body: Mapping[str, Any]) -> HaltInForce:
    scope, target, level = text(body, "scope"), body.get("target"), text(body, "level")
    if scope not in _SCOPES or level not in _LEVELS or not isinstance(target, str):
        malformed(f"a halt with scope {scope[:20]!r} and level {level[:20]!r}")
    return HaltInForce(scope, target, level)
