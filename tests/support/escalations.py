"""What tests of escalations share: a guard that asks for a person, and a person who handles it by hand."""

from __future__ import annotations

import uuid
from typing import Any

from sentinel.authority.approvals import HANDLED, ApprovalRow, Resolved, find_approval, resolve_approval
from tests.support.harness import actor
from tests.support.world import World, guard_body, unique

Body = dict[str, Any]


def asks(body: Body, escalation: Any = None, *, ready: bool | None = None) -> Body:
    """The same operation, asked with another evidence context."""
    evidence: Body = {"correlation_id": unique("c")}
    evidence |= {"escalation": escalation} if escalation is not None else {}
    evidence |= {"settlement_ready": ready} if ready is not None else {}
    return {**body, "evidence_context": evidence}


def shown(world: World, answer: Body) -> ApprovalRow:
    """The approval behind an answer, as the console lists it."""
    row = find_approval(world.console_pool, world.tenant_id, uuid.UUID(answer["approval_id"]))
    assert row is not None
    return row


def by_hand(
    world: World, answer: Body, *, reference: str | None = "ticket 7", role: str = "approver", digest: str | None = None
) -> Resolved:
    """A person says that it was handled elsewhere."""
    return resolve_approval(
        world.console_pool, actor(world, role), uuid.UUID(answer["approval_id"]), verdict=HANDLED,
        reason="paid by bank transfer", reference=reference, digest=digest or shown(world, answer).digest,
    )  # fmt: skip


def small_body(scenario: str = "fee", value: str = "8.00", **over: Any) -> Body:
    """A guard request that the small refund policy allows."""
    more = {"channel": "private", "scenario": scenario, "order": {"paid": {"value": "100.00", "currency": "USD"}}}
    return guard_body(value=value, action=f"refund.small.{scenario}", params={**more, **over.pop("params", {})}, **over)


def status(answer: Body) -> tuple[str, str, str]:
    return answer["decision"], answer["status"], answer["reason_code"]
