"""pydantic-ai agents whose runs are workflows of DBOS, kept in PostgreSQL: a killed process's run is gone on with by the next one.

A run that waits for a person ends; its history and what it deferred are the workflow's result, and the resume is another workflow.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from sentinel.integrations import ToolGuard
from sentinel.integrations.pydantic_ai import SentinelCapability
from tests.adapters.drive_pydantic_ai import outputs_of, tools_of
from tests.adapters.driver import UNKNOWN, Driver, Shop, Turn, serve
from tests.adapters.postgresql_urls import sqlalchemy_url


class Now:
    """The command in hand. DBOS wants agents and workflows that are there when a process begins, so these ask what it is."""

    guard: ToolGuard
    shop: Shop
    said: list[ModelResponse]

    async def attempt_async(self, *args: Any, **named: Any) -> Any:
        """As the guard's."""
        return await self.guard.attempt_async(*args, **named)

    def do(self, tool: str, **arguments: Any) -> str:
        """As the shop's."""
        return self.shop.do(tool, **arguments)

    def answer(self, messages: Any, info: Any) -> ModelResponse:
        """As the model's."""
        return self.said.pop(0) if self.said else ModelResponse(parts=[TextPart("ready")])


now: Any = Now()
agent = Agent(
    FunctionModel(now.answer), name="refunds", tools=tools_of(now), output_type=[str, DeferredToolRequests],
    capabilities=[DBOSDurability(), SentinelCapability(now)],
)  # fmt: skip


@DBOS.workflow(name="run")
async def run(thread: str, earlier: dict[str, Any] | None) -> dict[str, Any]:
    """One run, or what comes after an `earlier` one whose deferred calls may be tried again."""
    given: dict[str, Any] = {"user_prompt": "go"}
    if earlier is not None:
        parts = [ToolCallPart(**one) for one in earlier["approvals"]]
        results = DeferredToolRequests(approvals=parts).build_results(approve_all=True) if parts else None
        history = ModelMessagesTypeAdapter.validate_python(earlier["history"])
        given = {"message_history": history, "deferred_tool_results": results}
    result = await agent.run(**given, conversation_id=thread)
    deferred = result.output if isinstance(result.output, DeferredToolRequests) else DeferredToolRequests()
    return {
        "history": ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json"),
        "approvals": [
            {"tool_name": one.tool_name, "args": one.args, "tool_call_id": one.tool_call_id} for one in deferred.approvals
        ],
        "waiting": [deferred.metadata[one.tool_call_id]["sentinel"].get("approval_id", UNKNOWN) for one in deferred.approvals],
        "outputs": outputs_of(result.new_messages()),
    }  # fmt: skip


class PydanticAIOnDBOS(Driver):
    """DBOS has the agent for its executor, so that it goes on with that one's runs when it is launched: once for each agent."""

    launched = ""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [ToolCallPart(one["tool"], one["args"], tool_call_id=one["id"]) for one in command["calls"]]
        return self._turn(guard, command, [ModelResponse(parts=list(calls))] if calls else [])

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return self._turn(guard, command, [])

    def _turn(self, guard: ToolGuard, command: dict[str, Any], said: list[ModelResponse]) -> Turn:
        now.guard, now.shop, now.said = guard, self.shop, said
        self._launch(command)
        found = asyncio.run(self._run(command["thread"], is_new=command["do"] == "begin"))
        return Turn(found["outputs"], found["waiting"])

    def _launch(self, command: dict[str, Any]) -> None:
        if command["agent"] == type(self).launched:
            return
        with warnings.catch_warnings(action="ignore"):
            if type(self).launched:
                DBOS.destroy()
            DBOS(config={
                "name": "refunds", "system_database_url": sqlalchemy_url(command["database"], driver="postgresql"),
                "executor_id": command["agent"], "application_version": "1", "log_level": "ERROR",
            })  # fmt: skip
            DBOS.launch()
        type(self).launched = command["agent"]

    async def _run(self, thread: str, *, is_new: bool) -> dict[str, Any]:
        earlier = None
        runs = await DBOS.list_workflows_async(workflow_id_prefix=f"{thread}:")
        if not is_new:
            last = max(runs, key=lambda one: int(one.workflow_id.rpartition(":")[2]))
            result = (await DBOS.retrieve_workflow_async(last.workflow_id)).get_result()
            earlier = await result
            if last.status == "PENDING":
                return dict(earlier)  # gone on with since the launch
        with SetWorkflowID(f"{thread}:{len(runs)}"):
            return dict(await (await DBOS.start_workflow_async(run, thread, earlier)).get_result())


if __name__ == "__main__":
    serve(PydanticAIOnDBOS)
