"""A Host header that is no host: refused with a problem document, before any route, by Flask and on the loop."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder, run_wsgi_app

from sentinel.platform.http import problems
from sentinel.platform.http.asgi import HotRoutes
from sentinel.platform.http.readiness import Readiness
from sentinel.platform.http.wire import EdgeResponse, Request, is_host
from sentinel.platform.serving.health import create_app as health_app
from tests.unit.http.test_asgi import ask, rest, sized

GOOD = (
    "localhost",
    "127.0.0.1:7860",
    "[::1]",
    "[::1]:7860",
    "a.example",
    "a.example.",
    "A-1_b.example:65535",
    "a.example:",
    "x" * 240,
)
BAD = (
    "", " ", "a b", "a/b", "a@b", "a,b", "a?b", "a#b", "<script>", "%00", "..", ".a", "a..b", "x:abc", "x:65536", "x:999999", "a:1:2",
    "[::1", "::1", "[::1]x", "[:::]", "[1.2.3.4]", "[]", "é.example", "a\n", "a\x00b", "http://a", "a" * 261, "*", "a;b", "\u0430.example",
)  # fmt: skip


@pytest.mark.parametrize("host", GOOD)
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert is_host(host)


@pytest.mark.parametrize("host", BAD)
def test_nothing_else_is(host: str) -> None:
    assert not is_host(host)


def refused(status: int, content_type: str, body: bytes) -> None:
    assert (status, content_type) == (400, "application/problem+json")
    assert orjson.loads(body)["errors"].keys() == {"Host"}


def flask_app() -> Flask:
    app = Flask("hosts", static_folder=None)

    @app.before_request
    def nobody_gets_in() -> Any:
        return "who are you?", 401

    problems.register(app)
    return app


@pytest.mark.parametrize("host", BAD)
def test_a_flask_app_answers_with_a_problem_before_it_asks_who_it_is(host: str) -> None:
    for app in (flask_app(), health_app("worker.refunds", Readiness(dict), lambda: b"")):
        for path in ("/healthz", "/nothing"):
            environ = {**EnvironBuilder(path=path).get_environ(), "HTTP_HOST": host}
            body, status, headers = run_wsgi_app(app, environ)
            refused(int(status[:3]), headers["Content-Type"], b"".join(body))
            assert headers["X-Request-ID"]


@pytest.mark.parametrize("host", BAD)
def test_so_do_the_hot_routes(host: str) -> None:
    async def never(request: Request) -> EdgeResponse:
        raise AssertionError

    named = (b"host", host.encode("latin-1", "replace"))
    status, headers, body = ask(HotRoutes(rest, {"/hot": never}.get), headers=sized(b"{}", named), parts=[b"{}"])
    refused(status, headers[b"content-type"].decode(), body)


@pytest.mark.parametrize("host", BAD)
def test_so_do_the_streams(host: str) -> None:
    async def never(environ: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    app = HotRoutes(rest, lambda path: None, {"/stream": never}.get)
    status, headers, body = ask(
        app, method="GET", path="/stream", headers=[(b"host", host.encode("latin-1", "replace"))]
    )
    refused(status, headers[b"content-type"].decode(), body)


@pytest.mark.parametrize(("protocol", "status"), [("HTTP/1.1", 400), ("HTTP/1.0", 401)])
def test_a_host_is_needed_since_http_1_1(protocol: str, status: int) -> None:
    environ = {**EnvironBuilder().get_environ(), "SERVER_PROTOCOL": protocol}
    del environ["HTTP_HOST"]
    assert run_wsgi_app(flask_app(), environ)[1].startswith(str(status))
