"""The MCP server that agents talk to: it offers the upstream's tools and asks the authority before each call.

It speaks MCP 2026-07-28 and earlier. It sends the client no requests (no elicitation, no sampling), so that nothing on
the agent's own channel can be taken for an approval. Resources, prompts and log messages are offered only where the
operator passes them on (`reading.py`, `log_messages.py`), and change notifications only for what may be read
(`subscriptions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from sentinel import __version__
from sentinel.mcp_proxy.answers import CallRefused, refused_result
from sentinel.mcp_proxy.calls import ClientUpdates, GuardedCalls
from sentinel.mcp_proxy.listing import listed
from sentinel.mcp_proxy.log_messages import LogLevels
from sentinel.mcp_proxy.spans import request_span
from sentinel.mcp_proxy.tasks import EXTENSION, TaskParams, Tasks
from sentinel.mcp_proxy.upstream import Upstream, UpstreamUnavailable, reason_of
from sentinel.tools import ToolTable

WhoAsks = Callable[[Any], str]
"""Returns the id of the agent that makes a request, given the request's context."""


class ProxyServer:
    """The request handlers of one upstream, which `tools.yaml` calls `name`."""

    def __init__(
        self, name: str, table: ToolTable, upstream: Upstream, calls: GuardedCalls, tasks: Tasks, who: WhoAsks,
        reading: Mapping[str, Callable[..., Any]], levels: LogLevels,
    ) -> None:  # fmt: skip
        self._name, self._table, self._upstream = name, table, upstream
        self._calls, self._tasks, self._who, self._reading = calls, tasks, who, reading
        self._levels = levels

    def build(self) -> Any:
        """Return the SDK's server with these handlers."""
        server = Server(
            f"sentinel-{self._name}", version=__version__, on_list_tools=self._list_tools, on_call_tool=self._call_tool,
            # None: arguments are taken from the body alone, and headers that repeat them are not validated.
            get_tool_input_schema=lambda tool: None, **self._reading,
        )  # fmt: skip
        # Removes the SDK's spans, which contain names and text written by models and servers; ours do not (`spans.py`).
        server.middleware.clear()
        server.extensions[EXTENSION] = {}
        self._levels.add_handlers(server)
        server.add_request_handler("tasks/get", TaskParams, self._get_task)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel_task)
        return server

    async def _list_tools(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        try:
            async with self._levels.messages_of(ctx) as messages, self._upstream.connect(messages) as connection:
                page = await connection.list_tools(params.cursor if params else None)
        except Exception as error:
            name = str(error) if isinstance(error, UpstreamUnavailable) else reason_of(error)
            message = f"the server behind the proxy did not list its tools ({name})"
            raise MCPError(code=types.INTERNAL_ERROR, message=message) from error
        tools = listed(page.tools, self._table, self._name)
        return types.ListToolsResult(tools=tools, next_cursor=page.next_cursor)

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        agent, mapping = self._who(ctx), self._table.find(self._name, params.name)
        with request_span(ctx, "tools/call", agent, mapping) as span:
            try:
                async with self._levels.messages_of(ctx) as messages:
                    permitted = await self._calls.ask(agent, params, ClientUpdates(_progress(ctx), messages))
                    span.permitted(permitted)
                    result = await self._calls.run(permitted)
                span.ended(result)
                return result
            except CallRefused as refused:
                span.refused(refused)
                task = None
                if refused.waits_for_person and _speaks_tasks(ctx):
                    task = self._tasks.create(agent, params, refused)
                return task or refused_result(refused)

    async def _get_task(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        _require_tasks(ctx)
        agent = self._who(ctx)
        with request_span(ctx, "tasks/get", agent):
            return await self._tasks.get(agent, params.task_id)

    async def _cancel_task(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        _require_tasks(ctx)
        self._tasks.cancel(self._who(ctx), params.task_id)
        return {}


def _speaks_tasks(ctx: Any) -> bool:
    """Return whether the client of this request declares the tasks extension; only clients of 2026-07-28 can."""
    capabilities = ctx.session.client_capabilities
    declared = (capabilities and capabilities.extensions) or {}
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in declared


def _require_tasks(ctx: Any) -> None:
    if not _speaks_tasks(ctx):
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message="The client does not declare the tasks extension",
            data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )  # fmt: skip


def _progress(ctx: Any) -> Any:
    """Return a function that forwards the upstream's progress to the client; None where the client asked for none."""
    if "progress_token" not in (ctx.meta or {}):
        return None

    async def progress(done: float, total: float | None, message: str | None) -> None:
        await ctx.session.report_progress(done, total, message)

    return progress
