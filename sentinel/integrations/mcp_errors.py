"""Recognises MCP protocol errors that SDKs raise in place of a tool's result: the outcome of the call is then unknown."""

from __future__ import annotations

from collections.abc import Iterator


def is_mcp_error(error: Exception) -> bool:
    """Whether the error was caused by an MCP protocol error, which may be a timeout or a broken connection as well as
    the server's.

    An error that a tool returns as its result is no protocol error.
    """
    return any(is_of_class(one, "McpError", "MCPError") for one in _causes(error))


def is_of_class(error: BaseException, *names: str) -> bool:
    """Whether the error's class or a base class has one of these names. By name, because MCP's SDK need not be
    installed, and its second version renames its error."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, its causes, and the members of exception groups, each once: an error raised `from` itself is
    its own cause.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        members = getattr(one, "exceptions", ())
        behind = (one.__cause__, *(members if isinstance(members, (list, tuple)) else ()))
        waiting += [other for other in behind if isinstance(other, BaseException)]
