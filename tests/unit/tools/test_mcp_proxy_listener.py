"""The MCP proxy's listener is bounded as the other programs' are: who is silent, slow or takes nothing holds nobody else up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from sentinel.mcp_proxy import listener
from tests.support.busy import overload
from tests.support.harness import on_a_loop

HEAD = b"GET /a HTTP/1.1\r\nHost: x\r\n"
WHOLE = HEAD + b"\r\n"
BODY = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n"
CHUNKED = b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Served:
    """A listener in front of an app that answers "ok", at /held once it may, and at /early before it has read the body."""

    port: int = 0
    held: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while scope["path"] != "/early" and (message := await receive()).get("more_body"):
            assert message["type"] == "http.request"
        if scope["path"] == "/held":
            self.held += 1
            await self.go_on.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        """A connection that sends this."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        writer.write(sent)
        return reader


@contextlib.asynccontextmanager
async def listening(connections: int, per_address: int) -> AsyncIterator[Served]:
    """Serves as the proxy does."""
    served = Served()
    server = uvicorn.Server(listener.listener_config(served, "127.0.0.1", 0, per_address, connections=connections))
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.002)
    served.port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        served.go_on.set()
        for writer in served.opened:
            writer.transport.abort()
        server.should_exit = True
        await asyncio.wait_for(serving, 30)


def within(scene: Callable[[Served], Awaitable[None]], connections: int = 20, per_address: int = 20) -> None:
    """Plays a scene against a listener."""

    async def play() -> None:
        async with listening(connections, per_address) as served:
            await scene(served)

    on_a_loop(play())


async def is_closed(reader: asyncio.StreamReader, seconds: float = 10) -> bool:
    """Whether the other end closes within the time, whatever it says before."""
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), seconds * overload())
    return True


async def answered(reader: asyncio.StreamReader) -> bool:
    """Whether the answer comes."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        return (await asyncio.wait_for(reader.readuntil(b"ok"), 10 * overload())).startswith(b"HTTP/1.1 200")
    return False


@pytest.mark.parametrize("sent", [b"", b"\r\n", HEAD, BODY, BODY + b"x"])
def test_what_asks_for_nothing_or_is_never_ended_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(listener, "BODY_SECONDS", 0.3)

    async def scene(served: Served) -> None:
        reader = await served.connect(sent)
        if sent == HEAD:
            for _ in range(4):
                served.opened[0].write(b"X")
                await asyncio.sleep(0.05)
        assert await is_closed(reader)

    within(scene)


def test_who_is_silent_makes_room_and_what_is_answered_stays() -> None:
    async def scene(served: Served) -> None:
        held = await served.connect(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        while not served.held:
            await asyncio.sleep(0.002)
        silent = [await served.connect(HEAD if number % 2 else b"") for number in range(60)]
        assert await answered(await served.connect(WHOLE))
        assert sum([await is_closed(one) for one in silent[:50]]) == 50
        served.go_on.set()
        assert await answered(held)

    within(scene, per_address=5)


def test_an_address_that_has_all_its_places_answered_gets_no_more() -> None:
    async def scene(served: Served) -> None:
        held = [await served.connect(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(5)]
        while served.held < 5:
            await asyncio.sleep(0.002)
        assert not await answered(await served.connect(WHOLE))
        served.go_on.set()
        assert [await answered(one) for one in held] == [True] * 5
        assert await answered(await served.connect(WHOLE)), "they wait for their next requests, and one makes room"

    within(scene, per_address=5)


def test_requests_that_come_together_are_answered_in_their_order() -> None:
    async def scene(served: Served) -> None:
        reader = await served.connect(WHOLE * 30 + BODY + b"x" * 4000)
        for _ in range(30):
            assert await answered(reader)
        served.opened[0].write(b"x" * 5000 + HEAD)
        assert await answered(reader)
        served.opened[0].write(b"\r\n")
        assert await answered(reader)

    within(scene)


def test_a_body_that_cannot_be_read_after_its_answer_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(served: Served) -> None:
        reader = await served.connect(CHUNKED)
        assert await answered(reader)
        served.opened[0].write(b"no chunk\r\n")
        assert await is_closed(reader)

    within(scene)
    assert not [one for one in caplog.records if one.exc_info]
