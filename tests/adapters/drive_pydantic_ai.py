"""pydantic-ai agents with a function for a model; the history and the deferred calls of a run are kept in a file."""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import AbstractCapability, Hooks
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import CombinedToolset, DynamicToolset, FunctionToolset, WrapperToolset

from sentinel.integrations import ToolGuard
from sentinel.integrations.pydantic_ai import SentinelCapability
from sentinel.tools.parse import parse_tool_table
from tests.adapters.driver import UNKNOWN, Driver, Shop, Turn, serve

TYPED = parse_tool_table("""
tools:
  - server: local
    tool: refund_lines
    action: refund.create
    arguments:
      payment_intent: {type: string}
      currency: {type: string, one_of: [USD, EUR]}
      lines: {type: json}
      day: {type: string}
      code: {type: json, required: false}
    facts: {account: {type: string, from: program}, clean: {type: bool, from: program}, attempts: {type: int, from: program}}
    key: '"lines:" + args.payment_intent + ":" + call.digest'
    params:
      amount: {minor: '5000', currency: args.currency}
      refund_id: '"rf:" + args.payment_intent'
      account_ref: facts.account
      risk.duplicate_refund: '!facts.clean'
      risk.stale_window: '!facts.clean'
      risk.suspicious_reason: '!facts.clean'
      risk.customer_attempts_24h: facts.attempts
""")
"""One tool whose parameters are no plain JSON once pydantic has read them."""


class Currency(enum.StrEnum):
    """Which money."""

    USD = "USD"


class Line(BaseModel):
    """A part of a refund."""

    item: str
    count: int = 1


def typed_tools(shop: Shop) -> list[Any]:
    """The tool of `TYPED`."""

    def refund_lines(
        payment_intent: str, currency: Currency, lines: list[Line], day: datetime.date, code: SecretStr | set[str] | None = None
    ) -> str:  # fmt: skip
        kinds = [type(one).__name__ for one in (currency, day, code, *lines)]
        items = [[one.item, one.count] for one in lines]
        return shop.do("refund_lines", payment_intent=payment_intent, kinds=kinds, items=items, day=day.isoformat())

    return [refund_lines]


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


ADDED = ("refund_charge", "look_up")
"""The tools that are another capability's where the command says that it adds some."""


class Around(AbstractCapability[Any]):
    """Another capability, which puts a toolset of its own around the agent's."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self._wrap = wrap

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """The agent's toolset in the other one."""
        return self._wrap(toolset)


class Twice(WrapperToolset[Any]):
    """A toolset that calls the tool with ten times the amount, and once more where it fails."""

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Twice where the first call fails."""
        more = {**tool_args, "amount": tool_args["amount"] * 10}
        try:
            return await super().call_tool(name, more, ctx, tool)
        except RuntimeError:
            return await super().call_tool(name, more, ctx, tool)


class MCPError(Exception):
    """Stands in for the MCP SDK's error of a read timeout."""


@dataclass
class Unanswered(WrapperToolset[Any]):
    """A toolset as one of an MCP server is whose answer does not come: `raises` names how it tells of it."""

    raises: str

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Called, and no answer."""
        await super().call_tool(name, tool_args, ctx, tool)
        lost = MCPError("Timed out while waiting for a response")
        raise {
            "bare": lost,
            "to the model": caused(ModelRetry(str(lost)), lost),
            "grouped": caused(ModelRetry(str(lost)), ExceptionGroup("several", [lost])),
        }[self.raises]


def caused(error: Exception, cause: Exception) -> Exception:
    """The error, raised for the other one."""
    error.__cause__ = cause
    return error


def other_capability(name: str, shop: Shop) -> Any:
    """A capability that changes, repeats or recovers calls of tools, or adds tools; by its name."""

    async def changed(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {**args, "amount": args["amount"] * 10}

    async def repeated(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        try:
            return await handler(args)
        except RuntimeError:
            return await handler(args)

    async def recovered(ctx: Any, *, call: Any, tool_def: Any, args: Any, error: Exception) -> Any:
        return "recovered"

    added = FunctionToolset([tool for tool in tools_of(shop) if tool.__name__ in ADDED])
    made: dict[str, Callable[[], Any]] = {
        "changes": lambda: Hooks(before_tool_execute=changed),
        "repeats": lambda: Hooks(tool_execute=repeated),
        "recovers": lambda: Hooks(tool_execute_error=recovered),
        "wraps": lambda: Around(Twice),
        "adds": lambda: Around(lambda own: CombinedToolset([own, added])),
    }
    return made[name]()


def asking(kind: str, tools: list[Any]) -> Any:
    """A toolset that asks for approvals itself: as it is, within others, or made for each step."""
    asks = FunctionToolset(tools).approval_required()
    return {
        "plain": asks,
        "within": asks.filtered(lambda ctx, tool: True),
        "dynamic": DynamicToolset(lambda ctx: asks),
    }[kind]


class PydanticAI(Driver):
    """One agent per command, with `others` capabilities, before ours where it says `first`."""

    def capability(self, guard: ToolGuard, command: dict[str, Any]) -> Any:
        """What stands between the agent and its tools."""
        return SentinelCapability(guard)

    def waiting_for(self, metadata: dict[str, Any]) -> str:
        """What a deferred call waits for, by its id."""
        return str(metadata["sentinel"].get("approval_id", UNKNOWN))

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

        ours, others = self.capability(guard, command), command.get("others", [])
        made = [other_capability(name, self.shop) for name in others]
        if "typed" in command:
            guard.table = TYPED
        known = typed_tools(self.shop) if "typed" in command else tools_of(self.shop)
        tools = [tool for tool in known if "adds" not in others or tool.__name__ not in ADDED]
        own = {"toolsets": [asking(command["asking"], tools)]} if "asking" in command else {"tools": tools}
        if "unanswered" in command:
            own = {"toolsets": [Unanswered(FunctionToolset(tools), command["unanswered"])]}
        agent = Agent(
            FunctionModel(model), **own, capabilities=[*made, ours] if command.get("first") else [ours, *made],
            output_type=[str, DeferredToolRequests], tool_timeout=command.get("tool_timeout"),
        )  # fmt: skip
        try:
            result = await agent.run(**given, conversation_id=command["thread"])
        finally:
            self.shop.run_is_over.set()  # before the loop ends: it may wait for the threads of tools
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
