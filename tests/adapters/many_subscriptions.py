"""Runs inside the proxy's environment: as many subscriptions as agents ask for, of a server that only listens. Prints what was let in.

python -m tests.adapters.many_subscriptions listen | subscribe
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


class Silent:
    """A server that tells of no change. `open` is how many connections it has."""

    def __init__(self) -> None:
        self.open = 0

    @asynccontextmanager
    async def watch(self, wanted: Any) -> AsyncIterator[Any]:
        """A connection that stays open."""

        async def nothing() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        self.open += 1
        try:
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
                await self._handlers["on_subscribe_resource"](
                    self.ctx, types.SubscribeRequestParams(uri="payments://policy")
                )
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


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))), flush=True)
    sys.stdout.flush()
