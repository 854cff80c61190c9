"""An agent asks for a person: it waits, an approval lifts what it lists, and some questions offer none (G17)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from sentinel.core.errors import Conflict, Forbidden
from tests import mutants
from tests.support.escalations import Body, asks, shown, small_body, status
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import decide, dump, let_permits_expire


@pytest.mark.parametrize("make", [guard_body, small_body])
def test_an_escalation_waits_for_a_person_with_its_reason_and_is_executed_after_the_approval(
    fixtures: Fixtures, make: Any
) -> None:
    body = asks(make(), "image_missing", ready=True)
    answer = fixtures.guard(body)
    assert status(answer) == ("APPROVAL_REQUIRED", "pending", "image_missing")
    assert (shown(fixtures, answer).reasons, shown(fixtures, answer).offers) == (
        ["image_missing"],
        ["approve", "reject", "handled"],
    )
    decide(fixtures, answer["approval_id"])
    approved = fixtures.guard(body)
    assert (approved["status"], "permit_token" in approved) == ("approved", True)
    assert fixtures.start(body, approved).status_code == 200
    assert fixtures.broken_invariants() == []


def test_the_same_escalation_in_the_batch_and_in_a_check(fixtures: Fixtures) -> None:
    body = asks(guard_body(), "switch_off")
    (answer,) = fixtures.post("action/guard/batch", {"requests": [body]}).get_json()["answers"]
    assert answer["body"]["reason_code"] == "switch_off"
    question = {name: body[name] for name in ("agent_id", "action", "params", "evidence_context")}
    question["params"] = question["params"] | {"refund_id": unique("rf")}
    found = fixtures.post("action/check", question).get_json()
    assert (found["decision"], found["reason_code"]) == ("APPROVAL_REQUIRED", "switch_off")
    assert fixtures.post("action/check", question | {"evidence_context": None}).get_json()["decision"] == "ALLOW"


def test_a_replay_stays_the_recorded_decision_whatever_the_evidence_says(fixtures: Fixtures) -> None:
    body = guard_body()
    first = fixtures.guard(asks(body, "outside_canary"))
    for escalation in ("blacklisted", None, "because"):
        assert fixtures.guard(asks(body, escalation, ready=False)) == first
    assert fixtures.one("select count(*) from sentinel.approvals") == 1


def keeps_a_permit(fixtures: Fixtures) -> list[str]:
    """What is left of a permit to one who then asks for a person about something that nobody has approved."""
    body = guard_body()
    allowed = fixtures.guard(asks(body))
    again = fixtures.guard(asks(body, "blacklisted"))
    found = [] if status(again) == ("APPROVAL_REQUIRED", "pending", "blacklisted") else [f"it got {again['status']}"]
    found += ["the budget is held"] if fixtures.one("select coalesce(sum(held_minor), 0) from sentinel.usage") else []
    return found + (["it can be started"] if fixtures.start(body, allowed).status_code == 200 else [])


def test_a_permit_is_taken_back_from_who_asks_for_a_person_instead(fixtures: Fixtures) -> None:
    assert keeps_a_permit(fixtures) == []
    assert fixtures.broken_invariants() == []


def test_mutant_that_leaves_the_permit_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(fixtures, "sentinel.replay", "or sentinel.requires_approval(ask, s)", "")
        assert keeps_a_permit(fixtures) != []
    finally:
        fixtures.close()


def test_a_permit_that_a_person_approved_for_a_reason_is_exchanged_on_the_straight_way(fixtures: Fixtures) -> None:
    body = small_body()
    del body["params"]["order"]
    first = fixtures.guard(asks(body, "image_missing", ready=True))
    assert first["status"] == "pending"
    decide(fixtures, first["approval_id"])
    lifted = fixtures.guard(asks(body, "image_missing", ready=True))
    assert lifted["status"] == "approved"
    # What the question to a person left open is asked now: a fact that no rule can answer without.
    assert status(fixtures.guard(asks(body))) == ("DENY", "denied", "fact_missing")
    assert fixtures.start(body, lifted).status_code in (403, 409, 410)
    assert fixtures.broken_invariants() == []


def test_a_denial_of_the_policy_is_softened_by_no_escalation(fixtures: Fixtures) -> None:
    body = asks(guard_body(params={"risk": {**guard_body()["params"]["risk"], "stale_window": True}}), "outside_window")
    assert status(fixtures.guard(body)) == ("DENY", "denied", "stale_window")
    assert status(fixtures.guard(asks(guard_body(value=1001), "critic_amount"))) == ("DENY", "denied", "over_limit")
    assert fixtures.one("select count(*) from sentinel.approvals") == 0


def after_a_new_reason(fixtures: Fixtures, **over: Any) -> tuple[Body, Body]:
    """(first approved question, answer to the same operation asked with another reason)."""
    body = guard_body(**over)
    first = fixtures.guard(asks(body, "image_missing"))
    decide(fixtures, first["approval_id"])
    return first, fixtures.guard(asks(body, "blacklisted"))


def lifted_too_much(fixtures: Fixtures) -> list[str]:
    """What an approval lifted that it did not list; the checker of G17."""
    first, again = after_a_new_reason(fixtures)
    if "permit_token" in again or again["status"] != "pending":
        return [f"a new reason got {again['status']}"]
    row = shown(fixtures, again)
    found = [] if again["approval_id"] != first["approval_id"] else ["the old approval answers for the new reason"]
    return found + ([] if row.reasons == ["blacklisted", "image_missing"] else [f"shown: {row.reasons}"])


def test_an_approval_lifts_only_the_reasons_it_lists_and_a_new_one_is_a_fresh_question(fixtures: Fixtures) -> None:
    assert lifted_too_much(fixtures) == []
    assert fixtures.broken_invariants() == []


def test_mutant_whose_approval_lifts_every_reason_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(fixtures, "sentinel.renew_permit", "where not r = any(lifted)", "where cardinality(lifted) = 0")
        assert lifted_too_much(fixtures) != []
    finally:
        fixtures.close()


def test_after_the_fresh_question_is_approved_too_the_machine_goes_on(fixtures: Fixtures) -> None:
    body = guard_body()
    for escalation in ("image_missing", "blacklisted"):
        decide(fixtures, fixtures.guard(asks(body, escalation))["approval_id"])
    answer = fixtures.guard(asks(body, "image_missing"))
    assert (answer["status"], "permit_token" in answer) == ("approved", True)
    assert fixtures.start(asks(body), answer).status_code == 200
    assert fixtures.broken_invariants() == []


def test_an_allowed_permit_that_ran_out_is_asked_about_again_with_the_new_reason(fixtures: Fixtures) -> None:
    body = guard_body()
    assert fixtures.guard(asks(body))["status"] == "allowed"
    let_permits_expire(fixtures)
    answer = fixtures.guard(asks(body, "switch_off"))
    assert status(answer) == ("APPROVAL_REQUIRED", "pending", "switch_off")
    assert fixtures.one("select sum(held_minor) from sentinel.usage") == 0
    assert fixtures.broken_invariants() == []


def test_a_system_that_is_not_ready_offers_no_approval_and_a_try_changes_nothing(fixtures: Fixtures) -> None:
    answer = fixtures.guard(asks(small_body(), "system_not_ready", ready=False))
    row = shown(fixtures, answer)
    assert (row.reasons, row.offers) == (["system_not_ready"], ["reject", "handled"])
    before = dump(fixtures.admin)
    for role in ("approver", "admin"):
        with pytest.raises(Conflict, match="cannot be approved"):
            decide(fixtures, answer["approval_id"], role=role)
    with pytest.raises(Forbidden):
        decide(fixtures, answer["approval_id"], role="viewer")
    assert dump(fixtures.admin) == before
    assert decide(fixtures, answer["approval_id"], "reject").result == "rejected"


def test_the_database_itself_approves_nothing_that_is_not_offered(fixtures: Fixtures) -> None:
    answer = fixtures.guard(asks(guard_body(), ready=False))
    with fixtures.as_role("sentinel_console") as console:
        console.execute(
            "insert into sentinel.approval_votes select tenant_id, approval_id, %s, 'approve', 'x', 'console', clock_timestamp()"
            " from sentinel.approvals", [fixtures.operators["approver"]])  # fmt: skip
        with pytest.raises(psycopg.errors.CheckViolation, match="does not offer"):
            console.execute("update sentinel.approvals set status = 'approved', decided_at = clock_timestamp()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            console.execute("update sentinel.approvals set offers_approve = true")
    assert shown(fixtures, answer).status == "pending"


def test_what_is_not_ready_any_more_is_not_lifted_by_an_approval_that_names_the_same_reason(fixtures: Fixtures) -> None:
    body = guard_body()
    first = fixtures.guard(asks(body, "system_not_ready", ready=True))
    decide(fixtures, first["approval_id"])
    again = fixtures.guard(asks(body, "system_not_ready", ready=False))
    assert (again["status"], "permit_token" in again) == ("pending", False)
    assert (shown(fixtures, again).reasons, shown(fixtures, again).offers) == (
        ["system_not_ready"],
        ["reject", "handled"],
    )


def test_a_reason_that_nobody_knows_reaches_a_person_who_cannot_approve_it(fixtures: Fixtures) -> None:
    answer = fixtures.guard(asks(guard_body(), "because_i_say_so"))
    assert status(answer) == ("APPROVAL_REQUIRED", "pending", "unknown_escalation")
    assert shown(fixtures, answer).offers == ["reject", "handled"]
