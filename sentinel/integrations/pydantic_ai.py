"""pydantic-ai: a capability around every tool execution, of functions, toolsets and MCP servers alike.

    agent = Agent(model, tools=[…], capabilities=[SentinelCapability(guard)], output_type=[str, DeferredToolRequests])

What waits for a person ends the run with `DeferredToolRequests`; its metadata has the approval. Go on with
`requests.build_results(approve_all=True)` when it is decided: that is a nudge and no approval, the authority is asked again,
and what still waits is deferred again, also while the authority cannot be asked (then the metadata has no approval). A refusal is the tool's result. `ModelRetry` in a guarded tool counts as a failure: the
operation is in doubt, for nobody knows how far it came. A tool that overruns its `timeout` is not reported, for its thread goes on; nor is one whose
MCP server did not answer. As a failure counts also one that raises `ApprovalRequired` or `CallDeferred` itself; a toolset
under `approval_required()` would do so for each call and is refused. Output functions are no tools, and not asked about.

Wherever it stands among capabilities, it asks last: about the arguments that run, each time that they run, and reports what the
tool itself came to. A capability whose ordering is `innermost` too, and which wraps the toolset, belongs before it in the list.
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
"""Marks, in a tool's metadata, that its calls reach `_GuardedTools`."""


class SentinelCapability(AbstractCapability[Any]):
    """Runs a tool only under authority."""

    def __init__(self, guard: ToolGuard) -> None:
        self._guard = guard

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: it holds a connection and is not written down with an agent."""
        return None

    def get_ordering(self) -> CapabilityOrdering:
        """Inside the toolsets of other capabilities: what they change or repeat is asked about."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """The tools, each call guarded. Hooks of any capability are outside of it."""
        return _GuardedTools(toolset, self._guard)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Refuse a tool that another capability adds around the guarded ones, unless the table lets it run unguarded."""
        if (tool_def.metadata or {}).get(_GUARDED):
            return await handler(args)
        try:
            asked = await self._guard.call_of_async(call.tool_name, args)
            if asked.question is not None:
                raise ToolRefused("tool_not_guardable", f"{asked.mapping.name}: another capability adds it around the guarded tools")  # fmt: skip
        except ClientError as refusal:
            return refusal_message(refusal)
        return await handler(asked.arguments)


@dataclass
class _GuardedTools(WrapperToolset[Any]):
    """A toolset whose tools run only under authority."""

    guard: ToolGuard

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        """The tools, marked. Raises `UserError` for a toolset that asks for approvals itself: it would behind the start, in doubt each time."""
        if any(isinstance(one, ApprovalRequiredToolset) for one in _within(self.wrapped)):
            raise UserError(
                "a toolset under approval_required() asks behind the authority, when its tool is started: let the policy ask a person,"
                " or give a tool that runs unguarded requires_approval=True"
            )
        return {name: _marked(tool) for name, tool in (await super().get_tools(ctx)).items()}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Ask, and run the tool with what was asked about. Raises `ApprovalRequired` where a person must decide, and for a call that was
        deferred already where nobody can say whether one has.
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
    """The toolset and those that it wraps, combines, or has made for this step."""
    yield toolset
    inner = (getattr(toolset, "wrapped", None), getattr(toolset, "_toolset", None), *getattr(toolset, "toolsets", ()))
    for one in inner:
        if isinstance(one, AbstractToolset):
            yield from _within(one)


def _marked(tool: Any) -> Any:
    return replace(tool, tool_def=replace(tool.tool_def, metadata={**(tool.tool_def.metadata or {}), _GUARDED: True}))
