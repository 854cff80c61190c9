"""The MCP proxy end to end: every client unmodified and in its own process, killed proxies, servers that die, keys."""

from __future__ import annotations

import http.client
import json
import shlex
import time
import uuid
from base64 import b64encode
from contextlib import closing
from typing import Any

import pytest

from tests.adapters.proxy_processes import (
    CLIENTS,
    SECRET,
    ProxyProcesses,
    conformance_results,
    relay,
    run_beside_proxy,
    until,
)
from tests.support.busy import long_enough
from tests.support.scripted_server import SLACK, Asked, ScriptedServer, faults

NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_unmodified_client_is_allowed_refused_and_waits(proxied: ProxyProcesses, kind: str) -> None:
    tools = proxied.ask(kind, do="list")["tools"]
    assert set(tools) == {"create_refund", "refund_charge", "look_up", "wire_money"}, (
        "all of the server's but the hidden one"
    )
    schema = tools["create_refund"]
    assert "request_key" not in schema["properties"] and "request_key" not in schema["required"]

    small = proxied.refund(kind=kind)
    assert (small["error"], small["data"]) == (False, {"done": "done: create_refund"})
    (effect,) = proxied.effects()
    assert effect["headers"]["authorization"] == f"Bearer {SECRET}" and SECRET not in str(small)
    assert effect["headers"]["idempotency-key"] == effect["request_key"] and len(effect["request_key"]) == 36

    huge = proxied.refund(OVER_LIMIT, kind)
    assert huge["error"] and "over_limit" in huge["text"]
    data = huge["data"]
    assert (data["decision"], data["reason_code"], data["retry"]) == ("DENY", "over_limit", "never")
    assert uuid.UUID(data["operation_id"]) and data["proof_id"].startswith("pf_")

    waiting = proxied.refund(NEEDS_PERSON, kind, "-large")
    assert waiting["error"] and waiting["data"]["decision"] == "APPROVAL_REQUIRED" and waiting["data"]["expires_at"]
    assert proxied.refund(NEEDS_PERSON, kind, "-large")["data"]["approval_id"] == waiting["data"]["approval_id"]
    proxied.place.vote(waiting["data"]["approval_id"])
    assert not proxied.refund(NEEDS_PERSON, kind, "-large")["error"]
    again = proxied.refund(NEEDS_PERSON, kind, "-large")
    assert again["data"]["reason_code"] == "already_started" and again["data"]["outcome"] == "success"
    assert "this call was executed before [already_started]" in again["text"]

    assert proxied.call("close_account", kind, account=proxied.payment)["data"]["reason_code"] == "unmapped_tool"
    assert proxied.call("look_up", kind, payment_intent=proxied.payment)["data"] == {"done": "done: look_up"}
    assert [one["tool"] for one in proxied.effects()] == ["create_refund", "create_refund", "look_up"]


def test_a_client_that_makes_types_of_schemas_gets_the_type_of_the_server(proxied: ProxyProcesses) -> None:
    client = proxied.client("fastmcp")
    client.send(**proxied.target(), **proxied.refund_call(), typed=True)
    assert client.answer()["typed"] == "done: create_refund"


def test_a_client_that_waits_for_tasks_gets_the_result_of_its_call_once_a_person_approved(
    proxied: ProxyProcesses,
) -> None:
    waits = proxied.client("fastmcp-tasks")
    waits.send(**proxied.target(), **proxied.refund_call(NEEDS_PERSON))
    until(lambda: proxied.operations() != [], seconds=90)  # it imports much first
    proxied.place.vote(proxied.refund(NEEDS_PERSON)["data"]["approval_id"])
    assert waits.answer() == {"error": False, "text": "done: create_refund", "data": {"done": "done: create_refund"}}
    assert len(proxied.effects()) == 1
    waits.send(**proxied.target(), **proxied.refund_call(OVER_LIMIT, "-huge"))
    assert waits.answer()["data"]["reason_code"] == "over_limit"


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_an_argument_that_the_server_wants_in_a_header_too_is_sent_in_both(proxied: ProxyProcesses, kind: str) -> None:
    """The finding: the server refused each such call after its start, so that each operation was in doubt."""
    found = proxied.call("refund_charge", kind, charge=proxied.payment, amount=5000)
    assert (found["error"], found["data"]) == (False, {"done": "done: refund_charge"})
    assert proxied.operations() == [(f"charge:{proxied.payment}", "completed", "success")]


@pytest.mark.parametrize("listing", ["refused", "broken"])
def test_a_server_that_does_not_list_its_tools_is_called_and_one_that_cannot_be_reached_is_not(
    proxied: ProxyProcesses, listing: str
) -> None:
    def before(asked: Asked) -> bool:
        if asked.headers.get("mcp-method") != "tools/list":
            return True
        if listing == "broken":
            asked.reset()
        else:
            asked.say({"jsonrpc": "2.0", "id": asked.json["id"], "error": {"code": -32603, "message": "not today"}})
        return False

    with ScriptedServer().running() as server:
        server.script = relay(proxied.payments_url, before)
        proxied.start_proxy(upstream_url=f"{server.url}/mcp")
        told = proxied.refund()
    done = [(status, outcome) for _, status, outcome in proxied.operations()]
    if listing == "refused":  # the client itself lists the tools after the call
        assert "did not list its tools" in told["raised"] and done == [("completed", "success")]
    else:
        assert told["data"]["reason_code"] == "upstream_unavailable" and done == [("allowed", None)]


def test_what_a_limit_refuses_says_what_is_left(proxied: ProxyProcesses) -> None:
    for number in range(2):
        assert not proxied.refund(14_000, suffix=f"-{number}")["error"]
    found = proxied.refund(5_000, suffix="-3")
    assert found["data"]["approval_reason_code"] == "limit_exceeded" and "Left under the limit" in found["text"]
    left = {one["limit"].rpartition("/")[2]: one["left"] for one in found["data"]["limits"]}
    assert left == {name: {"value": 20, "currency": "USD"} for name in ("account_24h", "account_day")}


def test_standard_input_and_output_on_both_sides(proxied: ProxyProcesses) -> None:
    upstream = shlex.join([proxied.command()[0], "-m", "tests.adapters.payments_server", str(proxied.notes)])
    options = {
        "url": proxied.place.url,
        "upstream-command": upstream,
        "credential-name": "PAYMENTS_KEY",
        "agent": proxied.agent_id,
    }
    client, command = proxied.client(), proxied.command(tools="stdio_tools.yaml", **options)
    answers = []
    for _ in range(2):
        client.send(**proxied.refund_call(), stdio=command)
        answers.append(client.answer())
    assert (
        answers[0]["data"] == {"done": "done: create_refund"} and answers[1]["data"]["reason_code"] == "already_started"
    )
    (effect,) = proxied.effects()
    assert effect["environment"] == SECRET and len(effect["request_key"]) == 36


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_resources_and_prompts_are_read_where_they_are_passed_on_and_never_with_the_credential(
    proxied: ProxyProcesses, kind: str
) -> None:
    assert "Method not found" in proxied.ask(kind, do="read")["raised"], "unless it is asked for nothing is passed on"
    proxied.start_proxy(more=["--pass-on", "resources", "--pass-on", "prompts"])
    found = proxied.ask(kind, do="read")
    assert SECRET not in str(found) and proxied.key not in str(found)
    assert "withheld" in found.pop("headers") and "no such resource for Bearer [withheld" in found.pop("missing")
    assert found == {
        "resources": ["payments://policy"], "templates": ["payments://charge/{id}"], "prompts": ["refund"],
        "prompt": "Refund kim.", "policy": "This is payments://policy.",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
@pytest.mark.parametrize(
    "credential", [SECRET, f"token {SECRET}", f"Basic {b64encode(f'kim:{SECRET}'.encode()).decode()}"]
)
def test_what_the_server_says_of_its_progress_is_without_the_credential(
    proxied: ProxyProcesses, credential: str, kind: str
) -> None:
    kept = proxied.folder / "credential"
    kept.write_text(credential)
    try:
        proxied.start_proxy()
    finally:
        kept.write_text(f"{SECRET}\n")
    found = proxied.ask(kind, **proxied.refund_call(), progress=True)
    (said,) = found["progress"]
    assert found["data"] == {"done": "done: create_refund"}
    assert said.count("withheld") == 2 and credential not in said and credential.split()[-1] not in said


@pytest.mark.parametrize(
    ("credential", "said", "left"),
    [
        (f"Bearer {SECRET}", f"Bearer {SECRET} {SECRET}", "Bearer [] []"),
        (f"token {SECRET}", f"token {SECRET} {SECRET}", "[] []"),
        (f"Basic {b64encode(b'kim:opensesame').decode()}", f"kim:opensesame {b64encode(b'kim:opensesame').decode()} opensesame", "[] [] []"),
        ("Basic opensesame", "opensesame", "[]"), (SECRET, f"{SECRET}.", "[]."), ("of four words it", "four words it; of four words it", "[]; []"),
        ("Bearer", "Bearer of", "Bearer of"), ("token 1234", "token 1234", "[]"),
    ],
)  # fmt: skip
def test_a_credential_is_withheld_with_its_scheme_and_without(credential: str, said: str, left: str) -> None:
    script = "import sys; from sentinel.mcp_proxy.credential import *; print(CredentialFilter([sys.argv[1]]).of_text(sys.argv[2]).replace(WITHHELD, '[]'))"
    done = run_beside_proxy("-c", script, credential, said)
    assert (done.returncode, done.stdout.strip()) == (0, left), done.stderr


SUSPENDED = """
import asyncio, contextlib, time
from types import SimpleNamespace
from sentinel.mcp_proxy.calls import GuardedCalls, PermittedCall

class Upstream:
    @contextlib.asynccontextmanager
    async def connect(self, messages):
        yield SimpleNamespace(call=sent, prepare=prepared)

async def prepared(params):
    pass

async def sent(*args, **more):
    raise AssertionError("it was sent")

async def suspended(*args, **more):
    real, behind = time.time, 600
    time.time = lambda: real() + behind

async def reported(**outcome):
    print(outcome["error"])

async def main():
    client = SimpleNamespace(start=suspended, report=reported)
    answer = SimpleNamespace(**dict.fromkeys((
        "decision", "operation_id", "proof_id", "policy_version", "approval_id", "outcome", "resolution", "expires_at", "idempotency_key",
        "action", "agent_id", "resource", "risk_class", "permit_token")))
    calls = GuardedCalls(SimpleNamespace(async_client=client), Upstream(), seconds=60)
    call = PermittedCall(SimpleNamespace(injected=lambda *a, **k: {}), answer, None)
    print((await calls._guarded(call, answer, lambda: True)).content[0].text)

asyncio.run(main())
"""


def test_a_call_whose_start_came_while_the_machine_was_suspended_is_not_sent_and_not_called_sent() -> None:
    done = run_beside_proxy("-c", SUSPENDED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("StartedTooLate\nThe call was started at the authority and not sent (StartedTooLate)")


BREAKS = """
import asyncio, contextlib, json, sys
from types import SimpleNamespace
import mcp_types as types
from sentinel.mcp_proxy.answers import CallRefused, refused_result
from sentinel.mcp_proxy.calls import GuardedCalls, PermittedCall
from sentinel.mcp_proxy.upstream import UpstreamUnavailable

when = sys.argv[1]

class Upstream:
    @contextlib.asynccontextmanager
    async def connect(self, messages):
        if when == "before":
            raise UpstreamUnavailable("ConnectError")
        yield SimpleNamespace(call=acts, prepare=prepared)
        if when == "behind the answer":
            raise ConnectionResetError

async def prepared(params):
    pass

async def acts(*args, **more):
    if when == "in the midst":
        raise ConnectionResetError
    return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

async def started(*args, **more):
    pass

async def reported(**outcome):
    raise RuntimeError

async def main():
    answer = None
    if when == "report":
        answer = SimpleNamespace(**dict.fromkeys((
            "operation_id", "idempotency_key", "action", "agent_id", "resource", "risk_class", "permit_token")))
    client = SimpleNamespace(start=started, report=reported)
    calls = GuardedCalls(SimpleNamespace(async_client=client), Upstream(), seconds=60)
    try:
        result = await calls.run(PermittedCall(SimpleNamespace(injected=lambda *a, **k: {}), answer, None))
    except CallRefused as refused:
        result = refused_result(refused)
    print(json.dumps([result.content[0].text, result.structured_content]))

asyncio.run(main())
"""
BROKEN: dict[str, tuple[str, str | None, str | None]] = {
    "before": ("Not executed", "upstream_unavailable", "later"),
    "in the midst": ("it may have been executed", "in_doubt", "never"),
    "behind the answer": ("done", None, None),
    "report": ("done", None, None),
}
"""When a connection breaks that an unguarded call goes over, or what it reports of a guarded one: what the agent is told."""


@pytest.mark.parametrize("when", BROKEN)
def test_a_call_that_was_sent_is_never_called_not_executed(when: str) -> None:
    done = run_beside_proxy("-c", BREAKS, when)
    assert done.returncode == 0, done.stderr
    text, data = json.loads(done.stdout)
    said, code, retry = BROKEN[when]
    assert said in text and ("Not executed" in text) is (when == "before")
    assert ((data or {}).get("reason_code"), (data or {}).get("retry")) == (code, retry)


def test_only_a_key_of_one_agent_of_the_tenant_opens_the_proxy(proxied: ProxyProcesses) -> None:
    assert _listing_status(proxied, None) == 401 and _listing_status(proxied, "sk_not_a_key") == 401
    assert _listing_status(proxied, proxied.place.fixtures.key) == 401, "the proxy's own is of no agent"
    assert _listing_status(proxied, proxied.key) not in (401, 403)


@pytest.mark.parametrize("scopes", [("heartbeat",), ("check", "report", "approvals:read")])
def test_a_key_that_may_not_guard_does_not_by_the_proxys_key(proxied: ProxyProcesses, scopes: tuple[str, ...]) -> None:
    lesser = proxied.place.fixtures.new_key(agent_id=proxied.agent_id, scopes=scopes)
    assert [_listing_status(proxied, lesser) for _ in range(2)] == [403, 403], "asked, and remembered"


def _listing_status(proxied: ProxyProcesses, key: str | None) -> int:
    assert proxied.proxy is not None
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    body = '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    with closing(http.client.HTTPConnection("127.0.0.1", proxied.proxy.port or 0, timeout=120)) as link:
        link.request("POST", "/mcp", body, {**headers, **({"X-API-Key": key} if key else {})})
        with link.getresponse() as answer:
            return answer.status


def test_a_server_that_dies_after_the_effect_leaves_it_in_doubt_and_the_proxy_goes_on(proxied: ProxyProcesses) -> None:
    proxied.behave("dies")
    lost = proxied.refund()
    assert lost["error"] and lost["data"]["reason_code"] == "in_doubt" and lost["data"]["retry"] == "never"
    assert proxied.operations() == [(f"refund:{proxied.payment}:5000", "started", None)], (
        "what it had begun may go on: in doubt when the time of the start is over"
    )
    proxied.payments.kill()
    away = proxied.refund(6000, suffix="-2")
    assert away["data"]["reason_code"] == "upstream_unavailable" and away["data"]["retry"] == "later"
    assert [status for _, status, _ in proxied.operations()] == ["started", "allowed"], (
        "what was not sent was not started"
    )
    proxied.behave("works")
    proxied.payments.start()
    assert proxied.refund()["data"]["reason_code"] == "already_started"
    assert not proxied.refund(6000, suffix="-2")["error"]
    assert [one["amount"] for one in proxied.effects()] == [5000, 6000]


@pytest.mark.parametrize("end", ["hangs", "drips its head", "drips its body"])
def test_a_result_and_its_report_do_not_wait_for_the_end_of_the_servers_session(
    proxied: ProxyProcesses, end: str
) -> None:
    def answers_no_end(asked: Asked) -> bool:
        if asked.method == "DELETE":
            faults(b"")[end][0](asked)
        elif asked.method == "GET":  # the stream of the session, which a relay would wait for
            asked.answer(405, b"")
        return asked.method == "POST"

    with proxied.legacy_server() as url, ScriptedServer().running() as server:
        server.script = relay(url, answers_no_end)
        proxied.start_proxy(upstream_url=f"{server.url}/mcp", timeout=120)
        began = time.monotonic()
        assert proxied.refund()["data"] == {"done": "done: create_refund"}
        assert time.monotonic() - began < SLACK
        assert [outcome for _, _, outcome in proxied.operations()] == ["success"]
        assert "DELETE" in [one.method for one in server.asked]


def test_what_is_not_known_to_have_succeeded_is_in_doubt_and_not_sent_again(proxied: ProxyProcesses) -> None:
    for behaviour, reason in (("raises", "in_doubt"), ("hangs", "in_doubt"), ("asks", "in_doubt"), ("fails", None)):
        suffix = f"-{behaviour}"
        proxied.behave(behaviour)
        proxied.start_proxy(timeout=long_enough(1.5) if behaviour == "hangs" else 60)
        first = proxied.refund(suffix=suffix)
        assert first["error"] and (
            (first["data"] or {}).get("reason_code") == reason or "card_declined" in first["text"]
        )
        proxied.behave("works")
        assert proxied.refund(suffix=suffix)["data"]["reason_code"] == "already_started"
    assert [one["payment_intent"].partition("-")[2] for one in proxied.effects()] == ["raises", "hangs", "fails"]
    statuses = [status for _, status, _ in proxied.operations()]
    assert statuses == ["in_doubt", "started", "in_doubt", "in_doubt"], "the one that hangs may still act"


def test_a_call_is_not_sent_to_where_it_is_redirected(proxied: ProxyProcesses) -> None:
    def before(asked: Asked) -> bool:
        if asked.headers.get("mcp-method") == "tools/call":
            asked.answer(307, b"", Location="/mcp/")
            return False
        return not asked.path.endswith("/mcp/")

    with ScriptedServer().running() as server:
        server.script = relay(proxied.payments_url, before)
        proxied.start_proxy(upstream_url=f"{server.url}/mcp")
        assert proxied.refund()["data"]["reason_code"] == "in_doubt"
        assert [asked.path for asked in server.asked if b"tools/call" in asked.body] == ["/mcp"]
    assert proxied.effects() == []


def test_a_server_on_this_machine_is_asked_past_the_proxy_of_the_environment(
    proxied: ProxyProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer().running() as other:
        with monkeypatch.context() as environment:
            environment.setenv("http_proxy", other.url)
            proxied.start_proxy()
        assert not proxied.refund()["error"]
        assert other.asked == [], "the credential went there"


@pytest.mark.parametrize("route", ["start", "report"])
def test_a_proxy_that_is_killed_does_not_send_the_call_again(proxied: ProxyProcesses, route: str) -> None:
    """Between the recorded start and the call; between the effect and its report."""

    def killed(asked: Asked) -> None:
        if asked.path.endswith(f"/guard/{route}") and proxied.proxy is not None:
            proxied.proxy.kill()

    def before(asked: Asked) -> bool:
        if route == "report":
            killed(asked)
        return True

    with ScriptedServer().running() as server:
        server.script = relay(proxied.place.url, before, killed)
        proxied.start_proxy(url=server.url)
        assert "raised" in proxied.refund()
    effects = 0 if route == "start" else 1
    assert len(proxied.effects()) == effects
    proxied.proxy = proxied.usual_proxy  # another one, which knows nothing of the first
    assert proxied.refund()["data"]["reason_code"] == "already_started" and len(proxied.effects()) == effects


def test_a_call_whose_client_goes_away_is_finished_and_reported(proxied: ProxyProcesses) -> None:
    proxied.behave("waits")
    proxied.client().send(**proxied.target(), **proxied.refund_call())
    until(lambda: len(proxied.effects()) == 1)
    proxied.lose()
    proxied.behave("works")
    until(lambda: [outcome for _, _, outcome in proxied.operations()] == ["success"])
    assert len(proxied.effects()) == 1, "sent once, though nobody waited for the answer"


def test_calls_of_two_clients_at_once_are_sent_once(proxied: ProxyProcesses) -> None:
    clients = [proxied.client(kind) for kind in ("sdk", "sdk-legacy")]
    for client in clients:
        client.send(**proxied.target(), **proxied.refund_call())
    answers: list[dict[str, Any]] = [client.answer() for client in clients]
    assert sorted(one["error"] for one in answers) == [False, True] and len(proxied.effects()) == 1


def test_an_authority_that_is_away_means_that_nothing_is_sent(proxied: ProxyProcesses) -> None:
    with ScriptedServer().running() as server:
        gone: list[bool] = []
        server.script = relay(proxied.place.url, lambda asked: not gone or asked.path.endswith("/key"))
        proxied.start_proxy(url=server.url)
        assert proxied.call("look_up", payment_intent=proxied.payment)["data"] == {"done": "done: look_up"}
        gone.append(True)
        refused = proxied.refund()
    assert refused["data"]["reason_code"] == "authority_unreachable" and refused["data"]["retry"] == "later"
    assert [one["tool"] for one in proxied.effects()] == ["look_up"]


SCENARIOS = [
    "server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio",
    "tools-call-embedded-resource", "tools-call-mixed-content", "tools-call-error", "tools-call-with-progress",
    "json-schema-2020-12", "resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read",
    "resources-subscribe", "resources-unsubscribe", "prompts-list", "prompts-get-simple", "prompts-get-with-args",
    "prompts-get-embedded-resource", "prompts-get-with-image", "completion-complete", "dns-rebinding-protection",
    "server-sse-multiple-streams", "logging-set-level", "tools-call-with-logging",
]  # fmt: skip
"""Of MCP's public conformance suite those about what the proxy serves. Not: elicitation and sampling, which it
never asks for, and a stream that a tool closes in its midst."""


def test_the_public_conformance_suite_passes_where_it_is_about_what_the_proxy_serves(proxied: ProxyProcesses) -> None:
    """The suite sends no credentials, so a relay adds the agent's key."""

    def with_key(asked: Asked) -> bool:
        asked.headers["x-api-key"] = proxied.key
        if asked.method == "GET":  # a stream of a session, which the proxy does not have
            asked.answer(405, b"")
        return asked.method != "GET"

    with proxied.conformance_server() as url, ScriptedServer().running() as server:
        passed_on = ["--pass-on", "resources", "--pass-on", "prompts", "--pass-on", "logging", "--sessions"]
        proxied.start_proxy(upstream_url=url, tools="conformance.yaml", more=passed_on)
        server.script = relay(proxied.target()["url"], with_key)
        results = conformance_results(f"{server.url}/mcp")
        print("not passed:", [name for name, passed in results.items() if not passed])
    assert {name: results.get(name) for name in SCENARIOS} == dict.fromkeys(SCENARIOS, True)
