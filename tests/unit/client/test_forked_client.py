"""A client that is used before a fork and after it: no process reads what another one asked."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange

PROGRAM = """
import asyncio, os, sys
from sentinel.client import Client

kind, url = sys.argv[1:]
client = Client(url, "key", agent_id="agent", timeout_seconds=60, retries=0)
loop, on_loop = asyncio.new_event_loop(), client.as_async()


def ask(name):
    question = {"action": "refund.create", "params": {"amount": {"value": 1, "currency": "USD"}}, "idempotency_key": name}
    if kind == "threads":
        return client.guard(**question)
    return loop.run_until_complete(on_loop.guard(**question))


ask("parent-before")
if (child := os.fork()) == 0:
    ask("child")
    ask("child-again")
    if kind == "threads":
        client.abort()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ask("parent-after")
os._exit(0)  # a loop that was forked is not tidied up
"""


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_forked_process_asks_on_connections_of_its_own(authority: FakeAuthority, kind: str) -> None:
    ports: dict[str, int] = {}

    def note(exchange: Exchange) -> bool:
        ports[(exchange.body or {})["idempotency_key"]] = exchange.handler.client_address[1]
        return False

    authority.misbehave = note
    done: Any = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, authority.url], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ports["child"] == ports["child-again"] != ports["parent-before"], json.dumps(ports)
    assert ports["parent-after"] == ports["parent-before"], "the parent goes on with its own"
