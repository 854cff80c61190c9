"""Runs inside the proxy's environment: as many subscriptions as agents ask for, of a server that only listens; prints what was let in.
Or one that is ended while it begins; prints what each request was answered. Or one that is made and ended again and again; prints what
is left of it.

python -m tests.adapters.many_subscriptions listen | subscribe | end | repeat
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import mcp_types as types

from sentinel.mcp_proxy.agents import Admission
from sentinel.mcp_proxy.subscriptions import Subscriptions, TooManySubscriptions

URI = "payments://policy"


class Silent:
    """A server that tells of no change. `open` is how many connections it has; `takes` holds up those that begin until it is set."""

    def __init__(self) -> None:
        self.open = 0
        self.takes = asyncio.Event()
        self.takes.set()

    @asynccontextmanager
    async def watch(self, wanted: Any) -> AsyncIterator[Any]:
        """A connection that stays open."""

        async def nothing() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        self.open += 1
        try:
            await self.takes.wait()
            yield nothing()
        finally:
            self.open -= 1


class Asking:
    """One subscription of an agent, by either revision."""

    def __init__(self, subscriptions: Subscriptions, how: str, agent: str, number: int) -> None:
        self._handlers, self._how, self.number = subscriptions.handlers(with_sessions=True), how, number
        self._begun = asyncio.Event()
        self._stack = AsyncExitStack()
        request = SimpleNamespace(headers={"mcp-session-id": f"{agent}-{number}"})
        session = SimpleNamespace(send_notification=self._told, _connection=SimpleNamespace(exit_stack=self._stack))
        self.ctx = SimpleNamespace(request_id=number, session=session, request=request, agent=agent)
        self._task: asyncio.Task[Any] | None = None

    async def _told(self, notification: Any, **rest: Any) -> None:
        self._begun.set()

    async def is_let_in(self) -> bool:
        """Whether it was taken; it stays open then."""
        if self._how == "subscribe":
            try:
                await self._handlers["on_subscribe_resource"](self.ctx, types.SubscribeRequestParams(uri=URI))
            except TooManySubscriptions:
                return False
            return True
        params = types.SubscriptionsListenRequestParams(notifications=types.SubscriptionFilter(tools_list_changed=True))
        self._task = asyncio.ensure_future(self._handlers["on_subscriptions_listen"](self.ctx, params))
        begun = asyncio.ensure_future(self._begun.wait())
        await asyncio.wait((self._task, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if not self._task.done():
            return True
        assert isinstance(self._task.exception(), TooManySubscriptions), self._task.exception()
        return False

    async def end(self) -> None:
        """Its client, or its session, is gone."""
        await self._stack.aclose()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.sleep(0.01)


async def main(how: str) -> dict[str, Any]:
    """How many each of nine agents has, and what follows when one of them is ended."""

    async def still() -> Admission:
        return Admission.YES

    server = Silent()
    subscriptions = Subscriptions(server, ["resources"], lambda ctx: str(ctx.agent), lambda ctx: still)  # type: ignore[arg-type]
    kept: dict[str, list[Asking]] = {}
    for agent in (f"agent-{number}" for number in range(9)):
        kept[agent] = []
        for number in range(40):
            asked = Asking(subscriptions, how, agent, number)
            if await asked.is_let_in():
                kept[agent].append(asked)
    found: dict[str, Any] = {"each": [len(one) for one in kept.values()], "open": server.open}
    await kept["agent-0"].pop().end()
    late = [await Asking(subscriptions, how, agent, 99).is_let_in() for agent in ("agent-1", "agent-8", "agent-0")]
    return {**found, "late": late, "open_then": server.open}


async def ended() -> dict[str, Any]:
    """Two requests for a resource that the server has not taken yet, ended at once and while it begins; and two that it takes."""

    async def still() -> Admission:
        return Admission.YES

    server = Silent()
    handlers = Subscriptions(server, ["resources"], lambda ctx: "agent", lambda ctx: still).handlers(with_sessions=True)  # type: ignore[arg-type]
    session = SimpleNamespace(_connection=SimpleNamespace(exit_stack=AsyncExitStack()))
    ctx = SimpleNamespace(session=session, request=SimpleNamespace(headers={"mcp-session-id": "s"}))

    async def subscribed() -> str:
        try:
            async with asyncio.timeout(60):
                await handlers["on_subscribe_resource"](ctx, types.SubscribeRequestParams(uri=URI))
        except Exception as error:
            return str(error) or type(error).__name__
        return "subscribed"

    found: dict[str, Any] = {}
    for name, turns in (("at once", 1), ("beginning", 5), ("taken", 5)):
        server.takes.clear()
        asked = [asyncio.create_task(subscribed()) for _ in range(2)]
        for _ in range(turns):
            await asyncio.sleep(0)
        waited = not any(one.done() for one in asked)
        if name == "taken":
            server.takes.set()
        else:
            await handlers["on_unsubscribe_resource"](ctx, types.UnsubscribeRequestParams(uri=URI))
        found[name] = [waited, *await asyncio.gather(*asked)]
    return {**found, "open": server.open}


async def repeated() -> dict[str, int]:
    """What a session keeps after many subscriptions of which the last goes on, and how many of them outlive the session."""

    async def still() -> Admission:
        return Admission.YES

    server, stack = Silent(), AsyncExitStack()
    handlers = Subscriptions(server, ["resources"], lambda ctx: "agent", lambda ctx: still).handlers(with_sessions=True)  # type: ignore[arg-type]
    session = SimpleNamespace(_connection=SimpleNamespace(exit_stack=stack))
    ctx = SimpleNamespace(session=session, request=SimpleNamespace(headers={"mcp-session-id": "s"}))
    for _ in range(50):
        await handlers["on_subscribe_resource"](ctx, types.SubscribeRequestParams(uri=URI))
        await handlers["on_unsubscribe_resource"](ctx, types.UnsubscribeRequestParams(uri=URI))
        await asyncio.sleep(0.01)
    await handlers["on_subscribe_resource"](ctx, types.SubscribeRequestParams(uri=URI))
    found = {"kept": len(stack._exit_callbacks), "open": server.open}  # type: ignore[attr-defined]
    await stack.aclose()
    await asyncio.sleep(0.01)
    return {**found, "open_then": server.open}


RUNS = {"end": ended, "repeat": repeated}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(RUNS[sys.argv[1]]() if sys.argv[1] in RUNS else main(sys.argv[1]))), flush=True)
    sys.stdout.flush()
