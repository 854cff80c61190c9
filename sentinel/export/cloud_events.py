"""Events as CloudEvents 1.0: which types there are, and which fields each carries.

Fields are an allow-list: ids, codes, amounts, decisions and who decided. None contains free text of agents, customers
or operators. One event of the log may become two messages: a decision that needs a person becomes a `decision` and an
`approval.requested`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from sentinel.authority.halts import GLOBAL_HALT_OWNER
from sentinel.core.money import Money, money_out

CONTENT_TYPE = "application/cloudevents+json"
GLOBAL = GLOBAL_HALT_OWNER
"""The owner of the global feed, which has what concerns every tenant: global halts, and policies."""

DECISION, REQUESTED, DECIDED = "decision", "approval.requested", "approval.decided"
START, OUTCOME, IN_DOUBT, HALT, POLICY, TEST = "start", "outcome", "in_doubt", "halt", "policy", "test"

_DECISION_FIELDS = (
    "action", "agent_id", "amount", "decision", "reason_code", "latency_ms", "ledger_entry_id", "refund_id", "policy_label",
    "policy_version", "policy_digest", "proof_id", "proof_status",
)  # fmt: skip
# No digest: an operation's digest covers its params without a salt, so whoever knows the amount could guess the rest.
_APPROVAL_FIELDS = ("approval_id", "decided_by", "reasons")

FIELDS: Mapping[str, tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...]] = {
    "decision": ((DECISION, {}, _DECISION_FIELDS),),
    "refused": ((DECISION, {"decision": "DENY"}, ("action", "agent_id", "reason_code", "policy_digest")),),
    "asked_again": ((REQUESTED, {}, ("approval_id", "follows")),),
    "change_asked": ((REQUESTED, {}, ("approval_id", "digest", "by")),),
    "approval_approved": ((DECIDED, {"status": "approved"}, _APPROVAL_FIELDS),),
    "approval_rejected": ((DECIDED, {"status": "rejected"}, _APPROVAL_FIELDS),),
    "approval_handled": ((DECIDED, {"status": "handled"}, _APPROVAL_FIELDS),),
    "approval_expired": ((DECIDED, {"status": "expired"}, _APPROVAL_FIELDS),),
    "start": ((START, {}, ("action", "agent_id", "permit_id", "start_id", "start_step")),),
    "outcome": ((OUTCOME, {}, ("action", "agent_id", "outcome", "report_id")),),
    "in_doubt": ((IN_DOUBT, {"status": "in_doubt"}, ("action", "agent_id", "reason")),),
    "contradiction": ((IN_DOUBT, {"status": "in_doubt", "reason": "contradiction"}, ("action", "agent_id", "halt_id", "not_executed_at")),),
    "in_doubt_resolved": ((IN_DOUBT, {"status": "resolved"}, ("action", "agent_id", "executed", "resolved_by")),),
    "halt_set": ((HALT, {"status": "set"}, ("halt_id", "scope", "target", "level", "set_by", "replaces")),),
    "halt_lifted": ((HALT, {"status": "lifted"}, ("halt_id", "scope", "target", "lifted_by")),),
    "policy_in_force": ((POLICY, {"status": "in_force"}, ("policy_id", "policy_version", "policy_digest")),),
    "policies_withdrawn": ((POLICY, {"status": "withdrawn"}, ("policy_ids",)),),
    "switch_on": ((POLICY, {"status": "switch_on"}, ("switch", "canary_percent", "changed_by", "gate", "policy_digest")),),
    "switch_off": ((POLICY, {"status": "switch_off"}, ("switch", "changed_by")),),
    "gate_report_recorded": (
        (POLICY, {"status": "gate_report"}, ("switch", "scenario", "passed", "wrong_executions", "report_id", "policy_digest", "recorded_by")),
    ),
}  # fmt: skip
"""Kind of event in the log → the messages that it becomes: type, fixed fields, and fields copied from its body."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event at its position of a feed, with the terms of its approval and the hash of the feed's previous event.

    `body` is empty where its kind was not asked for. `resolved_before`: a person had said "not executed" before the
    event. `waits`: its approval can still be decided. `trace`: trace id (16 bytes) and span id of a guard request.
    """

    tenant_id: uuid.UUID
    position: int
    event_id: uuid.UUID
    kind: str
    operation_id: uuid.UUID | None
    body: str
    hash: str
    previous_hash: str | None
    occurred_at: datetime
    resolved_before: bool
    approval_id: uuid.UUID | None
    agent_id: str | None
    action: str | None
    amount_minor: int | None
    currency: str | None
    reasons: list[str] | None
    required_role: str | None
    required_people: int | None
    expires_at: datetime | None
    waits: bool
    policy_id: str | None
    trace: bytes | None


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One CloudEvent. `data` has no nulls."""

    id: str
    type: str
    tenant_id: uuid.UUID
    subject: str | None
    time: datetime
    position: int
    previous_hash: str | None
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """Return the message in the JSON format of CloudEvents 1.0, the same bytes at every attempt."""
        event = {
            "specversion": "1.0",
            "id": self.id,
            "source": "/global" if self.tenant_id == GLOBAL else f"/tenants/{self.tenant_id}",
            "type": f"dev.sentinel.{self.type}.v1",
            "time": self.time.astimezone(UTC).isoformat(),
            "subject": self.subject,
            "datacontenttype": "application/json",
            "dataschema": f"urn:sentinel:event:{self.type}:v1",
            # As text: an integer of CloudEvents has only 32 bits.
            "position": str(self.position),
            "prevhash": self.previous_hash,
            "data": self.data,
        }
        return orjson.dumps(_present(event))


def kinds_of(types: Collection[str]) -> list[str]:
    """Return the kinds of event that can become messages of these types; with no types given, of every type."""
    wanted = {kind for kind, made in FIELDS.items() if not types or any(one[0] in types for one in made)}
    if not types or REQUESTED in types:
        wanted.add("decision")
    if not types or IN_DOUBT in types:
        wanted.add("outcome")
    return sorted(wanted)


def messages_of(event: FeedEvent, types: Collection[str] = ()) -> list[EventMessage]:
    """Return the messages of these types that an event becomes; with no types given, of every type."""
    if not event.body:
        return []
    # Earlier versions wrote no agent into the bodies of doubts and refusals; the event's own column may have it.
    body = {"agent_id": event.agent_id, **orjson.loads(event.body)}
    # Earlier versions recorded "" for an outcome that was reported without a report id.
    if body.get("report_id") == "":
        del body["report_id"]
    made = [
        _message(event, kind, {**fixed, **{name: body.get(name) for name in names}})
        for kind, fixed, names in FIELDS.get(event.kind, ())
    ]
    if event.kind == "decision" and event.approval_id is not None:
        made.append(_message(event, REQUESTED, {}, is_second=True))
    if event.kind == "outcome" and body.get("outcome") == "error" and not event.resolved_before:
        taken = {name: body.get(name) for name in ("action", "agent_id")}
        made.append(
            _message(event, IN_DOUBT, {"status": "in_doubt", "reason": "error_reported", **taken}, is_second=True)
        )
    return [one for one in made if not types or one.type in types]


def _message(event: FeedEvent, kind: str, data: Mapping[str, Any], *, is_second: bool = False) -> EventMessage:
    """Make a message of an event. `is_second`: the event has become another message already, so this one gets an id of its own."""
    asked = _asked(event) if kind == REQUESTED else {}
    told = {"event": event.kind, "operation_id": _text(event.operation_id), **data, **asked, "hash": event.hash}
    # No dot in an id: Standard Webhooks signs the id followed by a dot.
    message_id = f"{event.event_id}:{kind.replace('.', '-')}" if is_second else str(event.event_id)
    return EventMessage(
        id=message_id, type=kind, tenant_id=event.tenant_id, subject=_text(event.operation_id), time=event.occurred_at,
        position=event.position, previous_hash=event.previous_hash, data=_present(told),
    )  # fmt: skip


def _asked(event: FeedEvent) -> dict[str, Any]:
    """Return the terms of an event's approval: what is asked, and who must decide until when."""
    has_amount = event.amount_minor is not None and event.currency is not None
    amount = money_out(Money(event.amount_minor, event.currency)) if has_amount else None  # type: ignore[arg-type]
    return {
        "approval_id": _text(event.approval_id), "agent_id": event.agent_id, "action": event.action, "amount": amount,
        "reasons": event.reasons, "required_role": event.required_role, "required_people": event.required_people,
        "expires_at": event.expires_at.astimezone(UTC).isoformat() if event.expires_at else None,
    }  # fmt: skip


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: uuid.UUID | None) -> str | None:
    return None if value is None else str(value)


def test_message(tenant_id: uuid.UUID, endpoint_id: uuid.UUID, message_id: uuid.UUID, now: datetime) -> EventMessage:
    """Return the message that `sentinel webhooks test` sends: about no operation, at no position of the feed."""
    data = {"event": TEST, "endpoint_id": str(endpoint_id)}
    return EventMessage(str(message_id), TEST, tenant_id, None, now, 0, None, data)
