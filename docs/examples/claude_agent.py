"""A Claude agent whose tools ask first: python docs/examples/claude_agent.py http://127.0.0.1:7860 KEY "Thank customer c1 with 10 USD"

Wants the extra `claude-agent-sdk` and access to a model service.
"""

import asyncio
import sys
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.integrations.claude_agent_sdk import ClaudeHooks
from sentinel.tools import read_tool_table

TABLE = read_tool_table(Path(__file__).parents[2] / "policies" / "tools.yaml")


@tool("issue_gift_card", "Issue a gift card", {"customer": str, "amount": str, "currency": str, "order": str})
async def issue_gift_card(arguments):
    text = "issued {amount} {currency} to {customer}".format(**arguments)
    print(text)
    return {"content": [{"type": "text", "text": text}]}


async def run(client: Client, prompt: str) -> None:
    guard = ToolGuard(TABLE, client)
    options = ClaudeAgentOptions(
        mcp_servers={"local": create_sdk_mcp_server("local", tools=[issue_gift_card])},
        hooks=ClaudeHooks(guard).matchers("mcp__local__.*"),
    )
    deferred = True
    while deferred:
        deferred = None
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage) and deferred is None and message.deferred_tool_use:
                deferred, options.resume = message.deferred_tool_use, message.session_id
        if deferred:
            approval_id = await guard.approval_wanted("issue_gift_card", deferred.input)
            print(f"waiting for {approval_id}", flush=True)
            if approval_id:
                await guard.async_client.wait_for_approval(approval_id, timeout_seconds=600)
            prompt = "Go on."  # the hook asks the authority again


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with Client(sys.argv[1], sys.argv[2], agent_id="example-claude") as one:
        asyncio.run(run(one, sys.argv[3]))
