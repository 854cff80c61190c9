"""What each rule said of an operation, for the pages that tell its life."""

from __future__ import annotations

import uuid

from ops_console.context import Context
from ops_console.identity import actor
from sentinel.services.policy_book import RuleSaid
from sentinel.store.operations import find_decided


def rules_of(context: Context, operation_id: uuid.UUID | None) -> list[RuleSaid]:
    """The rules in the policy's order; none before a decision, or where that policy's file was changed since."""
    found = find_decided(context.pool, actor().tenant_id, operation_id) if operation_id is not None else None
    return context.book.rules_of(found.request, found.policy_digest, found.decided_at) if found is not None else []
