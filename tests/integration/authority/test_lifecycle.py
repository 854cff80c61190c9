"""The life of an operation: renewals ask everything again, approvals lift only their reasons, doubt holds the budget."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.errors import Conflict, Forbidden, NotFound
from sentinel.resources import policies_dir
from sentinel.services.actor import local_administrator
from sentinel.services.resolve_in_doubt import resolve_in_doubt
from sentinel.services.set_halt import set_halt
from sentinel.store.housekeeping import keep_house
from tests.harness import actor, at_once, decide, let_approvals_expire, let_permits_expire
from tests.world import World, four_keys, guard_body, make_world, start_body, unique

Body = dict[str, Any]


def policy_change(world: World, tmp_path: Path, old: str, new: str) -> None:
    """From now on the world decides by the retail policy with one text replaced."""
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder, ignore=shutil.ignore_patterns("cases", "*.py", "*.md"))
    text = (folder / "retail_refund.yaml").read_text()
    assert old in text
    (folder / "retail_refund.yaml").write_text(text.replace(old, new))
    world.authority.policies.directory = folder
    world.authority.policies.reload()


def pending(world: World, value: int = 200, **over: Any) -> tuple[Body, Body]:
    """(request, answer) of an operation that waits for a person."""
    body = guard_body(value=value, params={"account_ref": unique("acct"), **over.pop("params", {})}, **over)
    answer = world.guard(body)
    assert answer["status"] == "pending"
    return body, answer


def fill_account(world: World, account: str) -> None:
    """Use up the account's day."""
    for _ in range(2):
        assert world.guard(guard_body(value=150, params={"account_ref": account}))["decision"] == "ALLOW"


# Renewal


def test_an_expired_permit_is_renewed_under_the_recorded_decision(world: World) -> None:
    body = guard_body(value=40)
    first = world.guard(body)
    let_permits_expire(world)
    renewed = world.guard(body)
    assert renewed["status"] == "allowed"
    assert renewed["proof_pack"] == first["proof_pack"]
    assert renewed["permit_expires_at"] > first["permit_expires_at"]
    assert world.one("select count(*) from sentinel.reservations where state = 'held'") == 1
    assert world.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_became_stricter_with_a_final_refusal(world: World, tmp_path: Path) -> None:
    body = guard_body(value=140)
    world.guard(body)
    let_permits_expire(world)
    policy_change(world, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "100.00"')
    refused = world.guard(body)
    assert (refused["decision"], refused["status"], refused["reason_code"]) == ("DENY", "denied", "over_limit")
    assert "permit_token" not in refused
    assert world.guard(body)["status"] == "denied"
    assert world.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_now_wants_a_person_with_a_fresh_question(world: World, tmp_path: Path) -> None:
    body = guard_body(value=140)
    world.guard(body)
    let_permits_expire(world)
    policy_change(world, tmp_path, 'allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "100.00"')
    asked = world.guard(body)
    assert (asked["status"], asked["reason_code"], "permit_token" in asked) == (
        "pending",
        "amount_needs_approval",
        False,
    )
    decide(world, asked["approval_id"])
    assert world.guard(body)["status"] == "approved"
    assert world.broken_invariants() == []


def test_a_renewal_without_room_left_asks_a_person(world: World) -> None:
    account = unique("acct")
    body = guard_body(value=100, params={"account_ref": account})
    world.guard(body)
    let_permits_expire(world)
    world.keep_house()
    fill_account(world, account)
    asked = world.guard(body)
    assert (asked["status"], asked["reason_code"]) == ("pending", "limit_exceeded")
    assert world.broken_invariants() == []


def test_concurrent_renewals_reserve_once(world: World) -> None:
    body = guard_body(value=40)
    world.guard(body)
    let_permits_expire(world)
    headers = {"X-API-Key": world.key}
    answers = at_once(
        [
            lambda: world.app.test_client().post("/api/sentinel/action/guard", json=body, headers=headers).json
            for _ in range(12)
        ]
    )
    assert len({answer["permit_token"] for answer in answers}) == 1  # type: ignore[index]
    assert world.one("select max(held_minor) from sentinel.usage") == 4000
    assert world.broken_invariants() == []


# Approvals through the guard


def test_a_pending_operation_has_an_approval_with_an_end_and_no_permit(world: World) -> None:
    _, answer = pending(world)
    assert uuid.UUID(answer["approval_id"])
    assert answer["expires_at"].endswith("Z")
    assert "permit_token" not in answer


def test_a_rejected_operation_is_denied_for_good(world: World) -> None:
    body, asked = pending(world)
    decide(world, asked["approval_id"], "reject")
    answer = world.guard(body)
    assert (answer["decision"], answer["status"], answer["reason_code"]) == ("DENY", "denied", "approval_rejected")
    with pytest.raises(Conflict):
        decide(world, asked["approval_id"])
    assert world.guard(body)["status"] == "denied"


@pytest.mark.parametrize("swept", [True, False])
def test_an_expired_question_is_final_for_its_key(world: World, swept: bool) -> None:
    body, asked = pending(world)
    let_approvals_expire(world)
    if swept:
        world.keep_house()
    answer = world.guard(body)
    assert (answer["decision"], answer["status"]) == ("APPROVAL_REQUIRED", "expired")
    with pytest.raises(Conflict):
        decide(world, asked["approval_id"])
    assert world.guard(body)["status"] == "expired"
    assert world.guard(guard_body(value=40))["decision"] == "ALLOW"
    assert world.broken_invariants() == []


def test_an_approval_does_not_lift_a_deny_rule_that_came_later(world: World, tmp_path: Path) -> None:
    body, asked = pending(world, 200)
    decide(world, asked["approval_id"])
    policy_change(world, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "199.00"')
    answer = world.guard(body)
    assert (answer["decision"], answer["status"], answer["reason_code"]) == ("DENY", "denied", "over_limit")
    assert world.broken_invariants() == []


def test_an_approval_does_not_lift_a_reason_that_it_does_not_list(world: World) -> None:
    account = unique("acct")
    body, asked = pending(world, 200, params={"account_ref": account})
    decide(world, asked["approval_id"])
    fill_account(world, account)
    again = world.guard(body)
    assert (again["status"], again["reason_code"]) == ("pending", "limit_exceeded")
    assert again["approval_id"] != asked["approval_id"]
    decide(world, again["approval_id"])
    lifted = world.guard(body)
    assert lifted["status"] == "approved"
    assert world.one("select max(override_held_minor) from sentinel.usage") == 20_000
    assert world.start(body, lifted).status_code == 200
    assert world.broken_invariants() == []


def test_an_approval_does_not_lift_a_halt(world: World) -> None:
    body, asked = pending(world)
    decide(world, asked["approval_id"])
    set_halt(world.console_pool, local_administrator(world.tenant_id), scope="tenant", reason="drill")
    answer = world.guard(body)
    assert (answer["decision"], answer["reason_code"], "permit_token" in answer) == ("DENY", "halted", False)


def test_an_approved_permit_that_ran_out_is_replaced_without_a_new_question(world: World) -> None:
    body, asked = pending(world)
    decide(world, asked["approval_id"])
    first = world.guard(body)
    let_permits_expire(world)
    world.keep_house()
    second = world.guard(body)
    assert (second["status"], second["approval_id"]) == ("approved", asked["approval_id"])
    assert second["permit_token"] != first["permit_token"]
    assert world.broken_invariants() == []


def test_many_deciders_of_one_approval_make_one_transition(world: World) -> None:
    for _ in range(3):
        body, asked = pending(world)
        verdicts = ["approve", "reject"] * 4
        answers = at_once([
            lambda verdict=verdict, role=role: decide(world, asked["approval_id"], verdict, role=role).result
            for verdict, role in zip(verdicts, ["approver", "admin"] * 4, strict=True)
        ])  # fmt: skip
        assert sum(answer in ("approved", "rejected") for answer in answers) == 1
        assert world.guard(body)["status"] in ("approved", "denied")
    assert world.broken_invariants() == []


# Callers without a start step


def test_handing_out_the_permit_is_the_start_for_callers_without_a_start_step(world: World) -> None:
    body = four_keys(guard_body(value=40))
    first = world.guard(body)
    assert (first["status"], first["resource"], first["risk_class"]) == ("allowed", body["action"], "standard")
    assert world.one("select status from sentinel.operation_states") == "started"
    again = world.guard(body)
    assert (again["status"], "permit_token" in again) == ("already_started", False)
    assert world.report(body).status_code == 200
    done = world.guard(body)
    assert (done["status"], done["outcome"]) == ("completed", "success")
    assert world.one("select max(captured_minor) from sentinel.usage") == 4000
    assert world.broken_invariants() == []


def test_concurrent_callers_without_a_start_step_get_one_permit(world: World) -> None:
    body = four_keys(guard_body(value=40))
    headers = {"X-API-Key": world.key}
    answers = at_once(
        [
            lambda: world.app.test_client().post("/api/sentinel/action/guard", json=body, headers=headers).json
            for _ in range(16)
        ]
    )
    assert sum("permit_token" in answer for answer in answers) == 1  # type: ignore[operator]
    assert sorted({answer["status"] for answer in answers}) == ["allowed", "already_started"]  # type: ignore[index]


def test_an_approved_operation_starts_when_it_is_handed_out_without_a_start_step(world: World) -> None:
    body = four_keys(guard_body(value=200))
    asked = world.guard(body)
    decide(world, asked["approval_id"])
    assert world.guard(body)["status"] == "approved"
    assert world.guard(body)["status"] == "already_started"
    assert world.broken_invariants() == []


# Doubt


def started(world: World, value: int = 40) -> Body:
    body = guard_body(value=value, params={"account_ref": unique("acct")})
    world.start(body, world.guard(body))
    return body


def status(world: World, body: Body) -> tuple[str, str | None]:
    """(status, in_doubt_reason) of an operation."""
    row = world.admin.execute(
        "select s.status, s.in_doubt_reason from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)"
        " where o.idempotency_key = %s", [body["idempotency_key"]]).fetchone()  # fmt: skip
    assert row is not None
    return row[0], row[1]


def operation_of(world: World, body: Body) -> uuid.UUID:
    return uuid.UUID(
        str(
            world.one(
                "select operation_id from sentinel.operations where idempotency_key = %s", body["idempotency_key"]
            )
        )
    )


def budget(world: World) -> list[int]:
    """[held, captured] of the fullest limit, in minor units."""
    return list(world.one("select array[max(held_minor), max(captured_minor)] from sentinel.usage"))


def resolve(world: World, body: Body, *, executed: bool, role: str = "admin") -> None:
    resolve_in_doubt(
        world.console_pool, actor(world, role), operation_of(world, body), executed=executed, evidence="looked it up"
    )


def test_an_error_after_a_start_is_doubt_and_keeps_budget_and_uniqueness(world: World) -> None:
    body = started(world)
    assert world.report(body, "error", error="timeout").status_code == 200
    assert status(world, body) == ("in_doubt", "error_reported")
    assert budget(world) == [4000, 0]
    twin = guard_body(value=1, params={"refund_id": body["params"]["refund_id"]})
    assert world.guard(twin)["reason_code"] == "duplicate_resource"
    assert world.broken_invariants() == []


def test_silence_past_the_deadline_is_doubt_and_not_before(world: World) -> None:
    body = started(world)
    assert keep_house(world.authority.pool, 300).fell_in_doubt == 0
    assert status(world, body)[0] == "started"
    assert keep_house(world.authority.pool, 0).fell_in_doubt == 1
    assert status(world, body) == ("in_doubt", "no_report")
    assert budget(world) == [4000, 0]


@pytest.mark.parametrize("executed, left", [(True, [0, 4000]), (False, [0, 0])])
def test_resolving_doubt_captures_what_was_executed_and_frees_what_was_not(
    world: World, executed: bool, left: list[int]
) -> None:
    body = started(world)
    world.report(body, "error")
    resolve(world, body, executed=executed)
    assert status(world, body) == ("completed", None)
    assert budget(world) == left
    twin = guard_body(value=1, params={"refund_id": body["params"]["refund_id"]})
    assert world.guard(twin)["decision"] == ("DENY" if executed else "ALLOW")
    with pytest.raises(Conflict):
        resolve(world, body, executed=not executed)
    assert world.broken_invariants() == []


def test_only_an_administrator_resolves_and_only_what_is_in_doubt(world: World) -> None:
    body = started(world)
    with pytest.raises(Conflict):
        resolve(world, body, executed=False)
    world.report(body, "error")
    with pytest.raises(Forbidden):
        resolve(world, body, executed=False, role="approver")
    with pytest.raises(NotFound):
        resolve_in_doubt(world.console_pool, actor(world, "admin"), uuid.uuid4(), executed=True, evidence="")
    assert status(world, body)[0] == "in_doubt"


def test_a_late_success_after_silence_ends_the_doubt(world: World) -> None:
    body = started(world)
    keep_house(world.authority.pool, 0)
    assert world.report(body).status_code == 200
    assert status(world, body) == ("completed", None)
    assert budget(world) == [0, 4000]
    assert world.broken_invariants() == []


@pytest.mark.parametrize(
    "executed, told, code",
    [(True, "success", 200), (False, "error", 200), (False, "success", 409), (True, "error", 409)],
)
def test_a_late_report_must_agree_with_what_a_person_found_out(
    world: World, executed: bool, told: str, code: int
) -> None:
    body = started(world)
    keep_house(world.authority.pool, 0)
    resolve(world, body, executed=executed)
    before = budget(world)
    assert world.report(body, told).status_code == code
    assert budget(world) == before
    assert status(world, body) == ("completed", None)
    assert world.broken_invariants() == []


# Reports


def test_a_report_repeated_exactly_gets_the_original_receipt_and_a_contradicting_one_is_refused(world: World) -> None:
    body = started(world)
    first = world.report(body, result={"id": "tx_1"}).get_json()
    again = world.report(body, result={"id": "tx_1"}).get_json()
    assert first["duplicate"] is False
    assert again == first | {"duplicate": True}
    for other in (world.report(body, result={"id": "tx_2"}), world.report(body, "error"), world.report(body)):
        assert (other.status_code, other.get_json()["type"]) == (409, "urn:sentinel:problem:report-contradicts")
    assert budget(world) == [0, 4000]
    assert world.broken_invariants() == []


def test_concurrent_contradicting_reports_record_one(world: World) -> None:
    body = started(world)
    fields = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}
    answers = at_once([
        lambda told=told: world.app.test_client().post(
            "/api/sentinel/action/guard/report", json={**fields, "outcome": told}, headers={"X-API-Key": world.key}).status_code
        for told in ["success", "error"] * 6
    ])  # fmt: skip
    assert sorted(answers) == [200] * 6 + [409] * 6  # type: ignore[type-var]
    assert world.broken_invariants() == []


def test_a_report_needs_a_start_and_matches_key_action_and_agent(world: World) -> None:
    body = guard_body(value=40)
    assert world.report(body).status_code == 403, "nothing was guarded"
    answer = world.guard(body)
    assert world.report(body).status_code == 409, "nothing was started"
    world.start(body, answer)
    assert world.report(body | {"agent_id": "another-agent"}).status_code == 403
    assert world.report(body | {"action": "refund.create2"}).status_code == 403
    assert world.report(body, resource="refund/other").status_code == 403
    assert world.report(body, risk_class="high").status_code == 403
    token = answer["permit_token"]
    assert world.report(body, permit_token=token[:-2] + ("AA" if token[-2:] != "AA" else "BB")).status_code == 403
    assert (
        world.report(
            body, permit_token=token, resource=answer["resource"], risk_class="standard", report_id=str(uuid.uuid4())
        ).status_code
        == 200
    )
    assert world.broken_invariants() == []


def test_a_report_of_an_abandoned_permit_does_not_capture(database_url: str) -> None:
    world = make_world(database_url)
    try:
        body = guard_body(value=40)
        old = world.guard(body)
        let_permits_expire(world)
        new = world.guard(body)
        world.post("action/guard/start", start_body(body, new))
        assert world.report(body, permit_token=old["permit_token"]).status_code == 403
        assert world.report(body, permit_token=new["permit_token"]).status_code == 200
        assert world.broken_invariants() == []
    finally:
        world.close()
