"""Adapters between agent frameworks and the authority. Each framework's module is imported only by who uses it.

`tool_guard` is what they share; `decorator` is for tools without a framework. `docs/agents.md` shows them.
"""

from sentinel.integrations.decorator import guarded_tool
from sentinel.integrations.refusals import refusal_details, refusal_message
from sentinel.integrations.tool_guard import ToolGuard, current_operation

__all__ = ["ToolGuard", "current_operation", "guarded_tool", "refusal_details", "refusal_message"]
