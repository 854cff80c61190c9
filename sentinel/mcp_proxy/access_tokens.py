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
"""How long the issuer is left alone once it was asked for an unknown key, or its keys could not be had."""


class TokenRefused(Exception):
    """The token opens nothing. `error` is a code of RFC 6750; `status` 401 or 403."""

    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(description)
        self.status, self.error, self.description = status, error, description


class IssuerAway(Exception):
    """The issuer's keys cannot be had, so no token can be checked."""


class AccessTokens:
    """The tokens that one issuer makes for one proxy."""

    def __init__(self, rules: AccessRules) -> None:
        self.rules = rules
        # A key that is not among those kept is asked for anew, but no flood of unknown names makes a flood of requests.
        self._keys = jwt.PyJWKClient(
            rules.jwks_url, lifespan=_KEYS_KEPT_SECONDS, timeout=_FETCH_SECONDS, cooldown_duration=_PAUSE_SECONDS
        )
        self._away_until = 0.0

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
            claims: dict[str, Any] = jwt.decode(
                token, await self._key_of(token), algorithms=list(ALGORITHMS), audience=self.rules.resource,
                issuer=self.rules.issuer, leeway=_CLOCKS_APART_SECONDS, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            # The class, not the text: that of some repeats what the token says.
            raise TokenRefused(401, "invalid_token", f"the token does not hold ({type(error).__name__})") from error
        return claims

    async def _key_of(self, token: str) -> Any:
        if time.monotonic() < self._away_until:
            raise IssuerAway
        try:
            return await asyncio.to_thread(self._keys.get_signing_key_from_jwt, token)
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, ValueError, OSError) as error:
            self._away_until = time.monotonic() + _PAUSE_SECONDS
            raise IssuerAway from error


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` as RFC 9068 has it, or `scp` as some issuers do, as a text or a list."""
    found: set[str] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        if isinstance(value, str):
            found.update(value.split())
        elif isinstance(value, list):
            found.update(one for one in value if isinstance(one, str))
    return frozenset(found)
