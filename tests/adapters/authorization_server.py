"""An OAuth authorization server as MCP's clients expect one: metadata, registration of clients, codes with PKCE, access tokens as JWTs.

    python -m tests.adapters.authorization_server PORT

Whoever asks at /authorize is signed in as "kim". POST /mint makes any other token: {"claims", "by", "header"}; /notes says what was asked.
POST /rotate has a new key named "next" in the place of "RS256", which is no longer among the published ones.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import time
import uuid
from collections import Counter
from typing import Any
from urllib.parse import parse_qs, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

SCOPE = "payments"


class Issuer:
    """Its keys, and the codes that it has given out."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: Counter[str] = Counter()
        self._codes: dict[str, dict[str, str]] = {}
        self._keys: dict[str, Any] = {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048), "ES256": ec.generate_private_key(ec.SECP256R1()),
        }  # fmt: skip
        self._withdrawn: set[str] = set()
        self._another = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def token(self, claims: dict[str, Any], *, by: str = "RS256", header: dict[str, Any] | None = None) -> str:
        """A signed token. `by` is an algorithm, "another" key under a published name, the public key as a secret, or "nobody"."""
        now = int(time.time())
        whole = {"iss": self.url, "sub": "kim", "iat": now, "exp": now + 600, "scope": SCOPE, **claims}
        whole = {name: value for name, value in whole.items() if value is not None}
        names = {"kid": by if by in self._keys else "RS256", "typ": "at+jwt", **(header or {})}
        if by == "nobody":
            return jwt.encode(whole, None, algorithm="none", headers=names)
        if by == "secret":
            return jwt.encode(
                whole, "the public key, as it stands in the set of keys", algorithm="HS256", headers=names
            )
        if by == "another":
            return jwt.encode(whole, self._another, algorithm="RS256", headers=names)
        return jwt.encode(whole, self._keys[by], algorithm=_algorithm(by), headers=names)

    async def metadata(self, request: Request) -> JSONResponse:
        """RFC 8414."""
        return JSONResponse({
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register", "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"], "grant_types_supported": ["authorization_code"],
            "code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"],
            "scopes_supported": [SCOPE], "authorization_response_iss_parameter_supported": True,
        })  # fmt: skip

    async def keys(self, request: Request) -> JSONResponse:
        """The public keys."""
        self.asked["keys"] += 1
        made = {"RS256": jwt.algorithms.RSAAlgorithm, "ES256": jwt.algorithms.ECAlgorithm}
        found = [
            {**made[_algorithm(name)].to_jwk(key.public_key(), as_dict=True), "kid": name, "alg": _algorithm(name), "use": "sig"}
            for name, key in self._keys.items()
            if name not in self._withdrawn
        ]  # fmt: skip
        return JSONResponse({"keys": found})

    async def rotate(self, request: Request) -> JSONResponse:
        """Another key."""
        self._keys["next"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._withdrawn.add("RS256")
        return JSONResponse({"kid": "next"})

    async def register(self, request: Request) -> JSONResponse:
        """RFC 7591."""
        return JSONResponse({**await request.json(), "client_id": uuid.uuid4().hex}, status_code=201)

    async def authorize(self, request: Request) -> RedirectResponse:
        """A code, at once."""
        asked = dict(request.query_params)
        code = uuid.uuid4().hex
        self._codes[code] = asked
        answer = urlencode({"code": code, "state": asked["state"], "iss": self.url})
        return RedirectResponse(f"{asked['redirect_uri']}?{answer}", status_code=302)

    async def exchange(self, request: Request) -> JSONResponse:
        """A token for a code, for the resource that was named."""
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        asked = self._codes.pop(form["code"])
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if digest != asked["code_challenge"] or form["resource"] != asked["resource"]:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        self.asked["tokens"] += 1
        token = self.token({"aud": form["resource"], "scope": asked.get("scope", "")})
        return JSONResponse(
            {"access_token": token, "token_type": "Bearer", "expires_in": 600, "scope": asked.get("scope")}
        )

    async def mint(self, request: Request) -> JSONResponse:
        """Any token."""
        asked = await request.json()
        return JSONResponse({"token": self.token(asked["claims"], by=asked["by"], header=asked["header"])})

    async def notes(self, request: Request) -> JSONResponse:
        """How often keys and tokens were asked for."""
        return JSONResponse(dict(self.asked))

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=[
            Route("/.well-known/oauth-authorization-server", self.metadata), Route("/keys", self.keys),
            Route("/register", self.register, methods=["POST"]), Route("/authorize", self.authorize),
            Route("/rotate", self.rotate, methods=["POST"]), Route("/token", self.exchange, methods=["POST"]), Route("/mint", self.mint, methods=["POST"]), Route("/notes", self.notes),
        ])  # fmt: skip


def _algorithm(name: str) -> str:
    """That of the key of this name."""
    return "RS256" if name == "next" else name


def main(port: str) -> None:
    """Serve until ended."""
    import uvicorn

    uvicorn.run(Issuer(int(port)).app(), host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])
