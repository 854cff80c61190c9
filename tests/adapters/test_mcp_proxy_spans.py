"""The proxy's spans as a collector receives them: within the agent's trace, with the conventions' names, and without anybody's words."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sentinel.platform.last_spans import END_SECONDS
from tests.adapters.proxy_processes import ProxyProcesses, python_of, relay, until
from tests.support.adapter_environments import environment_variables
from tests.support.scripted_server import Asked, ScriptedServer
from tests.support.span_collector import Collector

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {}, "traceparent": PARENT,
}  # fmt: skip


@pytest.fixture
def authority(proxied: ProxyProcesses) -> Iterator[ScriptedServer]:
    """The authority, with what it was asked."""

    def before(asked: Asked) -> bool:
        return True

    with ScriptedServer().running() as server:
        server.script = relay(proxied.place.url, before)
        yield server


def asked(proxied: ProxyProcesses, tool: str, meta: dict[str, Any], **arguments: Any) -> Any:
    """A call of a tool over plain HTTP, as a client of 2026-07-28 makes it."""
    body = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": meta},
    }  # fmt: skip
    headers = {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "X-API-Key": proxied.key,
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
    }  # fmt: skip
    port = proxied.proxy.port if proxied.proxy else None
    with closing(http.client.HTTPConnection("127.0.0.1", port or 0, timeout=120)) as link:
        link.request("POST", "/mcp", json.dumps(body), headers)
        with link.getresponse() as answer:
            return answer.read().decode()


def traces_of(server: ScriptedServer) -> set[str]:
    """The traces of what the authority was asked by POST."""
    return {one.headers.get("traceparent", "none").split("-")[1] for one in server.asked if one.method == "POST" and "traceparent" in one.headers}  # fmt: skip


def test_without_a_collector_the_agents_trace_goes_on_to_the_authority(
    proxied: ProxyProcesses, authority: ScriptedServer
) -> None:
    proxied.start_proxy(url=authority.url)
    assert "done: create_refund" in asked(proxied, "create_refund", META, payment_intent=proxied.payment, amount=5000)
    assert traces_of(authority) == {TRACE}


def test_calls_are_spans_of_the_agents_trace_without_a_word_of_model_or_server(
    proxied: ProxyProcesses, authority: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector().running() as collector:
        assert isinstance(collector, Collector)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        proxied.start_proxy(url=authority.url, more=["--sessions"])
        asked(proxied, "create_refund", META, payment_intent=proxied.payment, amount=5000)
        asked(proxied, "create_refund", META, payment_intent=f"{proxied.payment}-huge", amount=500_000)
        asked(proxied, "words of a model", META, amount=1)
        proxied.behave("fails")
        assert proxied.refund(6000, "sdk-legacy", "-fails")["error"]
        until(lambda: len(collector.spans()) >= 4 + 7)
        everything = collector.spans()
        spans = [one for one in everything if one["name"].startswith("tools/call")]
        sent = b"".join(one.body for one in collector.asked)
    assert {one["service"] for one in spans} == {"sentinel-mcp-proxy"}
    of_agent = [one["told"] for one in spans if one["trace"].hex() == TRACE]
    found = {(one.get("gen_ai.tool.name"), one["sentinel.decision"], one["sentinel.reason_code"]) for one in of_agent}
    assert found == {
        ("create_refund", "ALLOW", "within_policy_limit"), ("create_refund", "DENY", "over_limit"), (None, "DENY", "unmapped_tool"),
    }  # fmt: skip
    for told in of_agent:
        assert (told["mcp.method.name"], told["gen_ai.operation.name"]) == ("tools/call", "execute_tool")
        assert (told["mcp.protocol.version"], told["gen_ai.agent.id"]) == ("2026-07-28", proxied.agent_id)
    (failed,) = [one["told"] for one in spans if one["trace"].hex() != TRACE]
    assert failed["error.type"] == "tool_error" and failed["mcp.session.id"] and failed["sentinel.operation_id"]
    assert traces_of(authority) >= {TRACE}
    guards = [one for one in everything if one["name"] == "sentinel.action.guard"]
    assert len(guards) == 3 and {one["parent"] for one in guards} <= {one["id"] for one in spans}
    assert not [one for one in (proxied.payment.encode(), b"words of", b"card_declined", b"500000") if one in sent]


RECORDS_ONE = """
import sys
from sentinel.platform import last_spans
from sentinel.client.transport import open_span
from sentinel.mcp_proxy.spans import collect_spans
last_spans.END_SECONDS = float(sys.argv[1])
collect_spans()
with open_span("tools/list", "SERVER", {}): pass
print("ends", flush=True)
"""


def end_with(endpoint: str, *, waits: float = END_SECONDS) -> None:
    """A process that records a span as the proxy does, and ends, which waits so long; raises where that takes longer than a supervisor would wait."""
    env = {**environment_variables(), "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
    command = [python_of("mcp_proxy"), "-c", RECORDS_ONE, str(waits)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ends\n"
            assert process.wait(28) == 0
        finally:
            process.kill()


def test_the_proxy_ends_although_its_collector_does_not_answer() -> None:
    """The finding: the SDK waits for it, up to half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        end_with(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_the_last_spans_are_sent_as_the_proxy_ends() -> None:
    with Collector().running() as collector:
        assert isinstance(collector, Collector)
        end_with(collector.url, waits=20)
        assert [one["name"] for one in collector.spans()] == ["tools/list"]
