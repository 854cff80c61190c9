"""Errors of MCP's protocol, as SDKs raise them out of a tool: no answer of the tool, so nobody knows what came of the call."""

from __future__ import annotations

from collections.abc import Iterator


def is_mcp_error(error: Exception) -> bool:
    """Is there an error of MCP's protocol behind it? It does not say who made it, and a timeout and a broken connection are such errors.

    An error in a tool's result is none.
    """
    return any(is_of_class(one, "McpError", "MCPError") for one in _causes(error))


def is_of_class(error: BaseException, *names: str) -> bool:
    """Is it of a class of one of these names? MCP's SDK need not be installed, and names its error anew in its second version."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it was raised for, of groups too."""
    yield error
    for one in (error.__cause__, *getattr(error, "exceptions", ())):
        if one is not None:
            yield from _causes(one)
