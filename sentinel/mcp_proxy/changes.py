"""What the server behind the proxy says has changed, by either revision of the protocol: of 2026-07-28 over `subscriptions/listen`,
before it by `resources/subscribe` and plain notifications.

A change says that something may be read anew, never what it is now; so repeats are dropped while one waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import mcp_types as types
from mcp.shared.subscriptions import ServerEvent, event_from_wire, event_matches
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

_MOST_WAITING = 1_000
_PING_SECONDS = 30.0

Ask = Callable[[Any, Any], Awaitable[Any]]
"""A request and the type of its result → the answer. Raises `MCPError`."""


class Heard:
    """Changes that wait to be passed on. The loop over it ends once `end` was called, or where too many wait."""

    def __init__(self) -> None:
        self._waiting: dict[ServerEvent, None] = {}
        self._woken = asyncio.Event()
        self._is_over = False

    async def take(self, message: Any) -> None:
        """A notification of the server, or what broke its connection."""
        if isinstance(message, Exception):
            return self.end()
        params = message.params.model_dump(by_alias=True, mode="json") if message.params is not None else None
        event = event_from_wire(message.method, params)
        if event is not None:
            self._waiting[event] = None
            self._woken.set()
        if len(self._waiting) > _MOST_WAITING:
            self.end()
        return None

    def end(self) -> None:
        """Nothing more will come."""
        self._is_over = True
        self._woken.set()

    def __aiter__(self) -> Heard:
        return self

    async def __anext__(self) -> ServerEvent:
        while not self._waiting:
            if self._is_over:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        event = next(iter(self._waiting))
        del self._waiting[event]
        return event


class Subscribed:
    """How many streams want each resource over a connection that several share, so that none ends another's subscription."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}

    async def add(self, uri: str, ask: Ask) -> None:
        """Subscribe, where nobody has."""
        if not self._wanted.get(uri):
            await ask(types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)), types.EmptyResult)
        self._wanted[uri] = self._wanted.get(uri, 0) + 1

    async def remove(self, uri: str, ask: Ask) -> None:
        """Unsubscribe, where nobody else wants it; as well as it can be done."""
        self._wanted[uri] -= 1
        if not self._wanted[uri]:
            del self._wanted[uri]
            with suppress(Exception):
                await ask(types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)), types.EmptyResult)


@asynccontextmanager
async def changes_of(
    client: Any, wanted: types.SubscriptionFilter, heard: Heard, subscribed: Subscribed, ask: Ask
) -> AsyncIterator[AsyncIterator[ServerEvent]]:
    """The wanted changes over this connection. Raises `MCPError` where the server does not tell of them.

    `heard` gets the connection's plain notifications. The loop ends, or raises, when the connection does.
    """
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
        async with client.listen(
            tools_list_changed=bool(wanted.tools_list_changed), prompts_list_changed=bool(wanted.prompts_list_changed),
            resources_list_changed=bool(wanted.resources_list_changed),
            resource_subscriptions=wanted.resource_subscriptions or (),
        ) as listening:  # fmt: skip
            yield listening
        return
    uris = list(wanted.resource_subscriptions or ())
    added: list[str] = []
    pinging = asyncio.create_task(_ping(heard, ask))
    try:
        for uri in uris:
            await subscribed.add(uri, ask)
            added.append(uri)
        yield (one async for one in heard if event_matches(wanted, frozenset(uris), one))
    finally:
        pinging.cancel()
        for uri in added:
            await subscribed.remove(uri, ask)


async def _ping(heard: Heard, ask: Ask) -> None:
    """Ends what is heard once the server does not answer: such a connection may otherwise be silent for good."""
    while True:
        await asyncio.sleep(_PING_SECONDS)
        try:
            await ask(types.PingRequest(), types.EmptyResult)
        except Exception:
            return heard.end()
