"""Passes on what the server behind the proxy logs in the midst of a request (`notifications/message`) to the client whose request it is.

Only with `--pass-on logging`, and only to a client that names a level: of 2026-07-28 in each request's `_meta`, before it by
`logging/setLevel` for its session. The proxy adds nothing to a message. Messages never hold up a call: where the client takes them
too slowly, or is gone, they are dropped.
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
"""What `--pass-on` calls it."""
LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)
"""From the least severe to the most."""
MOST_WAITING = 100
_LAST_SECONDS = 1.0
"""How long the answer to a request waits for messages that came before it."""
_KEY = "sentinel.log_level"


class LogMessages:
    """The messages of one request at or above `level`, on their way to `send`."""

    def __init__(self, level: Any, send: Callable[[types.LoggingMessageNotification], Awaitable[None]]) -> None:
        self.level, self._send = level, send
        self._waiting: asyncio.Queue[types.LoggingMessageNotification | None] = asyncio.Queue()

    def wants(self, level: str) -> bool:
        """Whether a message of that level is severe enough, and there is room for it."""
        return LEVELS.index(level) >= LEVELS.index(self.level) and self._waiting.qsize() < MOST_WAITING

    def take(self, message: types.LoggingMessageNotificationParams) -> None:
        """One message of the server's, without its `_meta`; waits for nobody."""
        if self.wants(message.level):
            params = types.LoggingMessageNotificationParams(
                level=message.level, logger=message.logger, data=message.data
            )
            self._waiting.put_nowait(types.LoggingMessageNotification(params=params))

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send them during the body, and at its end those that have come, for a moment."""
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
    """Who wants messages, and from which level on. With `is_passed_on` false nobody is asked and nobody gets any."""

    def __init__(self, *, is_passed_on: bool, with_sessions: bool) -> None:
        self._is_passed_on, self._with_sessions = is_passed_on, with_sessions

    def add_handlers(self, server: Any) -> None:
        """Declare what is there: to clients of before 2026-07-28 only where a session keeps the level that they name."""
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
        """The messages of this request, sent during the body; None where its client wants none."""
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
        """For this session, from the next request on. The server is told with each of them."""
        ctx.session._connection.state[_KEY] = params.level
        return types.EmptyResult()

    def _level_of(self, ctx: Any) -> Any:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return ctx.session._connection.state.get(_KEY)
