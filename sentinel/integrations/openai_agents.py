"""OpenAI Agents SDK: a function tool that runs only under authority.

    agent = protect_agent(Agent(name="refunds", tools=[create_refund]), guard)
    result = await Runner.run(agent, "…")
    if result.interruptions:
        state = result.to_state()                     # state.to_json() may be kept meanwhile
        if not await approve_decided(state, guard):   # asks the authority; what still waits stays an interruption
            result = await Runner.run(agent, state)

`state.approve` is no approval, sticky or not: each call asks the authority before it runs. The model gets a refusal as
the tool's output. `protect` refuses a tool with a `needs_approval` of its own: that is not the authority's question.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from weakref import WeakSet

from agents import Agent, FunctionTool, RunContextWrapper, RunState
from agents.function_schema import function_schema
from agents.items import ToolApprovalItem
from agents.tool import _DEFAULT_FAILURE_HANDLED_ATTR
from agents.tool import maybe_invoke_function_tool_failure_error_function as failure_message
from agents.tool_context import ToolContext

from sentinel.client.errors import ClientError
from sentinel.integrations.refusals import refusal_message
from sentinel.integrations.tool_guard import CallNames, Refused, ToolGuard
from sentinel.integrations.unfit_calls import unfit_to_function_tool
from sentinel.tools.arguments import arguments_text, lenient_arguments, parse_arguments

_made: WeakSet[Any] = WeakSet()
"""The functions that `protect` put into tools: they identify a protected tool, also in a clone of its agent."""


def protect_agent(agent: Agent[Any], guard: ToolGuard) -> Agent[Any]:
    """Return a copy of the agent with all its tools protected. Raises `ValueError` for tools that run elsewhere and cannot be."""
    others = [tool.name for tool in agent.tools if getattr(tool, "_is_agent_tool", False)]
    if agent.mcp_servers or agent.handoffs or others:
        raise ValueError(
            f"an agent with MCP servers, handoffs or other agents as tools {others} cannot be protected as a whole: put a proxy in front of"
            " the servers, protect each agent by itself, and add an agent that is a tool to the tools that `protect` made"
        )
    return agent.clone(tools=[protect(tool, guard) for tool in agent.tools])


def protect(tool: Any, guard: ToolGuard) -> FunctionTool:
    """Return a copy of the function tool that asks before it runs. Raises `ValueError` for a hosted tool, and for one that asks already."""
    if not isinstance(tool, FunctionTool):
        raise ValueError(f"{type(tool).__name__} runs outside this process and cannot be protected")
    if tool.needs_approval is not False:
        raise ValueError(f"{tool.name} must have no needs_approval of its own: let the policy ask a person, or leave this tool unprotected")  # fmt: skip
    # A copy without an error formatter, so that a failure is raised here and not returned as a sentence for the model.
    raising = dataclasses.replace(tool, _failure_error_function=None, _use_default_failure_error_function=False)
    unasked: dict[str, ClientError] = {}  # refusals met in `needs_approval`, by call id, until `invoke` tells the model
    raise_if_unfit = unfit_to_function_tool(guard, tool, function_schema)

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        if context.tool_call_id in unasked:
            # It may wait for a person by now, but can no longer interrupt the run: the model has to make it again.
            return _told(context, unasked.pop(context.tool_call_id))
        try:
            given = parse_arguments(text)
            raise_if_unfit(given)
        except ClientError as malformed:
            return _told(context, malformed)
        try:
            # A run's group id is the conversation id of its traces.
            names = CallNames(context.tool_call_id, context.run_config and context.run_config.group_id)
            attempted = await guard.attempt_async(
                tool.name, given, lambda own: raising.on_invoke_tool(context, arguments_text(text, given, own)), named=names,
            )  # fmt: skip
        except Exception as error:  # raised by the tool itself, whatever its class: its side effect may have happened
            if (told := await failure_message(function_tool=tool, context=context, error=error)) is None:
                raise
            return told
        return _told(context, attempted.error) if isinstance(attempted, Refused) else attempted.result

    async def needs_approval(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        unasked.pop(call_id, None)
        try:
            raise_if_unfit(arguments)
            return await guard.approval_pending(tool.name, arguments) is not None
        except ClientError as unfit_or_passing:
            unasked[call_id] = unfit_or_passing
            return False

    _made.update((invoke, needs_approval))
    return dataclasses.replace(tool, on_invoke_tool=invoke, needs_approval=needs_approval)


def _told(context: ToolContext[Any], refusal: ClientError) -> str:
    """Return the refusal's text, marked as the SDK marks its own errors, so that it need not fit the tool's declared output."""
    setattr(context, _DEFAULT_FAILURE_HANDLED_ATTR, True)
    return refusal_message(refusal)


async def approve_decided(state: RunState[Any, Any], guard: ToolGuard) -> list[str]:
    """Approve the interruptions of protected tools whose approval is decided, either way; return the ids that still wait.

    A rejected call is continued too: the authority refuses it again, and the model is told why. Interruptions of other
    tools are left to the program. Raises what is an outage (`refusals.is_outage`), e.g. `Unreachable`; then none is approved.
    """
    ours = list(filter(_is_of_protected, state.get_interruptions()))
    wanted = [await guard.approval_pending(item.name or "", lenient_arguments(item.arguments)) for item in ours]
    for item, approval_id in zip(ours, wanted, strict=True):
        if approval_id is None:
            state.approve(item)
    return [approval_id for approval_id in wanted if approval_id is not None]


def _is_of_protected(item: ToolApprovalItem) -> bool:
    """Whether it is a call of a tool that `protect` made. Another tool may have the same name, or ask for approvals in the same way."""
    raw = item.raw_item
    kind = raw.get("type") if isinstance(raw, dict) else raw.type
    named = [tool for tool in item.agent.tools if tool.name == item.name]
    return kind == "function_call" and named != [] and all(
        isinstance(tool, FunctionTool) and tool.on_invoke_tool in _made and tool.needs_approval in _made for tool in named
    )  # fmt: skip
