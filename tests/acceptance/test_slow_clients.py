"""Whoever holds connections open and asks for nothing, or never ends what they ask, keeps nobody from a guard, a page or a halt."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.demos import Demo
from tests.support.busy import long_enough, overload
from tests.support.served_programs import SCALE, request

pytestmark = pytest.mark.slow

SILENT, TRICKLING, ROUNDS = int(400 * SCALE), int(60 * SCALE), 3
"""With SENTINEL_TEST_SCALE=5: 2,000 silent and 300 trickling connections on each port."""
FACES = ("authority", "console", "orders", "board")
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "
BODY = b"POST /ops/api/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"


class SlowConnections:
    """Connections to one port: silent ones, and ones that send a byte of a head or of a body now and then."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._held: list[socket.socket] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._trickle, daemon=True)

    def __enter__(self) -> SlowConnections:
        self._held = [
            socket.create_connection(("127.0.0.1", self._port), timeout=60) for _ in range(SILENT + TRICKLING)
        ]
        for number, one in enumerate(self._held[SILENT:]):
            one.setblocking(False)
            self._say(one, HEAD if number % 2 else BODY)
        self._thread.start()
        return self

    def _trickle(self) -> None:
        while not self._over.wait(0.5):
            for one in self._held[SILENT:]:
                self._say(one, b"x")

    def _say(self, one: socket.socket, what: bytes) -> None:
        with contextlib.suppress(OSError):
            one.send(what)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=60)
        for one in self._held:
            one.close()


@pytest.fixture(scope="module")
def admin(demo: Demo) -> dict[str, str]:
    return demo.sign_in("admin")


def asked(demo: Demo, admin: dict[str, str]) -> Iterator[tuple[str, float]]:
    """(what, seconds) of a guard, two pages, and a halt that is set and lifted, each by a connection of its own."""

    def timed(what: str, method: str, url: str, wanted: int, **rest: Any) -> tuple[Any, tuple[str, float]]:
        began = time.monotonic()
        headers = {"Connection": "close", **rest.pop("headers", {})}
        reply = request(method, url, headers=headers, **rest)
        assert reply.status == wanted, (what, reply.status, reply.body[:200])
        return reply, (what, time.monotonic() - began)

    body = {
        "action": "refund.create", "agent_id": "slow-clients", "idempotency_key": f"slow:{uuid.uuid4().hex}",
        "params": {"amount": {"value": "1.00", "currency": "USD"}, "refund_id": uuid.uuid4().hex},
    }  # fmt: skip
    url = f"{demo.authority}/api/sentinel/action/guard"
    yield timed("guard", "POST", url, 200, body=body, headers={"X-API-Key": demo.key})[1]
    yield timed("public page", "GET", f"{demo.board}/live", 200)[1]
    yield timed("operators' page", "GET", f"{demo.console}/ops/sign-in", 200)[1]
    halt = {"scope": "agent", "target": "slow-clients-halted", "level": "kill", "reason": "slow clients"}
    made, took = timed("halt", "POST", f"{demo.console}/ops/api/halts", 201, body=halt, headers=admin)
    yield took
    lifted = f"{demo.console}/ops/api/halts/{made.json['halt_id']}/lift"
    yield timed("lift", "POST", lifted, 200, body={"reason": "over"}, headers=admin)[1]


@pytest.mark.parametrize("face", FACES)
def test_slow_and_silent_connections_hold_nobody_up(demo: Demo, admin: dict[str, str], face: str) -> None:
    port = int(str(demo.told[f"{face}_url"]).rpartition(":")[2])
    shortest: dict[str, float] = {}
    with SlowConnections(port):
        for _ in range(ROUNDS):
            for what, seconds in asked(demo, admin):
                shortest[what] = min(shortest.get(what, seconds), seconds)
            time.sleep(1)
    print(
        f"N={SILENT} silent and {TRICKLING} trickling on {face}:",
        {what: round(took, 3) for what, took in shortest.items()},
    )
    # A process that stands still holds up one round, and who is held up by such connections is so in each.
    assert max(shortest.values()) < 1.0 * overload(), shortest


@pytest.mark.parametrize("begun", [HEAD, BODY])
def test_what_is_never_ended_is_closed(demo: Demo, begun: bytes) -> None:
    """A head within 10 s and a body within 20 s of its first byte, however it trickles."""
    port = int(demo.console.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(begun)
        began = time.monotonic()
        with contextlib.suppress(OSError):  # closed by the other end
            while time.monotonic() - began < 2 * long_enough(25):
                one.sendall(b"x")
                time.sleep(0.5)
        took = time.monotonic() - began
    assert took < long_enough(25)
