"""Adapters between agent frameworks and the authority. Import only the module of the framework that you use.

All of them share `tool_guard`; `decorator` is for tools without a framework. `docs/agents.md` shows them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.integrations.decorator import guarded_tool
    from sentinel.integrations.refusals import refusal_details, refusal_message
    from sentinel.integrations.tool_guard import ToolGuard, current_operation

__all__ = ["ToolGuard", "current_operation", "guarded_tool", "refusal_details", "refusal_message"]

_MODULES = {
    "ToolGuard": "tool_guard", "current_operation": "tool_guard", "guarded_tool": "decorator", "refusal_details": "refusals",
    "refusal_message": "refusals",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a name on first use: the hook of Claude Code must start, and block, even where the packages needed here are missing."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
