"""A LangChain agent whose tools ask first: python docs/examples/langchain_agent.py http://127.0.0.1:7860 KEY

The model is scripted; put yours in its place. Wants the extra `langchain`.
"""

import sys
import time
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.integrations.langchain import SentinelMiddleware
from sentinel.tools import read_tool_table

TABLE = read_tool_table(Path(__file__).parents[2] / "policies" / "tools.yaml")
CALLS = [
    {"name": "issue_gift_card", "id": f"call_{amount}",
     "args": {"customer": "c1", "amount": amount, "currency": "USD", "order": f"langchain-{amount}"}}
    for amount in ("10.00", "100.00", "1000.00")
]  # fmt: skip


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


@tool
def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str:
    """Issue a gift card."""
    return f"issued {amount} {currency} to {customer}"


def main(url: str, key: str) -> None:
    model = ScriptedModel(messages=iter([AIMessage("", tool_calls=CALLS), AIMessage("Done.")]))
    thread = {"configurable": {"thread_id": "1"}}
    with Client(url, key, agent_id="example-langchain") as client:
        guard = ToolGuard(TABLE, client)
        agent = create_agent(
            model, [issue_gift_card], middleware=[SentinelMiddleware(guard)], checkpointer=InMemorySaver()
        )
        state = agent.invoke({"messages": [("user", "Thank our customers.")]}, thread)
        while waiting := state.get("__interrupt__"):
            for interrupt in waiting:  # one for each call that waits
                approval_id = interrupt.value["sentinel"].get("approval_id")
                if approval_id is None:  # resumed while the authority could not be asked: resume again a little later
                    time.sleep(5)
                    continue
                print(f"waiting for {approval_id}", flush=True)
                client.wait_for_approval(approval_id, timeout_seconds=600)
            # Whatever the run is resumed with: the authority is asked again.
            state = agent.invoke(Command(resume={interrupt.id: "go on" for interrupt in waiting}), thread)
        for message in state["messages"]:
            if isinstance(message, ToolMessage):
                print(message.content)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
