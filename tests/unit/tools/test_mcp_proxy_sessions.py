"""An agent of the MCP proxy has a bounded part of the sessions that the SDK keeps for all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest

from sentinel.mcp_proxy.sessions import IDLE_SECONDS, AgentSessions
from tests.support.harness import on_a_loop

HANDSHAKES, MODERN = ("2025-06-18", "2025-11-25"), "2026-07-28"


class Sdk:
    """An application that names a session where a request has none, answers as it is told, and can hold an answer back."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.status = 200
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if self.status == 500:
            raise ConnectionError("the client left")
        headers = dict(scope["headers"])
        named = headers.get(b"mcp-session-id") or b"s%d" % next(self.numbers)
        shown = [] if headers.get(b"mcp-protocol-version") == MODERN.encode() else [(b"mcp-session-id", named)]
        await send({"type": "http.response.start", "status": self.status, "headers": shown})
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": b""})


class Clients:
    """Agents that ask an application with room for four sessions, two of one agent; the clock is set by hand."""

    def __init__(self, room: int = 4) -> None:
        self.sdk, self.now = Sdk(), 0.0
        self.app = AgentSessions(
            self.sdk, lambda scope: scope["agent"], handshakes=HANDSHAKES, room=room, now=lambda: self.now
        )

    async def ask(self, agent: str, *headers: tuple[bytes, bytes], method: str = "POST") -> tuple[int, bytes]:
        """The answer's status, and the session that it names."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app({"type": "http", "method": method, "headers": list(headers), "agent": agent}, None, send)
        return sent[0]["status"], dict(sent[0]["headers"]).get(b"mcp-session-id", b"")

    async def begin(self, agent: str, number: int) -> list[bytes]:
        """So many new sessions of the agent."""
        return [(await self.ask(agent))[1] for _ in range(number)]

    async def begin_all(self, agent: str) -> list[bytes]:
        """Sessions of the agent until one is refused."""
        begun: list[bytes] = []
        while (answer := await self.ask(agent))[0] == 200:
            begun.append(answer[1])
        return begun


def run(scene: Coroutine[Any, Any, None]) -> None:
    on_a_loop(scene)


def within(session: bytes) -> tuple[bytes, bytes]:
    return b"mcp-session-id", session


def of_version(version: str) -> tuple[bytes, bytes]:
    return b"mcp-protocol-version", version.encode()


def test_an_agent_with_its_part_begins_no_further_session_and_the_others_do() -> None:
    async def scene() -> None:
        clients = Clients()
        first, _ = await clients.begin("a", 2)
        assert (await clients.ask("a"))[0] == 503
        assert (await clients.ask("a", of_version(HANDSHAKES[0])))[0] == 503
        assert (await clients.ask("a", within(first)))[0] == 200
        assert (await clients.ask("b"))[0] == 200

    run(scene())


def test_agents_that_hold_all_they_may_leave_room_for_the_next() -> None:
    async def scene() -> None:
        clients = Clients(room=8)
        held = {agent: await clients.begin_all(agent) for agent in "abcde"}
        assert [len(sessions) for sessions in held.values()] == [4, 2, 1, 1, 0]
        assert (await clients.ask("a", within(held["a"][0]), method="DELETE"))[0] == 200
        assert (await clients.ask("a"))[0] == 503
        assert (await clients.ask("e"))[0] == 200

    run(scene())


def test_a_session_that_its_client_ended_makes_room() -> None:
    async def scene() -> None:
        clients = Clients()
        first, _ = await clients.begin("a", 2)
        assert (await clients.ask("b", within(first), method="DELETE"))[0] == 200, "as if it were the other's"
        assert (await clients.ask("a"))[0] == 503
        assert (await clients.ask("a", within(first), method="DELETE"))[0] == 200
        assert (await clients.ask("a"))[0] == 200
        assert (await clients.ask("a"))[0] == 503

    run(scene())


def test_a_session_is_counted_while_it_is_used_and_until_the_sdk_has_ended_it() -> None:
    async def scene() -> None:
        clients = Clients()
        first, _ = await clients.begin("a", 2)
        clients.sdk.go_on.clear()
        stream = asyncio.create_task(clients.ask("a", within(first), method="GET"))
        await asyncio.sleep(0)
        clients.now = IDLE_SECONDS - 1
        assert (await clients.ask("a"))[0] == 503
        clients.now = IDLE_SECONDS
        clients.sdk.go_on.set()
        assert (await clients.ask("a"))[0] == 200, "the one without a request is over"
        assert (await clients.ask("a"))[0] == 503
        await stream
        clients.now = 2 * IDLE_SECONDS - 1
        assert (await clients.ask("a"))[0] == 503
        clients.now = 2 * IDLE_SECONDS
        assert (await clients.ask("a"))[0] == 200

    run(scene())


@pytest.mark.parametrize("status", [400, 500])
def test_a_session_that_was_not_begun_is_not_counted(status: int) -> None:
    async def scene() -> None:
        clients = Clients()
        clients.sdk.status = status
        for _ in range(3):
            if status == 500:
                with pytest.raises(ConnectionError):
                    await clients.ask("a")
            else:
                assert (await clients.ask("a"))[0] == status
        clients.sdk.status = 200
        await clients.begin("a", 2)
        assert (await clients.ask("a"))[0] == 503

    run(scene())


def test_sessions_that_are_being_begun_are_counted() -> None:
    async def scene() -> None:
        clients = Clients()
        clients.sdk.go_on.clear()
        begun = [asyncio.create_task(clients.ask("a")) for _ in range(2)]
        await asyncio.sleep(0)
        assert (await clients.ask("a"))[0] == 503
        clients.sdk.go_on.set()
        assert [status for status, _ in await asyncio.gather(*begun)] == [200, 200]
        assert (await clients.ask("a"))[0] == 503

    run(scene())


def test_a_client_of_a_revision_without_sessions_is_always_passed_on() -> None:
    async def scene() -> None:
        clients = Clients()
        await clients.begin("a", 2)
        assert await clients.ask("a", of_version(MODERN)) == (200, b"")
        assert (await clients.ask("a", of_version(HANDSHAKES[0]), of_version(MODERN)))[0] == 503, "the first one counts"

    run(scene())
