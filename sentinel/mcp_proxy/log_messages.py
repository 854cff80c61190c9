"""Passes on what the upstream logs during a request (`notifications/message`) to the client that made the request.

Only with `--pass-on logging`, and only to a client that names a level: in each request's `_meta` since 2026-07-28, by
`logging/setLevel` for its session before. The proxy adds nothing to a message. Messages never block a call: where the
client reads them too slowly, or is gone, they are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

LOGGING = "logging"
"""The value of `--pass-on` for log messages."""
LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)
"""Log levels, from the least severe to the most."""
MOST_WAITING = 100
_LAST_SECONDS = 1.0
"""How long the answer to a request waits until the messages before it are sent."""
_KEY = "sentinel.log_level"


class LogMessages:
    """A queue of one request's messages at or above `level`, which are sent by `send`."""

    def __init__(self, level: Any, send: Callable[[types.LoggingMessageNotification], Awaitable[None]]) -> None:
        self.level, self._send = level, send
        self._waiting: asyncio.Queue[types.LoggingMessageNotification | None] = asyncio.Queue()

    def wants(self, level: str) -> bool:
        """Return whether a message of that level is severe enough, and the queue has room for it."""
        return LEVELS.index(level) >= LEVELS.index(self.level) and self._waiting.qsize() < MOST_WAITING

    def take(self, message: types.LoggingMessageNotificationParams) -> None:
        """Queue one message of the server without its `_meta`, or drop it; never blocks."""
        if self.wants(message.level):
            params = types.LoggingMessageNotificationParams(
                level=message.level, logger=message.logger, data=message.data
            )
            self._waiting.put_nowait(types.LoggingMessageNotification(params=params))

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send queued messages during the block; at its end wait up to a second for the rest to be sent."""
        sender = asyncio.create_task(self._send_all())
        try:
            yield
        finally:
            self._waiting.put_nowait(None)
            try:
                await asyncio.wait((sender,), timeout=_LAST_SECONDS)
            finally:
                sender.cancel()

    async def _send_all(self) -> None:
        with suppress(Exception):  # the client is gone
            while (message := await self._waiting.get()) is not None:
                await self._send(message)


class LogLevels:
    """The log level that each client wants. With `is_passed_on` false, logging is not offered and nobody gets messages."""

    def __init__(self, *, is_passed_on: bool, with_sessions: bool) -> None:
        self._is_passed_on, self._with_sessions = is_passed_on, with_sessions

    def add_handlers(self, server: Any) -> None:
        """Offer logging to clients; to those of before 2026-07-28 only with sessions, which keep the level that they set."""
        if not self._is_passed_on:
            return

        async def discover(ctx: Any, params: types.RequestParams | None) -> types.DiscoverResult:
            capabilities = Server.get_capabilities(server, protocol_version=ctx.protocol_version)
            capabilities.logging = types.LoggingCapability()
            return types.DiscoverResult(supported_versions=list(MODERN_PROTOCOL_VERSIONS), capabilities=capabilities)

        server.add_request_handler("server/discover", types.RequestParams, discover)
        if self._with_sessions:
            server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)

    @asynccontextmanager
    async def messages_of(self, ctx: Any) -> AsyncIterator[LogMessages | None]:
        """Yield the queue of this request's messages, which are sent during the block; None where its client wants none."""
        level = self._level_of(ctx) if self._is_passed_on else None
        if level not in LEVELS:
            yield None
            return

        async def send(message: types.LoggingMessageNotification) -> None:
            await ctx.session.send_notification(message, related_request_id=ctx.request_id)

        messages = LogMessages(level, send)
        async with messages.sending():
            yield messages

    async def _set_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Set the level for this session, from the next request on; each request passes it on to the upstream."""
        ctx.session._connection.state[_KEY] = params.level
        return types.EmptyResult()

    def _level_of(self, ctx: Any) -> Any:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return ctx.session._connection.state.get(_KEY)
