"""What one key asked for, no other key of the tenant acts on; a key bound to the agent and a rotated key do."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from sentinel.authority.halts import set_halt
from sentinel.authority.keys import rotate_key
from tests import mutants
from tests.support.fixtures import AGENT, Fixtures, four_keys, guard_body, make_fixtures
from tests.support.harness import actor, decide, let_permits_expire

REFUSED = (403, "urn:sentinel:problem:permit-refused")
NOT_YOURS = (403, "urn:sentinel:problem:forbidden")
OUT = ("approved", "allowed", "allowed, and halted", "allowed, and its permit ran out")
"""How a permission of one key stands when another key asks for the same."""


def start_fields(body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The body of a start."""
    same = ("idempotency_key", "action", "agent_id", "resource", "risk_class")
    return {name: body[name] for name in same} | {"permit_token": answer["permit_token"], "start_id": str(uuid.uuid4())}


def refusal(answer: Any) -> tuple[int, str]:
    """(status, type) of an answer."""
    return answer.status_code, answer.get_json().get("type", "")


def stranger_acts(fixtures: Fixtures) -> list[str]:
    """What a stranger's key gets to do with an operation that another key asked for."""
    stranger = fixtures.new_key(agent_id=None)
    body = guard_body()
    asked = fixtures.guard(body)
    done = []
    again = fixtures.post("action/guard", body, key=stranger).get_json()
    if "permit_token" in again:
        done.append("was handed the permit")
    enclosed = fixtures.post("action/guard", body | {"start_id": str(uuid.uuid4())}, key=stranger).get_json()
    if "start" in enclosed or enclosed.get("status") == "already_started":
        done.append("started with the answer")
    if fixtures.post("action/guard/start", start_fields(body, asked), key=stranger).status_code == 200:
        done.append("started")
    fixtures.start(body, asked)
    report = {name: body[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
    if fixtures.post("action/guard/report", report, key=stranger).status_code == 200:
        done.append("reported")
    four = four_keys(guard_body())
    held = fixtures.guard(four)
    if (
        fixtures.post(
            "action/guard/report", report | {"idempotency_key": four["idempotency_key"]}, key=stranger
        ).status_code
        == 200
    ):
        done.append(f"reported what was {held['status']} without a start step")
    return done


def permission_of_another_key(fixtures: Fixtures, how: str) -> dict[str, Any]:
    """The request of four keys whose permission another key has, unused."""
    four = four_keys(guard_body(value=200 if how == "approved" else 40))
    if how == "approved":
        decide(fixtures, uuid.UUID(fixtures.guard(four)["approval_id"]))
        return four
    # The same operation: what a caller with a start step names besides is what stands for the others by itself.
    assert fixtures.guard({**four, "risk_class": "standard"})["status"] == "allowed"
    if how.endswith("halted"):
        set_halt(
            fixtures.console_pool, actor(fixtures, "admin"), scope="agent", target=AGENT, level="pause", reason="look"
        )
    elif how.endswith("ran out"):
        let_permits_expire(fixtures)
        fixtures.run_housekeeping()
    return four


@pytest.mark.parametrize("how", OUT)
def test_a_permission_of_another_key_is_no_answer_that_a_caller_without_a_start_step_acts_on(
    fixtures: Fixtures, how: str
) -> None:
    four = permission_of_another_key(fixtures, how)
    stranger = fixtures.new_key(agent_id=None)
    alone = fixtures.post("action/guard", four, key=stranger)
    assert refusal(alone) == NOT_YOURS
    assert "another API key" in alone.get_json()["detail"]
    assert fixtures.one("select count(*) from sentinel.operation_states where status = 'started'") == 0
    assert fixtures.broken_invariants() == []


def test_in_a_batch_it_refuses_that_row_alone(fixtures: Fixtures) -> None:
    four, own = permission_of_another_key(fixtures, "approved"), four_keys(guard_body())
    found = fixtures.post("action/guard/batch", {"requests": [four, own]}, key=fixtures.new_key()).get_json()["answers"]
    assert [(row["status"], row["body"].get("status")) for row in found] == [(403, 403), (200, "allowed")]


@pytest.mark.parametrize("how", OUT)
def test_a_key_of_the_agent_gets_the_permission_all_the_same(fixtures: Fixtures, how: str) -> None:
    four = permission_of_another_key(fixtures, how)
    bound = fixtures.post("action/guard", four, key=fixtures.new_key(agent_id=AGENT)).get_json()
    assert bound["status"] == {"approved": "approved", "allowed, and halted": "denied"}.get(how, "allowed")


def test_another_unbound_key_of_the_tenant_may_read_the_decision_and_act_on_nothing(fixtures: Fixtures) -> None:
    assert stranger_acts(fixtures) == []


def test_the_refusal_says_whose_vote_is_missing(fixtures: Fixtures) -> None:
    body = guard_body()
    asked = fixtures.guard(body)
    refused = fixtures.post("action/guard/start", start_fields(body, asked), key=fixtures.new_key(agent_id=None))
    assert refusal(refused) == REFUSED
    assert "another API key" in refused.get_json()["detail"]


def test_in_a_batch_each_row_is_judged_by_itself(fixtures: Fixtures) -> None:
    stranger = fixtures.new_key(agent_id=None)
    bodies = [guard_body(), guard_body()]
    own = fixtures.post("action/guard", bodies[1], key=stranger).get_json()
    rows = [start_fields(bodies[0], fixtures.guard(bodies[0])), start_fields(bodies[1], own)]
    answers = fixtures.post("action/guard/start/batch", {"requests": rows}, key=stranger).get_json()["answers"]
    assert [one["status"] for one in answers] == [403, 200]


def test_a_key_bound_to_the_agent_acts_for_it(fixtures: Fixtures) -> None:
    body = guard_body()
    bound = fixtures.new_key(agent_id=body["agent_id"])
    assert fixtures.post("action/guard/start", start_fields(body, fixtures.guard(body)), key=bound).status_code == 200


def test_what_stands_in_a_keys_place_after_a_rotation_goes_on(fixtures: Fixtures) -> None:
    body = guard_body()
    asked = fixtures.guard(body)
    key_id = fixtures.one("select key_id from sentinel.agent_keys where tenant_id = %s", fixtures.tenant_id)
    turned = rotate_key(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(str(key_id)))
    assert fixtures.post("action/guard/start", start_fields(body, asked), key=turned.key).status_code == 200


def test_mutant_that_tells_another_key_of_a_permission_is_caught(fixtures: Fixtures) -> None:
    mutants.cut(
        fixtures, "sentinel.replay", "if is_others and s.status in ('allowed', 'approved') then", "if false then"
    )
    asked = [permission_of_another_key(fixtures, how) for how in OUT[:3]]
    told = [fixtures.post("action/guard", four, key=fixtures.new_key()).get_json() for four in asked]
    assert [one.get("status") for one in told] == ["approved", "allowed", "allowed"]


def test_what_was_decided_is_read_by_who_asked_and_by_a_key_bound_to_the_agent(fixtures: Fixtures) -> None:
    asked = fixtures.guard(guard_body(value=300))
    decide(fixtures, uuid.UUID(asked["approval_id"]))
    one = f"approval/{asked['approval_id']}"
    successor, stranger = fixtures.new_key(agent_id=AGENT), fixtures.new_key(agent_id=None)
    of_another_agent = fixtures.new_key(agent_id="another-agent")
    for key, may_read in ((fixtures.key, True), (successor, True), (stranger, False), (of_another_agent, False)):
        decided = fixtures.get("approvals/since?since=2026-01-01T00:00:00Z", key=key).get_json()["decisions"]
        assert [found["request_id"] for found in decided] == [asked["approval_id"]] * may_read
        assert fixtures.get(one, key=key).status_code == (200 if may_read else 404)


def test_mutant_that_asks_nobody_whose_permit_it_is_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(fixtures, "sentinel.is_anothers", "not coalesce(o.principal_id = principal, false)", "false")
        assert set(stranger_acts(fixtures)) >= {"was handed the permit", "started with the answer"}
    finally:
        fixtures.close()
