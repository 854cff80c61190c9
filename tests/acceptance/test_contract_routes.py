"""The wire contract over real HTTP: prefixes, methods, paths, and the headers and shape of every answer."""

from __future__ import annotations

import socket
import uuid
from typing import Any

import pytest

from tests.acceptance.contract import POST_ROUTES, problem
from tests.support.fixtures import add_tenant, guard_body, unique
from tests.support.served_programs import BOTH_PREFIXES, Served, eventually, request

GET_ROUTES = ("approval/{id}", "approvals/since", "heartbeat?agent_id=a")


@pytest.fixture(scope="module")
def served_from_nothing() -> bool:
    """With one count of all its processes, which is asked for here."""
    return True


def test_both_prefixes_answer_identically(served: Served) -> None:
    body = guard_body(unique("same"), value=300)
    one, other = (served.post("action/guard", body, prefix=prefix) for prefix in BOTH_PREFIXES)
    assert one.json == other.json
    assert (one.headers.get("idempotent-replayed"), other.headers.get("idempotent-replayed")) == (None, "true")
    for path in POST_ROUTES:
        replies = [served.post(path, {"x": 1}, prefix=prefix) for prefix in BOTH_PREFIXES]
        assert [reply.status for reply in replies] == [400, 400]
        assert replies[0].json["detail"] == replies[1].json["detail"]
    for path in (one.format(id=one_approval(served)) for one in GET_ROUTES):
        replies = [served.get(path, prefix=prefix) for prefix in BOTH_PREFIXES]
        assert [reply.status for reply in replies] == [200, 200], path
        assert replies[0].body == replies[1].body


@pytest.mark.parametrize("prefix", [f"/ops{one}" for one in BOTH_PREFIXES])
def test_the_prefixes_of_a_base_address_that_ends_in_ops_are_the_same_routes(served: Served, prefix: str) -> None:
    """The default base address of other languages' clients ends so."""
    body = guard_body(unique("ops"), value=300)
    one, other = (served.post("action/guard", body, prefix=where) for where in (BOTH_PREFIXES[0], prefix))
    assert (one.json, other.headers.get("idempotent-replayed")) == (other.json, "true")
    assert [served.post(path, {"x": 1}, prefix=prefix).status for path in POST_ROUTES] == [400] * len(POST_ROUTES)
    for path in (route.format(id=one_approval(served)) for route in GET_ROUTES):
        assert served.get(path, prefix=prefix).body == served.get(path).body, path
    bearer = {"Authorization": f"Bearer {served.key}"}
    assert request("GET", f"{served.url}{prefix}/heartbeat?agent_id=a", headers=bearer).status == 200
    assert request("GET", f"{served.url}{prefix}/approvals/stream").status == 401
    problem(request("GET", f"{served.url}/ops/nothing", headers=served.headers()), 404)
    told = request("GET", f"{served.url}/openapi.json").json["paths"]
    assert f"{BOTH_PREFIXES[1]}/heartbeat" in told and not [path for path in told if path.startswith("/ops")]


def one_approval(served: Served) -> str:
    return str(served.guard(guard_body(unique("appr"), value=300))["approval_id"])


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", POST_ROUTES)
def test_another_method_is_405_with_the_methods_that_work(served: Served, method: str, path: str) -> None:
    reply = request(method, f"{served.url}{BOTH_PREFIXES[1]}/{path}", headers=served.headers())
    problem(reply, 405)
    assert {one.strip() for one in reply.headers["allow"].split(",")} == {"POST", "OPTIONS"}


def test_a_read_route_refuses_a_post_and_says_what_works(served: Served) -> None:
    reply = served.post("heartbeat", {})
    problem(reply, 405)
    assert {one.strip() for one in reply.headers["allow"].split(",")} == {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nothing",
        "/api/sentinel",
        "/api/sentinel/",
        "/api/sentinel/action",
        "/api//sentinel/action/guard",
        "/docs/static/../docs_page.py",
        "/docs/static/%2e%2e/docs_page.py",
        "/.env",
    ],
)
def test_an_unknown_path_is_404_and_never_a_redirect(served: Served, path: str) -> None:
    problem(request("GET", served.url + path, headers=served.headers()), 404)


def test_an_approval_that_is_not_there_or_not_ones_own_is_the_same_404(served: Served) -> None:
    mine = one_approval(served)
    other = add_tenant(served.database_url, unique("other").replace("_", "-"))[1]
    colleague = served.cli_json("keys", "create", "--tenant", served.tenant_id)["key"]
    answers = [
        served.get(f"approval/{uuid.uuid4()}"), served.get("approval/not-a-uuid"), served.get(f"approval/{mine}", key=other),
        served.get(f"approval/{mine}", key=colleague),
    ]  # fmt: skip
    said = [{**problem(reply, 404, "not-found"), "instance": ""} for reply in answers]
    assert all(one == said[0] for one in said), said
    assert served.get(f"approval/{mine}").status == 200


def test_a_request_id_is_echoed_or_made(served: Served) -> None:
    assert served.post("action/guard", guard_body(), X_Request_ID="abc-123").headers["x-request-id"] == "abc-123"
    assert served.get("heartbeat?agent_id=a").headers["x-request-id"]
    for bad in ("a b", "x" * 129, "a;b", "<script>"):
        made = served.post("action/guard", guard_body(), X_Request_ID=bad).headers["x-request-id"]
        assert made != bad
        assert made.isalnum()


def test_decisions_and_problems_are_never_stored(served: Served) -> None:
    for reply in (
        served.post("action/guard", guard_body()),
        served.post("action/guard", {}),
        served.get("approvals/since"),
        served.get("heartbeat?agent_id=a"),
    ):
        assert reply.headers["cache-control"] == "no-store"


def test_optional_members_are_left_out_and_never_null(served: Served) -> None:
    def nulls(value: Any) -> bool:
        return (
            value is None
            or (isinstance(value, dict) and any(map(nulls, value.values())))
            or (isinstance(value, list) and any(map(nulls, value)))
        )

    answers = [served.guard(guard_body(value=value)) for value in (1, 300, 5000)]
    answers.append(served.guard(guard_body(action="never.covered")))
    assert not any(map(nulls, answers))
    allowed, pending, denied, uncovered = answers
    assert {"permit_token", "permit_expires_at"} <= allowed.keys()
    assert not {"approval_id", "expires_at", "approver", "approved_at", "outcome"} & allowed.keys()
    assert {"approval_id", "expires_at"} <= pending.keys()
    assert not {"permit_token", "permit_expires_at"} & (pending.keys() | denied.keys() | uncovered.keys())
    assert (uncovered["decision"], uncovered["status"], uncovered["reason_code"]) == (
        "DENY",
        "denied",
        "no_matching_policy",
    )
    assert all(answer["resource"] and answer["risk_class"] for answer in answers)


def test_the_proof_pack_carries_the_hash_of_itself(served: Served) -> None:
    import hashlib

    import rfc8785

    pack = served.guard(guard_body())["proof_pack"]
    carried = pack.pop("hash")
    assert carried == "sha256:" + hashlib.sha256(rfc8785.dumps(pack)).hexdigest()


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=-1",
        "limit=abc",
        "limit=1e2",
        "limit=１",
        "since=yesterday",
        "since=2026-01-01T00:00:00",
        "since=2026-13-01T00:00:00Z",
    ],
)
def test_a_query_that_breaks_a_rule_is_400(served: Served, query: str) -> None:
    problem(served.get(f"approvals/since?{query}"), 400, "invalid-request")


def test_the_stream_begins_with_connected_whatever_last_seen_says(served: Served) -> None:
    for last_seen in ("", "nonsense", "2026-01-01T00:00:00+00:00", "9999-99-99", "&" * 40):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            connection.sendall(
                f"GET {BOTH_PREFIXES[1]}/approvals/stream?tenant_id={served.tenant_id}&last_seen={last_seen} HTTP/1.1\r\n"
                f"Host: x\r\nX-API-Key: {served.key}\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            got = b""
            while b'data: {"type":"CONNECTED"}' not in got:
                chunk = connection.recv(4096)
                assert chunk, got
                got += chunk
        assert b" 200 " in got.split(b"\r\n")[0]
        assert b"text/event-stream" in got


def test_health_readiness_and_metrics_answer_without_a_key(served: Served) -> None:
    assert request("GET", f"{served.url}/healthz").status == 200
    assert request("GET", f"{served.url}/readyz").json["status"] == "ready"
    # Before the first reload, too: an alert on a rate needs the zero.
    for result in (b"loaded", b"kept_last_good"):
        series = b'sentinel_policy_reloads_total{result="' + result + b'"}'
        assert series in request("GET", f"{served.health_url}/metrics").body
    served.guard(guard_body(unique("counted"), value=5))
    assert request("GET", f"{served.health_url}/readyz").json["status"] == "ready"
    # Metrics are for supervisors: not on the address that agents have, and nothing else is on theirs.
    assert request("GET", f"{served.url}/metrics").type == "not-found"
    for path in ("/docs", "/openapi.json", "/api/sentinel/heartbeat"):
        assert request("GET", f"{served.health_url}{path}").type == "not-found"
    assert eventually(
        lambda: b"sentinel_decisions_total" in request("GET", f"{served.health_url}/metrics").body, within=5
    )
