"""What the input of a hook of Claude's says of a call: its name in the table, its arguments, and whether it failed."""

from __future__ import annotations

from typing import Any

from sentinel.tools import ToolTable

OWN_TOOLS = "claude"


def table_name(tool_name: str) -> tuple[str, str]:
    """ "mcp__stripe__create_refund" → ("stripe", "create_refund"); "Bash" → ("claude", "Bash")."""
    prefix, _, rest = tool_name.partition("__")
    server, separator, tool = rest.partition("__")
    return (server, tool) if prefix == "mcp" and separator else (OWN_TOOLS, tool_name)


def without_injected(table: ToolTable, given: Any) -> dict[str, Any]:
    """The model's arguments of a call that ran: what the hook injected came back with them, and is no argument of the table."""
    mapping = table.find(*table_name(given["tool_name"]))
    names = mapping.action.injected_arguments if mapping and mapping.action else set()
    return {name: value for name, value in given["tool_input"].items() if name not in names}


def has_failed(given: Any) -> bool:
    """Of a call that ran: by the event, or by what its tool answered."""
    response = given.get("tool_response")
    said = isinstance(response, dict) and bool(response.get("is_error") or response.get("isError"))
    return said or given.get("hook_event_name") == "PostToolUseFailure"
