"""Reads the input of a Claude hook: the call's name in the table, its arguments, and whether it failed or may still act."""

from __future__ import annotations

from typing import Any

from sentinel.tools import ToolTable

OWN_TOOLS = "claude"
_NOT_ANSWERED = ('MCP server "', "MCP error -32000", "MCP error -32001")
"""The beginnings of Claude's error texts for an MCP call that it gave up: no answer in time, or the connection broke."""
_UNKNOWN = "The outcome is unknown"


def table_name(tool_name: str) -> tuple[str, str]:
    """Return (server, tool) in the table: "mcp__stripe__create_refund" → ("stripe", "create_refund"); "Bash" → ("claude", "Bash")."""
    prefix, _, rest = tool_name.partition("__")
    server, separator, tool = rest.partition("__")
    return (server, tool) if prefix == "mcp" and separator else (OWN_TOOLS, tool_name)


def without_injected(table: ToolTable, given: Any) -> dict[str, Any]:
    """Return the model's arguments of a call that ran, without those that the hook injected, which the table does not map."""
    mapping = table.find(*table_name(given["tool_name"]))
    names = mapping.action.injected_arguments if mapping and mapping.action else set()
    return {name: value for name, value in given["tool_input"].items() if name not in names}


def has_failed(given: Any) -> bool:
    """Whether a call that ran has failed, by the hook's event or by the tool's response."""
    response = given.get("tool_response")
    said = isinstance(response, dict) and bool(response.get("is_error") or response.get("isError"))
    return said or given.get("hook_event_name") == "PostToolUseFailure"


def may_still_act(given: Any) -> bool:
    """Whether a call that ran may still act: it was interrupted, or given up without an answer of its MCP server."""
    if given.get("is_interrupt"):
        return True
    error = str(given.get("error") or "")
    is_unanswered = table_name(given["tool_name"])[0] != OWN_TOOLS and error.startswith(_NOT_ANSWERED)
    return given.get("hook_event_name") == "PostToolUseFailure" and (is_unanswered or _UNKNOWN in error)
