"""What the authority's answers to a guard say to whichever part of the worker asked."""

from __future__ import annotations

from sentinel.client import GuardAnswer


def recorded_decision(answer: GuardAnswer) -> str:
    """What was decided, whatever a halt makes of it now: the proof's decision, where there is a proof."""
    return str((answer.proof_pack or {}).get("decision") or answer.decision)
