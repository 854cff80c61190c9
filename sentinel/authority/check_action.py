"""Answer a question without effect: what would be decided now. Reserves nothing, issues nothing."""

from __future__ import annotations

from typing import Any

from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard_action import provisional, question
from sentinel.core.operation import Operation


def check_row(authority: Authority, caller: Caller, operation: Operation) -> dict[str, Any]:
    """The question as `Authority.checks` takes it: what `guard_action` would ask for a new key."""
    return question(caller, operation, provisional(authority, caller, operation)[0])
