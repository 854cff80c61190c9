"""The server that MCP's conformance suite describes, as far as the proxy passes it on: python -m tests.adapters.conformance_server PORT"""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

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
    "test_tool_with_logging": [_text("Done.")],
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
    """Its content; one tells of its progress, one logs."""
    if params.name == "test_tool_with_progress":
        for done in (0, 50, 100):
            await ctx.session.report_progress(done, 100)
            await asyncio.sleep(0.05)  # apart, as the scenario wants them
    if params.name == "test_tool_with_logging":
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            message = types.LoggingMessageNotificationParams(level="info", data=text)
            await ctx.session.send_notification(types.LoggingMessageNotification(params=message), ctx.request_id)
            await asyncio.sleep(0.05)
    return types.CallToolResult(content=CONTENT[params.name], is_error=params.name == "test_error_handling")


TEXT, BINARY, WATCHED = "test://static-text", "test://static-binary", "test://watched-resource"
TEMPLATE = "test://template/{id}/data"
PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (), "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",), "test_prompt_with_image": (),
}  # fmt: skip
"""Prompt → the names of its arguments."""


async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
    """Two, and one that may be subscribed to."""
    return types.ListResourcesResult(
        resources=[types.Resource(uri=uri, name=uri, description=f"{uri}.") for uri in (TEXT, BINARY, WATCHED)]
    )


async def list_templates(ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
    """One."""
    return types.ListResourceTemplatesResult(
        resource_templates=[types.ResourceTemplate(uri_template=TEMPLATE, name="template", description="A template.")]
    )


async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    """A text, a picture, or what the template says of its id."""
    uri = str(params.uri)
    if uri == BINARY:
        return types.ReadResourceResult(
            contents=[types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)]
        )
    name = uri.removeprefix("test://template/").removesuffix("/data")
    text = "This is the content of the static text resource." if uri == TEXT else f'{{"id": "{name}"}}'
    kind = "text/plain" if uri == TEXT else "application/json"
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])


async def list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
    """Every prompt."""
    return types.ListPromptsResult(prompts=[
        types.Prompt(name=name, description=f"{name}.", arguments=[
            types.PromptArgument(name=one, description=f"{one}.", required=True) for one in arguments
        ])
        for name, arguments in PROMPTS.items()
    ])  # fmt: skip


async def get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """One with what it was given."""
    given = params.arguments or {}
    contents: dict[str, list[Any]] = {
        "test_simple_prompt": [_text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments": [_text(f"Prompt with arguments: {given}")],
        "test_prompt_with_embedded_resource": [
            _resource(given.get("resourceUri", TEXT), "text/plain", "Embedded resource content for testing."),
            _text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image": [_IMAGE, _text("Please analyze the image above.")],
    }
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=one) for one in contents[params.name]]
    )


async def complete(ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
    """Two that begin as the argument does."""
    begun = params.argument.value
    return types.CompleteResult(completion=types.Completion(values=[f"{begun}1", f"{begun}2"]))


async def set_level(ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
    """Taken."""
    return types.EmptyResult()


if __name__ == "__main__":
    server = Server(
        "conformance", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_list_resource_templates=list_templates, on_read_resource=read_resource,
        on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus()), on_list_prompts=list_prompts, on_get_prompt=get_prompt, on_completion=complete,
    )  # fmt: skip
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
