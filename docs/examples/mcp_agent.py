"""An MCP server behind the proxy: python docs/examples/mcp_agent.py http://127.0.0.1:7860 KEY

The server issues gift cards; the client is the SDK's. Both are in this file, and the proxy is between them. Wants the extra `mcp`.
"""

import asyncio
import shlex
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

TABLE = Path(__file__).parents[2] / "policies" / "tools.yaml"
server = MCPServer("gift-cards")


@server.tool()
def issue_gift_card(customer: str, amount: str, currency: str, order: str) -> str:
    """Issue a gift card."""
    return f"issued {amount} {currency} to {customer}"


async def issue_cards(agent, authority, orders: str) -> None:
    """Three cards by an agent's session: one may be issued, one waits for a person, one is refused. `orders` begins their names."""
    for amount in ("10.00", "100.00", "1000.00"):
        card = {"customer": "c1", "amount": amount, "currency": "USD", "order": f"{orders}-{amount}"}
        result = await agent.call_tool("issue_gift_card", card)
        if result.is_error and result.structured_content["decision"] == "APPROVAL_REQUIRED":
            approval_id = result.structured_content["approval_id"]
            print(f"waiting for {approval_id}", flush=True)
            await authority.wait_for_approval(approval_id, timeout_seconds=600)
            # The same call again: its key finds what was decided.
            result = await agent.call_tool("issue_gift_card", card)
        print(result.content[0].text)


async def main(url: str, key: str) -> None:
    from sentinel.client import AsyncClient

    with tempfile.NamedTemporaryFile("w") as key_file:  # mode 0600
        key_file.write(key)
        key_file.flush()
        proxy = StdioServerParameters(command=sys.executable, args=[
            "-m", "sentinel.mcp_proxy.main", "--url", url, "--key-file", key_file.name, "--agent", "example-mcp",
            "--tools", str(TABLE), "--server", "local", "--upstream-command", shlex.join([sys.executable, __file__, "serve"]),
        ], env={"PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip
        async with Client(proxy) as agent, AsyncClient(url, key, agent_id="example-mcp") as authority:
            await issue_cards(agent, authority, "mcp")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        server.run()
    elif len(sys.argv) != 3:
        sys.exit(__doc__)
    else:
        asyncio.run(main(*sys.argv[1:]))
