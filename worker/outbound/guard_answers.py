"""What the authority's answers to a guard say to whichever part of the worker asked."""

from __future__ import annotations

from sentinel.client import KeyConflict


def key_conflict_text(error: KeyConflict, then: str) -> str:
    """What to tell a person of an idempotency key that stands for another operation: what the authority said, and what to do."""
    return f"{error.detail[:300]} If another key took it, revoke that key; {then}"
