"""Which agent talks to the proxy over HTTP: the one whose sentinel key it presents. The key opens nothing but the proxy's door.

What the proxy asks, it asks with its own key, in the agent's name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sentinel.client import AsyncClient, Rejected, Unreachable

SCOPE_KEY = "sentinel.agent"
_REMEMBERED_SECONDS = 1.0
_MOST_REMEMBERED = 1_000


class AgentKeys:
    """Keys → agents, asked of the authority and remembered for a second, so that a revoked key is refused within one."""

    def __init__(self, url: str, own: AsyncClient) -> None:
        self._url, self._own = url, own
        self._tenant: str | None = None
        self._known: dict[bytes, tuple[float, str | None]] = {}

    async def agent_of(self, key: str) -> str | None:
        """The agent that the key is bound to; None for a key of no one agent, of another tenant, or that is not accepted.

        Raises `Unreachable`.
        """
        name, now = hashlib.sha256(key.encode()).digest(), time.monotonic()
        remembered = self._known.get(name)
        if remembered is not None and remembered[0] > now:
            return remembered[1]
        agent = await self._asked(key)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[name] = (now + _REMEMBERED_SECONDS, agent)
        return agent

    async def _asked(self, key: str) -> str | None:
        if self._tenant is None:
            self._tenant = (await self._own.key()).tenant_id
        try:
            holder = await AsyncClient(self._url, key).key()
        except (Rejected, ValueError):
            return None
        return holder.agent_id if holder.tenant_id == self._tenant else None


class AgentsOnly:
    """An ASGI application that lets agents in to another one; the agent stands in the request's scope. `/healthz` is for everybody."""

    def __init__(self, app: Callable[..., Awaitable[None]], keys: AgentKeys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"] == "/healthz":
            return await _answer(send, 200, {"status": "ok"})
        key = presented_key(scope)
        try:
            agent = await self._keys.agent_of(key) if key else None
        except Unreachable:
            return await _answer(send, 503, {"error": "the authority gave no answer"})
        except Rejected:
            return await _answer(send, 503, {"error": "the authority does not accept the proxy's key"})
        if agent is None:
            return await _answer(send, 401, {"error": "Invalid or missing credentials"})
        scope[SCOPE_KEY] = agent
        return await self._app(scope, receive, send)


def presented_key(scope: dict[str, Any]) -> str | None:
    """`X-API-Key`, or `Authorization: Bearer`."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if b"x-api-key" in headers:
        return str(headers[b"x-api-key"])
    kind, _, token = headers.get(b"authorization", "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


async def _answer(send: Any, status: int, body: dict[str, str]) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
