"""Agents that come to the MCP proxy with OAuth access tokens: python docs/examples/mcp_access_tokens.py http://127.0.0.1:7860 KEY

The agent knows the proxy's address and its own client id and secret; it has no key of sentinel. The proxy's 401 leads it to the
issuer, which gives it a token for the proxy; the file of `--access-tokens` says which agent the token's subject is. The issuer stands
for your identity provider. The server and the agent's calls are those of `mcp_agent.py`. Wants the extra `mcp`.
"""

import asyncio
import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import jwt
import mcp_agent
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

REPO = Path(__file__).parents[2]
CLIENT_ID, CLIENT_SECRET = "gift-desk", "a-secret-between-the-agent-and-its-issuer"


def issuer(url: str, audience: str) -> Starlette:
    """Three routes of an OAuth authorization server: its metadata, its public keys, and tokens for who has the secret."""
    key = ec.generate_private_key(ec.SECP256R1())

    async def metadata(request):
        return JSONResponse({
            "issuer": url, "token_endpoint": f"{url}/token", "authorization_endpoint": f"{url}/authorize", "jwks_uri": f"{url}/keys",
            "response_types_supported": ["code"], "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        })  # fmt: skip

    async def keys(request):
        public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return JSONResponse({"keys": [{**public, "kid": "1", "alg": "ES256", "use": "sig"}]})

    async def token(request):
        asked = await request.form()
        said = tuple(asked.get(name) for name in ("client_id", "client_secret", "resource"))
        if said != (CLIENT_ID, CLIENT_SECRET, audience):
            return JSONResponse({"error": "invalid_client"}, status_code=401)
        now = int(time.time())
        claims = {"iss": url, "aud": audience, "sub": CLIENT_ID, "scope": "payments", "iat": now, "exp": now + 300}
        made = jwt.encode(claims, key, algorithm="ES256", headers={"kid": "1", "typ": "at+jwt"})
        return JSONResponse({"access_token": made, "token_type": "Bearer", "expires_in": 300, "scope": "payments"})

    return Starlette(routes=[
        Route("/.well-known/oauth-authorization-server", metadata), Route("/keys", keys), Route("/token", token, methods=["POST"]),
    ])  # fmt: skip


class Kept:
    """Where the agent's own OAuth client keeps its token."""

    def __init__(self):
        self.tokens = self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


@contextlib.asynccontextmanager
async def proxy(url, key, resource, issuer_url):
    """`sentinel mcp-proxy` on the port of `resource`, in front of the server of `mcp_agent.py`."""
    with tempfile.TemporaryDirectory() as folder:  # mode 0700
        Path(folder, "proxy.key").write_text(key)
        Path(folder, "access.yaml").write_text(
            f"resource: {resource}\nissuer: {issuer_url}\njwks_url: {issuer_url}/keys\nscopes: [payments]\nagents: {{{CLIENT_ID}: example-tokens}}\n"
        )
        address = resource.split("/")[2]
        process = subprocess.Popen([
            sys.executable, "-m", "sentinel.mcp_proxy.main", "--url", url, "--key-file", f"{folder}/proxy.key",
            "--access-tokens", f"{folder}/access.yaml", "--listen", address, "--server", "local",
            "--tools", str(REPO / "policies" / "tools.yaml"), "--upstream-command", shlex.join([sys.executable, mcp_agent.__file__, "serve"]),
        ], env={"PYTHONPATH": str(REPO)})  # fmt: skip
        try:
            async with httpx2.AsyncClient() as http:
                while process.poll() is None:
                    with contextlib.suppress(httpx2.TransportError):
                        await http.get(f"http://{address}/healthz")
                        break
                    await asyncio.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(30)


async def main(url: str, key: str) -> None:
    from sentinel.client import AsyncClient

    issuer_url, resource = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}/mcp"
    port = int(issuer_url.rpartition(":")[2])
    login = uvicorn.Server(uvicorn.Config(issuer(issuer_url, resource), host="127.0.0.1", port=port, log_level="error"))
    serving = asyncio.create_task(login.serve())
    async with proxy(url, key, resource, issuer_url), AsyncClient(url, key, agent_id="example-tokens") as authority:
        signing_in = ClientCredentialsOAuthProvider(
            resource, Kept(), CLIENT_ID, CLIENT_SECRET, "client_secret_post", scope="payments", issuer=issuer_url
        )
        async with (
            httpx2.AsyncClient(auth=signing_in, timeout=60) as http,
            Client(streamable_http_client(resource, http_client=http)) as agent,
        ):
            await mcp_agent.issue_cards(agent, authority, "tokens")
    login.should_exit = True
    await serving


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
