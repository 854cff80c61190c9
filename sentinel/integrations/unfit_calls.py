"""Which calls a framework would not make: looked at before the authority is asked.

LangGraph and the OpenAI Agents SDK answer them behind the start as they answer a tool that failed: the operation would be in doubt,
though nothing was called.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sentinel.integrations.tool_guard import Refused, ToolGuard
from sentinel.tools import ToolRefused
from sentinel.tools.model import ToolMapping


def unfit(guard: ToolGuard, request: Any) -> Refused | None:
    """The refusal of a guarded call whose agent has no such tool, or whose tool does not take its arguments; else None.

    `request` is LangGraph's `ToolCallRequest`. It is never handed on unasked: what is behind this adapter could make the call all the same.
    """
    name, tool = request.tool_call["name"], request.tool
    mapping = guard.table.find(guard.server, name)
    if mapping is None or mapping.action is None:
        return None  # refused, or unguarded
    try:
        given = guard.table.own_arguments(guard.server, name, request.tool_call["args"])
        if tool is None:
            raise ToolRefused("unknown_tool", f"{mapping.name}: this agent has no such tool")
    except ToolRefused as refusal:
        return Refused(refusal)
    # What LangGraph adds later is no argument of the model's.
    model = tool.args_schema
    added = set(model.model_fields) - set(tool.tool_call_schema.model_fields) if _is_model(model) else set[str]()
    wrong = unfit_argument(mapping, model, given, added=added)
    return Refused(wrong) if wrong is not None else None


def unfit_to_function_tool(guard: ToolGuard, tool: Any, function_schema: Any) -> Callable[[Mapping[str, Any]], None]:
    """For a `FunctionTool` of the OpenAI Agents SDK: what raises `ToolRefused` for arguments of a guarded call that its function does not take.

    One that is made by hand, and not of a function, has no model and takes all. `function_schema` is the SDK's.
    """
    # The SDK keeps the model to itself, and its own check of arguments ahead of a call tells of no error; it names the function here.
    made_of = getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)
    function = getattr(made_of, "__agents_function_tool_wrapped_callable__", None)
    model = None if function is None else _model_of(function, tool, function_schema)

    def raise_if_unfit(given: Mapping[str, Any]) -> None:
        mapping = guard.table.find(guard.server, tool.name)
        if mapping is None or mapping.action is None:
            return  # refused, or unguarded
        own = guard.table.own_arguments(guard.server, tool.name, given)
        # As the SDK reads them: they are JSON again when the tool is called.
        if (wrong := unfit_argument(mapping, model, json.loads(json.dumps(own, default=float)))) is not None:
            raise wrong

    return raise_if_unfit


def _model_of(function: Any, tool: Any, function_schema: Any) -> Any:
    called = function if inspect.isroutine(function) or inspect.isclass(function) else function.__call__
    made = function_schema(called, name_override=tool.name, use_docstring_info=False, strict_json_schema=tool.strict_json_schema)  # fmt: skip
    return made.params_pydantic_model


def unfit_argument(
    mapping: ToolMapping, model: Any, given: Mapping[str, Any], *, added: Collection[str] = ()
) -> ToolRefused | None:
    """The refusal for the first argument that the tool's pydantic model refuses. None where it takes them, and without such a model.

    What the table injects, what the framework has `added`, and what is wrong with all arguments together is not looked at.
    """
    if not _is_model(model) or mapping.action is None:
        return None
    try:
        model.model_validate(given)
    except ValueError as refused:
        if not hasattr(refused, "errors"):
            raise  # pydantic's own has them, and is not imported for its name
        for one in refused.errors():
            if one["loc"] and one["loc"][0] not in {*mapping.action.injected_arguments, *added}:
                return ToolRefused("malformed_argument", f"{mapping.name}: the argument {one['loc'][0]}: {one['msg']}")
    return None


def _is_model(model: Any) -> bool:
    return hasattr(model, "model_validate")
