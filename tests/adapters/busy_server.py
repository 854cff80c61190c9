"""Runs inside the proxy's environment: one server process over standard input and output that answers nothing while it acts, and
others who want it meanwhile. Prints what each got.

    python -m tests.adapters.busy_server NOTES
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types

from sentinel.mcp_proxy import upstream
from sentinel.mcp_proxy.upstream import StdioUpstream, UpstreamUnavailable


async def refund(server: StdioUpstream, payment: str, seconds: float = 60) -> str:
    """One call of the server's, as the proxy makes it."""
    arguments = {"payment_intent": payment, "amount": 1, "request_key": payment}
    try:
        async with server.connect() as connection:
            params = types.CallToolRequestParams(name="create_refund", arguments=arguments)
            result: Any = await connection.call(params, headers={}, seconds=seconds)
            return str(result.content[0].text)
    except UpstreamUnavailable as away:
        return f"unavailable: {away}"
    except Exception as error:
        return upstream.reason_of(error)


async def main(notes: Path) -> None:
    """Prints one JSON object."""
    behaviour = Path(f"{notes}.behaviour")
    server = StdioUpstream([sys.executable, "-m", "tests.adapters.payments_server", str(notes)], env={})
    first = await refund(server, "warm")  # the process is there
    upstream.CONNECT_SECONDS = 0.5
    behaviour.write_text("blocks")
    acting = asyncio.create_task(refund(server, "acting"))
    while "acting" not in notes.read_text():
        await asyncio.sleep(0.02)
    meanwhile = await asyncio.gather(refund(server, "second"), refund(server, "third"))
    behaviour.write_text("works")
    done, after = await acting, await refund(server, "after")
    behaviour.write_text("blocks")
    lost = await refund(server, "lost", seconds=0.5)
    upstream.CONNECT_SECONDS = 10.0
    behaviour.write_text("blocks once")  # the old process stays as it is, a new one works
    again = await refund(server, "again")
    await server.close()
    effects = [json.loads(line)["payment_intent"] for line in notes.read_text().splitlines()]
    print(json.dumps({"first": first, "meanwhile": meanwhile, "done": done, "after": after, "lost": lost, "again": again, "effects": effects}))  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
