"""OpenAI agents with the SDK's scripted model; an interrupted run is kept as its JSON in a file, or beside the session in PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner, RunState, function_tool
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call

from sentinel.integrations import ToolGuard
from sentinel.integrations.openai_agents import approve_decided, protect_agent
from tests.adapters.driver import Driver, Shop, Turn, serve
from tests.adapters.postgresql_urls import sqlalchemy_url


def tools_of(shop: Shop) -> list[Any]:
    """The tools as the SDK has them."""

    @function_tool(strict_mode=False)
    def create_refund(
        payment_intent: str, amount: int, reason: str | None = None, request_key: str | None = None
    ) -> str:
        """Refund a payment."""
        return shop.do("create_refund", payment_intent=payment_intent, amount=amount, request_key=request_key)

    @function_tool
    def refund_charge(charge: str, amount: int) -> str:
        """Refund a charge."""
        return shop.do("refund_charge", charge=charge, amount=amount)

    @function_tool
    def look_up(payment_intent: str) -> str:
        """Look at a payment."""
        return shop.do("look_up", payment_intent=payment_intent)

    @function_tool
    def wire_money(account: str) -> str:
        """A tool that nobody mapped."""
        return shop.do("wire_money", account=account)

    return [create_refund, refund_charge, look_up, wire_money]


class KeptRuns:
    """Where the runs of a thread are kept: in a file without a session, or in the database."""

    def __init__(self, command: dict[str, Any]) -> None:
        self._thread = command["thread"]
        self._file = Path(command["state"]) / f"{self._thread}.json"
        self._url = sqlalchemy_url(command["database"]) if command["form"] == "postgres" else None

    async def session(self) -> Any:
        """The SDK's own, with what was said in this thread."""
        if self._url is None:
            return None
        from agents.extensions.memory import SQLAlchemySession

        return SQLAlchemySession.from_url(self._thread, url=self._url, create_tables=True)

    async def state(self) -> Any:
        """The JSON of the run."""
        if self._url is None:
            return json.loads(self._file.read_text())
        return (await self._execute("select state from agent_runs where thread = :thread"))[0][0]

    async def keep(self, state: Any) -> None:
        """In the place of what was there."""
        if self._url is None:
            self._file.write_text(json.dumps(state))
            return
        await self._execute("create table if not exists agent_runs (thread text primary key, state jsonb)")
        await self._execute(
            "insert into agent_runs values (:thread, cast(:state as jsonb))"
            " on conflict (thread) do update set state = excluded.state",
            state=json.dumps(state),
        )

    async def _execute(self, statement: str, **values: Any) -> Any:
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(self._url or "")
        try:
            async with engine.begin() as connection:
                names = {"thread": self._thread, **values} if ":thread" in statement else {}
                found = await connection.execute(text(statement), names)
                return found.fetchall() if found.returns_rows else []
        finally:
            await engine.dispose()


class OpenAIAgents(Driver):
    """One agent per command. The forms: `asked` leaves waiting interruptions; `naive` approves whatever interrupts; `postgres` is
    `asked` with the SDK's session, and the run's state, in PostgreSQL.
    """

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [function_call(one["tool"], one["args"], call_id=one["id"]) for one in command["calls"]]
        return asyncio.run(self._run(guard, command, [calls], "go"))

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return asyncio.run(self._run(guard, command, [], None))

    async def _run(self, guard: ToolGuard, command: dict[str, Any], said: list[Any], given: Any) -> Turn:
        model = ScriptedModel([*said, [assistant_message("ready")]])
        agent = protect_agent(Agent(name="refunds", tools=tools_of(self.shop), model=model), guard)
        kept = KeptRuns(command)
        waiting: list[str] = []
        if given is None:
            given = await RunState.from_json(agent, await kept.state())
            if command["form"] == "naive":
                for item in given.get_interruptions():
                    given.approve(item, always_approve=True)
            else:
                waiting = await approve_decided(given, guard)
        result = await Runner.run(
            agent, given, run_config=RunConfig(group_id=command["thread"]), session=await kept.session()
        )
        state = result.to_state()
        await kept.keep(state.to_json())
        if result.interruptions and not waiting:
            waiting = await approve_decided(state, guard)
        outputs = [str(item.output) for item in result.new_items if isinstance(item, ToolCallOutputItem)]
        return Turn(outputs, waiting if result.interruptions else [])


if __name__ == "__main__":
    serve(OpenAIAgents)
