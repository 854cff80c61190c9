"""The protocol on a real socket: order, bounds, deadlines, back-pressure, drain, and what is no request (G27)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import orjson
import pytest
import uvloop
from flask import Flask, request
from uvicorn.server import ServerState

from sentinel.core.errors import InvalidInput
from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.docs_page import FILES, docs_page
from sentinel.platform.http.wire import EdgeResponse, HttpsOnly, QuickHandler, Request, head_of
from sentinel.platform.serving import connection_flow, http_protocol
from sentinel.platform.serving.connection_bounds import Connections, Stage
from sentinel.platform.serving.event_worker import protocol_config
from sentinel.platform.serving.http_protocol import MAX_WAITING, HttpProtocol
from tests.support.busy import in_time
from tests.support.harness import at_once


class Hot(QuickHandler):
    """Answers with the body's number, when it is let go; a body {"now": true} at once."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.waiting: dict[Any, Callable[[EdgeResponse], None]] = {}
        self.environs: list[dict[str, Any]] = []

    def begin(self, request: Request, reply: Callable[[EdgeResponse], None]) -> None:
        body = request.json()
        self.begun.append(body["n"])
        self.environs.append(request.environ)
        if body["n"] == -1:
            raise InvalidInput.of("n", "must not be -1")
        if body.get("now"):
            reply(json_answer(body["n"]))
        else:
            self.waiting[body["n"]] = reply

    def let_go(self, n: int) -> None:
        self.waiting.pop(n)(json_answer(n))


class Big(Hot):
    """Answers each request at once with more than a socket takes."""

    BODY = b"y" * 500_000

    def begin(self, request: Request, reply: Callable[[EdgeResponse], None]) -> None:
        self.begun.append(1)
        reply(EdgeResponse(self.BODY))


def json_answer(n: int) -> EdgeResponse:
    return EdgeResponse(orjson.dumps({"n": n}))


def flask() -> Flask:
    app = Flask("cold")

    @app.get("/cold")
    def cold() -> str:
        return "cold"

    @app.get("/big")
    def big() -> bytes:
        return Big.BODY

    @app.post("/headers")
    def headers() -> dict[str, str]:
        return dict(request.headers)

    @app.post("/echo")
    def echo() -> str:
        return str(len(request.get_data()))

    return app


@dataclass
class Listening:
    """A listening protocol and what stands behind it."""

    port: int
    hot: Hot
    worker: Any
    opened: list[asyncio.StreamWriter] = field(default_factory=list)
    held: int = 0
    """How many requests of HELD came to their handler, which waits for `go_on`."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self, request: Request) -> EdgeResponse:
        self.held += 1
        await self.go_on.wait()
        return json_answer(0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        return reader, writer

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def listening(
    *, behind_tls: bool = False, bounds: tuple[int, int] = (50, 50), health: bool = False
) -> AsyncIterator[Listening]:
    hot, loop = Hot(), asyncio.get_running_loop()
    made: list[HttpProtocol] = []
    worker = SimpleNamespace(
        loop=loop, alive=True, nr_conns=0, connections=Connections(*bounds), server_state=ServerState()
    )

    def protocol() -> HttpProtocol:
        made.append(HttpProtocol(worker))
        return made[-1]

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    served = Listening(port, hot, worker)
    worker.asgi = Edge(
        flask(), threads=2, posts={"/hot": hot}.get, others=lambda method, path: served.hold if path == "/held" else None,
        health_port=port if health else 0, https_only=HttpsOnly(behind_tls),
    )  # fmt: skip
    worker.protocol_config, worker.made = protocol_config(worker.asgi), made
    try:
        yield served
    finally:
        for writer in served.opened:
            writer.transport.abort()
        server.close()
        await served.until(lambda: worker.nr_conns == 0)
        assert len(worker.connections) == 0
        await asyncio.sleep(0.01)  # the clients' ends are closed in the loop's next turn


def within(scene: Callable[[Listening], Awaitable[None]], **terms: Any) -> None:
    """Plays a scene against a protocol that listens; again where it failed and the process had stood still, as its deadlines had not."""
    stood_still = 0.0

    async def measure() -> None:
        nonlocal stood_still
        while True:
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(0.02)
            stood_still = max(stood_still, asyncio.get_running_loop().time() - began - 0.02)

    async def play() -> None:
        measuring = asyncio.ensure_future(measure())
        async with listening(**terms) as served:
            await scene(served)
        measuring.cancel()

    for _ in range(3):
        stood_still = 0.0
        # The loop of production: the others' transports behave otherwise where one is paused or closing.
        raised = at_once([lambda: uvloop.run(play())], seconds=150)[0]
        if raised is None or stood_still < 0.3:
            break
    if isinstance(raised, BaseException):
        raise raised


def post(value: Any, path: str = "/hot", *more: str, version: str = "1.1") -> bytes:
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    lines = [f"POST {path} HTTP/{version}", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *more, "", ""]).encode() + body


COLD = b"GET /cold HTTP/1.1\r\nHost: x\r\n\r\n"
HELD = b"GET /held HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Reply:
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


async def answer(reader: asyncio.StreamReader) -> Reply:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    status, *lines = head.decode().split("\r\n")[:-2]
    headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines}
    assert len(headers) == len(lines), "a header stands twice"
    return Reply(int(status.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def is_closed(reader: asyncio.StreamReader, within_seconds: float = 60) -> bool:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1), within_seconds) == b""
    return True


def test_a_hot_request_is_answered_with_its_id_and_strict_transport_security() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1, "now": True}, "/hot", "X-Request-ID: mine"))
        got = await answer(reader)
        assert (got.status, got.json, got.headers["x-request-id"]) == (200, {"n": 1}, "mine")
        assert got.headers["strict-transport-security"] == "max-age=31536000"
        assert got.headers["cache-control"] == "no-store"
        writer.write(post({"n": -1}))
        refused = await answer(reader)
        assert (refused.status, refused.headers["content-type"]) == (400, "application/problem+json")
        assert refused.json["instance"] == refused.headers["x-request-id"]
        assert refused.headers["strict-transport-security"] == "max-age=31536000"

    within(scene, behind_tls=True)


def test_pipelined_requests_of_all_kinds_are_answered_in_their_order() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1}) + COLD + post({"n": 2}) + post({"n": -1}) + COLD + post({"n": 3, "now": True}))
        await served.until(lambda: served.hot.begun == [1])
        await asyncio.sleep(0.05)
        assert served.hot.begun == [1], "the next begins when the one before it is answered"
        served.hot.let_go(1)
        await served.until(lambda: 2 in served.hot.waiting)
        served.hot.let_go(2)
        got = [await answer(reader) for _ in range(6)]
        assert [one.status for one in got] == [200, 200, 200, 400, 200, 200]
        assert [got[0].json, got[1].body, got[2].json, got[4].body, got[5].json] == [
            {"n": 1},
            b"cold",
            {"n": 2},
            b"cold",
            {"n": 3},
        ]
        writer.write(COLD + post({"n": 4, "now": True}))
        assert [(await answer(reader)).body for _ in range(2)] == [b"cold", b'{"n":4}']

    within(scene)


def test_many_pipelined_requests_do_not_nest_and_none_is_lost() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        for begin in range(0, 2000, 200):  # whose answers fit into the socket, so that none waits
            writer.write(b"".join(post({"n": begin + n, "now": True}) for n in range(200)))
            assert [(await answer(reader)).json["n"] - begin for _ in range(200)] == list(range(200))

    within(scene)


def test_a_body_in_pieces_arrives_whole_also_in_the_last_request() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        for closing in ((), ("Connection: close",)):
            whole = post({"n": 5, "now": True, "text": "x" * 60_000}, "/hot", *closing)
            for place in range(0, len(whole), 7001):
                writer.write(whole[place : place + 7001])
                await asyncio.sleep(0.005)
            got = await answer(reader)
            assert (got.status, got.headers.get("connection")) == (200, "close" if closing else None)
        assert await is_closed(reader)

    within(scene)


def test_while_requests_wait_for_their_turn_no_more_is_read() -> None:
    async def scene(served: Listening) -> None:
        _, writer = await served.connect()
        whole = post({"n": 0, "text": "x" * 50_000}) * 4000
        writer.write(whole)
        await served.until(lambda: served.worker.nr_conns == 1 and served.worker.made[0].flow.read_paused)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.5)
        (protocol,) = served.worker.made
        assert len(protocol._turn) < 40, "a read's worth of requests"
        assert protocol.flow.read_paused
        assert protocol.stage is Stage.ANSWERED
        writer.transport.abort()
        while served.worker.nr_conns:  # its going away is seen at the next answer
            for n in list(served.hot.waiting):
                served.hot.let_go(n)
            await asyncio.sleep(0.002)
        assert len(served.hot.begun) < 60

    within(scene)


def test_what_waits_on_a_connection_is_little_more_than_one_body() -> None:
    """The finding: a read of a client that had sent fast before held 250 KB, so 2000 connections more than a pod's memory."""

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        for _ in range(300):  # the kernel lets a client that was read fast send more at once
            writer.write(post({"n": 1, "now": True, "text": "x" * 60_000}))
            await answer(reader)
        writer.write(post({"n": 0}))
        await served.until(lambda: 0 in served.hot.waiting)
        (protocol,) = served.worker.made
        writer.write(post({"n": 0, "text": "x" * 30_000}) * 200)
        await asyncio.sleep(0.3)
        most = 0
        for _ in range(60):
            served.hot.let_go(0)
            await served.until(lambda: 0 in served.hot.waiting)
            await asyncio.sleep(0.002)
            waits = [*protocol._turn, *([protocol._incoming] if protocol._incoming else [])]
            most = max(most, sum(len(part) for one in waits for part in one.body))
        assert most < 2 * MAX_BYTES
        assert protocol._unread is None, "nobody is refused"
        writer.transport.abort()
        while served.worker.nr_conns:
            for n in list(served.hot.waiting):
                served.hot.let_go(n)
            await asyncio.sleep(0.002)

    within(scene)


def test_a_client_that_does_not_read_its_answers_gets_no_further() -> None:
    async def scene(served: Listening) -> None:
        hot = Big()
        served.worker.asgi._posts = {"/hot": hot}.get
        reader, writer = await served.connect()
        many = MAX_WAITING + 1
        writer.write(post({"n": 1}) * many)
        await served.until(lambda: bool(hot.begun))
        await asyncio.sleep(0.5)
        assert len(hot.begun) < many
        for _ in range(many):
            assert len((await answer(reader)).body) == len(Big.BODY)
        assert len(hot.begun) == many

    within(scene)


@pytest.mark.parametrize("sent", [post({"n": 1}), b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["hot", "cold"])
def test_a_client_that_takes_nothing_of_its_answers_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_flow, "TAKE_SECONDS", 0.2)

    async def scene(served: Listening) -> None:
        served.worker.asgi._posts = {"/hot": Big()}.get
        with contextlib.closing(socket.socket()) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", served.port))
            one.send(sent * MAX_WAITING)
            await served.until(lambda: served.worker.nr_conns == 1)
            await served.until(lambda: served.worker.nr_conns == 0)

    within(scene)


@pytest.mark.parametrize("unit", [COLD, post({"n": 1, "now": True})])
def test_of_many_requests_in_one_read_no_more_are_taken_than_may_wait(unit: bytes) -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 0}))
        await served.until(lambda: 0 in served.hot.waiting)
        writer.write(unit * 500)
        (protocol,) = served.worker.made
        await served.until(lambda: protocol._unread is not None)
        assert len(protocol._turn) + len(protocol.pipeline) == MAX_WAITING
        served.hot.let_go(0)
        got = [await answer(reader) for _ in range(MAX_WAITING + 2)]
        assert [one.status for one in got] == [200] * (MAX_WAITING + 1) + [429]
        assert got[-1].headers["retry-after"] == "1"
        assert await is_closed(reader)

    within(scene)


def test_an_app_that_asks_for_its_body_has_nothing_more_read_while_requests_wait() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(HELD + COLD * 2)
        await served.until(lambda: served.held == 1)
        (protocol,) = served.worker.made
        assert (protocol.flow.read_paused, len(protocol.pipeline)) == (True, 2)
        writer.write(HELD)
        served.go_on.set()
        assert [(await answer(reader)).status for _ in range(4)] == [200] * 4
        assert not protocol.flow.read_paused, "nobody waits any more"

    within(scene)


def test_a_client_that_goes_away_is_not_answered_and_its_request_is_finished() -> None:
    async def scene(served: Listening) -> None:
        _, writer = await served.connect()
        writer.write(post({"n": 1}))
        await served.until(lambda: 1 in served.hot.waiting)
        writer.transport.abort()
        await served.until(lambda: served.worker.nr_conns == 0)
        (protocol,) = served.worker.made
        protocol.transport = MagicMock(wraps=protocol.transport)
        assert protocol._in_hand is not None
        served.hot.let_go(1)
        assert protocol._in_hand is None
        protocol.transport.write.assert_not_called()

    within(scene)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\r\n", 411),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BYTES + 1), 413),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999999\r\n\r\n", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 7\r\n\r\n{}", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked, x\r\n\r\n0\r\n\r\n", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n{}", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /hot HTTP/1.1\nHost: x\n\n", 400),
        (b"POST /hot HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /cold HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET /cold HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 60 + b"\r\n", 431),
        (post(b"{}", "/hot").replace(b"Host: x", b"Host: x\r\nHost: y"), 400),
        (post(b"{}", "/hot").replace(b"Host: x\r\n", b""), 400),
        (post(b"{", "/hot"), 400),
    ],
)  # fmt: skip
def test_what_two_readers_could_read_differently_is_refused_as_a_problem(sent: bytes, status: int) -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(sent)
        got = await answer(reader)
        assert (got.status, got.headers["content-type"], got.json["status"]) == (
            status,
            "application/problem+json",
            status,
        )
        assert got.json["instance"] == got.headers["x-request-id"]
        assert served.hot.begun == []

    within(scene)


def test_the_type_of_a_problem_does_not_depend_on_pythons_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        """As `HTTPStatus` of Python 3.13."""

        INTERNAL_SERVER_ERROR, TOO_MANY_REQUESTS = 500, 429

        def __init__(self, status: int) -> None:
            self.phrase = "URI Too Long"

    monkeypatch.setattr(problems, "HTTPStatus", Later)
    told = orjson.loads(problems.unread_problem(414, "too long", "id")[0])
    assert told["type"] == "urn:sentinel:problem:request-uri-too-long"


def test_bytes_that_are_no_request_are_refused_after_the_answers_before_them() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1}) + b"\x00 is no request\r\n\r\n")
        await served.until(lambda: 1 in served.hot.waiting)
        served.hot.let_go(1)
        assert [(await answer(reader)).status for _ in range(2)] == [200, 400]
        assert await is_closed(reader)

    within(scene)


@pytest.mark.parametrize("before", [b"", COLD, HELD, post({"n": 1, "now": True})], ids=["first", "cold", "held", "hot"])
@pytest.mark.parametrize(
    "target",
    ["GET http://a:99999/", "GET http://", "GET http:///x", "GET http://a", "GET http://[::1/", "CONNECT a:1", "POST http://a:b/"],
)  # fmt: skip
def test_a_target_that_is_no_path_is_refused_after_the_answers_before_it(target: str, before: bytes) -> None:
    async def scene(served: Listening) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        reader, writer = await served.connect()
        writer.write(before + f"{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await served.until(lambda: bool(served.worker.made) and served.worker.made[0]._unread is not None)
        served.go_on.set()
        got = [await answer(reader) for _ in range(2 if before else 1)]
        assert [one.status for one in got] == [200, 400][-len(got) :]
        assert (got[-1].headers["content-type"], got[-1].json["detail"]) == (
            "application/problem+json",
            "the request's target must be a path",
        )
        assert await is_closed(reader)

    raised: list[Any] = []
    within(scene)
    assert raised == []


def test_what_follows_the_last_request_of_a_connection_is_no_request() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1, "now": True}, "/hot", "Connection: close") + post({"n": 2, "now": True}))
        got = await answer(reader)
        assert (got.json, got.headers["connection"]) == ({"n": 1}, "close")
        assert await is_closed(reader)
        assert served.hot.begun == [1]

    within(scene)


def test_a_last_request_whose_body_is_still_to_come_is_read_when_those_before_it_are_answered() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        last = post({"n": 3, "now": True}, "/hot", "Connection: close")
        writer.write(post({"n": 1}) + post({"n": 2}) + last[:-5])
        for n in (1, 2):
            await served.until(lambda n=n: n in served.hot.waiting)
            served.hot.let_go(n)
        assert [(await answer(reader)).json["n"] for _ in range(2)] == [1, 2]
        writer.write(last[-5:])
        assert (await answer(reader)).json == {"n": 3}
        assert await is_closed(reader)

    within(scene)


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("trailer", [b"X-Forwarded-For: 192.0.2.1", b"X-Api-Key: a\r\nX: b", b"X_Y: a", b"X:"])
def test_what_follows_a_body_in_chunks_becomes_no_header(trailer: bytes, in_pieces: bool) -> None:
    head = b"POST /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"3\r\nabc\r\n0\r\n"

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        for part in (head + chunks, trailer, b"\r\n\r\n") if in_pieces else (head + chunks + trailer + b"\r\n\r\n",):
            writer.write(part)
            await asyncio.sleep(0.01)
        assert sorted((await answer(reader)).json) == ["Host", "Transfer-Encoding"]
        writer.write(COLD)
        assert (await answer(reader)).status == 200

    within(scene)


async def refused_before_it_fills_the_memory(served: Listening, writer: asyncio.StreamWriter) -> None:
    """Sends what never ends until the server has refused it."""
    sent = 0
    while not served.worker.made or served.worker.made[0]._unread is None:
        writer.write(b"x" * 4096)
        sent += 4096
        await asyncio.sleep(0.01)
        assert sent < 200_000


@pytest.mark.parametrize("framing", [b"0\r\nX: ", b"3;x="], ids=["trailer", "chunk-extension"])
def test_a_body_that_is_all_framing_is_refused_before_it_fills_the_memory(framing: bytes) -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" + framing)
        await refused_before_it_fills_the_memory(served, writer)
        assert (await answer(reader)).status == 431

    within(scene)


@pytest.mark.parametrize("before", [b"", post({"n": 1, "now": True}), COLD])
def test_a_body_that_breaks_off_in_the_middle_is_refused_and_holds_nobody(before: bytes) -> None:
    broken = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(before + broken)
        if before:
            assert (await answer(reader)).status == 200
        assert (await answer(reader)).status == 400
        assert await is_closed(reader)

    within(scene)


@pytest.mark.parametrize("before", [b"", post({"n": 1, "now": True}), COLD])
@pytest.mark.parametrize("last", [b"HTTP/1.1\r\nConnection: close", b"HTTP/1.0"])
def test_so_is_one_of_the_last_request_of_a_connection(last: bytes, before: bytes) -> None:
    """The finding: it got no answer, and its connection was cut when the time for a body was over."""
    head = b"POST /echo %b\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % last

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(before + head + b"3\r\nabc\r\nzz\r\n")
        if before:
            assert (await answer(reader)).status == 200
        assert (await answer(reader)).status == 400
        assert await is_closed(reader)

    within(scene)


def test_who_wants_another_protocol_is_answered_in_this_one_and_closed() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(b"GET /cold HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + COLD)
        assert (await answer(reader)).body == b"cold"
        assert await is_closed(reader)

    within(scene)


def test_a_client_that_waits_for_100_continue_gets_it_and_then_its_answer() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        head, _, body = post({"n": 7, "now": True}, "/hot", "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await answer(reader)).json == {"n": 7}

    within(scene)


def test_a_header_that_comes_twice_is_both_and_one_with_an_underscore_is_dropped() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1, "now": True}, "/hot", "X-Api-Key: a", "X-API-KEY: b", "X_Request_Id: c"))
        assert (await answer(reader)).headers["x-request-id"] != "c"
        assert served.hot.environs[0]["HTTP_X_API_KEY"] == "a,b"

    within(scene)


def test_only_its_own_listener_has_the_hot_routes() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1, "now": True}))
        assert (await answer(reader)).status == 404
        assert served.hot.begun == []

    within(scene, health=True)


@pytest.mark.parametrize("trickled", [b"POST /hot HTTP/1.1\r\nX-Slow: " + b"x" * 1000, post(b"x" * 1000)])
def test_a_request_that_does_not_end_is_closed_however_it_trickles(
    trickled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.3)

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1, "now": True}))
        assert (await answer(reader)).status == 200
        closed = asyncio.ensure_future(is_closed(reader))
        cut = trickled.index(b"x" * 1000)
        writer.write(trickled[:cut])
        began = asyncio.get_running_loop().time()
        while not closed.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began < 3
        assert served.hot.begun == [1]

    within(scene)


def test_empty_lines_in_front_of_the_first_request_extend_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 1.0)

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(b"\r\n")
        await asyncio.sleep(0.2)
        assert served.worker.made[-1].stage is Stage.NEW
        closed, began = asyncio.ensure_future(is_closed(reader)), asyncio.get_running_loop().time()
        while not closed.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.1)
        assert await closed and in_time(asyncio.get_running_loop().time() - began, 3)
        assert served.hot.begun == []
        _, other = again = await served.connect()
        other.write(b"\r\n" + post({"n": 1, "now": True}))
        assert (await answer(again[0])).status == 200

    within(scene)


def test_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(b"GET /cold HTTP/1.1\r\nX: ")
        await refused_before_it_fills_the_memory(served, writer)
        assert (await answer(reader)).status == 431

    within(scene)


def test_an_idle_connection_is_closed_and_one_that_asks_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_SECONDS", 2.0)

    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        for n in range(4):
            writer.write(post({"n": n, "now": True}) if n % 2 else COLD)
            assert (await answer(reader)).status == 200
            await asyncio.sleep(0.6)
        assert await is_closed(reader)

    within(scene)


def test_at_the_end_what_is_in_hand_is_answered_and_its_connection_closed() -> None:
    async def scene(served: Listening) -> None:
        reader, writer = await served.connect()
        writer.write(post({"n": 1}))
        await served.until(lambda: 1 in served.hot.waiting)
        served.worker.alive = False
        assert served.worker.connections.waiting() == []
        served.hot.let_go(1)
        got = await answer(reader)
        assert (got.status, got.headers["connection"]) == (200, "close")
        assert await is_closed(reader)

    within(scene)


def test_a_large_file_is_in_memory_once_however_many_are_slow_to_take_it() -> None:
    """The finding: anybody could have each of the connections hold a copy, together more than the process may have."""
    name = next(FILES.glob("vendor/*/swagger-ui-bundle.js"))
    ask = b"GET /docs/static/%b HTTP/1.1\r\nHost: x\r\n\r\n" % str(name.relative_to(FILES)).encode()

    async def scene(served: Listening) -> None:
        served.worker.asgi.flask.register_blueprint(docs_page("cold"))
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            held = []
            for number in range(1, 21):
                one = stack.enter_context(contextlib.closing(socket.socket()))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # as over a network: the kernel takes little
                one.setblocking(False)
                await loop.sock_connect(one, ("127.0.0.1", served.port))
                await loop.sock_sendall(one, ask)
                await served.until(lambda n=number: len(served.worker.made) == n)  # type: ignore[misc]
                await served.until(lambda: served.worker.made[-1].transport.get_write_buffer_size() > 0)
                await served.until(lambda: served.worker.made[-1].stage is Stage.IDLE)
                held.append(tracemalloc.get_traced_memory()[0])
            assert held[-1] - held[0] < name.stat().st_size

    tracemalloc.start(1)
    try:
        within(scene)
    finally:
        tracemalloc.stop()


def test_a_client_that_is_slow_to_take_its_answer_is_gone_when_it_makes_room() -> None:
    """Its answer lies in our memory as long as it likes: whoever is counted no more holds nothing more."""

    async def scene(served: Listening) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for number in range(1, 6):
                one = stack.enter_context(contextlib.closing(socket.socket()))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.setblocking(False)
                await loop.sock_connect(one, ("127.0.0.1", served.port))
                await loop.sock_sendall(one, b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * MAX_WAITING)
                assert await loop.sock_recv(one, 1000)
                await served.until(lambda n=number: len(served.worker.made) == n)  # type: ignore[misc]
                await served.until(lambda: served.worker.made[-1].transport.get_write_buffer_size() > 0)
                await served.until(lambda: served.worker.made[-1].stage is Stage.IDLE)
            await served.until(lambda: served.worker.nr_conns == 2)

    within(scene, bounds=(2, 2))


def test_where_a_bound_is_reached_who_waits_makes_room_and_who_is_answered_does_not() -> None:
    async def scene(served: Listening) -> None:
        busy, idle = await served.connect(), await served.connect()
        busy[1].write(post({"n": 1}))
        await served.until(lambda: 1 in served.hot.waiting)
        third = await served.connect()
        assert await is_closed(idle[0])
        third[1].write(post({"n": 2}))
        await served.until(lambda: 2 in served.hot.waiting)
        fourth = await served.connect()
        assert await is_closed(fourth[0])
        for n, (reader, _) in ((1, busy), (2, third)):
            served.hot.let_go(n)
            assert (await answer(reader)).json == {"n": n}

    within(scene, bounds=(2, 2))


def test_addresses_of_one_ipv6_network_share_their_places() -> None:
    async def scene(served: Listening) -> None:
        made = []
        for address in ("2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:3::1", "2001:db8:1:2::3"):
            transport = MagicMock()
            peer = {"peername": (address, 40_000, 0, 0)}
            transport.get_extra_info.side_effect = lambda name, default=None, peer=peer: peer.get(name, default)
            made.append(HttpProtocol(served.worker))
            made[-1].connection_made(transport)
        assert [one.transport.close.called for one in made] == [True, False, False, False]
        for one in made:
            one.connection_lost(None)

    within(scene, bounds=(10, 2))


def test_an_answer_head_names_each_header_once() -> None:
    head = head_of(EdgeResponse(b"{}", 429, headers={"Retry-After": "3"}), {}, (("X-A", "b"),), True)
    assert re.fullmatch(
        rb"HTTP/1\.1 429 Too Many Requests\r\ncontent-type: application/json\r\nx-a: b\r\nretry-after: 3\r\n"
        rb"content-length: 2\r\nx-request-id: [0-9a-f]{32}\r\ndate: \w{3}, [ \w]+ [\d:]{8} GMT\r\n\r\n", head)  # fmt: skip
