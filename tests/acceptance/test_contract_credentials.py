"""The wire contract over real HTTP: who may ask, for which tenant and agent, and what a key's scope lets through."""

from __future__ import annotations

import time
import uuid

import pytest

from tests.acceptance.contract import POST_ROUTES, problem
from tests.support.fixtures import guard_body
from tests.support.served_programs import BOTH_PREFIXES, Served, request


@pytest.mark.parametrize("headers", [
    {}, {"X-API-Key": ""}, {"X-API-Key": "wrong"}, {"X-API-Key": "snt_live_" + "A" * 43}, {"Authorization": "Bearer "}, {"Authorization": "Basic abc"},
    {"X-Admin-Token": "anything"}, {"Cookie": "sentinel=1"},
])  # fmt: skip
@pytest.mark.parametrize("path", ["action/guard", "approvals/since"])
def test_without_a_valid_key_the_answer_is_401_and_nothing_else(
    served: Served, headers: dict[str, str], path: str
) -> None:
    method = "POST" if path.startswith("action") else "GET"
    reply = request(
        method,
        f"{served.url}{BOTH_PREFIXES[0]}/{path}",
        body=guard_body() if method == "POST" else None,
        headers=headers,
    )
    told = problem(reply, 401, "unauthenticated")
    assert told["detail"] == "Invalid or missing credentials"
    assert told.keys() == {"type", "title", "status", "detail", "instance"}
    assert "bearer" in reply.headers["www-authenticate"].lower()


def test_a_key_works_in_either_header_and_the_admin_token_is_ignored(served: Served) -> None:
    url = f"{served.url}{BOTH_PREFIXES[0]}/heartbeat?agent_id=a"
    assert request("GET", url, headers={"Authorization": f"Bearer {served.key}"}).status == 200
    assert request("GET", url, headers={"X-API-Key": served.key, "X-Admin-Token": "nonsense"}).status == 200
    problem(request("GET", url, headers={"X-Admin-Token": served.key}), 401)


def test_another_tenant_in_header_or_body_is_403(served: Served) -> None:
    other = str(uuid.uuid4())
    for path in POST_ROUTES:
        problem(served.post(path, guard_body(), X_Tenant_Id=other), 403, "forbidden")
    problem(served.post("action/guard", guard_body(tenant_id=other)), 403, "forbidden")
    problem(served.post("action/check", {"agent_id": "a", "action": "b", "tenant_id": other}), 403, "forbidden")
    body = guard_body(tenant_id=served.tenant_id)
    assert served.post("action/guard", body, X_Tenant_Id=served.tenant_id).status == 200
    assert served.post("action/guard", guard_body(tenant_id=None), X_Tenant_Id=served.tenant_id.upper()).status == 200


def test_a_bound_key_speaks_only_for_its_agent(served: Served) -> None:
    key = served.cli_json("keys", "create", "--agent-id", "retail-refund-agent", "--tenant", served.tenant_id)["key"]
    assert served.post("action/guard", guard_body(), key=key).status == 200
    problem(served.post("action/guard", guard_body(agent_id="another-agent"), key=key), 403, "forbidden")
    problem(served.post("action/check", {"agent_id": "x", "action": "y"}, key=key), 403, "forbidden")
    problem(served.get("heartbeat?agent_id=another-agent", key=key), 403, "forbidden")
    problem(
        served.post(
            "action/guard/report",
            {"agent_id": "x", "action": "y", "idempotency_key": "z", "outcome": "success"},
            key=key,
        ),
        403,
    )


@pytest.mark.parametrize("scope", ["guard", "check", "heartbeat", "approvals:read", "report"])
def test_a_key_does_what_its_scope_says_and_nothing_else(served: Served, scope: str) -> None:
    key = served.cli_json("keys", "create", "--scope", scope, "--tenant", served.tenant_id)["key"]
    question = {"agent_id": "a", "action": "data.read", "params": {}}
    replies = {
        "guard": served.post("action/guard", guard_body(), key=key), "check": served.post("action/check", question, key=key),
        "report": served.post("action/report", {"agent_id": "a", "action": "b", "request_id": str(uuid.uuid4()), "status": "success"}, key=key),
        "heartbeat": served.get("heartbeat?agent_id=a", key=key), "approvals:read": served.get("approvals/since", key=key),
    }  # fmt: skip
    assert {name: reply.status for name, reply in replies.items()} == {
        name: 200 if name == scope else 403 for name in replies
    }


def test_a_revoked_key_is_dead_within_a_second_in_every_process(served: Served) -> None:
    made = served.cli_json("keys", "create", "--tenant", served.tenant_id)
    for _ in range(20):  # so that every process remembers it
        assert served.get("heartbeat?agent_id=a", key=made["key"]).status == 200
    assert served.cli("keys", "revoke", made["key_id"], "--tenant", served.tenant_id).returncode == 0
    time.sleep(1.0)
    assert {served.get("heartbeat?agent_id=a", key=made["key"]).status for _ in range(40)} == {401}
