"""Secrets planted in refunds, names and keys, then looked for in every public byte and every log line (G32); two tenants (G34)."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.acceptance.demos import Demo
from tests.acceptance.ledgers import refund
from tests.support.busy import long_enough
from tests.support.fixtures import add_tenant, guard_body, start_body, unique
from tests.support.served_programs import eventually, request, run_warm_command

pytestmark = pytest.mark.slow


def spellings(secret: str) -> dict[str, bytes]:
    """How a secret can stand in bytes: as it is, for a URL, in hex, JSON-escaped, and in base64 at each of its three phases."""
    data = secret.encode()
    found = {
        "plain": data, "url": urllib.parse.quote(secret, safe="").encode(), "plus": urllib.parse.quote_plus(secret).encode(),
        "hex": data.hex().encode(), "HEX": data.hex().upper().encode(), "json": json.dumps(secret)[1:-1].encode(),
        "html": secret.replace("&", "&amp;").replace("'", "&#x27;").replace("<", "&lt;").encode(), "bytes of a uuid": _uuid_hex(secret),
    }  # fmt: skip
    for phase in range(3):
        whole = base64.b64encode(b"\0" * phase + data).rstrip(b"=")
        # The first and the last characters depend on the neighbours.
        core = whole[4 if phase else 0 : len(whole) - (len(whole) % 4 or 4)]
        found[f"base64+{phase}"] = core
        found[f"base64url+{phase}"] = core.replace(b"+", b"-").replace(b"/", b"_")
    return {name: text for name, text in found.items() if len(text) >= 8}


def _uuid_hex(secret: str) -> bytes:
    with contextlib.suppress(ValueError):
        return uuid.UUID(secret).hex.encode()
    return b""


def leaks(secrets: dict[str, str], places: dict[str, bytes]) -> list[str]:
    """Where which secret stands, in which spelling. Case does not hide it."""
    found = []
    for name, secret in secrets.items():
        for spelling, needle in spellings(secret).items():
            found += [
                f"{name} ({spelling}) in {place}" for place, text in places.items() if needle.lower() in text.lower()
            ]
    return found


def read_some(url: str, path: str, *wanted: bytes, seconds: float = 1.5, **headers: str) -> bytes:
    """What a stream says until it has said one of `wanted`, and for a while more."""
    host, port = urllib.parse.urlsplit(url).hostname, urllib.parse.urlsplit(url).port
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    got = b""
    until = time.monotonic() + long_enough(20)
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        with contextlib.suppress(OSError):
            while (
                not any(one in got for one in wanted) and time.monotonic() < until and (chunk := connection.recv(65536))
            ):
                got += chunk
            until = time.monotonic() + seconds
            connection.settimeout(seconds)
            while time.monotonic() < until and (chunk := connection.recv(65536)):
                got += chunk
    assert any(one in got for one in wanted), got
    return got


def secrets_of(demo: Demo, mark: str) -> dict[str, str]:
    """What nobody outside may ever see, by what it is: made-up customers and reasons, and the demo's own keys."""
    return {
        "customer's words": f"my card 4111111111111111 of {mark} was charged twice, call Zoë & O'Neil",
        "account": f"acct_canary_{mark}", "order": f"order_canary_{mark}", "note": f"note canary {mark} <script>",
        "operator's reason": f"approved because of canary {mark}", "report error": f"bank said canary-error-{mark}",
        "halt reason": f"halted for canary {mark}", "correlation": f"corr-canary-{mark}", "agent key": demo.key, "tenant id": str(demo.told["tenant_id"]),
        **{f"{one['role']}'s address": one["email"] for one in demo.told["operators"]}, **{f"{one['role']}'s password": one["password"] for one in demo.told["operators"]},
        "signing secret": (demo.data_dir / "secret_key").read_text().strip(),
    }  # fmt: skip


def enqueue_refunds(demo: Demo, secrets: dict[str, str], mark: str) -> None:
    """Refunds of the customer that are paid, asked about and refused."""
    account = {"account_ref": secrets["account"], "order_ref": secrets["order"], "reason": secrets["customer's words"]}
    rows = [refund(f"canary-{mark}-{n}", value, **account) for n, value in enumerate((3, 300, 400, 9000))]
    worker = {"WORKER_DATABASE_URL": demo.told["database_urls"]["worker"], "SENTINEL_TENANT_ID": demo.told["tenant_id"]}
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = run_warm_command("enqueue", "-", program="worker.cli", stdin=lines, **worker)
    assert done.returncode == 0, done.stderr


def ask_authority(demo: Demo, secrets: dict[str, str], mark: str) -> str:
    """Every call of the wire with the secrets in it, good ones and broken ones; returns the permit token."""

    def post(path: str, body: Any) -> Any:
        return request("POST", f"{demo.authority}/api/sentinel/{path}", body=body, headers={"X-API-Key": demo.key})

    params = {"account_ref": secrets["account"], "order_ref": secrets["order"], "note": secrets["note"]}
    evidence = {"correlation_id": secrets["correlation"], "n": secrets["note"]}
    body = guard_body(f"canary-{mark}", value=7, params=params, evidence_context=evidence)
    answer = post("action/guard", body).json
    assert answer["decision"] == "ALLOW", answer
    assert post("action/guard/start", start_body(body, answer)).status == 200
    named = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}
    assert post("action/guard/report", {**named, "outcome": "error", "error": secrets["report error"]}).status == 200
    post("action/guard", {**body, "params": {**params, "amount": "nonsense " + secrets["note"]}})
    post("action/check", {"agent_id": "a", "action": "data.read", "params": {"note": secrets["note"]}})
    post("action/guard", b'{"agent_id": "' + secrets["note"].encode())
    return str(answer["permit_token"])


def decide_two(demo: Demo, admin: dict[str, str], reason: str, mark: str) -> str:
    """One of the planted approvals is approved, another rejected; returns the id of the first."""

    def pending() -> list[Any]:
        found = request("GET", f"{demo.console}/ops/api/approvals?status=pending&limit=100", headers=admin).json
        return [one for one in found["approvals"] if mark in json.dumps(one)]

    assert eventually(lambda: len(pending()) >= 2, within=10), pending()
    approve, reject = pending()[:2]
    for one, verb in ((approve, "approve"), (reject, "reject")):
        url = f"{demo.console}/ops/api/approvals/{one['approval_id']}/{verb}"
        done = request("POST", url, body={"reason": reason, "digest": one["digest"]}, headers=admin)
        assert done.status == 200, done.body
    return str(approve["approval_id"])


def halt_nobody(demo: Demo, admin: dict[str, str], reason: str, mark: str) -> str:
    """A halt of an agent that does not exist; returns its id."""
    body = {"scope": "agent", "target": f"nobody-{mark}", "reason": reason}
    halt = request("POST", f"{demo.console}/ops/api/halts", body=body, headers=admin)
    assert halt.status in (200, 201), halt.body
    return str(halt.json["halt_id"])


@pytest.fixture(scope="module")
def planted(demo: Demo) -> Iterator[dict[str, str]]:
    """Secrets that went through everything: refused, approved, rejected, paid, halted, reported, wrong."""
    mark = uuid.uuid4().hex[:10]
    secrets = secrets_of(demo, mark)
    enqueue_refunds(demo, secrets, mark)
    secrets["permit token"] = ask_authority(demo, secrets, mark)
    admin = demo.sign_in("admin")
    secrets["approval id"] = decide_two(demo, admin, secrets["operator's reason"], mark)
    secrets["halt id"] = halt_nobody(demo, admin, secrets["halt reason"], mark)
    wrong = {"email": demo.operator("viewer")["email"], "password": secrets["note"]}
    request("POST", f"{demo.console}/ops/api/session", body=wrong)
    time.sleep(1.0)
    yield secrets
    request("POST", f"{demo.console}/ops/api/halts/{secrets['halt id']}/lift", body={"reason": "over"}, headers=admin)


def public_answers(demo: Demo, *shown: bytes) -> dict[str, bytes]:
    """Every byte the public can get, headers included, and what a stranger is told who asks for more.

    The board's stream is read until one of `shown` is in it.
    """
    console, board, authority, found = demo.console, demo.board, demo.authority, {}

    def look(url: str, **rest: Any) -> None:
        reply = request(rest.pop("method", "GET"), url, **rest)
        found[url] = reply.body + repr(reply.headers).encode()

    for path in (
        "/live",
        "/ops/api/live/status",
        "/ops/api/live/feed?limit=100",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/",
        "/verify/none.json",
        "/nothing",
    ):
        look(console + path)
        look(board + path)
    for event in request("GET", f"{board}/ops/api/live/feed?limit=100").json["events"]:
        look(f"{board}/verify/{event['proof_id']}.json")
    for path in (
        "/ops/api/approvals",
        "/ops/api/halts",
        "/ops/api/in-doubt",
        "/ops/api/refunds/ledger",
        "/ops/api/refunds/agent/status",
        "/ops/api/session",
        "/ops/api/tokens",
    ):
        look(console + path)
    for path in (
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/api/sentinel/approvals/since",
        "/nothing",
    ):
        look(authority + path)
    found["stream from the start"] = read_some(board, "/ops/api/live/stream", *shown, Last_Event_ID="0")
    found["stream"] = read_some(board, "/ops/api/live/stream", b": connected", seconds=0.5)
    return found


def log_files(demo: Demo) -> dict[str, bytes]:
    """Every file of ours that says what happened; PostgreSQL's own too."""
    files = [path for path in (*demo.data_dir.glob("log/*"), *demo.data_dir.rglob("*.log")) if path.is_file()]
    assert {"authority.log", "console.log", "worker.log"} <= {path.name for path in files}
    return {str(path): path.read_bytes() for path in files}


def test_no_planted_secret_is_in_any_public_byte(demo: Demo, planted: dict[str, str]) -> None:
    with psycopg.connect(demo.database_url) as connection:
        proofs = connection.execute(
            "select 'pf_' || replace(s.decision_event_id::text, '-', '') from sentinel.operations o"
            " join sentinel.operation_states s using (tenant_id, operation_id) where o.idempotency_key like '%canary-%'"
        ).fetchall()
    # The planted refunds must be on the board, or nothing is proved.
    places = public_answers(demo, *(name.encode() for (name,) in proofs))
    assert sum(map(len, places.values())) > 10_000
    # What things are called inside is in our own logs, and on no public page.
    assert (
        leaks(planted | {"what the refunds are called": "canary-" + planted["account"].rpartition("_")[2]}, places)
        == []
    )
    shown = b"".join(text for place, text in places.items() if not place.endswith("openapi.json"))
    # A raw policy id cannot be searched for: the agent's and the version's names, which are public, contain it.
    assert b'"policy_id"' not in shown
    assert b'"approval_id"' not in shown
    print(f"{len(planted)} secrets, {len(places)} places, {sum(map(len, places.values()))} bytes: 0 hits")


def test_no_planted_secret_is_in_any_log_line(demo: Demo, planted: dict[str, str]) -> None:
    places = log_files(demo)
    with psycopg.connect(demo.database_url) as connection:
        told = connection.execute("select operation_id from sentinel.operations where idempotency_key like '%canary-%'")
        operations = [str(operation).encode() for (operation,) in told]
    assert any(operation in text for operation in operations for text in places.values()), (
        "the planted refunds must be in the logs, or nothing is proved"
    )
    assert leaks(planted, places) == []
    print(f"{len(planted)} secrets, {sum(map(len, places.values()))} bytes of logs: 0 hits")


def test_the_same_search_finds_a_secret_in_any_spelling() -> None:
    secret = "acct_canary_0123456789"
    data = secret.encode()
    mutants = {
        "plain": b"x" + data, "hex": b"x" + data.hex().encode(), "url": urllib.parse.quote("name=" + secret, safe="").encode(),
        **{f"base64 {n}": base64.b64encode(b"y" * n + data + b"zz") for n in range(6)}, "upper": data.upper(), "json": json.dumps({"a": secret}).encode(),
    }  # fmt: skip
    for place, text in mutants.items():
        assert leaks({"account": secret}, {place: text}), place


def test_one_tenant_sees_nothing_of_another_on_any_route(demo: Demo, planted: dict[str, str]) -> None:
    other, other_key, _ = add_tenant(demo.database_url, unique("stranger").replace("_", "-"))
    headers = {"X-API-Key": other_key}
    with psycopg.connect(demo.database_url) as connection:
        operations = connection.execute(
            "select o.idempotency_key, o.action, o.agent_id, o.operation_id, s.decision_event_id from sentinel.operations o"
            " join sentinel.operation_states s using (tenant_id, operation_id) where o.tenant_id <> %s limit 200", [other],
        ).fetchall()  # fmt: skip
        approvals = [
            str(row[0])
            for row in connection.execute("select approval_id from sentinel.approvals where tenant_id <> %s", [other])
        ]
    said: dict[str, bytes] = {}

    def ask(method: str, path: str, body: Any = None) -> Any:
        reply = request(method, f"{demo.authority}/api/sentinel/{path}", body=body, headers=headers)
        said[f"{method} {path} {len(said)}"] = reply.body
        return reply

    for approval in approvals:
        assert ask("GET", f"approval/{approval}").status == 404
    assert ask("GET", "approvals/since?limit=500").json == {"decisions": []}
    for key, action, agent, _, _ in operations:
        # The same key is free in another tenant, and nothing of the first tenant's operation shows or counts.
        body = guard_body(key, value=5)
        assert ask(
            "POST",
            "action/guard/report",
            {"idempotency_key": key, "action": action, "agent_id": agent, "outcome": "success"},
        ).status in (403, 409)
        start = {
            "idempotency_key": key,
            "action": action,
            "agent_id": agent,
            "permit_token": planted["permit token"],
            "start_id": str(uuid.uuid4()),
        }
        assert ask("POST", "action/guard/start", start).status in (403, 409)
        assert ask("POST", "action/guard", body).headers.get("idempotent-replayed") is None
    said["stream"] = read_some(
        demo.authority,
        "/api/sentinel/approvals/stream?last_seen=2020-01-01T00:00:00Z",
        b"CONNECTED",
        X_API_Key=other_key,
    )
    assert b"APPROVAL_DECISION" not in said["stream"]
    ids = {f"operation {n}": str(row[3]) for n, row in enumerate(operations)} | {
        f"event {n}": str(row[4]) for n, row in enumerate(operations)
    }
    assert (
        leaks(
            {**ids, **{f"approval {n}": one for n, one in enumerate(approvals)}, "tenant": str(demo.told["tenant_id"])},
            {"all": b"".join(said.values())},
        )
        == []
    )
