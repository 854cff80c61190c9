"""pydantic-ai agents with a function for a model; the history and the deferred calls of a run are kept in a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from sentinel.integrations import ToolGuard
from sentinel.integrations.pydantic_ai import SentinelCapability
from tests.adapters.driver import Driver, Shop, Turn, serve


def tools_of(shop: Shop) -> list[Any]:
    """The tools as plain functions."""

    def create_refund(
        payment_intent: str, amount: int, reason: str | None = None, request_key: str | None = None
    ) -> str:
        return shop.do("create_refund", payment_intent=payment_intent, amount=amount, request_key=request_key)

    async def refund_charge(charge: str, amount: int) -> str:
        return shop.do("refund_charge", charge=charge, amount=amount)

    def look_up(payment_intent: str) -> str:
        return shop.do("look_up", payment_intent=payment_intent)

    def wire_money(account: str) -> str:
        return shop.do("wire_money", account=account)

    return [create_refund, refund_charge, look_up, wire_money]


class PydanticAI(Driver):
    """One agent per command."""

    def capability(self, guard: ToolGuard, command: dict[str, Any]) -> Any:
        """What stands between the agent and its tools."""
        return SentinelCapability(guard)

    def waiting_for(self, metadata: dict[str, Any]) -> str:
        """What a deferred call waits for, by its id."""
        return str(metadata["sentinel"]["approval_id"])

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [ToolCallPart(one["tool"], one["args"], tool_call_id=one["id"]) for one in command["calls"]]
        return asyncio.run(self._run(guard, command, calls, {"user_prompt": "go"}))

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        kept = json.loads(self._file(command).read_text())
        parts = [ToolCallPart(**one) for one in kept["approvals"]]
        results = DeferredToolRequests(approvals=parts).build_results(approve_all=True) if parts else None
        history = ModelMessagesTypeAdapter.validate_python(kept["history"])
        return asyncio.run(
            self._run(guard, command, [], {"message_history": history, "deferred_tool_results": results})
        )

    async def _run(self, guard: ToolGuard, command: dict[str, Any], calls: list[ToolCallPart], given: Any) -> Turn:
        said = iter([ModelResponse(parts=list(calls))] if calls else [])

        def model(messages: Any, info: Any) -> ModelResponse:
            return next(said, ModelResponse(parts=[TextPart("ready")]))

        agent = Agent(
            FunctionModel(model), tools=tools_of(self.shop), capabilities=[self.capability(guard, command)],
            output_type=[str, DeferredToolRequests],
        )  # fmt: skip
        result = await agent.run(**given, conversation_id=command["thread"])
        output = result.output
        deferred = output if isinstance(output, DeferredToolRequests) else DeferredToolRequests()
        approvals = [
            {"tool_name": one.tool_name, "args": one.args, "tool_call_id": one.tool_call_id}
            for one in deferred.approvals
        ]
        history = ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json")
        self._file(command).write_text(json.dumps({"history": history, "approvals": approvals}))
        waiting = [self.waiting_for(deferred.metadata[one.tool_call_id]) for one in deferred.approvals]
        return Turn(outputs_of(result.new_messages()), waiting)

    def _file(self, command: dict[str, Any]) -> Path:
        return Path(command["state"]) / f"{command['thread']}.json"


def outputs_of(messages: list[Any]) -> list[str]:
    """What the model was told of its calls."""
    return [str(part.content) for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


if __name__ == "__main__":
    serve(PydanticAI)
