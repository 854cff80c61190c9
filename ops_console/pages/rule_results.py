"""What each rule said of an operation, for the pages that tell its life."""

from __future__ import annotations

import uuid

from ops_console.context import Context
from ops_console.identity import actor
from sentinel.authority.operations import find_decided
from sentinel.authority.policy_inspector import PolicyExplanation
from sentinel.core.decision import NO_POLICY_DIGEST


def rules_of(context: Context, operation_id: uuid.UUID | None) -> PolicyExplanation | None:
    """The rules of the policy that decided; None before a decision, and where no policy covered the action."""
    found = find_decided(context.pool, actor().tenant_id, operation_id) if operation_id is not None else None
    if found is None or found.policy_digest == NO_POLICY_DIGEST:
        return None
    return context.inspector.rules_of(context.pool, found)
