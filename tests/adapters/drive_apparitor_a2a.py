"""apparitor's executor of A2A, as released, in front of an agent that notes what it is asked. A JSON command per line, a JSON answer per line.

A command has {"url", "key", "agent", "skill"}: who asks, by its token, for which skill; without "agent" nobody signed in. Nothing of
the product is imported here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from a2a.client import ClientConfig, create_client
from a2a.helpers.proto_helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, Role, SendMessageRequest
from apparitor import ScannerConfig
from apparitor.a2a import A2AAuthorizationExecutor
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

from tests.adapters.json_lines import answer_lines

CARD = AgentCard(
    name="desk", description="The refund desk.", version="1", capabilities=AgentCapabilities(),
    supported_interfaces=[AgentInterface(protocol_binding="JSONRPC", url="http://desk/", protocol_version="1.0")],
    default_input_modes=["text/plain"], default_output_modes=["text/plain"],
)  # fmt: skip


class Desk(AgentExecutor):
    """The agent behind the gate: does what the first word of a message names."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def execute(self, context: Any, event_queue: Any) -> None:
        self.calls.append(skill_of(context))
        await event_queue.enqueue_event(new_text_message(f"done: {skill_of(context)}"))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        raise NotImplementedError


def skill_of(context: Any) -> str:
    """What the message asks for: the same word for the gate and for the agent."""
    return str(context.get_user_input()).split(" ")[0]


class Tokens(AuthenticationBackend):
    """A token is the agent's name."""

    async def authenticate(self, conn: Any) -> Any:
        kind, _, name = conn.headers.get("authorization", "").partition(" ")
        return (AuthCredentials([]), SimpleUser(name)) if kind == "Bearer" and name else None


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    """One message, over JSON-RPC."""
    config = ScannerConfig(
        pdp_url=command["url"], allow_insecure_pdp=True, request_budget_s=60, connect_timeout_s=60, read_timeout_s=60,
        default_headers={"Authorization": f"Bearer {command['key']}"},
    )  # fmt: skip
    desk = Desk()
    gate = A2AAuthorizationExecutor(desk, config=config, agent_label="desk", skill_resolver=skill_of)
    handler = DefaultRequestHandler(agent_executor=gate, task_store=InMemoryTaskStore(), agent_card=CARD)
    signing_in = [Middleware(AuthenticationMiddleware, backend=Tokens())]
    app = Starlette(routes=create_jsonrpc_routes(handler, "/"), middleware=signing_in)
    headers = {"Authorization": f"Bearer {command['agent']}"} if command.get("agent") else {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), headers=headers, timeout=120) as http, gate:
        client = await create_client(CARD, ClientConfig(streaming=False, httpx_client=http))
        message = new_text_message(f"{command['skill']} please", role=Role.ROLE_USER)
        try:
            told = [one.message.parts[0].text async for one in client.send_message(SendMessageRequest(message=message))]
        except Exception as error:
            return {"refused": f"{type(error).__name__}: {error}", "calls": desk.calls}
        return {"told": told, "calls": desk.calls}


if __name__ == "__main__":
    answer_lines(lambda command: asyncio.run(answer(command)))
