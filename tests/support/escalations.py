"""What tests of escalations share: a guard that asks for a person, and a person who handles it by hand."""

from __future__ import annotations

import uuid
from typing import Any

from sentinel.authority.approvals import HANDLED, ApprovalResolution, ApprovalRow, find_approval, resolve_approval
from tests.support.fixtures import Fixtures, guard_body, unique
from tests.support.harness import actor

Body = dict[str, Any]


def asks(body: Body, escalation: Any = None, *, ready: bool | None = None) -> Body:
    """The same operation, asked with another evidence context."""
    evidence: Body = {"correlation_id": unique("c")}
    evidence |= {"escalation": escalation} if escalation is not None else {}
    evidence |= {"settlement_ready": ready} if ready is not None else {}
    return {**body, "evidence_context": evidence}


def shown(fixtures: Fixtures, answer: Body) -> ApprovalRow:
    """The approval behind an answer, as the console lists it."""
    row = find_approval(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(answer["approval_id"]))
    assert row is not None
    return row


def by_hand(
    fixtures: Fixtures,
    answer: Body,
    *,
    reference: str | None = "ticket 7",
    role: str = "approver",
    digest: str | None = None,
) -> ApprovalResolution:
    """A person says that it was handled elsewhere."""
    return resolve_approval(
        fixtures.console_pool, actor(fixtures, role), uuid.UUID(answer["approval_id"]), verdict=HANDLED,
        reason="paid by bank transfer", reference=reference, digest=digest or shown(fixtures, answer).digest,
    )  # fmt: skip


def small_body() -> Body:
    """A guard request that the small refund policy allows."""
    params = {"channel": "private", "scenario": "fee", "order": {"paid": {"value": "100.00", "currency": "USD"}}}
    return guard_body(value="8.00", action="refund.small.fee", params=params)


def status(answer: Body) -> tuple[str, str, str]:
    return answer["decision"], answer["status"], answer["reason_code"]
