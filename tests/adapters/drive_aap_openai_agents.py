"""OpenAI agents behind the Agent Approval Protocol's own `Approvals`, as released; a paused run is kept in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentapprovalprotocol.openai_agents import Approvals
from agents import Agent
from agents.testing import ScriptedModel, assistant_message, function_call

from sentinel.integrations import ToolGuard
from tests.adapters.drive_openai_agents import tools_of
from tests.adapters.driver import Driver, Turn, serve


class AapOpenAIAgents(Driver):
    """One agent per command. `value` of a resume is the request that a webhook would name."""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [function_call(one["tool"], one["args"], call_id=one["id"]) for one in command["calls"]]
        return asyncio.run(self._run(command, [calls]))

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return asyncio.run(self._run(command, []))

    async def _run(self, command: dict[str, Any], said: list[Any]) -> Turn:
        kept = Path(command["state"]) / f"{command['thread']}.json"
        approvals = Approvals(
            command["url"] + "/aap", command["key"], mode="async", context={"facts": command["facts"]},
            save=lambda run_id, state: kept.write_text(state) and None, load=lambda run_id: kept.read_text(),
        )  # fmt: skip
        model = ScriptedModel([*said, [assistant_message("ready")]])
        agent = approvals.protect(Agent(name="refunds", tools=tools_of(self.shop), model=model))
        if said:
            result = await approvals.run(agent, "go", run_id=command["thread"])
            return Turn([kept.read_text()], [str(item.call_id) for item in result.interruptions])
        decided = await approvals.gate.client.get(command["value"])
        await approvals.resumer(agent)({"run_id": command["thread"]}, decided)
        return Turn([kept.read_text()])


if __name__ == "__main__":
    serve(AapOpenAIAgents)
