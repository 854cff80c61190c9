"""What the server behind the proxy says has changed, and what it proposes: passed on as far as agents may read it, in both revisions."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from sentinel.authority.keys import issue_key, revoke_key
from tests.adapters.proxy_processes import SECRET, ProxyProcesses, relay, run_beside_proxy, until
from tests.support.scripted_server import Asked, ScriptedServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]
LOOK = ["look_up", {"payment_intent": "pi_changed"}]
"""A call at which the payments server tells that its policy has changed."""
POLICY = {
    "sdk": "ResourceUpdated(uri='payments://policy')",
    "sdk-legacy": "notifications/resources/updated payments://policy",
    "typescript": "notifications/resources/updated payments://policy",
}


@pytest.fixture(params=["2026-07-28", "legacy"])
def upstream(request: pytest.FixtureRequest, proxied: ProxyProcesses) -> Iterator[str]:
    """The address of a payments server of that revision."""
    if request.param != "legacy":
        yield proxied.payments_url
        return
    with proxied.legacy_server() as url:
        yield url


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy", "typescript"])
def test_a_change_of_a_resource_is_told_to_whoever_subscribed(
    proxied: ProxyProcesses, kind: str, upstream: str
) -> None:
    proxied.start_proxy(more=["--pass-on", "resources", "--sessions"], upstream_url=upstream)
    found = proxied.ask(kind, do="watch", calls=[LOOK], wanted=1)
    assert found["changes"] == [POLICY[kind]], "and of nothing else"
    if kind == "sdk":
        assert found["honored"] == {
            "toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": ["payments://policy", "payments://charge/1"],
        }, "prompts are not passed on"  # fmt: skip
    assert SECRET not in str(found)


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
@pytest.mark.parametrize("revision", ["2026-07-28", "legacy"])
def test_changes_over_standard_input_and_output(proxied: ProxyProcesses, kind: str, revision: str) -> None:
    command = proxied.stdio_command(revision, "resources")
    client = proxied.client(kind)
    client.send(do="watch", calls=[LOOK], wanted=1, stdio=command)
    assert client.answer()["changes"] == [POLICY[kind]]


def test_nothing_is_told_of_what_is_not_passed_on_and_without_sessions_nobody_is_promised_it(
    proxied: ProxyProcesses,
) -> None:
    found = proxied.ask("sdk", do="watch", calls=[LOOK], wanted=1, seconds=1)
    assert found["raised"].startswith("TimeoutError"), "listens to the list of tools, and that did not change"
    assert "Method not found" in proxied.ask("sdk-legacy", do="watch", calls=[], wanted=0)["raised"]
    proxied.start_proxy(more=["--pass-on", "resources"])
    assert "Method not found" in proxied.ask("sdk-legacy", do="watch", calls=[], wanted=0)["raised"]


def test_who_is_no_longer_let_in_is_told_nothing_more(proxied: ProxyProcesses) -> None:
    place = proxied.place
    proxied.start_proxy(more=["--pass-on", "resources", "--sessions"])
    fixtures = place.fixtures
    issued = issue_key(
        fixtures.console_pool, fixtures.tenant_id, agent_id=proxied.agent_id, scopes=("guard",), owner_operator_id=None
    )
    for kind in ("sdk", "sdk-legacy"):
        assert proxied.ask(kind, do="watch", calls=[LOOK], wanted=1)["changes"]
    watching = proxied.client("sdk")
    watching.send(url=proxied.target()["url"], key=issued.key, do="watch", calls=[], wanted=1, told=True, seconds=100)
    assert watching.answer() == {"listening": True}
    revoke_key(fixtures.console_pool, fixtures.tenant_id, issued.key_id)
    time.sleep(1.1)  # for a second a key is remembered
    assert not proxied.call("look_up", "sdk-legacy", payment_intent="pi")["error"]
    assert watching.answer()["changes"] == ["ended"]


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_what_changed_while_the_authority_was_away_is_told_once_it_answers(proxied: ProxyProcesses, kind: str) -> None:
    with ScriptedServer().running() as server:
        away, refused = threading.Event(), threading.Event()

        def before(asked: Asked) -> bool:
            if away.is_set():
                refused.set()
            return not away.is_set()

        server.script = relay(proxied.place.url, before)
        proxied.start_proxy(more=["--pass-on", "resources", "--sessions"], url=server.url)
        watching = proxied.client(kind)
        watching.send(**proxied.target(), do="watch", calls=[], wanted=1, told=True, seconds=100)
        assert watching.answer() == {"listening": True}
        time.sleep(1.1)  # for a second a key is remembered
        away.set()
        tool, arguments = LOOK
        changing = proxied.client("fastmcp")
        changing.send(url=proxied.payments_url, key="any", do="call", tool=tool, args=arguments)
        assert not changing.answer()["error"]
        assert refused.wait(60)
        time.sleep(3)  # for more than one look: nothing is told, and nothing ends
        away.clear()
        assert watching.answer()["changes"] == [POLICY[kind]]


def test_a_server_that_dies_ends_a_stream_and_is_subscribed_to_again_for_a_session(
    proxied: ProxyProcesses,
) -> None:
    proxied.start_proxy(more=["--pass-on", "resources", "--sessions"])
    streams = [proxied.client(kind) for kind in ("sdk", "sdk-legacy")]
    for stream in streams:
        stream.send(**proxied.target(), do="watch", calls=[], wanted=1, told=True, seconds=100)
        assert stream.answer() == {"listening": True}
    proxied.payments.kill()
    proxied.payments.start()
    ended = streams[0].answer()
    assert "ended" in ended.get("changes", ()) or "MCPError" in ended["raised"] or "SubscriptionLost" in ended["raised"]
    assert set(streams[1].answer()["changes"]) <= {
        f"notifications/resources/updated payments://{one}" for one in ("policy", "charge/1")
    }, "told that it may have changed meanwhile"


def test_a_session_is_its_agents_alone(proxied: ProxyProcesses) -> None:
    proxied.start_proxy(more=["--pass-on", "resources", "--sessions"])
    other = proxied.place.fixtures.new_key(agent_id="agent-else", scopes=("guard",))
    port = proxied.proxy.port if proxied.proxy else 0

    def asked(key: str, body: dict[str, Any], **headers: str) -> tuple[int, str]:
        sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "X-API-Key": key}
        with closing(http.client.HTTPConnection("127.0.0.1", port or 0, timeout=120)) as link:
            link.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", **body}), {**sent, **headers})
            with link.getresponse() as answer:
                return answer.status, answer.getheader("mcp-session-id") or ""

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    status, session = asked(proxied.key, {"id": 1, "method": "initialize", "params": hello})
    assert status == 200 and session
    subscribe = {"id": 2, "method": "resources/subscribe", "params": {"uri": "payments://policy"}}
    assert asked(other, subscribe, **{"Mcp-Session-Id": session})[0] == 404
    assert asked(proxied.key, subscribe, **{"Mcp-Session-Id": session})[0] == 200


@pytest.mark.parametrize("how", ["listen", "subscribe"])
def test_an_agent_has_at_most_32_subscriptions_and_the_proxy_256(how: str) -> None:
    done = run_beside_proxy("-m", "tests.adapters.many_subscriptions", how)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found == {
        "each": [32] * 8 + [0], "open": 256,
        # One ended: not for who has 32, for who has none, and then there is no more room.
        "late": [False, True, False], "open_then": 256,
    }  # fmt: skip


def test_a_subscription_that_is_ended_while_it_begins_is_refused() -> None:
    done = run_beside_proxy("-m", "tests.adapters.many_subscriptions", "end")
    assert (done.returncode, done.stderr) == (0, "")
    refused = "the subscription was ended before it began"
    assert json.loads(done.stdout) == {
        "at once": [True, refused, refused], "beginning": [True, refused, refused], "taken": [True, "subscribed", "subscribed"],
        "open": 1,
    }  # fmt: skip


def test_a_session_that_subscribes_again_and_again_keeps_nothing_of_what_it_ended() -> None:
    done = run_beside_proxy("-m", "tests.adapters.many_subscriptions", "repeat")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"kept": 1, "open": 1, "open_then": 0}


def test_the_33rd_stream_of_an_agent_is_refused_over_http(proxied: ProxyProcesses) -> None:
    port = (proxied.start_proxy().port) or 0
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }  # fmt: skip
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    with ExitStack() as streams:

        def first_message(number: int) -> str:
            link = streams.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)))
            body = {"jsonrpc": "2.0", "id": number, "method": "subscriptions/listen", "params": params}
            link.request("POST", "/mcp", json.dumps(body), {
                "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "X-API-Key": proxied.key,
                "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen",
            })  # fmt: skip
            answer = link.getresponse()
            while line := answer.readline().decode():
                if "jsonrpc" in line:
                    return line
            return ""

        taken = [first_message(number) for number in range(32)]
        assert all("subscriptions/acknowledged" in one for one in taken), taken[:1]
        assert "too many subscriptions" in first_message(33)
    with streams:
        until(lambda: "subscriptions/acknowledged" in first_message(34))


def test_what_the_server_proposes_is_passed_on_for_what_may_be_read(proxied: ProxyProcesses) -> None:
    for kind in ("sdk", "sdk-legacy"):
        assert "Method not found" in proxied.ask(kind, do="complete")["prompt"]
    proxied.start_proxy(more=["--pass-on", "prompts"])
    for kind in ("sdk", "sdk-legacy"):
        found = proxied.ask(kind, do="complete")
        assert found["prompt"] == ["kim", "kari", "shop"] and "does not pass on resources" in found["template"]
    proxied.start_proxy(more=["--pass-on", "resources", "--pass-on", "prompts"])
    assert proxied.ask("sdk", do="complete") == {"prompt": ["kim", "kari", "shop"], "template": ["k1", "shop"]}
