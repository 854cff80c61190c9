"""A proxy that is told to end: calls under way go on to their report, and nothing that only listens keeps it."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.adapters.proxy_processes import IMPORTED, ProxyProcesses, until
from tests.support.adapter_environments import environment_variables
from tests.support.busy import long_enough
from tests.support.ports import listens
from tests.support.warm_process import WarmProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_call_that_nobody_waits_for_is_finished_and_reported(proxied: ProxyProcesses, number: signal.Signals) -> None:
    program = proxied.start_proxy()
    assert program.process is not None and program.port is not None
    proxied.behave("waits")
    proxied.client().send(**proxied.target(), **proxied.refund_call())
    until(lambda: len(proxied.effects()) == 1)
    proxied.lose()
    program.process.send_signal(number)
    until(lambda: not listens(program.port or 0))
    with pytest.raises(subprocess.TimeoutExpired):
        program.process.wait(1)
    proxied.behave("works")
    assert program.process.wait(60) == 0
    assert [outcome for _, _, outcome in proxied.operations()] == ["success"]


@pytest.mark.parametrize("closes_first", [False, True], ids=["open", "closed"])
def test_over_standard_input_a_call_is_finished_and_reported(proxied: ProxyProcesses, closes_first: bool) -> None:
    options = {"url": proxied.place.url, "upstream-url": proxied.payments_url, "agent": proxied.agent_id}
    command = proxied.command(**options)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = proxied.refund_call()
    lines: list[dict[str, object]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": call["tool"], "arguments": call["args"]}},
    ]
    proxied.behave("waits")
    with (
        (proxied.folder / "stdio.log").open("ab") as log,
        WarmProcess(
            command, imported=IMPORTED, env=environment_variables(), text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, bufsize=1,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        for line in lines:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **line}) + "\n")
        until(lambda: len(proxied.effects()) == 1)
        if closes_first:
            process.stdin.close()
        process.send_signal(signal.SIGTERM)
        proxied.behave("works")
        try:
            process.wait(60)
        finally:
            process.kill()
    assert [outcome for _, _, outcome in proxied.operations()] == ["success"]


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_who_listens_for_changes_does_not_keep_it(proxied: ProxyProcesses, kind: str) -> None:
    program = proxied.start_proxy(more=["--pass-on", "resources", "--sessions"], timeout=600)
    assert program.process is not None
    listening = proxied.client(kind)
    listening.send(**proxied.target(), do="watch", calls=[], wanted=1, told=True, seconds=600)
    try:
        assert listening.answer() == {"listening": True}
        program.process.terminate()
        assert program.process.wait(long_enough(8)) == 0
        if kind == "sdk":
            assert listening.answer()["changes"] == ["ended"]
    finally:
        proxied.lose(kind)
