"""Approvals through the guard: they end, they lift only their reasons, and never a halt."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sentinel.authority import housekeeping, metrics
from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import set_halt
from sentinel.core.errors import Conflict
from tests.support.fixtures import Fixtures, guard_body, unique
from tests.support.harness import at_once, decide, let_approvals_expire, let_permits_expire
from tests.support.lifecycle import fill_account, pending, policy_change

pytestmark = pytest.mark.usefixtures("patient")


def test_a_pending_operation_has_an_approval_with_an_end_and_no_permit(fixtures: Fixtures) -> None:
    _, answer = pending(fixtures)
    assert uuid.UUID(answer["approval_id"])
    assert answer["expires_at"].endswith("Z")
    assert "permit_token" not in answer


def test_a_rejected_operation_is_denied_for_good(fixtures: Fixtures) -> None:
    body, asked = pending(fixtures)
    decide(fixtures, asked["approval_id"], "reject")
    answer = fixtures.guard(body)
    assert (answer["decision"], answer["status"], answer["reason_code"]) == ("DENY", "denied", "approval_rejected")
    with pytest.raises(Conflict):
        decide(fixtures, asked["approval_id"])
    assert fixtures.guard(body)["status"] == "denied"


@pytest.mark.parametrize("swept", [True, False])
def test_an_expired_question_is_final_for_its_key(fixtures: Fixtures, swept: bool) -> None:
    body, asked = pending(fixtures)
    let_approvals_expire(fixtures)
    if swept:
        fixtures.run_housekeeping()
    answer = fixtures.guard(body)
    assert (answer["decision"], answer["status"]) == ("APPROVAL_REQUIRED", "expired")
    with pytest.raises(Conflict):
        decide(fixtures, asked["approval_id"])
    assert fixtures.guard(body)["status"] == "expired"
    assert fixtures.guard(guard_body(value=40))["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


def test_all_that_ran_out_expires_in_one_round_however_many(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_BATCH_SIZE", 2)
    for _ in range(7):
        pending(fixtures)
    let_approvals_expire(fixtures)
    still_waits = pending(fixtures)[1]["approval_id"]
    assert housekeeping.run_housekeeping(fixtures.authority.pool, 300, seconds=60).approvals_expired == 7
    assert fixtures.one("select array_agg(approval_id::text) from sentinel.approvals where status = 'pending'") == [
        still_waits
    ]
    assert fixtures.one("select count(*) from sentinel.events where kind = 'approval_expired'") == 7
    assert fixtures.broken_invariants() == []


def test_waiting_approvals_are_counted_up_to_a_bound_of_each_tenant(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [pending(fixtures)[1]["approval_id"] for _ in range(3)]
    fixtures.admin.execute(
        "update sentinel.approvals set created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 minute'"
        " where approval_id = %s", [asked[0]])  # fmt: skip
    assert metrics.read_figures(fixtures.authority.pool).approvals_pending == 3
    monkeypatch.setattr(metrics, "MOST_COUNTED", 2)
    found = metrics.read_figures(fixtures.authority.pool)
    assert (found.approvals_pending, found.approvals_oldest_seconds > 3500) == (2, True)


def test_an_approval_does_not_lift_a_deny_rule_that_came_later(fixtures: Fixtures, tmp_path: Path) -> None:
    body, asked = pending(fixtures, 200)
    decide(fixtures, asked["approval_id"])
    policy_change(fixtures, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "199.00"')
    answer = fixtures.guard(body)
    assert (answer["decision"], answer["status"], answer["reason_code"]) == ("DENY", "denied", "over_limit")
    assert fixtures.broken_invariants() == []


def test_an_approval_does_not_lift_a_reason_that_it_does_not_list(fixtures: Fixtures) -> None:
    account = unique("acct")
    body, asked = pending(fixtures, 200, params={"account_ref": account})
    decide(fixtures, asked["approval_id"])
    fill_account(fixtures, account)
    again = fixtures.guard(body)
    assert (again["status"], again["reason_code"]) == ("pending", "limit_exceeded")
    assert again["approval_id"] != asked["approval_id"]
    decide(fixtures, again["approval_id"])
    lifted = fixtures.guard(body)
    assert lifted["status"] == "approved"
    assert fixtures.one("select max(override_held_minor) from sentinel.usage") == 20_000
    assert fixtures.start(body, lifted).status_code == 200
    assert fixtures.broken_invariants() == []


def test_an_approval_does_not_lift_a_halt(fixtures: Fixtures) -> None:
    body, asked = pending(fixtures)
    decide(fixtures, asked["approval_id"])
    set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    answer = fixtures.guard(body)
    assert (answer["decision"], answer["reason_code"], "permit_token" in answer) == ("DENY", "halted", False)


def test_an_approved_permit_that_ran_out_is_replaced_without_a_new_question(fixtures: Fixtures) -> None:
    body, asked = pending(fixtures)
    decide(fixtures, asked["approval_id"])
    first = fixtures.guard(body)
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    second = fixtures.guard(body)
    assert (second["status"], second["approval_id"]) == ("approved", asked["approval_id"])
    assert second["permit_token"] != first["permit_token"]
    assert fixtures.broken_invariants() == []


def test_a_client_that_goes_on_as_the_contract_says_gets_every_decision_of_a_burst(fixtures: Fixtures) -> None:
    asked = [pending(fixtures)[1]["approval_id"] for _ in range(5)]
    for approval_id in asked:
        decide(fixtures, approval_id, "reject")
    since, found = "2026-01-01T00:00:00Z", []
    for _ in asked:
        page = fixtures.get(f"approvals/since?since={since}&limit=2").get_json()["decisions"]
        found += [one["request_id"] for one in page]
        if len(page) < 2:
            break
        since = page[-1]["decided_at"]
    assert found == asked


def test_many_deciders_of_one_approval_make_one_transition(fixtures: Fixtures) -> None:
    for _ in range(3):
        body, asked = pending(fixtures)
        verdicts = ["approve", "reject"] * 4
        answers = at_once([
            lambda verdict=verdict, role=role: decide(fixtures, asked["approval_id"], verdict, role=role).result
            for verdict, role in zip(verdicts, ["approver", "admin"] * 4, strict=True)
        ])  # fmt: skip
        assert sum(answer in ("approved", "rejected") for answer in answers) == 1
        assert fixtures.guard(body)["status"] in ("approved", "denied")
    assert fixtures.broken_invariants() == []
