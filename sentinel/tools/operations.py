"""The question of a tool call as an operation, for programs that have the core; what runs beside an agent asks over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.operation import Operation, build_operation


def operation_of(question: Mapping[str, Any], agent_id: str, evidence: Mapping[str, Any] | None = None) -> Operation:
    """The operation that an agent asks about with the question of a call. Raises `InvalidInput`."""
    return build_operation(
        idempotency_key=question["idempotency_key"], agent_id=agent_id, action=question["action"], params=question["params"],
        resource=question.get("resource"), risk_class=question.get("risk_class"), evidence=evidence,
    )  # fmt: skip
