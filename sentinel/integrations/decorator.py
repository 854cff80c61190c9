"""`guarded_tool`: a plain function, synchronous or not, that runs only under authority.

    @guarded_tool(guard)
    def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str: ...

A refusal is raised (`sentinel.client.ClientError`); `refusal_message` turns it into a sentence for a model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sentinel.client.guarded import runs_as
from sentinel.integrations.tool_guard import ToolGuard
from sentinel.tools import ToolRefused
from sentinel.tools.model import ToolMapping

F = TypeVar("F", bound=Callable[..., Any])


def guarded_tool(guard: ToolGuard, *, name: str | None = None) -> Callable[[F], F]:
    """Return a decorator: each call is one of the tool `name` (the function's own if None), with its arguments by
    parameter name.

    A default counts as an argument like any other. None counts as absent: it is refused where the parameter has another
    default, and left out where it is the default of a parameter that the table does not name. Raises `TypeError` for a
    function whose arguments have no names, and for a generator function, whose body would run after its outcome is
    reported.
    """

    def decorate(function: F) -> F:
        runs = runs_as(function)
        if runs == "generator":
            raise TypeError(
                f"{function!r} is a generator function: a guarded tool must have done its work when it returns"
            )
        signature = inspect.signature(function)
        _require_names(signature)
        tool = name or function.__name__

        def named(*args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            found = _by_name(signature, bound.arguments)
            mapping = guard.table.find(guard.server, tool)
            return (found, {}) if mapping is None or mapping.action is None else _absent(mapping, signature, found)

        if runs == "coroutine":

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                asked, none = named(*args, **kwargs)
                return await guard.run_async(tool, asked, lambda given: function(**{**none, **given}))

            return cast(F, run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            asked, none = named(*args, **kwargs)
            return guard.run(tool, asked, lambda given: function(**{**none, **given}))

        return cast(F, run)

    return decorate


def _require_names(signature: inspect.Signature) -> None:
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"{parameter.name}: every parameter of a guarded tool must be one that can be passed by name"
            )


def _by_name(signature: inspect.Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, those of `**kwargs` among the others."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def _absent(
    mapping: ToolMapping, signature: inspect.Signature, found: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the arguments to ask about, the parameters to pass as None). Raises `ToolRefused` where None and absent would differ."""
    asked, none = dict(found), dict[str, Any]()
    for name, parameter in signature.parameters.items():
        if found.get(name, "") is not None:
            continue
        if parameter.default is parameter.empty:
            none[name] = None
        elif parameter.default is not None:
            raise ToolRefused(
                "malformed_argument", f"{mapping.name}: the argument {name} is None, but its default is another value"
            )
        elif name not in mapping.arguments:
            del asked[name]
    return asked, none
