"""`guarded_tool`: a plain function, synchronous or not, that runs only under authority.

    @guarded_tool(guard)
    def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str: ...

A refusal is raised (`sentinel.client.ClientError`); `refusal_message` makes the sentence for a model of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sentinel.client.guarded import runs_as
from sentinel.integrations.tool_guard import ToolGuard

F = TypeVar("F", bound=Callable[..., Any])


def guarded_tool(guard: ToolGuard, *, name: str | None = None) -> Callable[[F], F]:
    """A decorator: each call is the tool `name` (the function's own if None) with its arguments by their parameter's names.

    A default counts as an argument like any other. Raises `TypeError` for a function whose arguments have no names, and for a
    generator function, whose body would run after its outcome is reported.
    """

    def decorate(function: F) -> F:
        runs = runs_as(function)
        if runs == "generator":
            raise TypeError(f"{function!r} is a generator function: a guarded tool is over when it returns")
        signature = inspect.signature(function)
        _require_names(signature)
        tool = name or function.__name__

        def named(*args: Any, **kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return _by_name(signature, bound.arguments)

        if runs == "coroutine":

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                return await guard.run_async(tool, named(*args, **kwargs), lambda given: function(**given))

            return cast(F, run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return guard.run(tool, named(*args, **kwargs), lambda given: function(**given))

        return cast(F, run)

    return decorate


def _require_names(signature: inspect.Signature) -> None:
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(f"a guarded tool's arguments have names; {parameter.name} has none")


def _by_name(signature: inspect.Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, those of `**kwargs` beside the others."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found
