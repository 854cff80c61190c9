"""apparitor's middleware of FastMCP, as released, in front of tools that note their calls. A JSON command per line, a JSON answer per line.

A command has {"url", "key", "agent", "tool", "args"} and may have {"static": true}: the subject stands in the configuration and not
in the client's token. Nothing of the product is imported here.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from apparitor import ScannerConfig
from apparitor.fastmcp import FastMCPAuthorizationMiddleware
from fastmcp import Client, FastMCP
from fastmcp.client.auth import BearerAuth
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

from tests.adapters.json_lines import answer_lines

TOKEN = "token-of-the-test"


def server_of(command: dict[str, Any], calls: list[dict[str, Any]]) -> FastMCP[Any]:
    """A server whose clients have a token of the agent."""
    config = ScannerConfig(
        pdp_url=command["url"], allow_insecure_pdp=True, request_budget_s=60, connect_timeout_s=60, read_timeout_s=60, redact_arguments=False,
        default_headers={"Authorization": f"Bearer {command['key']}"}, agent_id=command["agent"] if command.get("static") else None,
    )  # fmt: skip
    gate = FastMCPAuthorizationMiddleware(
        config=config, server_label="local", subject_type="agent", allow_static_subject=bool(command.get("static")),
        filter_listings=bool(command.get("filters")),
    )  # fmt: skip
    tokens = {TOKEN: {"client_id": "desk", "sub": command["agent"], "scopes": []}}
    server: FastMCP[Any] = FastMCP("desk", auth=None if command.get("static") else StaticTokenVerifier(tokens))
    server.add_middleware(gate)

    @server.tool
    def pay_back(payment_intent: str, amount: str) -> str:
        calls.append({"payment_intent": payment_intent, "amount": amount})
        return "done: pay_back"

    @server.tool
    def look_up(payment_intent: str) -> str:
        calls.append({"payment_intent": payment_intent})
        return "done: look_up"

    @server.tool
    def wire_money(account: str) -> str:
        calls.append({"account": account})
        return "done: wire_money"

    return server


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    """One call over HTTP, or in the process where the subject stands in the configuration."""
    calls: list[dict[str, Any]] = []
    server = server_of(command, calls)
    if command.get("static"):
        return {**await _called(Client(server), command), "calls": calls}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = server.http_app(stateless_http=True)
        serving = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
        running = asyncio.create_task(serving.serve(sockets=[listener]))
        while not serving.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        auth = BearerAuth(command.get("token", TOKEN))
        try:
            return {**await _called(Client(url, auth=auth), command), "calls": calls}
        finally:
            serving.should_exit = True
            await running


async def _called(client: Any, command: dict[str, Any]) -> dict[str, Any]:
    async with client:
        if "tool" not in command:
            return {"tools": sorted(tool.name for tool in await client.list_tools())}
        result = await client.call_tool(command["tool"], command["args"], raise_on_error=False)
        return {"error": result.is_error, "text": " ".join(one.text for one in result.content)}


if __name__ == "__main__":
    answer_lines(lambda command: asyncio.run(answer(command)))
