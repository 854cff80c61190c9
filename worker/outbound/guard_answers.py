"""What the authority's answers to a guard say to whichever part of the worker asked."""

from __future__ import annotations

from sentinel.client import GuardAnswer, KeyConflict


def recorded_decision(answer: GuardAnswer) -> str:
    """What was decided, whatever a halt makes of it now: the proof's decision, where there is a proof."""
    return str((answer.proof_pack or {}).get("decision") or answer.decision)


def key_conflict_text(error: KeyConflict, then: str) -> str:
    """What to tell a person of an idempotency key that stands for another operation: what the authority said, and what to do."""
    return f"{error.detail[:300]} If another key took it, revoke that key; {then}"
