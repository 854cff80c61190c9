"""LangChain: what a tool raised or answered, and whether it says that the tool failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command

from sentinel.integrations.mcp_errors import is_mcp_error


class Raised(BaseCallbackHandler):
    """Notes what a tool raises, since LangGraph's `handle_tool_errors` makes a message of it before the middleware sees it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._run: UUID | None = None

    def on_tool_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Note the first run, which is the call's own; any other is of a tool that it calls."""
        self._run = self._run or run_id

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note how the call's own run ended."""
        if run_id == self._run:
            self.error = error


_raised: ContextVar[Raised | None] = ContextVar("sentinel_raised", default=None)
register_configure_hook(_raised, inheritable=False)


@contextmanager
def noticing() -> Iterator[Raised]:
    """Note what the tool raises that is called during the block."""
    raised = Raised()
    token = _raised.set(raised)
    try:
        yield raised
    finally:
        _raised.reset(token)


def has_failed(raised: Raised, call_id: str | None, result: Any) -> bool:
    """Whether the tool's answer says that it failed. Raises an MCP protocol error that became that answer: its outcome is unknown."""
    failed = _is_error(call_id, result)
    if failed and isinstance(raised.error, Exception) and is_mcp_error(raised.error):
        raise raised.error  # LangGraph makes the same message of it outside of the middleware
    return failed


def _is_error(call_id: str | None, result: Any) -> bool:
    """Whether the tool's answer to this call (a message, a list, or commands with messages in their updates) says that it failed."""
    if isinstance(result, ToolMessage):
        return result.status == "error"
    return any(
        _part(one, "status") == "error" and _part(one, "tool_call_id") == call_id
        for answer in (result if isinstance(result, list) else [result])
        for one in _messages(answer)
    )


def _messages(answer: Any) -> list[Any]:
    """Return the parts of an answer that may be messages; of a command, those of every list in its update, since any key may hold messages."""
    update = answer.update if isinstance(answer, Command) else answer
    found = update.values() if isinstance(update, dict) else [update]
    return [one for value in found for one in (value if isinstance(value, list) else [value])]


def _part(message: Any, name: str) -> Any:
    found = vars(message) if isinstance(message, ToolMessage) else message
    return found.get(name) if isinstance(found, dict) else None  # anything else is no message
