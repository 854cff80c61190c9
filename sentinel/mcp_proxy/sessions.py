"""Bounds how many sessions one agent holds (`--sessions`), so that no agents take the room of all others.

An agent begins one only while it has fewer than are free: one takes at most half of all, the next half of what is left,
and it takes fourteen that have all they may until there is none for another.

The SDK bounds the sessions of all agents together and does not say when one ends. So they are followed here by their
requests: a session begins with the answer that first names it, and ends with its DELETE, or once no request of it was
being served for as long as the SDK keeps an idle one. One that ends otherwise is counted until then too.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

ROOM = 10_000
"""What the SDK keeps for all agents."""
IDLE_SECONDS = 31 * 60.0
"""A minute more than the SDK's default, so that no session that goes on is forgotten."""
_FORGET_EVERY_SECONDS = 60.0
_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_BODY = json.dumps({"error": "too many sessions are open; end one of this agent's, or try again later"}).encode()
_HEADERS = [
    (b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode()),
    (b"access-control-allow-origin", b"*"),  # as the proxy's other refusals
]  # fmt: skip


@dataclass(slots=True)
class _Session:
    """A session: how many of its requests are being served, and if none, since when (monotonic seconds)."""

    in_flight: int
    idle_since: float = 0.0


class AgentSessions:
    """An ASGI application in front of the SDK's; answers 503 where an agent would begin a session and has as many as are free.

    `room` is how many all agents may have together. `agent_of` returns the agent of a request's scope. `handshakes` are
    the revisions of the protocol that have sessions; a request of another one passes.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        agent_of: Callable[[dict[str, Any]], str],
        *,
        handshakes: Collection[str],
        room: int = ROOM,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._agent_of = app, agent_of
        self._handshakes, self._room, self._now = handshakes, room, now
        self._held: dict[str, dict[bytes, _Session]] = {}
        self._beginning: Counter[str] = Counter()
        self._forgot_at = now()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass one request on, or refuse it."""
        if scope["type"] != "http" or not self._has_sessions(scope):
            await self._app(scope, receive, send)
            return
        agent, session_id = self._agent_of(scope), _first(scope["headers"], _SESSION)
        if session_id is not None:
            await self._go_on(agent, session_id, scope, receive, send)
        elif self._may_begin(agent):
            await self._begin(agent, scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 503, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _BODY})

    def _has_sessions(self, scope: dict[str, Any]) -> bool:
        version = _first(scope["headers"], _VERSION)
        return version is None or version.decode("latin-1") in self._handshakes

    async def _begin(self, agent: str, scope: dict[str, Any], receive: Any, send: Any) -> None:
        begun: list[bytes] = []

        async def watched(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session_id = _first(message["headers"], _SESSION)
                if session_id is not None:  # already now: its client may go on with it before this answer ends
                    self._beginning[agent] -= 1
                    self._held.setdefault(agent, {})[session_id] = _Session(in_flight=1)
                    begun.append(session_id)
            await send(message)

        self._beginning[agent] += 1
        try:
            await self._app(scope, receive, watched)
        except BaseException:
            for session_id in begun:
                self._drop(agent, session_id)  # as the SDK does
            raise
        finally:
            for session_id in begun:
                self._served(agent, session_id)
            if not begun:
                self._beginning[agent] -= 1

    async def _go_on(self, agent: str, session_id: bytes, scope: dict[str, Any], receive: Any, send: Any) -> None:
        session = self._held.get(agent, {}).get(session_id)
        if session is None:
            await self._app(scope, receive, send)
            return

        async def watched(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400 and scope["method"] == "DELETE":
                self._drop(agent, session_id)
            await send(message)

        session.in_flight += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self._served(agent, session_id)

    def _served(self, agent: str, session_id: bytes) -> None:
        """Note that a request of the session is no longer served."""
        session = self._held.get(agent, {}).get(session_id)
        if session is not None:
            session.in_flight -= 1
            session.idle_since = self._now()

    def _may_begin(self, agent: str) -> bool:
        """Return whether the agent has fewer sessions than are free."""
        if self._now() - self._forgot_at >= _FORGET_EVERY_SECONDS:
            self._forgot_at = self._now()
            for one in list(self._held):
                self._forget_idle(one)
        elif not self._has_fewer_than_free(agent):
            self._forget_idle(agent)
        return self._has_fewer_than_free(agent)

    def _has_fewer_than_free(self, agent: str) -> bool:
        """Count those that are being begun too."""
        taken = sum(map(len, self._held.values())) + self._beginning.total()
        return len(self._held.get(agent, {})) + self._beginning[agent] < self._room - taken

    def _forget_idle(self, agent: str) -> None:
        last = self._now() - IDLE_SECONDS
        for session_id, session in list(self._held.get(agent, {}).items()):
            if not session.in_flight and session.idle_since <= last:
                self._drop(agent, session_id)

    def _drop(self, agent: str, session_id: bytes) -> None:
        held = self._held.get(agent, {})
        held.pop(session_id, None)
        if not held:
            self._held.pop(agent, None)


def _first(headers: Any, name: bytes) -> bytes | None:
    """Return the first header of that name, as the SDK reads it; None without one."""
    return next((bytes(value) for key, value in headers if key == name), None)
