"""Runs inside the proxy's environment: one server process over standard input and output that answers nothing while it acts, and
others who want it meanwhile; and requests that are given up while it starts. Prints what each got.

    python -m tests.adapters.busy_server NOTES
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import mcp_types as types

from sentinel.mcp_proxy import upstream
from sentinel.mcp_proxy.upstream import StdioUpstream, UpstreamUnavailable
from tests.adapters.behaviour import behave


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


async def asked_while_silent(server: StdioUpstream, payment: str) -> str:
    """A call whose process is soon seen to be silent, but may take long to be replaced."""
    kept, upstream.CONNECT_SECONDS = server._kept, 0.5
    asked = asyncio.create_task(refund(server, payment))
    while server._kept is kept and not asked.done():
        await asyncio.sleep(0.001)
    upstream.CONNECT_SECONDS = 20.0
    return await asked


async def noted(notes: Path, payment: str) -> None:
    """Until the server acts on a payment."""
    while payment not in notes.read_text():
        await asyncio.sleep(0.02)


class Processes:
    """A server whose processes note their ids beside `notes`."""

    def __init__(self, notes: Path, **env: str) -> None:
        self._ids = Path(f"{notes}.ids")
        self._ids.touch()
        run = f"{shlex.quote(sys.executable)} -m tests.adapters.payments_server {shlex.quote(str(notes))}"
        self.server = StdioUpstream(["sh", "-c", f"echo $$ >> {shlex.quote(str(self._ids))}; exec {run}"], env=env)

    def count(self) -> dict[str, int]:
        """How many were started, and how many of them run."""
        return {"started": len(self._started()), "running": sum(_runs(one) for one in self._started())}

    def kill(self) -> None:
        """All that are left."""
        for one in self._started():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def _started(self) -> list[int]:
        return [int(line) for line in self._ids.read_text().splitlines()]

    async def give_up(self, payment: str) -> None:
        """A request that is cancelled as soon as it has a process started, or the one that is there ended."""
        kept, started = self.server._kept, self.count()["started"]
        asked = asyncio.create_task(refund(self.server, payment))
        while self.count()["started"] == started and self.server._kept is kept and not asked.done():
            await asyncio.sleep(0.02)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


def _runs(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def given_up(notes: Path) -> dict[str, Any]:
    """What runs once somebody gave up while the first process started, while it was replaced, and at the end."""
    processes = Processes(notes)
    server = processes.server
    asyncio.get_running_loop().call_later(200, processes.kill)  # where one that nobody ends is waited for
    await processes.give_up("gone")
    found: dict[str, Any] = {"starting": [await refund(server, "next"), processes.count()]}
    behave(notes, "blocks")
    await refund(server, "lost", seconds=0.5)
    await noted(notes, "lost")
    behave(notes, "blocks once")
    upstream.CONNECT_SECONDS = 0.5
    await processes.give_up("gone")
    upstream.CONNECT_SECONDS = 20.0
    found["replaced"] = [await refund(server, "next"), processes.count()]
    await server.close()
    found["closed"] = processes.count()["running"]
    processes.kill()
    ended = StdioUpstream(["sh", "-c", "exit 1"], env={})
    return {**found, "does not start": await refund(ended, "never")}


async def lists_nothing(notes: Path) -> list[Any]:
    """What two calls at once and one after them get of a server that answers the listing of its tools with an error."""
    processes = Processes(notes, PAYMENTS_LISTS="no")
    calls = [
        await refund(processes.server, "first"),
        *await asyncio.gather(*(refund(processes.server, one) for one in "ab")),
    ]
    found = [*calls, processes.count()["started"]]
    await processes.server.close()
    return found


async def main(notes: Path) -> None:
    """Prints one JSON object."""
    server = StdioUpstream([sys.executable, "-m", "tests.adapters.payments_server", str(notes)], env={})
    upstream.CONNECT_SECONDS = 20.0
    first = await refund(server, "warm")  # the process is there
    behave(notes, "blocks")
    acting = asyncio.create_task(refund(server, "acting"))
    await noted(notes, "acting")
    upstream.CONNECT_SECONDS = 0.5
    meanwhile = await asyncio.gather(refund(server, "second"), refund(server, "third"))
    upstream.CONNECT_SECONDS = 20.0
    behave(notes, "works")
    done, after = await acting, await refund(server, "after")
    behave(notes, "blocks")
    lost = await refund(server, "lost", seconds=0.5)
    await noted(notes, "lost")
    behave(notes, "blocks once")  # the old process stays as it is, a new one works
    again = await asked_while_silent(server, "again")
    await server.close()
    effects = [json.loads(line)["payment_intent"] for line in notes.read_text().splitlines()]
    print(json.dumps({
        "first": first, "meanwhile": meanwhile, "done": done, "after": after, "lost": lost, "again": again, "effects": effects,
        "given up": await given_up(notes.with_name("given_up")), "lists nothing": await lists_nothing(notes.with_name("none")),
    }))  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
