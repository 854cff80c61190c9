"""Runs of the OpenAI Agents SDK with tools that are protected, and others that are not: one JSON object on standard output.

python -m tests.adapters.openai_agents_cases URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

from agents import Agent, FunctionTool, Runner, RunState, function_tool
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel, Field

from sentinel.client import AsyncClient, Client, NoAnswerKind, Unreachable
from sentinel.integrations import ToolGuard
from sentinel.integrations.openai_agents import approve_decided, protect, protect_agent
from sentinel.tools.parse import parse_tool_table
from tests.support.tool_texts import PAY_AND_NOTE, PAY_STRICTLY

TABLE = parse_tool_table(PAY_AND_NOTE)


class Receipt(BaseModel):
    """What a typed tool gives."""

    number: str


class Cases:
    """Each case is what was called, what the model was told, and what else it is about."""

    def __init__(self, url: str) -> None:
        self.guard = ToolGuard(TABLE, Client(url, "key", agent_id="agent", timeout_seconds=60, retries=0))
        self.called: list[Any] = []

    def tool(self, name: str, *, breaks: Exception | None = None, **options: Any) -> FunctionTool:
        """A tool that notes its calls."""

        def run(order: str, copies: int | None = 50) -> str:
            self.called.append([name, order, copies])
            if breaks is not None:
                raise breaks
            return "done"

        return function_tool(run, name_override=name, description_override="x", strict_mode=False, **options)

    def agent(self, tools: list[Any], *calls: Any, name: str = "agent") -> Agent[Any]:
        """An agent whose model makes these calls, one after another."""
        turns = [[function_call(tool, given, call_id=f"call_{n}")] for n, (tool, given) in enumerate(calls)]
        return Agent(name=name, tools=tools, model=ScriptedModel([*turns, [assistant_message("ready")]]))

    async def run(self, agent: Agent[Any], *, kept: bool = False) -> dict[str, Any]:
        """A run that is gone on with once, as the module's text says; `kept`: its state was JSON meanwhile."""
        result = await Runner.run(agent, "go")
        if result.interruptions:
            state = result.to_state()
            if kept:
                state = await RunState.from_json(agent, state.to_json())
            await approve_decided(state, self.guard)
            result = await Runner.run(agent, state)
        told = [str(item.output) for item in result.new_items if isinstance(item, ToolCallOutputItem)]
        return {"waiting": [item.name for item in result.interruptions], "called": self.called, "told": told}

    async def own_question(self) -> dict[str, Any]:
        """A tool that the program asks about, beside one that is protected."""
        tools = [protect(self.tool("pay"), self.guard), self.tool("delete", needs_approval=True)]
        return await self.run(self.agent(tools, ("delete", {"order": "o1"})))

    async def own_question_kept(self) -> dict[str, Any]:
        tools = [protect(self.tool("pay"), self.guard), self.tool("delete", needs_approval=True)]
        return await self.run(self.agent(tools, ("delete", {"order": "o1"})), kept=True)

    async def question_of_an_inner_agent(self) -> dict[str, Any]:
        inner = self.agent([self.tool("delete", needs_approval=True)], ("delete", {"order": "o1"}), name="inner")
        tools = [protect(self.tool("pay"), self.guard), inner.as_tool("ask_inner", "x")]
        return await self.run(self.agent(tools, ("ask_inner", {"input": "go"})))

    async def refused(self) -> dict[str, Any]:
        """What cannot be protected, with the words of the error."""
        inner = self.agent([self.tool("delete", needs_approval=True)], name="inner")

        async def sometimes(*given: Any) -> bool:
            return False

        return {
            "always": refusal(lambda: protect(self.tool("note", needs_approval=True), self.guard)),
            "sometimes": refusal(lambda: protect(self.tool("note", needs_approval=sometimes), self.guard)),
            "twice": refusal(lambda: protect(protect(self.tool("pay"), self.guard), self.guard)),
            "agent": refusal(lambda: protect_agent(self.agent([inner.as_tool("note", "x")]), self.guard)),
        }

    async def nulls(self) -> dict[str, Any]:
        """One that is mapped, and one that is not."""
        tools = [self.tool("pay")]
        calls = [("pay", {"order": "o3", "copies": None}), ("pay", {"order": "o4", "limit": None})]
        runs = [await self.run(protect_agent(self.agent(tools, one), self.guard)) for one in calls]
        return runs[1] | {"told": runs[0]["told"] + runs[1]["told"]}

    async def unfit(self) -> dict[str, Any]:
        """The model is corrected, call by call; the function takes less than the table, and what the table injects. One tool is an object."""
        made = self

        def pay(order: str, copies: Annotated[int, Field(ge=2)], note: Literal["gift"], operation: str) -> str:
            made.called.append([order, copies, note, len(operation)])
            return "done"

        class Paying:
            """An object that is called like a function."""

            def __call__(
                self, order: str, copies: Annotated[int, Field(ge=2)], note: Literal["gift"], operation: str
            ) -> str:
                return pay(order, copies, note, operation)

        self.guard = ToolGuard(parse_tool_table(PAY_STRICTLY), self.guard.client)
        said = []
        for number, function in enumerate((pay, Paying())):
            order = {"order": f"o{number + 7}"}
            calls = [
                {**order, "copies": 3},
                {**order, "copies": 3, "note": "x"},
                {**order, "copies": 1, "note": "gift"},
            ]
            tool = function_tool(function, name_override="pay", strict_mode=False)
            turns = [("pay", one) for one in [*calls, {**order, "copies": 2, "note": "gift"}]]
            said += (await self.run(protect_agent(self.agent([tool], *turns), self.guard)))["told"]
        return {"called": self.called, "told": said}

    async def own_error(self) -> dict[str, Any]:
        """The tool asks an authority of its own, which is silent."""
        broken = self.tool("pay", breaks=Unreachable(NoAnswerKind.TIMEOUT, "no answer in time"))
        return await self.run(protect_agent(self.agent([broken], ("pay", {"order": "o2"})), self.guard))

    async def typed_output(self) -> dict[str, Any]:
        """Refusals of tools that declare what they give: by the table, and for arguments that do not fit; and a call that is made."""

        def pay(order: str) -> Receipt:
            self.called.append(order)
            return Receipt(number="1")

        found: dict[str, Any] = {}
        schema = {
            "type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"], "additionalProperties": False,
        }  # fmt: skip
        declared: list[dict[str, Any]] = [{"output_type": Receipt}, {"output_json_schema": schema}]
        for number, options in enumerate(declared):
            tools = [
                function_tool(pay, name_override=name, strict_mode=False, **options) for name in ("pay", "not_mapped")
            ]
            order = {"order": f"o{number + 20}"}
            calls = [("not_mapped", order), ("pay", {}), ("pay", order)]
            try:
                found[next(iter(options))] = (await self.run(protect_agent(self.agent(tools, *calls), self.guard)))[
                    "told"
                ]
            except Exception as error:
                found[next(iter(options))] = [f"{type(error).__name__}: {error}"]
        return found

    async def silent_authority(self) -> dict[str, Any]:
        """An interruption that waits for a person, gone on with while the authority is away, and then again."""
        table = parse_tool_table(PAY_AND_NOTE.replace("minor: '100'", "minor: '50000'"))
        here, away = (
            ToolGuard(table, Client(url, "key", agent_id="agent", timeout_seconds=60, retries=0))
            for url in (sys.argv[1], "http://127.0.0.1:9")
        )
        asked = protect_agent(self.agent([self.tool("pay")], ("pay", {"order": "o5"})), here)
        state = (await Runner.run(asked, "go")).to_state()
        try:
            await approve_decided(state, away)
            raised = ""
        except Unreachable as error:
            raised = error.kind.value
        result = await Runner.run(asked, state)
        return {
            "raised": raised, "waiting": [item.name for item in result.interruptions], "called": self.called,
            "approvals": len(await approve_decided(result.to_state(), here)),
        }  # fmt: skip

    async def silent_question(self) -> dict[str, Any]:
        """A call that needs a person, whose question whether it waits is not answered; the model makes it again."""
        table = parse_tool_table(PAY_AND_NOTE.replace("minor: '100'", "minor: '50000'"))
        self.guard = ToolGuard(table, self.guard.client)
        self.guard.async_client = FirstSilent(self.guard.async_client)  # type: ignore[assignment]
        return await self.run(
            protect_agent(self.agent([self.tool("pay")], *[("pay", {"order": "o6"})] * 2), self.guard)
        )


class FirstSilent:
    """A client whose first question gets no answer."""

    def __init__(self, client: AsyncClient) -> None:
        self._client, self._is_silent = client, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def guard(self, **question: Any) -> Any:
        """As the client's, but for the first one."""
        silent, self._is_silent = self._is_silent, False
        if silent:
            raise Unreachable(NoAnswerKind.TIMEOUT, "no answer in time")
        return await self._client.guard(**question)


def refusal(protected: Callable[[], Any]) -> str:
    """The words of a `ValueError`."""
    try:
        protected()
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    """Every case, with new tools for each."""
    names = [name for name, made in vars(Cases).items() if asyncio.iscoroutinefunction(made) and name != "run"]
    print(json.dumps({name: asyncio.run(getattr(Cases(sys.argv[1]), name)()) for name in names}))


if __name__ == "__main__":
    main()
