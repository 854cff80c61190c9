"""The upstream's tools as the proxy lists them: unchanged, except for what the proxy changes about a call.

Arguments that the proxy injects are not listed. An output schema also admits a refusal, because clients may validate
error results against it too.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types

from sentinel.tools import ToolTable

_REFUSAL: dict[str, Any] = {
    "type": "object",
    "description": "In place of a result: the call was not made, or its outcome is not known.",
    "properties": {
        "decision": {"type": "string"},
        "reason_code": {"type": "string"},
        "reason": {"type": "string"},
        "retry": {"enum": ["never", "later", "after_approval"]},
        "operation_id": {"type": "string"},
        "proof_id": {"type": "string"},
        "policy_version": {"type": "string"},
        "approval_id": {"type": "string"},
        "approval_reason_code": {"type": "string"},
        "expires_at": {"type": "string"},
        "continuation": {"type": "string"},
        "limits": {"type": "array"},
        "outcome": {"enum": ["success", "error"]},
        "resolution": {"enum": ["not_executed"]},
    },
    "required": ["decision", "reason_code", "retry"],
}
_OF_THE_WHOLE = ("$schema", "$defs", "definitions")
"""Keywords that stay at a schema's root, because references are resolved from there."""


def listed(tools: list[types.Tool], table: ToolTable, server: str) -> list[types.Tool]:
    """Return the tools that the table does not hide, as the proxy lists them."""
    return [_shown(tool, table, server) for tool in tools if not _is_hidden(tool.name, table, server)]


def _is_hidden(tool: str, table: ToolTable, server: str) -> bool:
    mapping = table.find(server, tool)
    return mapping is not None and mapping.hidden


def _shown(tool: types.Tool, table: ToolTable, server: str) -> types.Tool:
    mapping = table.find(server, tool.name)
    injections = mapping.action.injections if mapping is not None and mapping.action is not None else ()
    names = {one.name for one in injections if one.place == "argument"}
    changed: dict[str, Any] = {"input_schema": _without(dict(tool.input_schema), names)}
    if tool.output_schema is not None:
        changed["output_schema"] = _or_refusal(tool.output_schema)
    return tool.model_copy(update=changed)


def _without(schema: dict[str, Any], names: set[str]) -> dict[str, Any]:
    if names & set(schema.get("properties") or {}):
        schema["properties"] = {name: one for name, one in schema["properties"].items() if name not in names}
    if names & set(schema.get("required") or ()):
        schema["required"] = [name for name in schema["required"] if name not in names]
    return schema


def _or_refusal(schema: dict[str, Any]) -> dict[str, Any]:
    whole = {name: schema[name] for name in _OF_THE_WHOLE if name in schema}
    if schema.get("type") == "object":
        whole["type"] = "object"  # revisions before 2026-07-28 require it at the root
    if isinstance(schema.get("properties"), dict):  # clients that generate types look for them at the root
        refusal = _REFUSAL["properties"]
        whole["properties"] = {name: one for name, one in schema["properties"].items() if name not in refusal}
    own = {name: one for name, one in schema.items() if name not in _OF_THE_WHOLE}
    return {**whole, "anyOf": [own, _REFUSAL]}
