"""Access tokens of an authorization server at the proxy's door: the proxy is an OAuth 2.1 resource server, as MCP's specification says.

A token is a JWT (RFC 9068), checked here against the issuer's published keys (JWKS), which are kept for five minutes; nobody is
asked about a token. It must be made for this proxy's address and have every declared scope, and its subject must be one that
the operator names, with the agent that it stands for. No token goes to the server behind the proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import jwt

from sentinel.mcp_proxy.access_rules import AccessRules

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures by public keys alone: with a shared secret whoever checks a token could have made it."""
_TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
_CLOCKS_APART_SECONDS = 30
_KEYS_KEPT_SECONDS = 300
_FETCH_SECONDS = 5
_PAUSE_SECONDS = 5.0
"""How long the issuer is left alone once it was asked for its keys, whether they could be had or not."""


class TokenRefused(Exception):
    """The token opens nothing. `error` is a code of RFC 6750; `status` 401 or 403."""

    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(description)
        self.status, self.error, self.description = status, error, description


class IssuerAway(Exception):
    """The issuer's keys cannot be had, so no token can be checked."""


class IssuerKeys:
    """An issuer's published keys by their id (`kid`).

    Whoever names one that is kept waits for nothing: neither for the issuer, nor while it is away. For all others together there
    is one request at a time, and none within the pause after it, so that no flood of unknown ids makes a flood of requests.
    """

    def __init__(self, url: str) -> None:
        self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_SECONDS)
        self._kept: Mapping[str, jwt.PyJWK] = {}
        self._kept_until = self._ask_again_at = 0.0
        self._is_away = False
        self._asking: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> jwt.PyJWK:
        """The key of this id. Raises `TokenRefused` where the issuer has none, `IssuerAway` where that cannot be known."""
        found = self._current().get(key_id)
        if found is not None:
            return found
        if self._asking is None and time.monotonic() >= self._ask_again_at:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait({self._asking})
        found = self._current().get(key_id)
        if found is not None:
            return found
        if self._is_away:
            raise IssuerAway
        raise TokenRefused(401, "invalid_token", "the token names no key of the issuer")

    def _current(self) -> Mapping[str, jwt.PyJWK]:
        return self._kept if time.monotonic() < self._kept_until else {}

    async def _ask(self) -> None:
        try:
            found = await asyncio.wait_for(asyncio.to_thread(self._client.get_signing_keys), _FETCH_SECONDS)
        except (jwt.PyJWTError, ValueError, OSError, RecursionError, asyncio.TimeoutError):  # noqa: UP041 - in Python 3.10 it is no OSError
            self._is_away = True
        else:
            self._is_away = False
            # Of two with one id the first counts.
            self._kept = {str(one.key_id): one for one in reversed(found)}
            self._kept_until = time.monotonic() + _KEYS_KEPT_SECONDS
        finally:
            self._ask_again_at = time.monotonic() + _PAUSE_SECONDS
            self._asking = None


class AccessTokens:
    """The tokens that one issuer makes for one proxy."""

    def __init__(self, rules: AccessRules) -> None:
        self.rules = rules
        self._keys = IssuerKeys(rules.jwks_url)

    async def agent_of(self, token: str) -> str:
        """The agent that the token's subject stands for. Raises `TokenRefused` and `IssuerAway`."""
        claims = await self._claims(token)
        given = _scopes_of(claims)
        missing = [one for one in self.rules.scopes if one not in given]
        if missing:
            raise TokenRefused(403, "insufficient_scope", f"the token does not have the scope {missing[0]}")
        agent = self.rules.agents.get(claims["sub"])
        if agent is None:
            raise TokenRefused(403, "insufficient_scope", "no agent is declared for the token's subject")
        return agent

    async def _claims(self, token: str) -> dict[str, Any]:
        try:
            unchecked = jwt.decode_complete(token, options={"verify_signature": False})
            # First, so that a stranger's token makes nobody ask for keys.
            if unchecked["payload"].get("iss") != self.rules.issuer:
                raise TokenRefused(401, "invalid_token", "the token is of another issuer")
            if str(unchecked["header"].get("typ", "JWT")).lower() not in _TYPES:
                raise TokenRefused(401, "invalid_token", "this is not an access token")
            key = await self._keys.find(unchecked["header"].get("kid") or "")
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=list(ALGORITHMS), audience=self.rules.resource,
                issuer=self.rules.issuer, leeway=_CLOCKS_APART_SECONDS, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            # The class, not the text: that of some repeats what the token says.
            raise TokenRefused(401, "invalid_token", f"the token does not hold ({type(error).__name__})") from error
        return claims


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` as RFC 9068 has it, or `scp` as some issuers do, as a text or a list."""
    found: set[str] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        if isinstance(value, str):
            found.update(value.split())
        elif isinstance(value, list):
            found.update(one for one in value if isinstance(one, str))
    return frozenset(found)
