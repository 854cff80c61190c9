"""Runs inside the proxy's environment: tasks whose calls are answered by a script, polled and cancelled in inconvenient orders. Prints
what each was told.

    python -m tests.adapters.task_polls
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types

from sentinel.client import ActionDenied, ApprovalPending, ClientError, NoAnswerKind, Unreachable
from sentinel.mcp_proxy import tasks
from sentinel.mcp_proxy.answers import CallRefused, upstream_unavailable

AGENT = "agent-1"


class Calls:
    """Permits every call that is not `refused`; `asking` holds up the question and `running` the call, until they are set. `is_away`: nothing is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.asking, self.running, self.is_away = asyncio.Event(), asyncio.Event(), False
        self.refused: ClientError | None = None
        self.asking.set()
        self.running.set()

    async def ask(self, agent: str, params: types.CallToolRequestParams) -> types.CallToolRequestParams:
        """As `GuardedCalls` does."""
        await self.asking.wait()
        if self.refused is not None:
            raise CallRefused(self.refused)
        return params

    def begin(self, params: types.CallToolRequestParams) -> asyncio.Task[types.CallToolResult]:
        """As `GuardedCalls` does."""
        return asyncio.ensure_future(self._run(params))

    async def _run(self, params: types.CallToolRequestParams) -> types.CallToolResult:
        await self.running.wait()
        if self.is_away:
            raise CallRefused(upstream_unavailable("ConnectError"))
        self.sent.append(params.name)
        return types.CallToolResult(content=[], is_error=False)


class Polls:
    """The tasks of one proxy, one for each name of a tool."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._ids = tasks.TaskIds("key", server="local")
        self.tasks = tasks.Tasks(self.calls, self._ids)  # type: ignore[arg-type]

    def id_of(self, tool: str) -> str:
        """A task's id."""
        made = self._ids.seal(tasks.WaitingCall(AGENT, tool, {}, "2026-01-01T00:00:00.000Z"))
        assert made is not None
        return made

    async def status(self, task_id: str) -> str:
        """What a poll is told, or what it raises."""
        try:
            return str((await self.tasks.get(AGENT, task_id))["status"])
        except Exception as error:
            return type(error).__name__

    async def meanwhile(self, task_id: str, *, polls: int, held: asyncio.Event, cancels: bool) -> list[str]:
        """Polls at once, of which each is held up until the task was cancelled, if it is."""
        held.clear()
        waiting = [asyncio.create_task(self.status(task_id)) for _ in range(polls)]
        await asyncio.sleep(0.05)
        if cancels:
            self.tasks.cancel(AGENT, task_id)
        held.set()
        return list(await asyncio.gather(*waiting))


async def later(polls: Polls) -> Any:
    """Cancelled, long ago, while others come and go."""
    cancelled, other = polls.id_of("cancelled"), polls.id_of("other")
    polls.tasks.cancel(AGENT, cancelled)
    tasks._KEPT_SECONDS = -1.0  # as if all that is kept were old
    found = [await polls.status(one) for one in (cancelled, other, polls.id_of("third"), cancelled)]
    tasks._KEPT_SECONDS = 600.0
    return found


async def refused(polls: Polls) -> Any:
    """Refused one way after another between its polls, and permitted at last; and one that is refused for good."""
    told, waits, denied = [], polls.id_of("waits"), polls.id_of("denied")
    for error in (ApprovalPending("a-1", "large"), Unreachable(NoAnswerKind.SERVER, "no answer"), None):
        polls.calls.refused = error
        told.append(await polls.status(waits))
    polls.calls.refused = ActionDenied("over_limit", "Too much.")
    told.append(await polls.status(denied))
    gone = await polls.meanwhile(polls.id_of("gone"), polls=1, held=polls.calls.asking, cancels=True)
    polls.calls.refused = None
    return [*told, *gone]


async def main() -> None:
    """Prints one JSON object."""
    polls = Polls()
    calls, found = polls.calls, {"later": await later(polls)}
    found["refused between polls"] = await refused(polls)
    away = polls.id_of("away")
    calls.is_away = True
    found["two polls of a refused call"] = await polls.meanwhile(away, polls=2, held=calls.running, cancels=False)
    found["cancelled before it was refused"] = await polls.meanwhile(away, polls=2, held=calls.running, cancels=True)
    calls.is_away = False
    found["asked again"] = [await polls.status(away)]
    asked = polls.id_of("asked")
    found["cancelled while it was asked"] = await polls.meanwhile(asked, polls=2, held=calls.asking, cancels=True)
    sent = polls.id_of("sent")
    found["cancelled after it was sent"] = await polls.meanwhile(sent, polls=2, held=calls.running, cancels=True)
    tasks._MOST_CANCELLED = 0
    full = polls.id_of("full")
    try:
        polls.tasks.cancel(AGENT, full)
    except tasks.MCPError as error:
        found["one too many"] = [str(error), await polls.status(full)]
    print(json.dumps({**found, "calls": calls.sent}))


if __name__ == "__main__":
    asyncio.run(main())
