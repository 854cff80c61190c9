"""The client's connections: one that was reset while it was kept is replaced unseen, and no name is looked up for longer than a call may take."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from sentinel.client import AsyncClient, Client, NoAnswerKind, Unreachable, async_transport, transport
from sentinel.client.transport import Endpoint, Transport
from tests.support.fake_authority import FakeAuthority
from tests.support.harness import at_once
from tests.support.scripted_server import SLACK

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


@contextlib.contextmanager
def answering(number: int) -> Iterator[tuple[str, threading.Event, threading.Barrier]]:
    """A server that takes so many connections, and answers each OK once the event is set; all have arrived at the barrier."""
    answer, arrived = threading.Event(), threading.Barrier(number + 1)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(link: socket.socket) -> None:
        with link:
            link.recv(65536)
            arrived.wait(20)
            answer.wait(20)
            link.sendall(OK)
            link.recv(65536)  # until the client closes it

    def accept() -> None:
        for _ in range(number):
            threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", answer, arrived


@pytest.mark.parametrize("closes", [True, False], ids=["closed meanwhile", "a smaller pool"])
def test_a_connection_that_finds_no_place_in_the_pool_is_closed(closes: bool) -> None:
    with answering(3) as (url, answer, arrived):
        client = Client(url, "key", agent_id="a", timeout_seconds=20, pool_size=2)
        made = client._transport._live

        def rest() -> None:
            arrived.wait(20)
            if closes:
                client.close()
            answer.set()

        assert at_once([rest, *[client.heartbeat] * 3]) == [None, "OK", "OK", "OK"]
        assert sum(link.fileno() >= 0 for link in list(made)) == len(client._transport._idle) == (0 if closes else 2)
        client.close()


def test_who_got_no_connection_in_time_has_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transport, "_dial", lambda *_: (_ for _ in ()).throw(TimeoutError()))
    with pytest.raises(Unreachable) as late:
        Client("http://127.0.0.1:9", "key", agent_id="a", retries=0).heartbeat()
    assert (late.value.kind, late.value.may_have_arrived) == (NoAnswerKind.TIMEOUT, False)


def test_a_call_ends_in_its_time_while_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real, answered = socket.getaddrinfo, threading.Event()

    def slow(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host != "authority.test" or options.get("flags"):
            return real(host, port, *rest, **options)
        answered.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    began = time.monotonic()
    with Client("http://authority.test:1", "key", agent_id="a", timeout_seconds=0.2) as client:
        with pytest.raises(Unreachable) as silent:
            client.heartbeat()
        took = time.monotonic() - began
        answered.set()
        client.timeout_seconds = 20.0
        with pytest.raises(Unreachable) as failed:
            client.heartbeat()
    assert silent.value.kind is NoAnswerKind.TIMEOUT and took < SLACK
    assert failed.value.kind is NoAnswerKind.REFUSED


@pytest.mark.parametrize(("host", "lookers"), [("127.0.0.1", 0), ("localhost", 1)])
def test_an_address_is_looked_up_in_no_thread_and_a_name_once_for_a_connection(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch, host: str, lookers: int
) -> None:
    real, caller = socket.getaddrinfo, threading.get_ident()
    port = int(authority.url.rpartition(":")[2])
    elsewhere: list[str] = []

    def note(asked: Any, of: Any, *rest: Any, **options: Any) -> Any:
        if of == port and threading.get_ident() != caller:
            elsewhere.append(asked)
        return real(asked, of, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", note)
    with Client(f"http://{host}:{port}", "key", agent_id="a", timeout_seconds=20) as client:
        assert [client.heartbeat() for _ in range(3)] == ["OK"] * 3
    assert elsewhere == [host] * lookers


def test_clients_of_one_process_read_the_certificates_of_authorities_once() -> None:
    assert Endpoint("https://a.example", {}).tls is Endpoint("https://b.example", {}).tls is not None


class SlowNetwork:
    """Addresses that take `seconds` of the test's own clock to be connected to, or to refuse; each link knows the time that it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float, refuses: bool = False) -> None:
        self.now, self.left, self.refuses, self.tried = 100.0, 0.0, refuses, 0
        self._seconds = iter(seconds)
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"192.0.2.{n}", 443)) for n, _ in enumerate(seconds)]
        monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(transport, "look_up", lambda *given: addresses)
        monkeypatch.setattr(socket, "socket", lambda *kind: self)

    def connect(self, address: Any) -> None:
        """One address, within the time that is left to the link."""
        self.tried += 1
        took = next(self._seconds)
        self.now += min(took, self.left)
        if self.refuses or took > self.left:
            raise ConnectionRefusedError if took <= self.left else TimeoutError

    def settimeout(self, left: float) -> None:
        self.left = left

    def setsockopt(self, *option: Any) -> None: ...

    def close(self) -> None: ...


def test_a_handshake_has_what_the_connection_left_of_a_calls_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: it had the whole time again, so a call lasted twice as long as it may."""
    network, given = SlowNetwork(monkeypatch, 3.0), list[float]()
    asking = Transport("https://authority.test", headers={})

    def hangs(link: Any, server_hostname: str) -> Any:
        given.append(link.left)
        raise TimeoutError

    monkeypatch.setattr(asking._endpoint, "tls", SimpleNamespace(wrap_socket=hangs))
    with pytest.raises(Unreachable) as silent:
        asking.exchange("GET", "/", None, network.now + 5)
    assert given == [2.0] and silent.value.kind is NoAnswerKind.TIMEOUT


@pytest.mark.parametrize(
    ("seconds", "refuses", "tried"),
    [((9.0, 9.0), False, 2), ((2.0, 2.0, 2.0, 2.0), True, 4), ((1.0, 1.0), True, 2), ((9.0,) * 8, False, 5)],
)
def test_no_further_address_is_tried_once_a_calls_time_is_over(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], refuses: bool, tried: int
) -> None:
    network = SlowNetwork(monkeypatch, *seconds, refuses=refuses)
    with pytest.raises(Unreachable) as silent:
        Transport("http://authority.test", headers={}).exchange("GET", "/", None, network.now + 5)
    assert network.tried == tried
    assert silent.value.kind is (NoAnswerKind.REFUSED if sum(seconds) < 5 else NoAnswerKind.TIMEOUT)
    assert network.now == pytest.approx(100.0 + min(sum(seconds), 5))


@pytest.mark.parametrize(
    ("seconds", "connected_at"), [((9.0, 0.0), 2.5), ((9.0, 9.0, 0.5), 3.83), ((9.0,) * 4 + (0.9,), 4.9)]
)
def test_an_address_whose_machine_is_gone_does_not_keep_a_call_from_the_next(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], connected_at: float
) -> None:
    """The finding: of two authorities under one name, the first one's silence took the whole time of every call."""
    network = SlowNetwork(monkeypatch, *seconds)
    Transport("http://authority.test", headers={})._dial(network.now + 5)
    assert network.now - 100 == pytest.approx(connected_at, abs=0.01)
