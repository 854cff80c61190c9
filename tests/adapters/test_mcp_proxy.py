"""The MCP proxy end to end: every client unmodified and in its own process, killed proxies, servers that die, keys."""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.conftest import Place
from tests.adapters.proxy_world import CLIENTS, SECRET, World, relay, until
from tests.support.scripted_server import Asked, ScriptedServer

NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]


@pytest.fixture
def world(place: Place, tmp_path: Path) -> Iterator[World]:
    """A payments server that runs, and the files of a proxy."""
    made = World(place, tmp_path, f"pi_{uuid.uuid4().hex[:12]}")
    made.payments.start()
    yield made
    made.close()


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_unmodified_client_is_allowed_refused_and_waits(world: World, kind: str) -> None:
    world.start_proxy()
    client = world.client(kind)
    tools = client.ask(do="list")["tools"]
    assert set(tools) == {"create_refund", "refund_charge", "look_up", "wire_money"}, (
        "as the server lists them, but the hidden one"
    )
    assert (
        "request_key" not in tools["create_refund"]["properties"]
        and "request_key" not in tools["create_refund"]["required"]
    )

    small = world.refund(client)
    assert (small["error"], small["data"]) == (False, {"done": "done: create_refund"})
    (effect,) = world.effects()
    assert effect["headers"]["authorization"] == f"Bearer {SECRET}" and SECRET not in str(small)
    assert effect["headers"]["idempotency-key"] == effect["request_key"] and len(effect["request_key"]) == 36

    huge = world.refund(client, OVER_LIMIT)
    assert huge["error"] and "over_limit" in huge["text"]
    assert (huge["data"]["decision"], huge["data"]["reason_code"], huge["data"]["retry"]) == (
        "DENY",
        "over_limit",
        "never",
    )
    assert uuid.UUID(huge["data"]["operation_id"]) and huge["data"]["proof_id"].startswith("pf_")

    payment = f"{world.payment}-large"
    waiting = world.refund(client, NEEDS_PERSON, payment_intent=payment)
    assert waiting["error"] and waiting["data"]["decision"] == "APPROVAL_REQUIRED" and waiting["data"]["expires_at"]
    assert (
        world.refund(client, NEEDS_PERSON, payment_intent=payment)["data"]["approval_id"]
        == waiting["data"]["approval_id"]
    )
    world.place.vote(waiting["data"]["approval_id"])
    assert not world.refund(client, NEEDS_PERSON, payment_intent=payment)["error"]
    again = world.refund(client, NEEDS_PERSON, payment_intent=payment)
    assert again["data"]["reason_code"] == "already_started" and again["data"]["outcome"] == "success"

    assert client.call("close_account", account="a")["data"]["reason_code"] == "unmapped_tool"
    assert client.call("look_up", payment_intent=payment)["data"] == {"done": "done: look_up"}
    assert [one["tool"] for one in world.effects()] == ["create_refund", "create_refund", "look_up"]


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_standard_input_and_output_on_both_sides(world: World, kind: str) -> None:
    world.proxy = world.payments  # no proxy of its own: the client starts one, which starts the server
    upstream = f"{world.command()[0]} -m tests.adapters.payments_server {world.notes}"
    command = world.command(**{
        "url": world.place.url, "key-file": world.folder / "key", "tools": world.folder / "stdio_tools.yaml", "server": "local",
        "upstream-command": upstream, "credential-file": world.folder / "credential", "credential-name": "PAYMENTS_KEY",
        "facts": world.folder / "facts.json", "agent": world.agent_id,
    })  # fmt: skip
    client = world.client(kind)
    call = {
        "do": "call",
        "tool": "create_refund",
        "args": {"payment_intent": world.payment, "amount": 5000},
        "stdio": command,
    }
    assert client.ask(**call)["data"] == {"done": "done: create_refund"}
    assert client.ask(**call)["data"]["reason_code"] == "already_started"
    (effect,) = world.effects()
    assert effect["environment"] == SECRET and len(effect["request_key"]) == 36


def test_only_a_key_of_one_agent_of_the_tenant_opens_the_proxy(world: World) -> None:
    proxy = world.start_proxy()

    def status(key: str | None) -> int:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        body = '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port or 0, timeout=30)) as link:
            link.request("POST", "/mcp", body, {**headers, **({"X-API-Key": key} if key else {})})
            with link.getresponse() as answer:
                return answer.status

    assert status(None) == 401 and status("sk_not_a_key") == 401
    assert status(world.place.fixtures.key) == 401, "the proxy's own is of no agent"
    assert status(world.key) != 401


def test_a_server_that_dies_after_the_effect_leaves_it_in_doubt_and_the_proxy_goes_on(world: World) -> None:
    world.start_proxy()
    client = world.client()
    world.behave("dies")
    lost = world.refund(client)
    assert lost["error"] and lost["data"]["reason_code"] == "in_doubt" and lost["data"]["retry"] == "never"
    assert [status for _, status, _ in world.operations()] == ["in_doubt"]
    world.payments.kill()
    away = world.refund(client, 6000)
    assert away["data"]["reason_code"] == "upstream_unavailable" and away["data"]["retry"] == "later"
    assert [status for _, status, _ in world.operations()] == ["in_doubt", "allowed"], (
        "what was not sent was not started"
    )
    world.behave("works")
    world.payments.start()
    assert world.refund(client)["data"]["reason_code"] == "already_started"
    assert not world.refund(client, 6000)["error"]
    assert [one["amount"] for one in world.effects()] == [5000, 6000]


@pytest.mark.parametrize(
    ("behaviour", "said"), [("raises", "in_doubt"), ("hangs", "in_doubt"), ("asks", "in_doubt"), ("fails", None)]
)
def test_what_is_not_known_to_have_succeeded_is_in_doubt_and_not_sent_again(
    world: World, behaviour: str, said: str | None
) -> None:
    world.start_proxy(timeout=1.5)
    client = world.client()
    world.behave(behaviour)
    first = world.refund(client)
    assert first["error"] and ((first["data"] or {}).get("reason_code") == said or "card_declined" in first["text"])
    world.behave("works")
    assert world.refund(client)["data"]["reason_code"] == "already_started"
    assert len(world.effects()) == (0 if behaviour == "asks" else 1)
    assert [status for _, status, _ in world.operations()] == ["in_doubt"]


def test_a_call_is_not_sent_to_where_it_is_redirected(world: World) -> None:
    def before(asked: Asked) -> bool:
        if asked.headers.get("mcp-method") == "tools/call":
            asked.answer(307, b"", Location=world.payments_url)
            return False
        return True

    with ScriptedServer().running() as server:
        server.script = relay(world.payments_url, before)
        world.start_proxy(upstream_url=f"{server.url}/mcp")
        assert world.refund(world.client())["data"]["reason_code"] == "in_doubt"
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
        assert "raised" in world.refund(world.client())
    assert len(world.effects()) == (0 if route == "start" else 1)
    world.start_proxy()
    again = world.refund(world.client())
    assert again["data"]["reason_code"] == "already_started"
    assert len(world.effects()) == (0 if route == "start" else 1)


def test_a_call_whose_client_goes_away_is_finished_and_reported(world: World) -> None:
    world.start_proxy()
    world.behave("waits")
    client = world.client()
    client.send(do="call", tool="create_refund", args={"payment_intent": world.payment, "amount": 5000})
    until(lambda: len(world.effects()) == 1)
    client.close()
    world.behave("works")
    until(lambda: [outcome for _, _, outcome in world.operations()] == ["success"])


def test_calls_of_two_clients_at_once_are_sent_once(world: World) -> None:
    world.start_proxy()
    clients = [world.client() for _ in range(3)]
    for client in clients:
        client.send(do="call", tool="create_refund", args={"payment_intent": world.payment, "amount": 5000})
    said: list[dict[str, Any]] = [client.answer() for client in clients]
    assert sorted(one["error"] for one in said) == [False, True, True] and len(world.effects()) == 1


def test_an_authority_that_is_away_means_that_nothing_is_sent(world: World) -> None:
    with ScriptedServer().running() as server:
        gone: list[bool] = []
        server.script = relay(world.place.url, lambda asked: not gone or asked.path.endswith("/key"))
        world.start_proxy(url=server.url)
        client = world.client()
        assert client.call("look_up", payment_intent=world.payment)["data"] == {"done": "done: look_up"}
        gone.append(True)
        refused = world.refund(client)
    assert refused["data"]["reason_code"] == "authority_unreachable" and refused["data"]["retry"] == "later"
    assert [one["tool"] for one in world.effects()] == ["look_up"]
