"""LangChain agents with a scripted model; threads are kept in PostgreSQL where the command names one, else in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Annotated, Any, Literal

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from sentinel.integrations import ToolGuard
from sentinel.integrations.langchain import SentinelMiddleware
from tests.adapters.driver import UNKNOWN, Driver, Shop, Turn, serve

MEMORY = InMemorySaver()


class Model(GenericFakeChatModel):
    """Says what it is told to."""

    def bind_tools(self, tools: Any, **_: Any) -> Model:
        return self


def tools_of(shop: Shop) -> list[Any]:
    """The tools as LangChain has them."""

    @tool
    def create_refund(
        payment_intent: str, amount: int, reason: str | None = None, request_key: str | None = None
    ) -> str:
        """Refund a payment."""
        return shop.do("create_refund", payment_intent=payment_intent, amount=amount, request_key=request_key)

    @tool
    def refund_charge(charge: str, amount: int) -> str:
        """Refund a charge."""
        return shop.do("refund_charge", charge=charge, amount=amount)

    @tool
    def look_up(payment_intent: str) -> str:
        """Look at a payment."""
        return shop.do("look_up", payment_intent=payment_intent)

    @tool
    def wire_money(account: str) -> str:
        """A tool that nobody mapped."""
        return shop.do("wire_money", account=account)

    return [create_refund, refund_charge, look_up, wire_money]


class McpError(Exception):
    """Stands in for the MCP SDK's error of a read timeout."""


def unanswered() -> Any:
    """The end of a tool whose MCP server does not answer."""
    raise McpError("Timed out while waiting for a response")


def refund_of(kind: str, shop: Shop) -> Any:
    """Another `create_refund`: one that answers a failure in a command or a list, one that takes but one reason ("strict"), and others."""

    def failed(call_id: str) -> ToolMessage:
        return ToolMessage("card_declined", tool_call_id=call_id, status="error")

    answers: dict[str, Callable[[str], Any]] = {
        "command": lambda call_id: Command(update={"messages": [failed(call_id)]}),
        "list": lambda call_id: [failed(call_id)],
        "list of commands": lambda call_id: [Command(update={"messages": [failed(call_id)]})],
        "unanswered": lambda call_id: unanswered(),
        "success after an earlier failure": lambda call_id: Command(
            update={"messages": [failed("call_0"), ToolMessage("done", tool_call_id=call_id)]}
        ),
    }
    if kind in answers:

        @tool
        def create_refund(
            payment_intent: str, amount: int, request_key: str, call_id: Annotated[str, InjectedToolCallId]
        ) -> Any:
            """Refund a payment."""
            shop.do("create_refund", payment_intent=payment_intent, amount=amount, request_key=request_key)
            return answers[kind](call_id)

        return create_refund

    @tool("create_refund")
    def strict_refund(
        payment_intent: str, amount: int, request_key: str, call_id: Annotated[str, InjectedToolCallId],
        reason: Literal["fraudulent"],
    ) -> str:  # fmt: skip
        """Refund a payment."""
        return shop.do("create_refund", payment_intent=payment_intent, amount=amount, request_key=request_key)

    return strict_refund


def _bare_graph(tools: list[Any], said: AIMessage, middleware: SentinelMiddleware) -> Any:
    """A graph of a model and a node of tools that makes a message of whatever a tool raises."""
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [said]})
    wrapped: Any = {"wrap_tool_call": middleware.wrap_tool_call, "awrap_tool_call": middleware.awrap_tool_call}
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True, **wrapped))
    return graph.set_entry_point("model").add_edge("model", "tools").compile()


class LangChain(Driver):
    """One agent per command."""

    def middleware(self, guard: ToolGuard, command: dict[str, Any]) -> list[Any]:
        """What stands between the agent and its tools."""
        return [SentinelMiddleware(guard)]

    def waiting_for(self, value: dict[str, Any]) -> str:
        """What an interrupt waits for, by its id."""
        assert value["type"] == "tool_approval"
        return str(value["sentinel"].get("approval_id", UNKNOWN))

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [{"name": one["tool"], "args": one["args"], "id": one["id"]} for one in command["calls"]]
        said = [AIMessage(content="", tool_calls=calls), AIMessage(content="ready")]
        return self._run(guard, command, said, {"messages": [("user", "go")]})

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return self._run(guard, command, [AIMessage(content="ready")] * 3, command["value"])

    def _run(self, guard: ToolGuard, command: dict[str, Any], said: list[AIMessage], given: Any) -> Turn:
        config = {"configurable": {"thread_id": command["thread"]}}
        middleware = self.middleware(guard, command)

        tools = tools_of(self.shop)
        if kind := command.get("refund"):
            tools = [*tools[1:], *([refund_of(kind, self.shop)] if kind != "none" else [])]

        def agent(checkpointer: Any) -> Any:
            if command.get("handled"):
                return _bare_graph(tools, said[0], middleware[0])
            return create_agent(Model(messages=iter(said)), tools, middleware=middleware, checkpointer=checkpointer)

        def to_send(state: Any) -> Any:
            if command["do"] == "begin":
                return given
            if command.get("at_large"):
                return Command(resume=given)
            return Command(resume={one.id: given for one in state.interrupts})

        async def run_async() -> Any:
            if command.get("handled"):
                return await agent(None).ainvoke(given)
            async with AsyncExitStack() as stack:
                checkpointer: Any = MEMORY
                if command.get("database"):
                    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

                    checkpointer = await stack.enter_async_context(
                        AsyncPostgresSaver.from_conn_string(command["database"])
                    )
                    await checkpointer.setup()
                made = agent(checkpointer)
                return await made.ainvoke(to_send(await made.aget_state(config)), config)

        if command["form"] == "async":
            return self._turn(asyncio.run(run_async()))
        if command.get("handled"):
            return self._turn(agent(None).invoke(given))
        with ExitStack() as stack:
            checkpointer: Any = MEMORY
            if command.get("database"):
                from langgraph.checkpoint.postgres import PostgresSaver

                checkpointer = stack.enter_context(PostgresSaver.from_conn_string(command["database"]))
                checkpointer.setup()
            made = agent(checkpointer)
            return self._turn(made.invoke(to_send(made.get_state(config)), config))

    def _turn(self, state: Any) -> Turn:
        messages = [str(one.content) for one in state["messages"] if isinstance(one, ToolMessage)]
        return Turn(messages, [self.waiting_for(one.value) for one in state.get("__interrupt__", ())])


if __name__ == "__main__":
    serve(LangChain)
