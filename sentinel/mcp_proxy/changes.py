"""Change notifications from the upstream, by either revision of the protocol: `subscriptions/listen` of 2026-07-28,
before it `resources/subscribe` and plain notifications.

A change says that something should be read again, never what it is now, so a repeat of a queued change is dropped.
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
"""Sends a request, given it and the type of its result, and returns the answer. Raises `MCPError`."""


class Heard:
    """A queue of changes to be passed on. The loop over it ends once `end` was called, or after too many were queued."""

    def __init__(self) -> None:
        self._waiting: dict[ServerEvent, None] = {}
        self._woken = asyncio.Event()
        self._is_over = False

    async def take(self, message: Any) -> None:
        """Queue a notification of the server; an exception, which broke the connection, ends the queue."""
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
        """End the queue: the loop over it ends after what is queued."""
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
    """Counts the streams that want each resource over a shared connection, so that no stream ends another's subscription."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}

    async def add(self, uri: str, ask: Ask) -> None:
        """Count a stream, and subscribe if it is the first for this resource."""
        if not self._wanted.get(uri):
            await ask(types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)), types.EmptyResult)
        self._wanted[uri] = self._wanted.get(uri, 0) + 1

    async def remove(self, uri: str, ask: Ask) -> None:
        """Drop a stream, and unsubscribe if it was the last for this resource; a failure of that is ignored."""
        self._wanted[uri] -= 1
        if not self._wanted[uri]:
            del self._wanted[uri]
            with suppress(Exception):
                await ask(types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)), types.EmptyResult)


@asynccontextmanager
async def changes_of(
    client: Any, wanted: types.SubscriptionFilter, heard: Heard, subscribed: Subscribed, ask: Ask
) -> AsyncIterator[AsyncIterator[ServerEvent]]:
    """Yield an iterator over the wanted changes on this connection. Raises `MCPError` where the server offers none.

    `heard` gets the connection's plain notifications. The iterator ends, or raises, when the connection does.
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
    """End `heard` once the server does not answer a ping: a dead connection could otherwise stay silent for good."""
    while True:
        await asyncio.sleep(_PING_SECONDS)
        try:
            await ask(types.PingRequest(), types.EmptyResult)
        except Exception:
            return heard.end()
