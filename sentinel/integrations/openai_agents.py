"""OpenAI Agents SDK: a function tool that runs only under authority.

    agent = protect_agent(Agent(name="refunds", tools=[create_refund]), guard)
    result = await Runner.run(agent, "…")
    if result.interruptions:
        state = result.to_state()                     # state.to_json() may be kept meanwhile
        if not await approve_decided(state, guard):   # asks the authority; what still waits stays an interruption
            result = await Runner.run(agent, state)

`state.approve` is no approval, sticky or not: each call asks the authority before it runs. What the model is told of a refusal
is the tool's output.
"""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from typing import Any

from agents import Agent, FunctionTool, RunContextWrapper, RunState
from agents.tool import maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext

from sentinel.client.errors import ClientError
from sentinel.integrations.refusals import refusal_message
from sentinel.integrations.tool_guard import CallNames, Refused, ToolGuard
from sentinel.tools.mapping import parse_arguments


def protect_agent(agent: Agent[Any], guard: ToolGuard) -> Agent[Any]:
    """A copy of the agent with all its tools protected. Raises `ValueError` for tools that run elsewhere and cannot be."""
    if agent.mcp_servers or agent.handoffs:
        raise ValueError(
            "tools of MCP servers and of other agents are not protected: protect each agent, and proxy the servers"
        )
    return agent.clone(tools=[protect(tool, guard) for tool in agent.tools])


def protect(tool: Any, guard: ToolGuard) -> FunctionTool:
    """A copy of the function tool that asks before it runs. Raises `ValueError` for a hosted tool."""
    if not isinstance(tool, FunctionTool):
        raise ValueError(f"{type(tool).__name__} runs outside this process and cannot be protected")
    # A copy without a formatter of errors, so that a failure is seen as one and not as a sentence for the model.
    raising = dataclasses.replace(tool, _failure_error_function=None, _use_default_failure_error_function=False)

    async def invoke(context: ToolContext[Any], text: str) -> Any:
        async def call(arguments: dict[str, Any]) -> Any:
            return await raising.on_invoke_tool(context, _text(text, given, arguments))

        try:
            given = parse_arguments(text)
            # The group of a run is what its traces call a conversation.
            names = CallNames(context.tool_call_id, context.run_config and context.run_config.group_id)
            attempted = await guard.attempt_async(tool.name, given, call, named=names)
        except ClientError as malformed:
            return refusal_message(malformed)
        except Exception as error:
            told = await maybe_invoke_function_tool_failure_error_function(
                function_tool=tool, context=context, error=error
            )
            if told is None:
                raise
            return told
        return refusal_message(attempted.error) if isinstance(attempted, Refused) else attempted.result

    async def needs_approval(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        return await guard.approval_wanted(tool.name, arguments) is not None

    return dataclasses.replace(tool, on_invoke_tool=invoke, needs_approval=needs_approval)


async def approve_decided(state: RunState[Any, Any], guard: ToolGuard) -> list[str]:
    """Approve the interruptions whose approval is decided, either way; the ids of those that still wait.

    A rejected one is let go on too: the authority refuses it again, and the model is told why.
    """
    waiting = []
    for item in state.get_interruptions():
        approval_id = await guard.approval_wanted(item.name or "", _arguments(item.arguments))
        if approval_id is None:
            state.approve(item)
        else:
            waiting.append(approval_id)
    return waiting


def _arguments(text: str | None) -> dict[str, Any]:
    try:
        return parse_arguments(text or "")
    except ClientError:
        return {}


def _text(text: str, given: dict[str, Any], arguments: dict[str, Any]) -> str:
    """The arguments as JSON; the model's own text where nothing was injected."""
    return text if arguments == given else json.dumps(arguments, default=_number)


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(type(value).__name__)
