"""LangChain and LangGraph: a middleware around every tool call.

    create_agent(model, tools, middleware=[…, SentinelMiddleware(guard)], checkpointer=checkpointer)

Put it last: it then sees the arguments that the tool runs with, and no other middleware repeats a call inside it. For
a bare graph: `ToolNode(tools, wrap_tool_call=middleware.wrap_tool_call, awrap_tool_call=middleware.awrap_tool_call)`.
A call that waits for a person interrupts the graph. On resume the value is ignored and the authority is asked again; if
it is unreachable, the graph is interrupted again. A guarded tool must not interrupt the graph: it would be in doubt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from langchain.agents.middleware.types import AgentMiddleware, ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command, interrupt

from sentinel.client.errors import ApprovalPending, ClientError
from sentinel.integrations.langchain_failures import Raised, has_failed, noticing
from sentinel.integrations.mcp_errors import is_mcp_error
from sentinel.integrations.refusals import is_outage, refusal_details, refusal_message
from sentinel.integrations.tool_guard import CallNames, Ran, ToolGuard
from sentinel.integrations.unfit_calls import unfit

Result: TypeAlias = ToolMessage | Command[Any] | list[ToolMessage | Command[Any]]


class SentinelMiddleware(AgentMiddleware[Any, Any]):
    """Runs a tool only under authority; a refusal is a tool message with status "error".

    Without `interrupts` a call that waits for a person is answered with such a message too, for graphs without a checkpointer.
    """

    def __init__(self, guard: ToolGuard, *, interrupts: bool = True) -> None:
        super().__init__()
        self._guard, self._interrupts = guard, interrupts

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Result]) -> Result:
        """Guard one tool call in a synchronous graph."""
        while True:
            with noticing() as raised:
                attempted = unfit(self._guard, request) or self._guard.attempt(*_tried(request, handler, raised))
            if isinstance(attempted, Ran):
                return attempted.result
            if not self._waits(request, attempted.error):
                return _refused(request.tool_call, attempted.error)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Result]]
    ) -> Result:
        """Guard one tool call in an asynchronous graph."""
        while True:
            with noticing() as raised:
                tried = _tried(request, handler, raised)
                attempted = unfit(self._guard, request) or await self._guard.attempt_async(*tried)
            if isinstance(attempted, Ran):
                return attempted.result
            if not self._waits(request, attempted.error):
                return _refused(request.tool_call, attempted.error)

    def _waits(self, request: ToolCallRequest, error: ClientError) -> bool:
        """Interrupt where a person must decide. Returns True when the graph was resumed and the authority is to be asked again.

        Resumed during an outage, the graph is interrupted again: a message to the model would end the interruption.
        """
        in_outage, call = is_outage(error) and _is_resumed(request), request.tool_call
        if not self._interrupts or not (in_outage or isinstance(error, ApprovalPending)):
            return False
        # The shape that inboxes for tool approvals expect. Their answer has no effect here.
        told = {
            "type": "tool_approval", "tool_call_id": call["id"], "name": call["name"], "args": call["args"],
            "description": refusal_message(error), "sentinel": refusal_details(error),
        }  # fmt: skip
        interrupt(told)
        while in_outage:  # skip the values of earlier resumes: each would ask the unreachable authority once more
            interrupt(told)
        return True


def _tried(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any], raised: Raised) -> Any:
    """Return the arguments of `ToolGuard.attempt` for this call."""
    call, running = request.tool_call, getattr(request.runtime, "execution_info", None)
    names = CallNames(call["id"], getattr(running, "thread_id", None))
    run = lambda given: handler(request.override(tool_call={**call, "args": given}))  # noqa: E731
    return call["name"], call["args"], run, partial(has_failed, raised, call["id"]), names, is_mcp_error


def _is_resumed(request: ToolCallRequest) -> bool:
    """Whether the request's task was resumed: read from where `interrupt` gets its value, as LangGraph tells it nowhere else."""
    pad = request.runtime.config["configurable"].get("__pregel_scratchpad")
    return pad is not None and bool(pad.resume or pad.get_null_resume(False) is not None)


def _refused(call: Any, error: ClientError) -> ToolMessage:
    return ToolMessage(
        content=refusal_message(error), name=call["name"], tool_call_id=call["id"], status="error",
        artifact=refusal_details(error),
    )  # fmt: skip
