"""Runs inside the proxy's environment: tasks whose calls are answered by a script, polled and cancelled in inconvenient orders. Prints
what each was told.

    python -m tests.adapters.task_polls
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import mcp_types as types

from sentinel.client import ActionDenied, ApprovalPending, ClientError, GuardAnswer, NoAnswerKind, Unreachable
from sentinel.mcp_proxy import tasks
from sentinel.mcp_proxy.answers import CallRefused
from sentinel.mcp_proxy.calls import NO_UPDATES, ClientUpdates, GuardedCalls, PermittedCall
from sentinel.mcp_proxy.upstream import UpstreamUnavailable

AGENT = "agent-1"
GUARDED = SimpleNamespace(injected=lambda *kind, **known: {})


class Calls(GuardedCalls):
    """Permits every call that is not `refused`; `asking` holds up the question, `connecting` the connection and `answering` the server's
    answer, until they are set. `is_away`: the server cannot be reached. It is its own upstream, connection and authority.
    """

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(async_client=self), self, seconds=60)  # type: ignore[arg-type]
        self.started: list[str] = []
        self.sent: list[str] = []
        self.asking, self.connecting, self.answering = (asyncio.Event() for _ in range(3))
        self.is_away, self.is_guarded = False, True
        self.refused: ClientError | None = None
        for held in (self.asking, self.connecting, self.answering):
            held.set()

    async def ask(
        self, agent: str, params: types.CallToolRequestParams, updates: ClientUpdates = NO_UPDATES
    ) -> PermittedCall:
        """Permitted, once `asking` is set."""
        await self.asking.wait()
        if self.refused is not None:
            raise CallRefused(self.refused)
        answer = GuardAnswer(
            "refund.create", agent, params.name, "ALLOW", "allowed", "ok", "ok", str(uuid.uuid4()), str(uuid.uuid4()), "r", "standard",
            permit_token="permit",
        )  # fmt: skip
        return PermittedCall(GUARDED, answer if self.is_guarded else None, params)  # type: ignore[arg-type]

    @asynccontextmanager
    async def connect(self, messages: Any) -> AsyncIterator[Any]:
        """A connection, once `connecting` is set."""
        await self.connecting.wait()
        if self.is_away:
            raise UpstreamUnavailable("ConnectError")
        yield self

    async def start(self, answer: GuardAnswer, start_id: uuid.UUID, act_within_seconds: int) -> None:
        """Noted."""
        self.started.append(answer.idempotency_key)

    async def report(self, **outcome: Any) -> None:
        """Taken."""

    async def prepare(self, params: types.CallToolRequestParams) -> None:
        """Nothing to be found out."""

    async def call(self, params: types.CallToolRequestParams, **options: Any) -> types.CallToolResult:
        """Sent, and answered once `answering` is set."""
        self.sent.append(params.name)
        await self.answering.wait()
        return types.CallToolResult(content=[], is_error=False)


class Polls:
    """The tasks of one proxy, one for each name of a tool."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._ids = tasks.TaskIds("key", server="local")
        self.tasks = tasks.Tasks(self.calls, self._ids)

    def id_of(self, tool: str, agent: str = AGENT) -> str:
        """A task's id."""
        made = self._ids.seal(tasks.WaitingCall(agent, tool, {}, "2026-01-01T00:00:00.000Z"))
        assert made is not None
        return made

    async def status(self, task_id: str) -> str:
        """What a poll is told, or what it raises."""
        try:
            return str((await self.tasks.get(AGENT, task_id))["status"])
        except Exception as error:
            return type(error).__name__

    async def is_still_there(self, task_id: str) -> bool:
        """By the protocol: until `ttlMs` after `createdAt`."""
        told = await self.tasks.get(AGENT, task_id)
        created = datetime.fromisoformat(told["createdAt"].replace("Z", "+00:00"))
        return created + timedelta(milliseconds=told["ttlMs"]) > datetime.now(UTC)

    async def meanwhile(self, task_id: str, *, polls: int, held: asyncio.Event, cancels: bool) -> list[str]:
        """Polls at once, of which each is held up until the task was cancelled, if it is."""
        held.clear()
        waiting = [asyncio.create_task(self.status(task_id)) for _ in range(polls)]
        await asyncio.sleep(0.05)
        for _ in range(100):  # however late this one's turn came, the others have theirs
            await asyncio.sleep(0)
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


def shared_room() -> list[Any]:
    """How many tasks each agent may cancel, one after the other, where eight cancellations are remembered; the last twice."""
    polls, told = Polls(), list[Any]()
    tasks._MOST_CANCELLED = 8
    for agent in ("greedy", "second", "third"):
        number = 0
        try:
            while True:
                polls.tasks.cancel(agent, last := polls.id_of(f"t{number}", agent))
                polls.tasks.cancel(agent, last)
                number += 1
        except tasks.MCPError:
            told.append(number)
    return told


async def main() -> None:
    """Prints one JSON object."""
    tasks._QUICK_SECONDS = 60.0  # nothing here waits for so long
    polls = Polls()
    calls, found = polls.calls, {"later": await later(polls)}
    found["refused between polls"] = await refused(polls)
    away = polls.id_of("away")
    calls.is_away = True
    found["still there"] = await polls.is_still_there(away)
    found["two polls of a refused call"] = await polls.meanwhile(away, polls=2, held=calls.connecting, cancels=False)
    found["cancelled before it was refused"] = await polls.meanwhile(away, polls=2, held=calls.connecting, cancels=True)
    calls.is_away = False
    found["asked again"] = [await polls.status(away)]
    asked = polls.id_of("asked")
    found["cancelled while it was asked"] = await polls.meanwhile(asked, polls=2, held=calls.asking, cancels=True)
    for name in ("connecting", "unguarded"):
        calls.is_guarded, held = name != "unguarded", calls.connecting
        found[f"cancelled before it was sent, {name}"] = await polls.meanwhile(polls.id_of(name), polls=2, held=held, cancels=True)  # fmt: skip
    calls.is_guarded = True
    sent = polls.id_of("sent")
    found["cancelled after it was sent"] = await polls.meanwhile(sent, polls=2, held=calls.answering, cancels=True)
    found["shared room"] = shared_room()
    tasks._MOST_CANCELLED = 0
    full = polls.id_of("full")
    try:
        polls.tasks.cancel(AGENT, full)
    except tasks.MCPError as error:
        found["one too many"] = [str(error), await polls.status(full)]
    print(json.dumps({**found, "started": calls.started, "calls": calls.sent}))


if __name__ == "__main__":
    asyncio.run(main())
