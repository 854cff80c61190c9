"""What the server behind the proxy logs: passed on to the client whose call it is of, at the level that it named, in both revisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.adapters.proxy_processes import SECRET, Client, ProxyProcesses, run_beside_proxy, until
from tests.adapters.test_mcp_proxy_changes import upstream as upstream

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]
CLIENTS = ["sdk", "sdk-legacy"]
LOGGING = ["--pass-on", "logging", "--sessions"]


def logged(found: dict[str, Any]) -> list[tuple[str, str]]:
    """(level, the level that the server was asked for) of each message, which has nothing of the proxy's."""
    for _, logger, data, meta in found["messages"]:
        assert (logger, set(data), meta) == ("payments", {"asked", "payment", "by"}, None)
        assert data["by"] in (None, "Bearer [withheld by sentinel mcp-proxy]", "[withheld by sentinel mcp-proxy]")
    assert SECRET not in str(found)
    return [(level, data["asked"]) for level, _, data, _ in found["messages"]]


def look_up(payment: str) -> list[Any]:
    return ["look_up", {"payment_intent": payment}]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_gets_what_is_logged_of_its_calls_at_the_level_that_it_names(
    proxied: ProxyProcesses, kind: str, upstream: str
) -> None:
    proxied.start_proxy(more=LOGGING, upstream_url=upstream)
    refund = ["create_refund", {"payment_intent": proxied.payment, "amount": 5000}]
    for level, wanted in (("info", ["info", "error"]), ("warning", ["error"]), ("critical", [])):
        found = proxied.ask(kind, do="log", level=level, calls=[look_up("pi_a")])
        assert logged(found) == [(one, level) for one in wanted] and found["capability"]
    found = proxied.ask(kind, do="log", level="debug", calls=[refund, look_up("pi_b")])
    assert logged(found) == 2 * [(one, "debug") for one in ("debug", "info", "error")], "of a guarded call too"
    assert [data["payment"] for _, _, data, _ in found["messages"]] == 3 * [proxied.payment] + 3 * ["pi_b"]
    assert found["texts"] == ["done: create_refund", "done: look_up"] and len(proxied.effects()) == 1
    silent = proxied.ask(kind, do="log", calls=[look_up("pi_a")])
    assert silent["messages"] == [], "who names no level gets nothing"


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("revision", ["2026-07-28", "legacy"])
def test_logging_over_standard_input_and_output(proxied: ProxyProcesses, kind: str, revision: str) -> None:
    command = proxied.stdio_command(revision, "logging")
    client = proxied.client(kind)
    for level, wanted in (("info", ["info", "error"]), ("error", ["error"])):
        client.send(do="log", level=level, calls=[look_up("pi_a")], stdio=command)
        assert logged(client.answer()) == [(one, level) for one in wanted]


@pytest.mark.parametrize("kind", CLIENTS)
def test_nothing_is_logged_to_anybody_unless_it_is_passed_on(proxied: ProxyProcesses, kind: str) -> None:
    found = proxied.ask("sdk", do="log", level="debug", calls=[look_up("pi_a")])
    assert found["messages"] == [] and not found["capability"]
    assert "Method not found" in proxied.ask("sdk-legacy", do="log", level="debug", calls=[])["raised"]
    proxied.start_proxy(more=["--pass-on", "logging"])
    refused = proxied.ask("sdk-legacy", do="log", level="debug", calls=[])
    assert "Method not found" in refused["raised"], "without a session nobody would remember the level"
    assert not proxied.ask("sdk-legacy", do="log", calls=[])["capability"]
    assert logged(proxied.ask("sdk", do="log", level="error", calls=[look_up("pi_a")])) == [("error", "error")]


def test_a_server_that_refuses_the_level_is_called_all_the_same(proxied: ProxyProcesses) -> None:
    port_of = proxied.payments_url
    proxied.start_proxy(more=LOGGING, upstream_url=port_of)
    for kind in CLIENTS:
        found = proxied.ask(kind, do="log", level="emergency", calls=[look_up("pi_a")])
        assert found["texts"] == ["done: look_up"] and found["messages"] == []


def test_two_agents_at_once_hear_only_of_their_own_calls(proxied: ProxyProcesses) -> None:
    proxied.start_proxy(more=LOGGING)
    other = proxied.place.fixtures.new_key(agent_id="agent-else", scopes=("guard",))
    clients = [Client(kind) for kind in CLIENTS]
    try:
        for client, key, payment in zip(clients, (proxied.key, other), ("pi_mine", "pi_theirs"), strict=True):
            client.send(url=proxied.target()["url"], key=key, do="log", level="debug", calls=[look_up(payment)] * 10)
        found = [{data["payment"] for _, _, data, _ in client.answer()["messages"]} for client in clients]
    finally:
        for client in clients:
            client.close()
    assert found == [{"pi_mine"}, {"pi_theirs"}]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_that_goes_away_does_not_hold_up_its_call(proxied: ProxyProcesses, kind: str) -> None:
    proxied.start_proxy(more=LOGGING)
    proxied.behave("waits")
    call = ["create_refund", {"payment_intent": proxied.payment, "amount": 5000}]
    proxied.client(kind).send(**proxied.target(), do="log", level="debug", calls=[call])
    until(lambda: len(proxied.effects()) == 1)
    proxied.lose(kind)
    proxied.behave("works")
    until(lambda: [outcome for _, _, outcome in proxied.operations()] == ["success"])


def test_messages_of_one_process_are_not_passed_on_to_several_agents(proxied: ProxyProcesses) -> None:
    def refused(more: Sequence[str]) -> str:
        _python, *arguments = proxied.command(**{"upstream-command": "true", "listen": "127.0.0.1:0"})
        done = run_beside_proxy(*arguments, *more)
        return done.stderr if done.returncode == 2 else ""

    assert "do not say to whose call they belong" in refused(["--pass-on", "logging"])
    assert "--pass-on logs: must be one of resources, prompts, logging" in refused(["--pass-on", "logs"])
