"""The client's connections: one that was reset while it was kept, on either kind of event loop, is replaced unseen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from sentinel.client import AsyncClient, async_transport
from tests.support.harness import at_once

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status":"OK"}'


@contextlib.contextmanager
def resetting() -> Iterator[tuple[str, threading.Event]]:
    """A server that says OK once on each of two connections, and resets the first once the event is set."""
    reset, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for is_first in (True, False):
            link, _ = listener.accept()
            with link:
                link.recv(65536)
                link.sendall(OK)
                if is_first:
                    reset.wait(20)
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    with contextlib.suppress(OSError):
                        link.recv(65536)  # until the client closes it

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", reset
        thread.join(20)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_kept_connection_that_was_reset_meanwhile_is_a_broken_one_and_is_replaced(new_loop: Any) -> None:
    async def use(url: str, reset: threading.Event) -> None:
        async with AsyncClient(url, "key", agent_id="a", timeout_seconds=20, retries=0) as client:
            assert await client.heartbeat() == "OK"
            (pool,) = client._transport._pools.values()
            link = pool._idle[-1]
            reset.set()
            async with asyncio.timeout(20):
                while not link[1].is_closing():
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)  # uvloop closes the handle in a later turn of the loop
            with pytest.raises(ConnectionError):
                await async_transport._send_and_receive(link, b"GET / HTTP/1.1\r\n\r\n")
            assert await client.heartbeat() == "OK"

    def run() -> None:
        with resetting() as (url, reset), asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(use(url, reset))

    (failed,) = at_once([run])
    if failed is not None:
        raise failed
