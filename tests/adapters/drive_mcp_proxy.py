"""The MCP proxy between a client of the SDK and a payments server, over loopback HTTP. To wait is to call again, or a task.

Forms: "modern" (2026-07-28), "legacy" (the handshake before it), "tasks" (a client that speaks the tasks extension).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import uvicorn
from mcp import Client
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import Field

from sentinel.integrations import ToolGuard
from sentinel.mcp_proxy.main import Proxy
from sentinel.mcp_proxy.options import Options
from sentinel.mcp_proxy.tasks import EXTENSION
from tests.adapters.driver import Driver, Turn, facts_of, serve
from tests.adapters.patient_proxy import AUTHORITY_SECONDS, be_patient
from tests.adapters.payments_server import payments_server


class CreatedTask(types.Result):
    """What a call gets that became a task."""

    result_type: Literal["task"] = Field(default="task", alias="resultType")
    task_id: str = Field(alias="taskId")
    status_message: str | None = Field(default=None, alias="statusMessage")


class SpeaksTasks(ClientExtension):
    """Declares the extension; what becomes of a task is the test's."""

    identifier = EXTENSION

    def claims(self) -> Any:
        async def unresolved(task: CreatedTask, context: Any) -> types.CallToolResult:
            raise AssertionError("not resolved here")

        return (ResultClaim(result_type="task", model=CreatedTask, resolve=unresolved),)


class TaskParams(types.RequestParams):
    """Names a task."""

    task_id: str = Field(serialization_alias="taskId")


class TaskRequest(types.Request[TaskParams, str]):
    """tasks/get or tasks/cancel."""

    method: str
    params: TaskParams


class TaskState(types.Result):
    """How a task stands."""

    status: str
    status_message: str | None = Field(default=None, alias="statusMessage")
    result: types.CallToolResult | None = None


class Proxied(Driver):
    """A thread's waiting calls are in a file: a task id, or the call itself."""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return asyncio.run(self._run(guard, command, command["calls"]))

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return asyncio.run(self._run(guard, command, json.loads(self._file(command).read_text())))

    async def _run(self, guard: ToolGuard, command: dict[str, Any], calls: list[dict[str, Any]]) -> Turn:
        turn, left = Turn(), []
        # What is not over when this process dies, still waits.
        self._file(command).write_text(json.dumps(calls))
        extensions = [SpeaksTasks()] if command["form"] == "tasks" else []
        async with self._proxy(guard, command) as url:
            mode = "legacy" if command["form"] == "legacy" else "auto"
            async with Client(url, mode=mode, extensions=extensions) as client:
                done = await asyncio.gather(*(self._one(client, call) for call in calls))
        for waits_as, waiting, text in done:
            turn.messages.append(text)
            if waiting:
                turn.waiting.append(waiting)
            if waits_as is not None:
                left.append(waits_as)
        self._file(command).write_text(json.dumps(left))
        return turn

    async def _one(self, client: Client, call: dict[str, Any]) -> tuple[dict[str, Any] | None, str, str]:
        """(what to go on with, the approval that it waits for or "", all that the model or the task's client is told)."""
        result: Any
        if "task" in call:
            while (result := await self._task(client, "tasks/get", call["task"])).status == "working":
                if result.status_message:
                    return call, approval_of(result.status_message), result.status_message
            result = result.result
        else:
            result = await client.session.call_tool(call["tool"], call["args"], allow_claimed=True)
        if isinstance(result, CreatedTask):
            assert result.status_message is not None
            return {"task": result.task_id}, approval_of(result.status_message), result.status_message
        details = result.structured_content or {}
        waiting = details.get("approval_id", "") if details.get("decision") == "APPROVAL_REQUIRED" and details["retry"] == "after_approval" else ""  # fmt: skip
        return call if waiting else None, waiting, " ".join(one.text for one in result.content)

    async def _task(self, client: Client, method: str, task_id: str) -> TaskState:
        request = TaskRequest(method=method, params=TaskParams(task_id=task_id))
        return await client.session.send_request(request, TaskState)

    @asynccontextmanager
    async def _proxy(self, guard: ToolGuard, command: dict[str, Any]) -> AsyncIterator[str]:
        upstream = payments_server(lambda tool, headers, **arguments: self.shop.do(tool, **arguments))
        async with served(upstream.streamable_http_app()) as upstream_url:
            options = Options(
                authority=command["url"], key=command["key"], table=guard.table, server="local", upstream_url=upstream_url,
                upstream_command=[], credential="sk_test", credential_name="Authorization", listen=None, allowed_hosts=[],
                agent=command["agent"], facts=facts_of(command), seconds=60.0,
                authority_seconds=command.get("timeout", AUTHORITY_SECONDS),
            )  # fmt: skip
            async with Proxy(options) as proxy, served(proxy.server.streamable_http_app(stateless_http=True)) as url:
                yield url

    def _file(self, command: dict[str, Any]) -> Path:
        return Path(command["state"]) / f"{command['thread']}.json"


def approval_of(status: str) -> str:
    """The approval that a task says it waits for; "" where it waits for something else."""
    return status.removeprefix("waiting for approval ") if status.startswith("waiting for approval ") else ""


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The application on a loopback port, inside; its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
        if task.done():
            await task
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await task


if __name__ == "__main__":
    be_patient()
    serve(Proxied)
