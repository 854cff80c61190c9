"""Verification of OAuth access tokens: the proxy is an OAuth 2.1 resource server, as MCP's specification says.

A token is a JWT (RFC 9068), verified here against the issuer's published keys (JWKS), which are cached for five
minutes; no request is made about a single token. It must be issued for this proxy's address and have every declared
scope, and the operator must have mapped its subject to an agent. No token is passed on to the server behind the proxy.
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
"""Public-key signatures only: with a shared secret, whoever can verify a token could also forge one."""
_TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
_CLOCKS_APART_SECONDS = 30
_KEYS_KEPT_SECONDS = 300
_FETCH_SECONDS = 5
_PAUSE_SECONDS = 5.0
"""Pause after a request for the issuer's keys before the next one, whether it succeeded or not."""


class TokenRefused(Exception):
    """The token is not accepted. `error` is a code of RFC 6750; `status` is 401 or 403."""

    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(description)
        self.status, self.error, self.description = status, error, description


class IssuerAway(Exception):
    """The issuer's keys cannot be fetched, so the token cannot be verified."""


class IssuerKeys:
    """A cache of an issuer's published keys, by their id (`kid`).

    A cached key is returned without waiting, also while the issuer is unreachable. For all other ids together there is
    one request at a time, and none within the pause after it, so that a flood of unknown ids makes no flood of
    requests.
    """

    def __init__(self, url: str) -> None:
        self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_SECONDS)
        self._kept: Mapping[str, jwt.PyJWK] = {}
        self._kept_until = self._ask_again_at = 0.0
        self._is_away = False
        self._asking: asyncio.Task[None] | None = None

    async def find(self, key_id: str) -> jwt.PyJWK:
        """Return the key of this id. Raises `TokenRefused` where the issuer has none, `IssuerAway` where its keys cannot be fetched."""
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
        raise TokenRefused(401, "invalid_token", "the token's kid is not a key of the issuer")

    def _current(self) -> Mapping[str, jwt.PyJWK]:
        return self._kept if time.monotonic() < self._kept_until else {}

    async def _ask(self) -> None:
        try:
            found = await asyncio.wait_for(asyncio.to_thread(self._client.get_signing_keys), _FETCH_SECONDS)
        except (jwt.PyJWTError, ValueError, OSError, RecursionError, asyncio.TimeoutError):  # noqa: UP041 - in Python 3.10 it is no OSError
            self._is_away = True
        else:
            self._is_away = False
            # Reversed, so that of two keys with the same id the first counts.
            self._kept = {str(one.key_id): one for one in reversed(found)}
            self._kept_until = time.monotonic() + _KEYS_KEPT_SECONDS
        finally:
            self._ask_again_at = time.monotonic() + _PAUSE_SECONDS
            self._asking = None


class AccessTokens:
    """Verifies the tokens that one issuer issues for one proxy."""

    def __init__(self, rules: AccessRules) -> None:
        self.rules = rules
        self._keys = IssuerKeys(rules.jwks_url)

    async def agent_of(self, token: str) -> str:
        """Return the agent that the token's subject is mapped to. Raises `TokenRefused` and `IssuerAway`."""
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
            # Checked first, so that a token of another issuer causes no request for keys.
            if unchecked["payload"].get("iss") != self.rules.issuer:
                raise TokenRefused(401, "invalid_token", "the token was issued by another issuer")
            if str(unchecked["header"].get("typ", "JWT")).lower() not in _TYPES:
                raise TokenRefused(401, "invalid_token", "the token is not an access token")
            key = await self._keys.find(unchecked["header"].get("kid") or "")
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=list(ALGORITHMS), audience=self.rules.resource,
                issuer=self.rules.issuer, leeway=_CLOCKS_APART_SECONDS, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            # Only the error's class: the text of some errors repeats the token's content.
            raise TokenRefused(401, "invalid_token", f"the token is not valid ({type(error).__name__})") from error
        return claims


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes in `scope` (RFC 9068) and `scp` (of some issuers), each a text or a list."""
    found: set[str] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        if isinstance(value, str):
            found.update(value.split())
        elif isinstance(value, list):
            found.update(one for one in value if isinstance(one, str))
    return frozenset(found)
