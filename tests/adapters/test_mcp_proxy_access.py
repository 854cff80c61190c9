"""Access tokens at the proxy's door: found, fetched and presented by an unmodified client, and everything else that reads like one refused."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.adapters.proxy_processes import PROXY, SECRET, Program, ProxyProcesses, python_of, until
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]
PAUSE_SECONDS = 5.0
"""`_PAUSE_SECONDS` of the proxy, whose module needs its environment: once in it the issuer may be asked for a key that is not kept."""


class AccessProxy:
    """A proxy that takes the tokens of an issuer, both as processes."""

    def __init__(self, proxied: ProxyProcesses, module: str = PROXY, more: Sequence[str] = ()) -> None:
        self.proxied, self.issuer_port = proxied, free_port()
        command = [python_of("mcp_proxy"), "-m", "tests.adapters.authorization_server", str(self.issuer_port)]
        self.issuer = Program(proxied.folder, "issuer", command, self.issuer_port).start()
        self.port = free_port()
        self.resource = f"http://127.0.0.1:{self.port}/mcp"
        rules = proxied.folder / "access.yaml"
        rules.write_text(
            f"resource: {self.resource}\nissuer: http://127.0.0.1:{self.issuer_port}\n"
            f"jwks_url: http://127.0.0.1:{self.issuer_port}/keys\nscopes: [payments]\n"
            f"agents: {{kim: {proxied.agent_id}, 'client|2': other-agent}}\n"
        )
        proxied.start_proxy(port=self.port, module=module, more=["--access-tokens", str(rules), *more])

    def asked(self, method: str, path: str, port: int, body: Any = None, **headers: str) -> tuple[int, Any, str]:
        """(status, JSON, WWW-Authenticate)."""
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as link:
            link.request(method, path, json.dumps(body) if body is not None else None, headers)
            with link.getresponse() as answer:
                text = answer.read()
                kind = answer.getheader("content-type") or ""
                found = json.loads(text) if text and "json" in kind else None
                return answer.status, found, answer.getheader("www-authenticate") or ""

    def token(self, by: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of the issuer."""
        asked = {"claims": {"aud": self.resource, **claims}, "by": by, "header": header}
        found: str = self.asked("POST", "/mint", self.issuer_port, asked)[1]["token"]
        return found

    def shown(self, credential: str | None) -> tuple[int, str]:
        """(status, WWW-Authenticate) of a list of tools that is asked for with it."""
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        status, _, challenge = self.asked("POST", "/mcp", self.port, body, **headers)
        return status, challenge


def raw_token(*parts: Any) -> str:
    """A token of this header and these claims, or of what stands in their places, that nobody signed."""
    usual = {"alg": "RS256", "typ": "at+jwt"}
    header, claims = ({**usual, **parts[0]} if isinstance(parts[0], dict) else parts[0]), parts[1]
    texts = [part if isinstance(part, str) else json.dumps(part) for part in (header, claims, "none")]
    return ".".join(base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in texts)


@pytest.fixture
def access(proxied: ProxyProcesses) -> Iterator[AccessProxy]:
    """A proxy of the test's own, with its issuer."""
    made = AccessProxy(proxied)
    yield made
    made.issuer.kill()


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_a_client_that_knows_the_address_alone_finds_the_issuer_and_comes_in_as_the_subjects_agent(
    access: AccessProxy, kind: str
) -> None:
    client = access.proxied.client(kind)
    client.send(url=access.resource, oauth=True, **access.proxied.refund_call())
    assert client.answer()["data"] == {"done": "done: create_refund"}
    (effect,) = access.proxied.effects()
    assert effect["headers"]["authorization"] == f"Bearer {SECRET}", "no token goes to the server"
    (agent,) = access.proxied.place.fixtures.admin.execute(
        "select distinct agent_id from sentinel.operations where position(%s in idempotency_key) > 0", [access.proxied.payment]
    ).fetchone()  # fmt: skip
    assert agent == access.proxied.agent_id
    status, found, _ = access.asked("GET", "/.well-known/oauth-protected-resource/mcp", access.port)
    assert (status, found) == (200, {
        "resource": access.resource, "authorization_servers": [f"http://127.0.0.1:{access.issuer_port}"],
        "scopes_supported": ["payments"], "bearer_methods_supported": ["header"],
    })  # fmt: skip


def test_what_is_not_a_token_for_this_proxy_with_its_scopes_and_a_declared_subject_stays_outside(
    access: AccessProxy,
) -> None:
    now, began = int(time.time()), time.monotonic()
    for good in (access.token(), access.token("ES256"), access.token(aud=["else", access.resource]), access.token(scope=None, scp=["payments"]),
                 access.token(header={"typ": "JWT"}), access.token(sub="client|2")):  # fmt: skip
        assert access.shown(good)[0] not in (401, 403)
    ours = {"iss": f"http://127.0.0.1:{access.issuer_port}", "sub": "kim", "aud": access.resource, "exp": now + 600}
    bad = {
        "another audience": access.token(aud="https://elsewhere.example/mcp"), "no audience": access.token(aud=None),
        "a longer audience": access.token(aud=f"{access.resource}/x"), "another issuer": access.token(iss="https://elsewhere.example"),
        "no issuer": access.token(iss=None), "over": access.token(exp=now - 60), "endless": access.token(exp=None),
        "not yet": access.token(nbf=now + 600), "another key": access.token("another"), "a secret": access.token("secret"),
        "unsigned": access.token("nobody"), "no subject": access.token(sub=None), "an unknown key": access.token(header={"kid": "k9"}),
        "no key": access.token(header={"kid": ""}), "no access token": access.token(header={"typ": "logout+jwt"}),
        "its parts alone": "a.b.c", "changed": access.token()[:-8] + "AAAAAAAA", "no scope in it": access.token() + ".x",
        "nested claims": raw_token({}, "[" * 5_000), "a nested header": raw_token("[" * 5_000, {}),
        "an endless number": raw_token({}, f'{{"iss": {"9" * 5_000}}}'), "a list as its key": raw_token({"kid": ["RS256"]}, ours),
        "a list as its issuer": raw_token({}, {"iss": [ours["iss"]]}), "no object": raw_token({}, [ours]), "without end": access.token(exp=float("inf")),
        "half a sign": raw_token({"kid": "\ud800"}, ours),
    }  # fmt: skip
    found = f'resource_metadata="http://127.0.0.1:{access.port}/.well-known/oauth-protected-resource/mcp"'
    for why, token in bad.items():
        status, challenge = access.shown(token)
        assert (status, found in challenge, token in challenge) == (401, True, False), why
        assert 'error="invalid_token"' in challenge, why
    status, challenge = access.shown(None)
    assert status == 401 and found in challenge and "error" not in challenge and 'scope="payments"' in challenge
    for why, token in {"scope": access.token(scope="else"), "part": access.token(scope="payments:read"),
                       "nobody's": access.token(sub="lou"), "spelled otherwise": access.token(sub="Kim")}.items():  # fmt: skip
        status, challenge = access.shown(token)
        assert status == 403 and 'error="insufficient_scope"' in challenge, why
    pauses = (time.monotonic() - began) // PAUSE_SECONDS
    assert access.asked("GET", "/notes", access.issuer_port)[1]["keys"] <= 2 + pauses, "nobody is asked about a token"
    assert access.proxied.effects() == []


def test_a_new_key_of_the_issuer_is_taken_and_a_withdrawn_one_is_not_without_a_flood_of_questions(
    access: AccessProxy,
) -> None:
    old, began = access.token(), time.monotonic()
    assert access.shown(old)[0] not in (401, 403)
    access.asked("POST", "/rotate", access.issuer_port)
    # What names a key that nobody has costs the issuer one question, however often it comes.
    for number in range(40):
        assert access.shown(access.token(header={"kid": f"nobodys-{number}"}))[0] == 401
    pauses = (time.monotonic() - began) // PAUSE_SECONDS
    assert access.asked("GET", "/notes", access.issuer_port)[1]["keys"] <= 2 + pauses
    new = access.token("next")
    until(lambda: access.shown(new)[0] not in (401, 403), seconds=20)
    assert access.shown(old)[0] == 401, "the issuer no longer names its key"
    assert access.shown(access.token("ES256"))[0] not in (401, 403), "the other one still is"


@pytest.mark.parametrize("kind", ["sdk", "sdk-legacy"])
def test_an_open_stream_ends_with_its_token(proxied: ProxyProcesses, kind: str) -> None:
    access = AccessProxy(proxied, more=["--pass-on", "resources", "--sessions"])
    try:
        assert not proxied.refund(kind=kind)["error"], "its process runs by now"
        watching, begun = proxied.client(kind), dict[str, Any]()
        wanted, seconds = (2, 20) if kind == "sdk-legacy" else (1, 100)
        for _ in range(3):  # whose process stood still for so long that it was over gets another
            # Clocks may be 30 seconds apart: this one is good for six seconds more.
            ends = int(time.time()) - 24
            watching.send(
                url=access.resource, key=access.token(exp=ends), do="watch", calls=[], wanted=wanted, told=True, seconds=seconds
            )  # fmt: skip
            begun = watching.answer()
            if begun == {"listening": True}:
                break
        assert begun == {"listening": True}
        until(lambda: time.time() > ends + 31)
        assert access.shown(access.token(exp=ends))[0] == 401
        changed = ["look_up", {"payment_intent": "pi_changed"}]
        other = proxied.client("sdk" if kind == "sdk-legacy" else "sdk-legacy")
        other.send(url=access.resource, key=proxied.key, do="call", tool=changed[0], args=changed[1])
        assert not other.answer()["error"]
        found = watching.answer()
        assert found.get("changes") == ["ended"] if kind == "sdk" else "TimeoutError" in found["raised"], found
    finally:
        access.issuer.kill()
        proxied.lose(kind)


def test_the_mutant_that_takes_any_audience_lets_in_what_the_proxy_refuses(proxied: ProxyProcesses) -> None:
    access = AccessProxy(proxied, "tests.adapters.any_audience")
    try:
        assert access.shown(access.token(aud="https://elsewhere.example/mcp"))[0] not in (401, 403)
        assert access.shown(access.token("another"))[0] == 401
    finally:
        access.issuer.kill()


def test_keys_of_agents_open_the_same_door_and_a_token_is_nothing_without_the_issuers_keys(access: AccessProxy) -> None:
    token = access.token()
    access.issuer.kill()
    assert access.shown(token)[0] == 503, "no keys were ever had"
    assert access.shown("sk_not_a_key")[0] == 401
    assert not access.proxied.refund()["error"], "by the agent's own key"


def test_a_strangers_token_takes_nobody_elses_away_while_the_issuer_is(access: AccessProxy) -> None:
    token, stranger = access.token(), access.token(header={"kid": "nobodys"})
    assert access.shown(token)[0] not in (401, 403, 503)
    access.issuer.kill()
    # Once the issuer may be asked again it is asked for the stranger's key.
    until(lambda: access.shown(stranger)[0] == 503, seconds=20)
    assert access.shown(token)[0] not in (401, 403, 503), "its key is kept"
    with socket.create_server(("127.0.0.1", access.issuer_port)) as hanging:
        hanging.settimeout(0.1)
        order: list[str] = []

        def ask(who: str, credential: str) -> int:
            status, _ = access.shown(credential)
            order.append(who)
            return status

        held: list[socket.socket] = []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, "stranger", stranger)
            while not held:
                with suppress(TimeoutError):
                    held.append(hanging.accept()[0])
                if not held and waiting.done():
                    order.clear()
                    waiting = pool.submit(ask, "stranger", stranger)
            assert ask("known", token) not in (401, 403, 503)
            held[0].close()
            assert waiting.result(120) == 503
    assert order == ["known", "stranger"], "who names a key that is kept waits for nobody"


def test_a_task_is_its_subjects_agents_alone(access: AccessProxy) -> None:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}  # fmt: skip
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }  # fmt: skip

    def asked(token: str, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        name = {"Mcp-Name": params["name"]} if "name" in params else {}
        return access.asked("POST", "/mcp", access.port, body, Authorization=f"Bearer {token}", **headers, **name, **{"Mcp-Method": method})  # fmt: skip

    call = access.proxied.refund_call(40_000)
    _, made, _ = asked(access.token(), "tools/call", name=call["tool"], arguments=call["args"])
    task = made["result"]["taskId"]
    assert asked(access.token(), "tasks/get", taskId=task)[1]["result"]["status"] == "working"
    assert "not found" in asked(access.token(sub="client|2"), "tasks/get", taskId=task)[1]["error"]["message"]
    # Whoever decodes carelessly reads the same task in all of these, and would keep each.
    others = [
        f"{task}\n",
        f" {task}",
        f"{task}=",
        f"{task[:9]}!{task[9:]}",
        f"{task[:4]}====",
        "é",
        "",
    ]
    for spelled in others:
        for method in ("tasks/get", "tasks/cancel"):
            assert "not found" in asked(access.token(), method, taskId=spelled)[1]["error"]["message"], spelled
    assert asked(access.token(), "tasks/get", taskId=task)[1]["result"]["status"] == "working"
    assert "result" in asked(access.token(), "tasks/cancel", taskId=task)[1]
    assert asked(access.token(), "tasks/get", taskId=task)[1]["result"]["status"] == "cancelled"
