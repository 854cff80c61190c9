"""The MCP proxy end to end: every client unmodified and in its own process, killed proxies, servers that die, keys."""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.adapters.conftest import Place
from tests.adapters.proxy_world import CLIENTS, SECRET, World, relay, until
from tests.support.scripted_server import Asked, ScriptedServer

NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]


@pytest.fixture(scope="module")
def kept_world(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The processes that go from test to test."""
    made = World(place, tmp_path_factory.mktemp("proxy"))
    yield made
    made.close()


@pytest.fixture
def world(kept_world: World) -> Iterator[World]:
    """A payments server, a proxy in front of it, and a payment that nobody else has."""
    kept_world.begin()
    yield kept_world
    kept_world.end_own_proxy()


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_unmodified_client_is_allowed_refused_and_waits(world: World, kind: str) -> None:
    tools = world.ask(kind, do="list")["tools"]
    assert set(tools) == {"create_refund", "refund_charge", "look_up", "wire_money"}, (
        "all of the server's but the hidden one"
    )
    schema = tools["create_refund"]
    assert "request_key" not in schema["properties"] and "request_key" not in schema["required"]

    small = world.refund(kind=kind)
    assert (small["error"], small["data"]) == (False, {"done": "done: create_refund"})
    (effect,) = world.effects()
    assert effect["headers"]["authorization"] == f"Bearer {SECRET}" and SECRET not in str(small)
    assert effect["headers"]["idempotency-key"] == effect["request_key"] and len(effect["request_key"]) == 36

    huge = world.refund(OVER_LIMIT, kind)
    assert huge["error"] and "over_limit" in huge["text"]
    data = huge["data"]
    assert (data["decision"], data["reason_code"], data["retry"]) == ("DENY", "over_limit", "never")
    assert uuid.UUID(data["operation_id"]) and data["proof_id"].startswith("pf_")

    waiting = world.refund(NEEDS_PERSON, kind, "-large")
    assert waiting["error"] and waiting["data"]["decision"] == "APPROVAL_REQUIRED" and waiting["data"]["expires_at"]
    assert world.refund(NEEDS_PERSON, kind, "-large")["data"]["approval_id"] == waiting["data"]["approval_id"]
    world.place.vote(waiting["data"]["approval_id"])
    assert not world.refund(NEEDS_PERSON, kind, "-large")["error"]
    again = world.refund(NEEDS_PERSON, kind, "-large")
    assert again["data"]["reason_code"] == "already_started" and again["data"]["outcome"] == "success"

    assert world.call("close_account", kind, account=world.payment)["data"]["reason_code"] == "unmapped_tool"
    assert world.call("look_up", kind, payment_intent=world.payment)["data"] == {"done": "done: look_up"}
    assert [one["tool"] for one in world.effects()] == ["create_refund", "create_refund", "look_up"]


def test_what_a_limit_refuses_says_what_is_left(world: World) -> None:
    for number in range(2):
        assert not world.refund(14_000, suffix=f"-{number}")["error"]
    found = world.refund(5_000, suffix="-3")
    assert found["data"]["approval_reason_code"] == "limit_exceeded" and "Left of" in found["text"]
    left = {one["limit"].rpartition("/")[2]: one["left"] for one in found["data"]["limits"]}
    assert left == {name: {"value": 20, "currency": "USD"} for name in ("account_24h", "account_day")}


def test_standard_input_and_output_on_both_sides(world: World) -> None:
    upstream = f"{world.command()[0]} -m tests.adapters.payments_server {world.notes}"
    options = {
        "url": world.place.url,
        "upstream-command": upstream,
        "credential-name": "PAYMENTS_KEY",
        "agent": world.agent_id,
    }
    client, command = world.client(), world.command(tools="stdio_tools.yaml", **options)
    said = []
    for _ in range(2):
        client.send(**world.refund_call(), stdio=command)
        said.append(client.answer())
    assert said[0]["data"] == {"done": "done: create_refund"} and said[1]["data"]["reason_code"] == "already_started"
    (effect,) = world.effects()
    assert effect["environment"] == SECRET and len(effect["request_key"]) == 36


def test_only_a_key_of_one_agent_of_the_tenant_opens_the_proxy(world: World) -> None:
    assert world.proxy is not None
    port = world.proxy.port or 0

    def status(key: str | None) -> int:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        body = '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as link:
            link.request("POST", "/mcp", body, {**headers, **({"X-API-Key": key} if key else {})})
            with link.getresponse() as answer:
                return answer.status

    assert status(None) == 401 and status("sk_not_a_key") == 401
    assert status(world.place.fixtures.key) == 401, "the proxy's own is of no agent"
    assert status(world.key) != 401


def test_a_server_that_dies_after_the_effect_leaves_it_in_doubt_and_the_proxy_goes_on(world: World) -> None:
    world.behave("dies")
    lost = world.refund()
    assert lost["error"] and lost["data"]["reason_code"] == "in_doubt" and lost["data"]["retry"] == "never"
    assert [status for _, status, _ in world.operations()] == ["in_doubt"]
    world.payments.kill()
    away = world.refund(6000, suffix="-2")
    assert away["data"]["reason_code"] == "upstream_unavailable" and away["data"]["retry"] == "later"
    assert [status for _, status, _ in world.operations()] == ["in_doubt", "allowed"], (
        "what was not sent was not started"
    )
    world.behave("works")
    world.payments.start()
    assert world.refund()["data"]["reason_code"] == "already_started"
    assert not world.refund(6000, suffix="-2")["error"]
    assert [one["amount"] for one in world.effects()] == [5000, 6000]


def test_what_is_not_known_to_have_succeeded_is_in_doubt_and_not_sent_again(world: World) -> None:
    world.start_proxy(timeout=1.5)
    for behaviour, said in (("raises", "in_doubt"), ("hangs", "in_doubt"), ("asks", "in_doubt"), ("fails", None)):
        suffix = f"-{behaviour}"
        world.behave(behaviour)
        first = world.refund(suffix=suffix)
        assert first["error"] and ((first["data"] or {}).get("reason_code") == said or "card_declined" in first["text"])
        world.behave("works")
        assert world.refund(suffix=suffix)["data"]["reason_code"] == "already_started"
    assert [one["payment_intent"].partition("-")[2] for one in world.effects()] == ["raises", "hangs", "fails"]
    assert [status for _, status, _ in world.operations()] == ["in_doubt"] * 4


def test_a_call_is_not_sent_to_where_it_is_redirected(world: World) -> None:
    def before(asked: Asked) -> bool:
        if asked.headers.get("mcp-method") == "tools/call":
            asked.answer(307, b"", Location="/mcp/")
            return False
        return not asked.path.endswith("/mcp/")

    with ScriptedServer().running() as server:
        server.script = relay(world.payments_url, before)
        world.start_proxy(upstream_url=f"{server.url}/mcp")
        assert world.refund()["data"]["reason_code"] == "in_doubt"
        assert [asked.path for asked in server.asked if b"tools/call" in asked.body] == ["/mcp"]
    assert world.effects() == []


@pytest.mark.parametrize("route", ["start", "report"])
def test_a_proxy_that_is_killed_does_not_send_the_call_again(world: World, route: str) -> None:
    """Between the recorded start and the call; between the effect and its report."""

    def killed(asked: Asked) -> None:
        if asked.path.endswith(f"/guard/{route}") and world.proxy is not None:
            world.proxy.kill()

    def before(asked: Asked) -> bool:
        if route == "report":
            killed(asked)
        return True

    with ScriptedServer().running() as server:
        server.script = relay(world.place.url, before, killed)
        world.start_proxy(url=server.url)
        assert "raised" in world.refund()
    effects = 0 if route == "start" else 1
    assert len(world.effects()) == effects
    world.proxy = world.usual_proxy  # another one, which knows nothing of the first
    assert world.refund()["data"]["reason_code"] == "already_started" and len(world.effects()) == effects


def test_a_call_whose_client_goes_away_is_finished_and_reported(world: World) -> None:
    world.behave("waits")
    world.client().send(**world.target(), **world.refund_call())
    until(lambda: len(world.effects()) == 1)
    world.lose()
    world.behave("works")
    until(lambda: [outcome for _, _, outcome in world.operations()] == ["success"])


def test_calls_of_two_clients_at_once_are_sent_once(world: World) -> None:
    clients = [world.client(kind) for kind in ("sdk", "sdk-legacy")]
    for client in clients:
        client.send(**world.target(), **world.refund_call())
    said: list[dict[str, Any]] = [client.answer() for client in clients]
    assert sorted(one["error"] for one in said) == [False, True] and len(world.effects()) == 1


def test_an_authority_that_is_away_means_that_nothing_is_sent(world: World) -> None:
    with ScriptedServer().running() as server:
        gone: list[bool] = []
        server.script = relay(world.place.url, lambda asked: not gone or asked.path.endswith("/key"))
        world.start_proxy(url=server.url)
        assert world.call("look_up", payment_intent=world.payment)["data"] == {"done": "done: look_up"}
        gone.append(True)
        refused = world.refund()
    assert refused["data"]["reason_code"] == "authority_unreachable" and refused["data"]["retry"] == "later"
    assert [one["tool"] for one in world.effects()] == ["look_up"]
