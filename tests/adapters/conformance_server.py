"""The server that MCP's conformance suite describes, as far as its scenarios are about tools: python -m tests.adapters.conformance_server PORT"""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server

PIXEL = base64.b64encode(b"a picture").decode()
SOUND = base64.b64encode(b"a sound").decode()
ADDRESS_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}}, "additionalProperties": False,
}  # fmt: skip


def _text(text: str) -> Any:
    return types.TextContent(type="text", text=text)


def _resource(uri: str, kind: str, text: str) -> Any:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=kind, text=text)
    )


_IMAGE = types.ImageContent(type="image", data=PIXEL, mime_type="image/png")
CONTENT: dict[str, list[Any]] = {
    "test_simple_text": [_text("This is a simple text response for testing.")],
    "test_image_content": [_IMAGE],
    "test_audio_content": [types.AudioContent(type="audio", data=SOUND, mime_type="audio/wav")],
    "test_embedded_resource": [_resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        _text("Multiple content types test:"), _IMAGE,
        _resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
    "test_error_handling": [_text("This tool intentionally returns an error for testing")],
    "test_tool_with_progress": [_text("Done.")],
    "json_schema_2020_12_tool": [_text("Done.")],
}  # fmt: skip


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    """Every tool; one has a schema of many keywords."""
    return types.ListToolsResult(tools=[
        types.Tool(name=name, description=f"{name}.",
                   input_schema=ADDRESS_SCHEMA if name.startswith("json") else {"type": "object", "properties": {}})
        for name in CONTENT
    ])  # fmt: skip


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Its content; one tells of its progress."""
    if params.name == "test_tool_with_progress":
        for done in (0, 50, 100):
            await ctx.session.report_progress(done, 100)
            await asyncio.sleep(0.05)  # apart, as the scenario wants them
    return types.CallToolResult(content=CONTENT[params.name], is_error=params.name == "test_error_handling")


if __name__ == "__main__":
    server = Server("conformance", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
