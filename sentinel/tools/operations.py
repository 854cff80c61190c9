"""Builds the operation of a tool call, for the authority and for cases; an agent's process asks the authority over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.operation import Operation, build_operation


def operation_of(question: Mapping[str, Any], agent_id: str, evidence: Mapping[str, Any] | None = None) -> Operation:
    """Return the operation that the agent asks about with a call's question. Raises `InvalidInput`."""
    return build_operation(
        idempotency_key=question["idempotency_key"], agent_id=agent_id, action=question["action"], params=question["params"],
        resource=question.get("resource"), risk_class=question.get("risk_class"), evidence=evidence,
    )  # fmt: skip
