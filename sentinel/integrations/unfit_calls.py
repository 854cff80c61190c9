"""Finds calls that the framework itself would refuse (no such tool, wrong arguments), before the authority is asked.

LangGraph and the OpenAI Agents SDK would refuse them only after the start, in the same way as they answer for a tool
that failed: the operation would be in doubt, though nothing was called.
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
    """Return the refusal of a guarded call whose agent has no such tool, or whose tool does not take its arguments;
    else None.

    `request` is LangGraph's `ToolCallRequest`. It must be refused here and not passed on without asking the authority:
    a handler behind this adapter could make the call all the same.
    """
    name, tool = request.tool_call["name"], request.tool
    mapping = guard.table.find(guard.server, name)
    if mapping is None or mapping.action is None:
        return None  # the attempt refuses an unmapped tool, and runs an unguarded one
    try:
        given = guard.table.own_arguments(guard.server, name, request.tool_call["args"])
        if tool is None:
            raise ToolRefused("unknown_tool", f"{mapping.name}: this agent has no such tool")
    except ToolRefused as refusal:
        return Refused(refusal)
    # Arguments that LangGraph adds later are not the model's.
    model = tool.args_schema
    added = set(model.model_fields) - set(tool.tool_call_schema.model_fields) if _is_model(model) else set[str]()
    wrong = unfit_argument(mapping, model, given, added=added)
    return Refused(wrong) if wrong is not None else None


def unfit_to_function_tool(guard: ToolGuard, tool: Any, function_schema: Any) -> Callable[[Mapping[str, Any]], None]:
    """Return, for a `FunctionTool` of the OpenAI Agents SDK, a check that raises `ToolRefused` for arguments of a
    guarded call that its function does not take.

    A tool that was made by hand and not from a function has no model, so any arguments pass. `function_schema` is the
    SDK's.
    """
    # The SDK does not expose the tool's model, nor the result of its own check of the arguments, but the function is
    # found here.
    made_of = getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)
    function = getattr(made_of, "__agents_function_tool_wrapped_callable__", None)
    model = None if function is None else _model_of(function, tool, function_schema)

    def raise_if_unfit(given: Mapping[str, Any]) -> None:
        mapping = guard.table.find(guard.server, tool.name)
        if mapping is None or mapping.action is None:
            return  # the attempt refuses an unmapped tool, and runs an unguarded one
        own = guard.table.own_arguments(guard.server, tool.name, given)
        # Checked as the SDK will read them: the arguments are turned into JSON again before the tool is called.
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
    """Return the refusal for the first argument that the tool's pydantic model refuses; None where it takes all, or is
    no such model.

    Errors are ignored that concern arguments which the table injects or the framework has `added`, or all arguments as
    a whole.
    """
    if not _is_model(model) or mapping.action is None:
        return None
    try:
        model.model_validate(given)
    except ValueError as refused:
        if not hasattr(refused, "errors"):
            raise  # not pydantic's ValidationError, which has `errors`; pydantic is not imported just to name it
        for one in refused.errors():
            if one["loc"] and one["loc"][0] not in {*mapping.action.injected_arguments, *added}:
                return ToolRefused("malformed_argument", f"{mapping.name}: the argument {one['loc'][0]}: {one['msg']}")
    return None


def _is_model(model: Any) -> bool:
    return hasattr(model, "model_validate")
