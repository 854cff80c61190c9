"""A permit that ran out: its renewal asks everything again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.fixtures import Fixtures, guard_body, unique
from tests.support.harness import at_once, decide, let_permits_expire
from tests.support.lifecycle import fill_account, policy_change

Body = dict[str, Any]


def asked_after_policy_change(fixtures: Fixtures, folder: Path, old: str, new: str) -> tuple[Body, Body]:
    """A question about 140 USD whose permit ran out, and its answer after the policy's text changed."""
    body = guard_body(value=140)
    fixtures.guard(body)
    let_permits_expire(fixtures)
    policy_change(fixtures, folder, old, new)
    return body, fixtures.guard(body)


def test_an_expired_permit_is_renewed_under_the_recorded_decision(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    first = fixtures.guard(body)
    let_permits_expire(fixtures)
    renewed = fixtures.guard(body)
    assert renewed["status"] == "allowed"
    assert renewed["proof_pack"] == first["proof_pack"]
    assert renewed["permit_expires_at"] > first["permit_expires_at"]
    assert fixtures.one("select count(*) from sentinel.reservations where state = 'held'") == 1
    assert fixtures.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_became_stricter_with_a_final_refusal(fixtures: Fixtures, tmp_path: Path) -> None:
    body, refused = asked_after_policy_change(
        fixtures, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "100.00"'
    )
    assert (refused["decision"], refused["status"], refused["reason_code"]) == ("DENY", "denied", "over_limit")
    assert "permit_token" not in refused
    assert fixtures.guard(body)["status"] == "denied"
    assert fixtures.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_now_wants_a_person_with_a_fresh_question(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    body, asked = asked_after_policy_change(
        fixtures, tmp_path, 'allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "100.00"'
    )
    assert (asked["status"], asked["reason_code"], "permit_token" in asked) == (
        "pending",
        "amount_needs_approval",
        False,
    )
    decide(fixtures, asked["approval_id"])
    assert fixtures.guard(body)["status"] == "approved"
    assert fixtures.broken_invariants() == []


def test_a_renewal_without_room_left_asks_a_person(fixtures: Fixtures) -> None:
    account = unique("acct")
    body = guard_body(value=100, params={"account_ref": account})
    fixtures.guard(body)
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    fill_account(fixtures, account)
    asked = fixtures.guard(body)
    assert (asked["status"], asked["reason_code"]) == ("pending", "limit_exceeded")
    assert fixtures.broken_invariants() == []


def test_concurrent_renewals_reserve_once(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    fixtures.guard(body)
    let_permits_expire(fixtures)
    headers = {"X-API-Key": fixtures.key}
    answers = at_once(
        [
            lambda: fixtures.app.test_client().post("/api/sentinel/action/guard", json=body, headers=headers).json
            for _ in range(12)
        ]
    )
    assert len({answer["permit_token"] for answer in answers}) == 1  # type: ignore[index]
    assert fixtures.one("select max(held_minor) from sentinel.usage") == 4000
    assert fixtures.broken_invariants() == []
