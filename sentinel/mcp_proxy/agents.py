"""Authentication of agents over HTTP: by their own sentinel key, or by an access token whose subject is an agent's.

Either one only admits the agent to the proxy. The proxy asks the authority with its own key, in the agent's name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from sentinel.client import AsyncClient, KeyHolder, Rejected, Unreachable
from sentinel.mcp_proxy.access_tokens import AccessTokens, IssuerAway, TokenRefused

SCOPE_KEY = "sentinel.agent"
STILL_KEY = "sentinel.agent_still"
"""Key in a request's scope of the coroutine function that returns whether the agent's credential is still accepted."""
_METADATA = "/.well-known/oauth-protected-resource"
_SCOPE = "guard"
"""The scope that an agent's own key must have, so that the proxy's key does nothing for it that its own would be refused."""
_REMEMBERED_SECONDS = 1.0
_MOST_REMEMBERED = 1_000
_ASKED_AT_ONCE = 16
"""How many keys that were not accepted recently are looked up at once: anybody can send any number of made-up ones."""
_NOBODY_CAN_SAY = 503
_LINE_SECONDS = 5.0
"""How long such a key waits for its look-up to begin."""


class Admission(Enum):
    """Whether an agent's credential is still accepted; UNKNOWN while that cannot be checked, e.g. without an answer of the authority."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


Still = Callable[[], Awaitable[Admission]]
_Remembered = tuple[float, KeyHolder | None]
"""Until when it is remembered (monotonic seconds), and the key's holder; None: the key is not accepted."""


class TooManyUnknown(Exception):
    """Too many keys that were not accepted recently wait to be looked up."""


class AgentKeys:
    """Looks up keys' agents at the authority; answers are cached for a second, besides the authority's own cache, so a
    revoked key is refused within two.

    A key that was accepted before is looked up at once; all others wait for one of a few slots, so that a flood of
    made-up keys does not block agents that have a valid one.
    """

    def __init__(self, url: str, own: AsyncClient) -> None:
        self._url, self._own = url, own
        self._tenant: str | None = None
        self._accepted: dict[bytes, _Remembered] = {}
        self._refused: dict[bytes, _Remembered] = {}
        self._turns = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def agent_of(self, key: str) -> str | None:
        """Return the agent that the key is bound to; None for a key without one, of another tenant, or not accepted.

        Raises `TokenRefused` for a key without the scope `guard`, `TooManyUnknown`, `Unreachable`, and `Rejected` where
        the authority does not accept the proxy's own key.
        """
        holder = await self._holder_of(key)
        if holder is None or holder.agent_id is None:
            return None
        if _SCOPE not in holder.scopes:
            raise TokenRefused(403, "insufficient_scope", f"the key does not have the scope {_SCOPE}")
        return holder.agent_id

    async def _holder_of(self, key: str) -> KeyHolder | None:
        name = hashlib.sha256(key.encode()).digest()
        if (found := self._remembered(name)) is not None:
            return found[1]
        if name in self._accepted:
            return await self._ask(name, key)
        try:
            await asyncio.wait_for(self._turns.acquire(), _LINE_SECONDS)
        except asyncio.TimeoutError as error:  # noqa: UP041 - in Python 3.10 it is another class
            raise TooManyUnknown from error
        try:
            found = self._remembered(name)  # another request may have looked it up meanwhile
            return found[1] if found is not None else await self._ask(name, key)
        finally:
            self._turns.release()

    def _remembered(self, name: bytes) -> _Remembered | None:
        found = self._accepted.get(name) or self._refused.get(name)
        return found if found is not None and found[0] > time.monotonic() else None

    async def _ask(self, name: bytes, key: str) -> KeyHolder | None:
        until = time.monotonic() + _REMEMBERED_SECONDS
        holder = await self._asked(key)
        self._accepted.pop(name, None)
        self._refused.pop(name, None)
        kept = self._refused if holder is None else self._accepted
        if len(kept) >= _MOST_REMEMBERED:
            del kept[next(iter(kept))]
        kept[name] = until, holder
        return holder

    async def _asked(self, key: str) -> KeyHolder | None:
        if self._tenant is None:
            self._tenant = (await self._own.key()).tenant_id
        try:
            async with AsyncClient(self._url, key) as asking:
                holder = await asking.key()
        except (Rejected, ValueError):
            return None
        return holder if holder.tenant_id == self._tenant else None


class _NotAdmitted(Exception):
    """A request is not admitted; `challenge` holds the parameters of `WWW-Authenticate` after the scheme."""

    def __init__(self, status: int, error: str, challenge: dict[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.challenge = status, error, challenge


class AgentsOnly:
    """An ASGI application that admits only agents to another one, and puts the agent's id into the request's scope.

    Open to everybody: `/healthz`, and with access tokens the proxy's metadata (RFC 9728), which names their issuer.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], keys: AgentKeys, tokens: AccessTokens | None = None
    ) -> None:
        self._app, self._keys, self._tokens = app, keys, tokens
        self._metadata_path = _METADATA
        self._metadata: dict[str, Any] = {}
        self._challenge: dict[str, str] = {}
        if tokens is not None:
            rules, parts = tokens.rules, urlsplit(tokens.rules.resource)
            self._metadata_path += parts.path.rstrip("/")
            self._metadata = {
                "resource": rules.resource, "authorization_servers": [rules.issuer],
                "scopes_supported": list(rules.scopes), "bearer_methods_supported": ["header"],
            }  # fmt: skip
            found = f"{parts.scheme}://{parts.netloc}{self._metadata_path}"
            self._challenge = {"resource_metadata": found, "scope": " ".join(rules.scopes)}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"] == "/healthz":
            return await _answer(send, 200, {"status": "ok"})
        if self._metadata and scope["path"] == self._metadata_path:
            return await _answer(send, 200, self._metadata)
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            agent = await self._admitted(headers)
        except _NotAdmitted as refused:
            return await _answer(send, refused.status, {"error": refused.error}, refused.challenge)
        scope[SCOPE_KEY] = agent
        scope[STILL_KEY] = self._still(headers, agent)
        # Binds a session to its agent: the SDK compares the user of each request with the one that opened the session.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=agent, scopes=[]))
        return await self._app(scope, receive, send)

    async def _admitted(self, headers: dict[bytes, str]) -> str:
        credential = presented_credential(headers)
        if credential is None:
            raise _NotAdmitted(401, "Invalid or missing credentials", self._challenge)
        try:
            if self._tokens is not None and _reads_as_token(credential):
                return await self._tokens.agent_of(credential)
            agent = await self._keys.agent_of(credential)
        except TokenRefused as refused:
            told = {"error": refused.error, "error_description": refused.description, **self._challenge}
            raise _NotAdmitted(refused.status, refused.description, told) from refused
        except TooManyUnknown as busy:
            raise _NotAdmitted(_NOBODY_CAN_SAY, "too many unknown keys are being looked up; try again") from busy
        except IssuerAway as away:
            raise _NotAdmitted(_NOBODY_CAN_SAY, "the keys of the access tokens' issuer cannot be fetched") from away
        except Unreachable as away:
            raise _NotAdmitted(_NOBODY_CAN_SAY, "the authority gave no answer") from away
        except Rejected as refused:
            raise _NotAdmitted(_NOBODY_CAN_SAY, "the authority does not accept the proxy's key") from refused
        if agent is None:
            raise _NotAdmitted(401, "Invalid or missing credentials", {"error": "invalid_token", **self._challenge})
        return agent

    def _still(self, headers: dict[bytes, str], agent: str) -> Still:
        async def still() -> Admission:
            try:
                return Admission.YES if await self._admitted(headers) == agent else Admission.NO
            except _NotAdmitted as refused:
                return Admission.UNKNOWN if refused.status == _NOBODY_CAN_SAY else Admission.NO

        return still


def presented_credential(headers: dict[bytes, str]) -> str | None:
    """Return the credential in `X-API-Key`, else in `Authorization: Bearer`; None without one."""
    if b"x-api-key" in headers:
        return headers[b"x-api-key"]
    kind, _, token = headers.get(b"authorization", "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


def _reads_as_token(credential: str) -> bool:
    """Return whether a credential has the three parts of a JWT; a sentinel key has no dots."""
    return credential.count(".") == 2


async def _answer(send: Any, status: int, body: dict[str, Any], challenge: dict[str, str] | None = None) -> None:
    text = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(text)).encode()),
        # Lets clients in a browser read the answer; safe, because nothing here depends on cookies.
        (b"access-control-allow-origin", b"*"),
    ]  # fmt: skip
    if challenge is not None:
        told = ", ".join(f'{name}="{value}"' for name, value in challenge.items())
        headers.append((b"www-authenticate", f"Bearer {told}".strip().encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
