"""What every answer of every listener carries, whoever made it: the event loop, Flask, the listener, or the server's reader (G27)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from ops_console.app import create_app as create_console
from ops_console.audience import Audience
from ops_console.settings import ConsoleSettings
from sentinel.authority.app import create_app
from sentinel.authority.settings import Settings
from sentinel.platform.http.asgi import Edge
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.serving.connection_bounds import Connections
from sentinel.platform.serving.event_worker import protocol_config
from sentinel.platform.serving.http_protocol import HttpProtocol
from tests.support.asgi_client import InProcessApp
from tests.support.fixtures import SECRET, Fixtures, guard_body
from tests.support.harness import on_a_loop
from tests.support.order_fixtures import make_intake, order_body, signed

ADDRESS, HEALTH = "http://127.0.0.1:7000", "http://127.0.0.1:7001"
SAID = "max-age=31536000"
TLS = {"behind_tls": True, "health_port": 7001}

Asked = tuple[str, str, dict[str, Any], int]
"""Method, path, what `Client.open` is given, the status wanted."""
EVERYWHERE: tuple[Asked, ...] = (
    ("GET", "/docs", {}, 200), ("GET", "/healthz", {}, 200), ("PUT", "/healthz", {}, 405),
    ("GET", "/nothing", {}, 404), ("GET", "/metrics", {}, 404), ("GET", "/metrics", {"base_url": HEALTH}, 200),
    ("GET", "/metrics/", {}, 404), ("GET", "/metrics/", {"base_url": HEALTH}, 200), ("GET", "/docs/", {"base_url": HEALTH}, 404),
    ("GET", "/docs", {"base_url": HEALTH}, 404), ("GET", "/docs", {"headers": {"Host": "a b"}}, 400),
)  # fmt: skip


@contextmanager
def authority(fixtures: Fixtures) -> Iterator[tuple[InProcessApp, list[Asked]]]:
    limit = SharedRateLimit(per_second=1000, burst=1000)
    edge = create_app(Settings(secret_keys=(SECRET,), **TLS), fixtures.authority, limit, stopping=lambda: True)
    key, guard = {"headers": {"X-API-Key": fixtures.key}}, "/api/sentinel/action/guard"
    stream = "/api/sentinel/approvals/stream"
    with closing(InProcessApp(edge)) as app:
        yield app, [
            ("POST", guard, {**key, "json": guard_body()}, 200), ("POST", guard, {"json": guard_body()}, 401),
            ("POST", f"{guard}/batch", {**key, "json": {"requests": [guard_body()]}}, 200), ("GET", guard, {}, 405),
            ("POST", guard, {**key, "data": b"x"}, 415), ("GET", stream, key, 200), ("GET", stream, {}, 401),
            ("GET", "/api/sentinel/heartbeat?agent_id=a", key, 200), ("GET", f"{stream}?{'&' * 25}", key, 200),
        ]  # fmt: skip


@contextmanager
def console(fixtures: Fixtures, face: Audience) -> Iterator[tuple[InProcessApp, list[Asked]]]:
    more = {"board_health_port": 7001, "require_second_factor": "nobody"}
    edge = create_console(
        ConsoleSettings(database_url=fixtures.url, **TLS, **more), audience=face, stopping=lambda: True
    )
    parts = edge.flask.extensions["console"]
    with ExitStack() as stack:
        for pool in (parts.pool, parts.board.pool):
            stack.callback(pool.close)
        yield stack.enter_context(closing(InProcessApp(edge))), [
            ("POST", "/ops/api/session", {"json": {"email": "a@b.example", "password": "x"}}, 401),
            ("GET", "/ops/sign-in", {}, 200),
        ] if face is Audience.OPERATORS else [
            ("GET", "/live", {}, 200), ("GET", "/ops/api/live/feed", {}, 200),
            ("GET", "/ops/api/live/stream", {}, 200), ("GET", "/verify/pf_x.json", {}, 404),
            ("GET", f"/ops/api/live/stream?{'&' * 25}", {}, 200),
        ]  # fmt: skip


@contextmanager
def orders(fixtures: Fixtures) -> Iterator[tuple[InProcessApp, list[Asked]]]:
    with closing(make_intake(fixtures, "http://127.0.0.1:1", **TLS)) as made:
        body, path = order_body(), "/webhooks/demo/orders"
        yield made.app, [
            ("POST", path, {"data": body, "headers": {"Content-Type": "application/json"}}, 401),
            ("POST", path, {"data": body, "headers": signed(body)}, 503),
        ]  # fmt: skip


LISTENERS: dict[str, Callable[[Fixtures], Any]] = {
    "authority": authority, "operators": lambda fixtures: console(fixtures, Audience.OPERATORS),
    "board": lambda fixtures: console(fixtures, Audience.PUBLIC), "orders": orders,
}  # fmt: skip


class Written(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.closing = b"", False

    def write(self, data: Any) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        pass


def unread(edge: Edge) -> str:
    """What the server answers to bytes that it could not read as a request."""

    async def refused() -> str:
        worker = SimpleNamespace(
            asgi=edge, protocol_config=protocol_config(edge), server_state=ServerState(), alive=True, nr_conns=0,
            connections=Connections(1, 1), loop=asyncio.get_running_loop(),
        )  # fmt: skip
        connection, transport = HttpProtocol(worker), Written()
        connection.connection_made(transport)
        connection.data_received(b"two\0Hosts\r\n\r\n")
        connection.connection_lost(None)
        return transport.data.decode()

    return on_a_loop(refused())


@pytest.mark.parametrize("listener", LISTENERS)
def test_behind_tls_every_answer_says_so_and_has_its_id(fixtures: Fixtures, listener: str) -> None:
    with LISTENERS[listener](fixtures) as (app, own):
        for method, path, given, status in (*EVERYWHERE, *own):
            answer = app.test_client().open(path, method=method, **{"base_url": ADDRESS, **given})
            assert answer.status_code == status, (method, path, answer.text)
            assert answer.headers.getlist("Strict-Transport-Security") == [SAID], (method, path)
            assert len(answer.headers.getlist("X-Request-ID")) == 1, (method, path)
            if listener in ("operators", "board"):
                assert answer.headers.getlist("X-Content-Type-Options") == ["nosniff"], (method, path)
                assert len(answer.headers.getlist("Content-Security-Policy")) == 1, (method, path)
        assert f"\r\nstrict-transport-security: {SAID}\r\n" in unread(app.edge)
