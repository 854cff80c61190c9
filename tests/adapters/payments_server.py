"""A payments server as MCP servers are: what it does it notes in a file, a JSON object a line. By HTTP or standard input.

    python -m tests.adapters.payments_server NOTES [PORT]

How it behaves stands in the file NOTES.behaviour and is read at each call: "works", "fails" (answers an error), "raises",
"dies" (killed after the effect), "hangs", "waits" (answers when it behaves otherwise), "blocks" (the same, and answers nothing else
meanwhile), "asks" (wants an answer of the client's first).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ResourceUpdated

from tests.adapters.behaviour import behaviour_now

TEXT = {"type": "string"}
TOOLS = {
    "create_refund": {"payment_intent": TEXT, "amount": {"type": "integer"}, "reason": TEXT, "request_key": TEXT},
    "refund_charge": {"charge": {**TEXT, "x-mcp-header": "Charge"}, "amount": {"type": "integer"}}, "look_up": {"payment_intent": TEXT},
    "wire_money": {"account": TEXT}, "close_account": {"account": TEXT},
}  # fmt: skip
REQUIRED = {"create_refund": ["payment_intent", "amount", "request_key"]}
OUTPUT = {"type": "object", "properties": {"done": TEXT}, "required": ["done"]}


def facts(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a shop knows of a call: whose payment it is; all payments of one test are of one account."""
    payment = str(arguments.get("payment_intent") or arguments.get("charge"))
    return {"account": f"acct-{payment.partition('-')[0]}", "clean": True, "attempts": 1} if payment != "None" else {}


def payments_server(do: Callable[..., Any]) -> Any:
    """The SDK's server; `do(tool, headers, **arguments)` is one effect and says what came of it."""

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        if os.environ.get("PAYMENTS_LISTS") == "no":
            raise MCPError(code=types.INTERNAL_ERROR, message="not today")
        return types.ListToolsResult(tools=[
            types.Tool(name=name, description=f"{name}.", output_schema=OUTPUT,
                       input_schema={"type": "object", "properties": properties, "required": REQUIRED.get(name, [])})
            for name, properties in TOOLS.items()
        ])  # fmt: skip

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
        found = do(params.name, dict(ctx.request.headers) if ctx.request else {}, **(params.arguments or {}))
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, str):
            content: list[types.ContentBlock] = [types.TextContent(type="text", text=found)]
            return types.CallToolResult(content=content, structured_content={"done": found})
        return found

    changes = Changes()

    async def set_level(ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        if params.level == "emergency":
            raise MCPError(code=types.INVALID_PARAMS, message="no such level here")
        ctx.session._connection.state["level"] = params.level
        return types.EmptyResult()

    async def call_and_notify(ctx: Any, params: types.CallToolRequestParams) -> Any:
        await log_all(ctx, params)
        result = await call_tool(ctx, params)
        if params.name == "look_up":  # as if somebody else had changed it
            await changes.notify("payments://policy")
            await changes.notify("payments://unwanted")
        return result

    server = Server(
        "payments", version="1", on_list_tools=list_tools, on_call_tool=call_and_notify, on_subscriptions_listen=changes.listen,
        on_subscribe_resource=changes.subscribe, on_unsubscribe_resource=changes.unsubscribe, **_READING,
    )  # fmt: skip
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    return server


async def log_all(ctx: Any, params: types.CallToolRequestParams) -> None:
    """Log at several levels, whatever the client named; nothing to one that named none. Repeats what it was sent."""
    asked = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY) or ctx.session._connection.state.get("level")
    headers = dict(ctx.request.headers) if ctx.request else {"authorization": os.environ.get("PAYMENTS_KEY")}
    told = {
        "asked": asked,
        "payment": (params.arguments or {}).get("payment_intent"),
        "by": headers.get("authorization"),
    }
    if "progress_token" in (ctx.meta or {}):
        await ctx.session.report_progress(1, 2, f"for {told['by']}, that is {str(told['by']).rpartition(' ')[2]}")
    for level in ("debug", "info", "error") if asked else ():
        message: Any = types.LoggingMessageNotificationParams(level=level, logger="payments", data=told)
        message.meta = {"com.example/mine": "not for the client"}
        notification = types.LoggingMessageNotification(params=message)
        await ctx.session.send_notification(notification, related_request_id=ctx.request_id)


class Changes:
    """Who is told that a resource has changed, in either revision of the protocol."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._subscribed: list[tuple[str, Any]] = []

    async def subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        if params.uri == "payments://missing":
            raise MCPError(code=-32002, message=f"no such resource for {ctx.request.headers['authorization']}")
        self._subscribed.append((params.uri, ctx.session))
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._subscribed = [(uri, session) for uri, session in self._subscribed if uri != params.uri]
        return types.EmptyResult()

    async def notify(self, uri: str) -> None:
        await self._bus.publish(ResourceUpdated(uri))
        for _, session in [one for one in self._subscribed if one[0] == uri]:
            await session.send_resource_updated(uri)


async def _list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(uri="payments://policy", name="policy")])


async def _list_templates(ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template="payments://charge/{id}", name="charge")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def _read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    """What the address names; "payments://headers" repeats what the server was sent."""
    if params.uri == "payments://missing":
        raise MCPError(code=-32002, message=f"no such resource for {ctx.request.headers['authorization']}")
    text = f"This is {params.uri}." if params.uri != "payments://headers" else json.dumps(dict(ctx.request.headers))
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


async def _list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[types.Prompt(name="refund", arguments=[types.PromptArgument(name="who")])])


async def _get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    said = types.TextContent(type="text", text=f"Refund {(params.arguments or {}).get('who')}.")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=said)])


async def _complete(ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
    known = ["kim", "kari", "lou"] if isinstance(params.ref, types.PromptReference) else ["k1", "l2"]
    values = [one for one in known if one.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=[*values, *(params.context.arguments or {})]))


_READING: dict[str, Any] = {
    "on_list_resources": _list_resources, "on_list_resource_templates": _list_templates,
    "on_read_resource": _read_resource, "on_list_prompts": _list_prompts, "on_get_prompt": _get_prompt, "on_completion": _complete,
}  # fmt: skip


class Payments:
    """Notes each effect, and behaves as the file beside its notes says."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    async def do(self, tool: str, headers: dict[str, str], **arguments: Any) -> Any:
        """One effect."""
        behaviour = behaviour_now(self._notes)
        if behaviour == "asks":
            asked = types.ElicitRequest(params=types.ElicitRequestFormParams(message="Really?", requested_schema={"type": "object", "properties": {}}))  # fmt: skip
            return types.InputRequiredResult(input_requests={"sure": asked}, request_state="half done")
        kept = {name: headers.get(name) for name in ("authorization", "idempotency-key", "x-api-key")}
        noted = {"tool": tool, **arguments, "headers": kept, "environment": os.environ.get("PAYMENTS_KEY")}
        with self._notes.open("a") as file:
            file.write(json.dumps(noted) + "\n")
        if behaviour == "dies":
            os._exit(9)
        if behaviour == "raises":
            raise RuntimeError("the provider timed out")
        if behaviour == "hangs":
            await asyncio.sleep(600)
        while behaviour == "waits" and behaviour_now(self._notes) == "waits":
            await asyncio.sleep(0.02)
        while behaviour == "blocks" and "blocks" in behaviour_now(self._notes):
            time.sleep(0.02)  # as much code waits for its provider
        if behaviour == "fails":
            content: list[types.ContentBlock] = [types.TextContent(type="text", text="card_declined")]
            return types.CallToolResult(content=content, is_error=True)
        return f"done: {tool}"


def main(notes: str, port: str | None = None) -> None:
    """Serve until ended."""
    server = payments_server(Payments(Path(notes)).do)
    if port is None:
        asyncio.run(_on_standard_input(server))
        return
    import uvicorn

    app: Any = server.streamable_http_app()
    if os.environ.get("PAYMENTS_REVISION") == "legacy":
        app = before_2026(app)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")


def before_2026(app: Any) -> Any:
    """A server that does not know the newer revision's requests."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        version = dict(scope.get("headers") or ()).get(b"mcp-protocol-version", b"")
        if version < b"2026" or scope["type"] != "http":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"unknown revision"})

    return answer


async def _on_standard_input(server: Any) -> None:
    from mcp.server.runner import serve_loop
    from mcp.server.stdio import stdio_server

    options = server.create_initialization_options()
    async with stdio_server() as (read, write):
        if os.environ.get("PAYMENTS_REVISION") == "legacy":
            async with server.lifespan(server) as state:
                await serve_loop(server, read, write, lifespan_state=state, init_options=options)
        else:
            await server.run(read, write, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
