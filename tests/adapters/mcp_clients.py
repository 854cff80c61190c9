"""Runs inside a client's environment: drives the proxy with an unmodified MCP client. A JSON command per line, an answer per line.

    python -m tests.adapters.mcp_clients sdk | sdk-legacy | fastmcp | fastmcp-tasks

A command is {"do": "list"}, {"do": "read"} (of the SDK alone) or {"do": "call", "tool", "args"}, with {"url", "key"} or {"stdio": [command]}.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from typing import Any


async def with_sdk(command: dict[str, Any], mode: str) -> Any:
    """`mcp.Client`."""
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    if "stdio" in command:
        first, *rest = command["stdio"]
        server = StdioServerParameters(command=first, args=rest, env=dict(os.environ))
        async with Client(server, mode=mode) as client:
            return await _asked(client, command)
    headers = {"Authorization": f"Bearer {command['key']}"} if command.get("key") else {}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(command["url"], http_client=http), mode=mode) as client:
            return await _asked(client, command)


async def _asked(client: Any, command: dict[str, Any]) -> Any:
    if command["do"] == "list":
        return {"tools": {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}}
    if command["do"] == "read":
        return await _read(client)
    result = await client.call_tool(command["tool"], command["args"])
    text = " ".join(one.text for one in result.content)
    return {
        "error": result.is_error,
        "text": text,
        "data": result.structured_content,
        "version": client.protocol_version,
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
        return {"error": result.is_error, "text": text, "data": result.structured_content}


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
