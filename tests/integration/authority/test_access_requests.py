"""AuthZEN's access request profile, switched on: a denied evaluation becomes a task to watch, and no task is a permission."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from werkzeug.test import TestResponse

from sentinel.authority.app import PREFIXES
from sentinel.authority.settings import Settings
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from tests.integration.authority.test_authzen import NEEDS_PERSON, OVER_LIMIT, refund
from tests.support.asgi_client import AsgiClient
from tests.support.fixtures import SECRET, Fixtures, served
from tests.support.harness import decide, let_approvals_expire

EVALUATION, REQUESTS = "/access/v1/evaluation", "/access/v1/requests"
ERROR = "urn:openid:authzen:access-request:error:"


class Pep:
    """A policy enforcement point with a key."""

    def __init__(self, fixtures: Fixtures, client: AsgiClient) -> None:
        self.fixtures, self.client, self.key = fixtures, client, fixtures.key

    def evaluate(self, body: dict[str, Any], **context: Any) -> tuple[bool, dict[str, Any]]:
        found = self.client.post(
            EVALUATION, json={**body, "context": {**body["context"], **context}}, headers=self.headers()
        )
        assert found.status_code == 200, found.text
        return found.json["decision"], found.json["context"]

    def submit(self, body: dict[str, Any], **denial: Any) -> TestResponse:
        return self.client.post(REQUESTS, json={**body, "denial": denial}, headers=self.headers())

    def task(self, address: str, key: str | None = None) -> TestResponse:
        return self.client.get(address, headers=self.headers(key))

    def headers(self, key: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key or self.key}", "Host": "pdp.example:7860"}


@pytest.fixture
def pep(fixtures: Fixtures) -> Iterator[Pep]:
    settings = Settings(
        database_url=fixtures.url, secret_keys=(SECRET,), pool_size=8, authzen_access_requests=True, behind_tls=True
    )
    with served(settings, ReloadablePolicies(policies_dir())) as (_, app):
        yield Pep(fixtures, app.test_client())


def test_a_denied_evaluation_is_requested_watched_approved_and_evaluated_again(pep: Pep) -> None:
    body = refund(NEEDS_PERSON)
    may, told = pep.evaluate(body)
    assert may is False and told["reason"] == "approval_required"
    assert told["access_request"]["endpoint"] == "https://pdp.example:7860/access/v1/requests"
    made = pep.submit(body, evaluation_id=told["evaluation_id"], expires_at=told["access_request"]["expires_at"])
    assert made.status_code == 201, made.text
    task = made.json["task"]
    assert (task["status"], task["expires_at"]) == ("pending", told["access_request"]["expires_at"])
    assert pep.submit(body, evaluation_id=told["evaluation_id"]).json["task"] == task, "asked again, the same task"
    address = task["status_endpoint"].removeprefix("https://pdp.example:7860")
    assert pep.task(address).json == {"task": task}
    decide(pep.fixtures, task["id"])
    done = pep.task(address).json
    approval = done["result"]["approval"]
    assert done["task"]["status"] == "approved" and done["result"]["mode"] == "reevaluate"
    assert datetime.fromisoformat(approval["approved_at"]) < datetime.fromisoformat(approval["approved_until"])
    assert pep.evaluate(body, approval=approval)[0] is True
    assert pep.evaluate(body, approval=approval)[0] is False, "once"


def test_an_approval_is_accepted_after_the_time_until_which_it_could_be_decided(pep: Pep) -> None:
    body = refund(NEEDS_PERSON)
    told = pep.evaluate(body)[1]
    task = pep.submit(body, evaluation_id=told["evaluation_id"]).json["task"]
    decide(pep.fixtures, task["id"])
    pep.fixtures.admin.execute("update sentinel.approvals set expires_at = decided_at + interval '1 microsecond'")
    approval = pep.task(f"{REQUESTS}/{task['id']}").json["result"]["approval"]
    assert datetime.fromisoformat(approval["approved_until"]) < pep.fixtures.one("select clock_timestamp()")
    assert pep.evaluate(body, approval=approval)[0] is True


def test_an_approval_is_of_no_use_to_anything_else(pep: Pep) -> None:
    body = refund(NEEDS_PERSON)
    decide(pep.fixtures, pep.evaluate(body)[1]["approval_id"])
    approval_id = pep.evaluate({**body, "context": {**body["context"], "start_step": True}})[1]["approval_id"]
    for other in (refund(NEEDS_PERSON + 1), refund(100), refund(OVER_LIMIT)):
        may, told = pep.evaluate(other, approval={"id": approval_id})
        assert (may, told["reason"], told["next_action"]) == (False, "out_of_scope", "request")
    for unknown in (str(uuid.uuid4()), "approval"):
        may, told = pep.evaluate(refund(NEEDS_PERSON), approval={"id": unknown})
        assert may is False
    assert pep.fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 0


def test_a_task_that_is_rejected_or_ran_out_stays_so(pep: Pep) -> None:
    body = refund(NEEDS_PERSON)
    told = pep.evaluate(body)[1]
    task = pep.submit(body, evaluation_id=told["evaluation_id"]).json["task"]
    decide(pep.fixtures, task["id"], "reject")
    found = pep.task(f"{REQUESTS}/{task['id']}").json
    assert found["task"]["status"] == "denied" and "result" not in found
    assert pep.evaluate(body, approval={"id": task["id"]})[0] is False
    late = refund(NEEDS_PERSON)
    told = pep.evaluate(late)[1]
    let_approvals_expire(pep.fixtures)
    gone = pep.submit(late, evaluation_id=told["evaluation_id"])
    assert (gone.status_code, gone.json["type"]) == (410, ERROR + "expired_denial")


def test_errors_are_the_profiles(pep: Pep) -> None:
    body = refund(NEEDS_PERSON)
    told = pep.evaluate(body)[1]
    stranger = pep.fixtures.new_key()
    unbound = [
        pep.submit(body), pep.submit(body, evaluation_id="x"), pep.submit(body, evaluation_id=str(uuid.uuid4())),
        pep.submit(refund(NEEDS_PERSON), evaluation_id=told["evaluation_id"]),
        pep.client.post(REQUESTS, json={**body, "denial": {"evaluation_id": told["evaluation_id"]}}, headers=pep.headers(stranger)),
    ]  # fmt: skip
    for found in unbound:
        assert (found.status_code, found.json["type"]) == (400, ERROR + "invalid_denial_binding")
    unmapped = {**body, "resource": {"type": "tool", "id": "wire_money"}}
    assert pep.submit(unmapped, evaluation_id=told["evaluation_id"]).json["type"] == ERROR + "not_requestable"
    for path, key in (("nobody", None), (str(uuid.uuid4()), None), (told["approval_id"], stranger)):
        found = pep.task(f"{REQUESTS}/{path}", key)
        assert (found.status_code, found.json["type"]) == (404, ERROR + "unknown_task")
    assert pep.client.post(REQUESTS, json=body, headers=pep.headers()).status_code == 400, "without a denial"


def test_the_discovery_tells_of_it(pep: Pep) -> None:
    found = pep.client.get("/.well-known/authzen-configuration", headers=pep.headers()).json
    assert found["access_request_endpoint"] == "https://pdp.example:7860/access/v1/requests"
    assert found["capabilities"] == ["urn:openid:authzen:capability:access-request"]


def test_head_of_what_needs_a_key_needs_it_too(pep: Pep) -> None:
    flask: Any = pep.client.application.flask  # type: ignore[attr-defined]
    guarded = [
        re.sub(r"<[^>]+>", str(uuid.uuid4()), rule.rule)
        for rule in flask.url_map.iter_rules()
        if "GET" in rule.methods
        and getattr(getattr(flask.view_functions[rule.endpoint], "documentation", None), "security", ())
    ]
    assert {"/api/sentinel/approvals/stream", "/api/haltstate/sentinel/approvals/stream"} < set(guarded)
    assert any(path.startswith(REQUESTS) for path in guarded)
    for path in guarded:
        for headers in ({}, pep.headers(pep.key[:-1] + ("A" if pep.key[-1] != "A" else "B"))):
            assert pep.client.head(path, headers=headers).status_code == 401, path
    for prefix in PREFIXES:
        answer = pep.client.head(f"{prefix}/approvals/stream", headers=pep.headers())
        assert (answer.status_code, answer.mimetype) == (200, "text/event-stream")
    print(f"N={len(guarded)}")
