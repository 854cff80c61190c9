"""A pydantic-ai agent whose tools ask first: python docs/examples/pydantic_ai_agent.py http://127.0.0.1:7860 KEY

The model is scripted; put yours in its place. Wants the extra `pydantic-ai`.
"""

import sys
import time
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.integrations.pydantic_ai import SentinelCapability
from sentinel.tools import read_tool_table

TABLE = read_tool_table(Path(__file__).parents[2] / "policies" / "tools.yaml")
CALLS = [
    ToolCallPart(
        "issue_gift_card", {"customer": "c1", "amount": amount, "currency": "USD", "order": f"pydantic-{amount}"}
    )
    for amount in ("10.00", "100.00", "1000.00")
]


def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str:
    """Issue a gift card."""
    return f"issued {amount} {currency} to {customer}"


def main(url: str, key: str) -> None:
    said = iter([ModelResponse(parts=CALLS), ModelResponse(parts=[TextPart("Done.")])])
    with Client(url, key, agent_id="example-pydantic") as client:
        agent = Agent(
            FunctionModel(lambda messages, info: next(said)), tools=[issue_gift_card],
            capabilities=[SentinelCapability(ToolGuard(TABLE, client))], output_type=[str, DeferredToolRequests],
        )  # fmt: skip
        result = agent.run_sync("Thank our customers.")
        while isinstance(requests := result.output, DeferredToolRequests):
            for call in requests.approvals:
                approval_id = requests.metadata[call.tool_call_id]["sentinel"].get("approval_id")
                if approval_id is None:  # gone on while the authority could not be asked: go on again a little later
                    time.sleep(5)
                    continue
                print(f"waiting for {approval_id}", flush=True)
                client.wait_for_approval(approval_id, timeout_seconds=600)
            # approve_all only lets the run go on: the authority is asked again.
            results = requests.build_results(approve_all=True)
            result = agent.run_sync(message_history=result.all_messages(), deferred_tool_results=results)
        for message in result.all_messages():
            for part in message.parts:
                if isinstance(part, ToolReturnPart):
                    print(part.content)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
