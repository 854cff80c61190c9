"""Strict-Transport-Security: on what goes out over TLS, and never on the word of who is not trusted."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from flask import Flask

from sentinel.core.errors import TooManyStreams
from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge, by_path
from sentinel.platform.http.wire import EdgeResponse, HttpsOnly, Request
from tests.support.asgi_client import InProcessApp


@pytest.mark.parametrize(
    ("behind_tls", "proxies", "scheme", "told", "said"),
    [
        (False, 0, "http", None, False),
        (False, 0, "https", None, True),
        (True, 0, "http", None, True),
        (False, 0, "http", "https", False),
        (False, 1, "http", "https", True),
        (False, 1, "http", "http, https", True),
        (False, 1, "http", "https, http", False),
        (False, 2, "http", "https, http", True),
        (False, 2, "http", "https", False),
        (False, 1, "http", "HTTPS", True),
        (False, 1, "http", "", False),
        (False, 1, "https", None, True),
        (False, 1, "https", "http", False),
    ],
)
def test_what_came_over_tls_says_so(behind_tls: bool, proxies: int, scheme: str, told: str | None, said: bool) -> None:
    headers = {} if told is None else {"X-Forwarded-Proto": told}
    with closing(InProcessApp(edge(HttpsOnly(behind_tls, proxies)))) as app:
        client = app.test_client()
        for method, path, status in ANSWERS:
            answer = client.open(path, method=method, json={}, headers=headers, base_url=f"{scheme}://console.example")
            assert answer.status_code == status, path
            assert answer.headers.get("Strict-Transport-Security") == ("max-age=31536000" if said else None), path


ANSWERS = (
    ("GET", "/page", 200), ("GET", "/nothing", 404), ("POST", "/hot", 200), ("POST", "/broken", 500), ("GET", "/hot", 404),
    ("GET", "/stream", 200), ("GET", "/full", 503), ("GET", "/metrics", 404),
)  # fmt: skip
"""One of every kind: a page, a refusal of Flask's, a hot route and its refusal, a stream and its refusal, the listener's own."""


def edge(https_only: HttpsOnly) -> Edge:
    """An app with a route of every kind."""
    flask = Flask("https_only", static_folder=None)
    flask.add_url_rule("/page", "page", lambda: "a page")
    problems.register(flask)

    async def hot(request: Request) -> EdgeResponse:
        return EdgeResponse(b"{}")

    async def broken(request: Request) -> EdgeResponse:
        raise RuntimeError

    async def stream(environ: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def full(environ: Any, receive: Any, send: Any) -> None:
        raise TooManyStreams("no more")

    posts, streams = by_path({"/hot": hot, "/broken": broken}), by_path({"/stream": stream, "/full": full})
    return Edge(flask, threads=1, posts=posts, streams=streams, https_only=https_only)
