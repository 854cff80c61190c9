"""pydantic-ai: a capability around every tool execution, of functions, toolsets and MCP servers alike.

    agent = Agent(model, tools=[…], capabilities=[SentinelCapability(guard)], output_type=[str, DeferredToolRequests])

What waits for a person ends the run with `DeferredToolRequests`; its metadata has the approval. Go on with
`requests.build_results(approve_all=True)` when it is decided: that is a nudge and no approval, the authority is asked again,
and what still waits is deferred again. A refusal is the tool's result. `ModelRetry` in a guarded tool counts as a failure: the
operation is in doubt, for nobody knows how far it came.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired

from sentinel.client.errors import ApprovalPending
from sentinel.integrations.refusals import refusal_details, refusal_message
from sentinel.integrations.tool_guard import CallNames, Ran, ToolGuard


class SentinelCapability(AbstractCapability[Any]):
    """Runs a tool only under authority."""

    def __init__(self, guard: ToolGuard) -> None:
        self._guard = guard

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: it holds a connection and is not written down with an agent."""
        return None

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Ask with the validated arguments: they are the ones that run."""
        names = CallNames(call.tool_call_id, ctx.conversation_id)
        attempted = await self._guard.attempt_async(call.tool_name, args, handler, named=names)
        if isinstance(attempted, Ran):
            return attempted.result
        if isinstance(attempted.error, ApprovalPending):
            raise ApprovalRequired(metadata={"sentinel": refusal_details(attempted.error)}) from attempted.error
        return refusal_message(attempted.error)
