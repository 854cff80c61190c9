"""An agent of the OpenAI Agents SDK whose tools ask first: python docs/examples/openai_agent.py http://127.0.0.1:7860 KEY

The model is scripted; put yours in its place. Wants the extra `openai-agents`.
"""

import asyncio
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.integrations.openai_agents import approve_decided, protect_agent
from sentinel.tools import read_tool_table

TABLE = read_tool_table(Path(__file__).parents[2] / "policies" / "tools.yaml")
CALLS = [
    function_call("issue_gift_card", {"customer": "c1", "amount": amount, "currency": "USD", "order": f"openai-{amount}"}, call_id=amount)
    for amount in ("10.00", "100.00", "1000.00")
]  # fmt: skip


@function_tool
def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str:
    """Issue a gift card."""
    return f"issued {amount} {currency} to {customer}"


async def run(client: Client) -> None:
    guard = ToolGuard(TABLE, client)
    model = ScriptedModel([CALLS, [assistant_message("Done.")]])
    agent = protect_agent(Agent(name="thanks", tools=[issue_gift_card], model=model), guard)
    result = await Runner.run(agent, "Thank our customers.")
    while result.interruptions:
        state = result.to_state()
        for approval_id in await approve_decided(state, guard):
            print(f"waiting for {approval_id}", flush=True)
            await guard.async_client.wait_for_approval(approval_id, timeout_seconds=600)
        await approve_decided(state, guard)
        result = await Runner.run(agent, state)
    for item in result.new_items:
        if isinstance(item, ToolCallOutputItem):
            print(item.output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with Client(sys.argv[1], sys.argv[2], agent_id="example-openai") as one:
        asyncio.run(run(one))
