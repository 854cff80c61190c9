"""A permit that ran out: its renewal asks everything again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.harness import at_once, decide, let_permits_expire
from tests.support.lifecycle import fill_account, policy_change
from tests.support.world import World, guard_body, unique

Body = dict[str, Any]


def asked_again_under(world: World, folder: Path, old: str, new: str) -> tuple[Body, Body]:
    """A question about 140 USD whose permit ran out, and its answer after the policy's text changed."""
    body = guard_body(value=140)
    world.guard(body)
    let_permits_expire(world)
    policy_change(world, folder, old, new)
    return body, world.guard(body)


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
    body, refused = asked_again_under(
        world, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "100.00"'
    )
    assert (refused["decision"], refused["status"], refused["reason_code"]) == ("DENY", "denied", "over_limit")
    assert "permit_token" not in refused
    assert world.guard(body)["status"] == "denied"
    assert world.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_now_wants_a_person_with_a_fresh_question(world: World, tmp_path: Path) -> None:
    body, asked = asked_again_under(world, tmp_path, 'allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "100.00"')
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
