"""Runs inside a client's environment: drives the proxy with an unmodified MCP client. A JSON command per line, an answer per line.

    python -m tests.adapters.mcp_clients sdk | sdk-legacy | fastmcp | fastmcp-tasks

A command is {"do": "list"}, {"do": "call", "tool", "args"}, or of the SDK alone {"do": "read"}, {"do": "complete"}, {"do": "watch",
"calls": [[tool, args]]} or {"do": "log", "level", "calls"}, with {"url", "key"}, {"url", "oauth": true} or {"stdio": [command]}.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit


async def with_sdk(command: dict[str, Any], mode: str) -> Any:
    """`mcp.Client`."""
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    if "stdio" in command:
        first, *rest = command["stdio"]
        server = StdioServerParameters(command=first, args=rest, env=dict(os.environ))
        heard = Heard()
        async with Client(server, mode=mode, **heard.options(command)) as client:
            return await _asked(client, command, heard)
    headers = {"Authorization": f"Bearer {command['key']}"} if command.get("key") else {}
    heard = Heard()
    async with httpx2.AsyncClient(headers=headers, timeout=120, auth=_signing_in(command)) as http:
        transport = streamable_http_client(command["url"], http_client=http)
        async with Client(transport, mode=mode, **heard.options(command)) as client:
            return await _asked(client, command, heard)


class Heard:
    """The plain notifications of a connection, and what was logged."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.messages: list[list[Any]] = []

    def options(self, command: dict[str, Any]) -> dict[str, Any]:
        """Of the SDK's client. The level is one that clients of 2026-07-28 send along."""
        level = {"log_level": command["level"]} if command.get("level") else {}
        return {"message_handler": self.take, "logging_callback": self.log, **level}

    async def log(self, params: Any) -> None:
        """A message."""
        self.messages.append([params.level, params.logger, params.data, params.meta])

    async def take(self, message: Any) -> None:
        """One of them."""
        if not isinstance(message, Exception):
            self.changes.append(f"{message.method} {getattr(message.params, 'uri', '')}".strip())


async def _watched(client: Any, command: dict[str, Any], heard: Heard) -> Any:
    """What is told of two resources and of every list; `wanted` is how much of it, `told` says when it listens."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    uris, seconds = ["payments://policy", "payments://charge/1"], command.get("seconds", 100)
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        for uri in uris:
            await client.subscribe_resource(uri)
        for tool, arguments in command["calls"]:
            await client.call_tool(tool, arguments)
        _tell_listening(command)
        await _until(lambda: len(heard.changes) >= command["wanted"], seconds)
        await client.unsubscribe_resource(uris[0])
        return {"changes": heard.changes, "subscribe": client.server_capabilities.resources.subscribe}
    listening = client.listen(
        tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
    )
    found: list[str] = []
    async with listening as changes:
        for tool, arguments in command["calls"]:
            await client.call_tool(tool, arguments)
        _tell_listening(command)
        try:
            while len(found) < command["wanted"]:
                found.append(repr(await asyncio.wait_for(anext(changes), seconds)))
        except StopAsyncIteration:
            found.append("ended")
        return {"changes": found, "honored": changes.honored.model_dump(by_alias=True, exclude_none=True)}


def _tell_listening(command: dict[str, Any]) -> None:
    if command.get("told"):
        print(json.dumps({"listening": True}), flush=True)


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


def _signing_in(command: dict[str, Any]) -> Any:
    """The SDK's own way to an access token, with a person who agrees at once; none where the command has a key."""
    if not command.get("oauth"):
        return None
    import httpx2
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata

    came: dict[str, str] = {}

    class Kept:
        """What the provider keeps: here, until the command is over."""

        def __init__(self) -> None:
            self.tokens = self.client = None

        async def get_tokens(self) -> Any:
            return self.tokens

        async def set_tokens(self, tokens: Any) -> None:
            self.tokens = tokens

        async def get_client_info(self) -> Any:
            return self.client

        async def set_client_info(self, client_info: Any) -> None:
            self.client = client_info

    async def redirect(url: str) -> None:
        async with httpx2.AsyncClient(timeout=120) as browser:
            answer = await browser.get(url)
            came.update(parse_qsl(urlsplit(answer.headers["location"]).query))

    async def callback() -> Any:
        return AuthorizationCodeResult(**came)

    metadata = OAuthClientMetadata(
        client_name="test", redirect_uris=["http://127.0.0.1:9/callback"], token_endpoint_auth_method="none",
        grant_types=["authorization_code"], response_types=["code"],
    )  # fmt: skip
    return OAuthClientProvider(command["url"], metadata, Kept(), redirect, callback)


async def _logged(client: Any, command: dict[str, Any], heard: Heard) -> Any:
    """What is logged of some calls, the resources and the list of tools; the level is named in the client's revision."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    if command.get("level") and client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        await client.set_logging_level(command["level"])
    found = [(await client.call_tool(tool, arguments)).content[0].text for tool, arguments in command["calls"]]
    await asyncio.sleep(0.2)  # for what should not come
    return {
        "messages": heard.messages,
        "texts": found,
        "capability": client.server_capabilities.logging is not None,
    }


async def _asked(client: Any, command: dict[str, Any], heard: Heard) -> Any:
    if command["do"] == "watch":
        return await _watched(client, command, heard)
    if command["do"] == "log":
        return await _logged(client, command, heard)
    if command["do"] == "list":
        return {"tools": {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}}
    if command["do"] == "read":
        return await _read(client)
    if command["do"] == "complete":
        return await _completed(client)
    progress: list[str | None] = []

    async def heard_of(done: float, total: float | None, message: str | None) -> None:
        progress.append(message)

    wanting = {"progress_callback": heard_of} if command.get("progress") else {}
    result = await client.call_tool(command["tool"], command["args"], **wanting)
    text = " ".join(one.text for one in result.content)
    return {
        "error": result.is_error,
        "text": text,
        "data": result.structured_content,
        "version": client.protocol_version,
        **({"progress": progress} if wanting else {}),
    }


async def _read(client: Any) -> Any:
    """Everything that the payments server has to read."""
    found: dict[str, Any] = {
        "resources": [one.uri for one in (await client.list_resources()).resources],
        "templates": [one.uri_template for one in (await client.list_resource_templates()).resource_templates],
        "prompts": [one.name for one in (await client.list_prompts()).prompts],
        "prompt": (await client.get_prompt("refund", {"who": "kim"})).messages[0].content.text,
    }
    for name in ("policy", "headers", "missing"):
        try:
            found[name] = (await client.read_resource(f"payments://{name}")).contents[0].text
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


async def _completed(client: Any) -> Any:
    """What the payments server proposes for an argument of its prompt, and of its template."""
    from mcp_types import PromptReference, ResourceTemplateReference

    found: dict[str, Any] = {}
    references = {
        "prompt": PromptReference(name="refund"),
        "template": ResourceTemplateReference(uri="payments://charge/{id}"),
    }
    for name, reference in references.items():
        try:
            answer = await client.complete(reference, {"name": "who", "value": "k"}, context_arguments={"shop": "x"})
            found[name] = answer.completion.values
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


async def with_fastmcp(command: dict[str, Any], mode: str) -> Any:
    """`fastmcp.Client`."""
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    headers = {"Authorization": f"Bearer {command['key']}"}
    async with Client(StreamableHttpTransport(command["url"], headers=headers)) as client:
        if command["do"] == "list":
            return {"tools": {tool.name: tool.input_schema for tool in await client.list_tools()}}
        result = await client.call_tool(command["tool"], command["args"], raise_on_error=False)
        text = " ".join(one.text for one in result.content)
        found = {"error": result.is_error, "text": text, "data": result.structured_content}
        return {**found, "typed": getattr(result.data, "done", None)} if command.get("typed") else found


def main(kind: str) -> None:
    """Answer until standard input ends."""
    if kind == "fastmcp-tasks":
        importlib.import_module("fastmcp_tasks")  # from then on every client declares the extension
    run = with_fastmcp if kind.startswith("fastmcp") else with_sdk
    for line in sys.stdin:
        try:
            answer = asyncio.run(run(json.loads(line), "legacy" if kind == "sdk-legacy" else "auto"))
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            answer = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
