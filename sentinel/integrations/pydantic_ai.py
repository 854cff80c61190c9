"""pydantic-ai: a capability around every tool execution, of functions, toolsets and MCP servers alike.

    agent = Agent(model, tools=[…], capabilities=[SentinelCapability(guard)], output_type=[str, DeferredToolRequests])

A call that waits for a person ends the run with `DeferredToolRequests`, whose metadata has the approval. Once it is
decided, continue with `requests.build_results(approve_all=True)`. That approves nothing: the authority is asked again,
and a call that still waits is deferred again, also while the authority is unreachable (then the metadata has no
approval). A refusal is the tool's result. `ModelRetry` in a guarded tool counts as a failure: the operation is in
doubt, because nobody knows how far it got. So does a tool that raises `ApprovalRequired` or `CallDeferred` itself; a
toolset under `approval_required()` would do so for each call and is refused. Nothing is reported of a tool that
overruns its `timeout`, whose thread goes on, or whose MCP server did not answer. Output functions are no tools, and the
authority is not asked about them.

Wherever the capability is in the list, it asks last: about the arguments that run, each time that they run, and it
reports the outcome of the tool itself. Another capability whose ordering is `innermost` and which wraps the toolset
belongs before it in the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, UserError
from pydantic_ai.toolsets import AbstractToolset, ApprovalRequiredToolset, WrapperToolset

from sentinel.client.errors import ApprovalPending, ClientError
from sentinel.integrations.pydantic_ai_calls import as_json, may_go_on
from sentinel.integrations.refusals import is_outage, refusal_details, refusal_message
from sentinel.integrations.tool_guard import CallNames, Ran, ToolGuard
from sentinel.tools import ToolRefused

_GUARDED = "sentinel_guarded"
"""The key in a tool's metadata which marks that its calls go through `_GuardedTools`."""


class SentinelCapability(AbstractCapability[Any]):
    """Runs a tool only under authority."""

    def __init__(self, guard: ToolGuard) -> None:
        self._guard = guard

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: the capability holds a connection and is not serialised with an agent."""
        return None

    def get_ordering(self) -> CapabilityOrdering:
        """Put it inside the toolsets of other capabilities, so that the authority is asked about calls that they change or repeat."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """Wrap the tools so that each call is guarded. The hooks of every capability run outside of this."""
        return _GuardedTools(toolset, self._guard)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Refuse a tool that another capability adds around the guarded ones, unless the table lets it run unguarded."""
        if (tool_def.metadata or {}).get(_GUARDED):
            return await handler(args)
        try:
            asked = await self._guard.call_of_async(call.tool_name, args)
            if asked.question is not None:
                raise ToolRefused("tool_not_guardable", f"{asked.mapping.name}: another capability added it around the guarded tools, so it cannot be guarded")  # fmt: skip
        except ClientError as refusal:
            return refusal_message(refusal)
        return await handler(asked.arguments)


@dataclass
class _GuardedTools(WrapperToolset[Any]):
    """A toolset whose tools run only under authority."""

    guard: ToolGuard

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        """Return the tools, marked. Raises `UserError` for a toolset that asks for approvals itself: it would ask after
        the start, which puts each operation in doubt."""
        if any(isinstance(one, ApprovalRequiredToolset) for one in _within(self.wrapped)):
            raise UserError(
                "a toolset under approval_required() asks a person only after the authority has started the call: let the policy ask,"
                " or set requires_approval=True on a tool that runs unguarded"
            )
        return {name: _marked(tool) for name, tool in (await super().get_tools(ctx)).items()}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Ask, and run the tool with the arguments that were asked about. Raises `ApprovalRequired` where a person must
        decide, and during an outage for a call that was deferred already, since whether a person has decided is then
        unknown.
        """
        asked, made = as_json(tool_args, tool, ctx.validation_context)

        async def run(arguments: dict[str, Any]) -> Any:
            given = {one: made.get(one, value) for one, value in arguments.items()}
            return await self.wrapped.call_tool(name, given, ctx, tool)

        names = CallNames(ctx.tool_call_id, ctx.conversation_id)
        attempted = await self.guard.attempt_async(name, asked, run, named=names, goes_on=may_go_on)
        if isinstance(attempted, Ran):
            return attempted.result
        if isinstance(attempted.error, ApprovalPending) or (ctx.tool_call_approved and is_outage(attempted.error)):
            raise ApprovalRequired(metadata={"sentinel": refusal_details(attempted.error)}) from attempted.error
        return refusal_message(attempted.error)


def _within(toolset: AbstractToolset[Any]) -> Iterator[AbstractToolset[Any]]:
    """Yield the toolset and, recursively, those that it wraps, combines, or has made for this step."""
    yield toolset
    inner = (getattr(toolset, "wrapped", None), getattr(toolset, "_toolset", None), *getattr(toolset, "toolsets", ()))
    for one in inner:
        if isinstance(one, AbstractToolset):
            yield from _within(one)


def _marked(tool: Any) -> Any:
    return replace(tool, tool_def=replace(tool.tool_def, metadata={**(tool.tool_def.metadata or {}), _GUARDED: True}))
