"""pydantic-ai: whether a tool that was given up may still act."""

from __future__ import annotations

from collections.abc import Iterator


def may_go_on(error: Exception) -> bool:
    """Did the framework give the tool up, which may still act?

    At a `timeout` the thread of a function goes on. Behind an error of MCP's protocol the server may: it does not say who made it, and
    a timeout and a broken connection are such errors. An error in a tool's result is none.
    """
    behind = (error.__context__, error.__cause__)
    timed_out = _is(error, "ModelRetry") and any(isinstance(one, TimeoutError) for one in behind)
    return timed_out or any(_is(one, "McpError", "MCPError") for one in _causes(error))


def _is(error: BaseException, *names: str) -> bool:
    """Is it of a class of one of these names? MCP's SDK need not be installed, and names its error anew in its second version."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it was raised for, of groups too."""
    yield error
    for one in (error.__cause__, *getattr(error, "exceptions", ())):
        if one is not None:
            yield from _causes(one)
