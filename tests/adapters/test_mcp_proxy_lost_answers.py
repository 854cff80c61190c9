"""The MCP proxy where the server's answer to a call is lost: whoever gave none may still act, so nothing is reported of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import StillActing
from tests.adapters.proxy_processes import ProxyProcesses, python_of, relay
from tests.support.harness import let_leave_end
from tests.support.not_executed import say
from tests.support.scripted_server import Asked, Script, ScriptedServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]
SSE = "text/event-stream"
LOST: dict[str, Script] = {
    "resets": lambda asked: asked.reset(),
    "closes": lambda asked: None,
    "502": lambda asked: asked.answer(502, b"<html>bad gateway</html>", "text/html"),
    "504": lambda asked: asked.answer(504, b'{"message": "timed out"}'),
    "404": lambda asked: asked.answer(404, b"no such route", "text/plain"),
    "202": lambda asked: asked.answer(202, b""),
    "redirect": lambda asked: asked.answer(307, b"", Location="/mcp/"),
    "no JSON": lambda asked: asked.answer(200, b"{"),
    "no message": lambda asked: asked.answer(200, b'{"jsonrpc": "2.0"}'),
    "HTML": lambda asked: asked.answer(200, b"<html>yes</html>", "text/html"),
    "a stream that ends early": lambda asked: asked.answer(200, b": begun\n\n", SSE),
    "a stream that says nothing": lambda asked: asked.answer(200, b"event: message\ndata: {\n\n", SSE),
    "a result that is none": lambda asked: _say(asked, result={"content": "done"}),
    "an error by the SDK's own code": lambda asked: _say(asked, error={"code": -32000, "message": "the server timed out"}),
}  # fmt: skip
"""What may stand between a call that was sent and an answer of the server's to it."""


def _say(asked: Asked, **message: Any) -> None:
    asked.say({"jsonrpc": "2.0", "id": asked.json["id"], **message})


@pytest.fixture
def gateway(proxied: ProxyProcesses) -> Iterator[ScriptedServer]:
    """In front of the payments server, which the proxy talks to through it: `script` answers calls of tools, all else is passed on."""
    with ScriptedServer().running() as between, ScriptedServer().running() as server:

        def before(asked: Asked) -> bool:
            is_call = asked.headers.get("mcp-method") == "tools/call"
            if is_call:
                between.script(asked)
            return not is_call

        server.script = relay(proxied.payments_url, before)
        proxied.start_proxy(upstream_url=f"{server.url}/mcp")
        yield between


def test_of_a_lost_answer_nothing_is_reported_and_the_client_is_told_at_once(
    proxied: ProxyProcesses, gateway: ScriptedServer
) -> None:
    """The finding: an error was reported, which says that nobody acts any more, while the server went on: a person could free what it then paid."""
    for number, (name, fault) in enumerate(LOST.items()):
        gateway.script = fault
        told = proxied.refund(100 + number, suffix=f"-{number}")
        assert told["error"] and told["data"]["reason_code"] == "in_doubt", name
        assert (told["data"]["retry"], told["data"].get("outcome")) == ("never", None), name
    found = proxied.operations()
    assert [(status, outcome) for _, status, outcome in found] == [("started", None)] * len(LOST)
    fixtures = proxied.place.fixtures
    run_housekeeping(fixtures.authority.pool, 0)
    body = {"idempotency_key": found[0][0]}
    with pytest.raises(StillActing):
        say(fixtures, body, executed=False)
    let_leave_end(fixtures)
    say(fixtures, body, executed=False)
    assert proxied.refund(100, suffix="-0")["data"]["resolution"] == "not_executed"


def test_a_lost_answer_to_an_unguarded_call_is_in_doubt_too(proxied: ProxyProcesses, gateway: ScriptedServer) -> None:
    """The finding: what the SDK had made up in the answer's place was passed on as the server's error."""
    for name, fault in LOST.items():
        gateway.script = fault
        told = proxied.call("look_up", payment_intent=proxied.payment)
        assert told.get("raised") is None, name
        assert (told["data"]["decision"], told["data"]["reason_code"], told["data"]["retry"]) == ("ALLOW", "in_doubt", "never"), name  # fmt: skip


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [(200, -32603, "Internal server error"), (500, -32603, "no funds"), (200, -32602, "no such charge"), (404, -32601, "no such tool"), (200, 0, "broke")],
)  # fmt: skip
def test_an_error_of_the_servers_own_is_reported_at_once_and_passed_on_of_an_unguarded_call(
    proxied: ProxyProcesses, gateway: ScriptedServer, status: int, code: int, message: str
) -> None:
    def answer(asked: Asked) -> None:
        error = {"jsonrpc": "2.0", "id": asked.json["id"], "error": {"code": code, "message": message}}
        asked.answer(status, json.dumps(error).encode())

    gateway.script = answer
    told = proxied.refund()
    assert (told["data"]["reason_code"], told["data"]["outcome"]) == ("in_doubt", "error")
    assert [(status, outcome) for _, status, outcome in proxied.operations()] == [("in_doubt", "error")]
    assert message in proxied.call("look_up", payment_intent=proxied.payment)["raised"]


def test_a_process_that_dies_in_an_unguarded_call_leaves_it_in_doubt(proxied: ProxyProcesses) -> None:
    upstream = shlex.join([python_of("mcp_proxy"), "-m", "tests.adapters.payments_server", str(proxied.notes)])
    options = {
        "url": proxied.place.url,
        "upstream-command": upstream,
        "credential-name": "PAYMENTS_KEY",
        "agent": proxied.agent_id,
    }
    proxied.behave("dies")
    client = proxied.client()
    client.send(do="call", tool="look_up", args={"payment_intent": proxied.payment}, stdio=proxied.command(tools="stdio_tools.yaml", **options))  # fmt: skip
    told = client.answer()
    assert told.get("raised") is None and told["data"]["reason_code"] == "in_doubt"
    assert len(proxied.effects()) == 1
