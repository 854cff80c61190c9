"""What the authority's refusals of a guard or a start say, for refunds and for orders."""

from __future__ import annotations

from sentinel.client import KeyConflict

RESOLVED = "resolved-not-executed"
"""The problem code of a start that is refused because a person resolved the operation as not executed."""


def key_conflict_text(error: KeyConflict, then: str) -> str:
    """The message about an idempotency key that belongs to another operation: the authority's words, and what a person can do."""
    return f"{error.detail[:300]} If another key took it, revoke that key; {then}"
