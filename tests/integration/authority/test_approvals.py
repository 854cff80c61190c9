"""Approvals through the guard: they end, they lift only their reasons, and never a halt."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import set_halt
from sentinel.core.errors import Conflict
from tests.support.harness import at_once, decide, let_approvals_expire, let_permits_expire
from tests.support.lifecycle import fill_account, pending, policy_change
from tests.support.world import World, guard_body, unique


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
