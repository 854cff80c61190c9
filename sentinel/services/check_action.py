"""Answer a question without effect: what would be decided now. Reserves nothing, issues nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.operation import Operation
from sentinel.services.authority import Authority, Caller
from sentinel.services.guard_action import provisional, question


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer to a check; nothing can be executed on it."""

    decision: str
    reason_code: str
    policy_id: str


def check_action(authority: Authority, caller: Caller, operation: Operation) -> Checked:
    """What `guard_action` would answer for a new key. Raises `EngineUnavailable` when halts or limits cannot be read."""
    decision = provisional(authority, operation)
    found = authority.checks.record(question(caller, operation, decision))
    return Checked(found.decision, found.reason_code, decision.policy_id)
