"""Which calls LangGraph would not make: looked at before the authority is asked.

It answers them behind the start as it answers a tool that failed: the operation would be in doubt, though nothing was called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.integrations.tool_guard import Refused, ToolGuard
from sentinel.tools import ToolRefused
from sentinel.tools.model import ActionMapping


def unfit(guard: ToolGuard, request: Any) -> Refused | None:
    """The refusal of a guarded call whose agent has no such tool, or whose tool does not take its arguments; else None.

    `request` is a `ToolCallRequest`. It is never handed on unasked: what is behind this adapter could make the call all the same.
    """
    name, tool = request.tool_call["name"], request.tool
    mapping = guard.table.find(guard.server, name)
    if mapping is None or mapping.action is None:
        return None  # refused, or unguarded
    try:
        given = guard.table.own_arguments(guard.server, name, request.tool_call["args"])
        if tool is None:
            raise ToolRefused("unknown_tool", f"{mapping.name}: this agent has no such tool")
        if (wrong := _wrong(mapping.action, tool, given)) is not None:
            raise ToolRefused("malformed_argument", f"{mapping.name}: the argument {wrong}")
    except ToolRefused as refusal:
        return Refused(refusal)
    return None


def _wrong(action: ActionMapping, tool: Any, given: Mapping[str, Any]) -> str | None:
    """The first argument that the tool's pydantic model refuses, and why. Any is taken without a model, or by a JSON schema.

    What the table and LangGraph add later, and what is wrong with all arguments together, is not looked at.
    """
    model = tool.args_schema
    if not hasattr(model, "model_validate"):
        return None
    try:
        model.model_validate(given)
    except ValueError as refused:
        if not hasattr(refused, "errors"):
            raise  # pydantic's own has them, and is not imported for its name
        added = action.injected_arguments | (set(model.model_fields) - set(tool.tool_call_schema.model_fields))
        for one in refused.errors():
            if one["loc"] and one["loc"][0] not in added:
                return f"{one['loc'][0]}: {one['msg']}"
    return None
