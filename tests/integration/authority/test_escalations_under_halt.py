"""Asking for a person is no way around a halt."""

from __future__ import annotations

import uuid

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests import mutants
from tests.support.escalations import asks, shown, status
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.harness import decide


def halt(fixtures: Fixtures) -> uuid.UUID:
    set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    found: uuid.UUID = fixtures.one("select halt_id from sentinel.halts where lifted_at is null")
    return found


def test_under_a_halt_an_escalation_waits_for_a_person_and_nothing_is_paid_before_the_halt_is_lifted(
    fixtures: Fixtures,
) -> None:
    halted = halt(fixtures)
    body = asks(guard_body(), "halted")
    question = {name: body[name] for name in ("agent_id", "action", "params", "evidence_context")}
    assert fixtures.post("action/check", question).get_json()["decision"] == "APPROVAL_REQUIRED"
    answer = fixtures.guard(body)
    assert status(answer) == ("APPROVAL_REQUIRED", "pending", "halted")
    assert shown(fixtures, answer).reasons == ["halted"]
    decide(fixtures, answer["approval_id"])
    refused = fixtures.guard(body)
    assert (status(refused), "permit_token" in refused) == (("DENY", "denied", "halted"), False)
    lift_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), halted, reason="over")
    assert "permit_token" in fixtures.guard(asks(body))
    assert fixtures.broken_invariants() == []


def test_under_a_halt_the_policys_own_reasons_are_asked_about_too(fixtures: Fixtures) -> None:
    halt(fixtures)
    answer = fixtures.guard(asks(guard_body(value=200), "blacklisted"))
    assert shown(fixtures, answer).reasons == ["halted", "blacklisted", "amount_needs_approval"]


def test_under_a_halt_everything_that_asks_for_nobody_is_denied_for_good_as_ever(fixtures: Fixtures) -> None:
    halt(fixtures)
    bodies = {
        "no escalation": asks(guard_body()),
        "needs a person anyway": asks(guard_body(value=200)),
        "a system that is not ready": asks(guard_body(), ready=False),
        "a denial of the policy": asks(guard_body(value=1001), "blacklisted"),
        "an action that no policy covers": asks(guard_body(action="unknown.action"), "blacklisted"),
        "a policy that knows no escalation": asks(guard_body(action="gift_card.issue"), "blacklisted"),
    }
    assert {name: status(fixtures.guard(body)) for name, body in bodies.items()} == dict.fromkeys(
        bodies, ("DENY", "denied", "halted")
    )
    assert fixtures.one("select count(*) from sentinel.approvals") == 0


def test_under_a_halt_a_second_key_for_the_same_refund_is_still_a_duplicate(fixtures: Fixtures) -> None:
    body = guard_body()
    fixtures.guard(body)
    halt(fixtures)
    other = asks(guard_body(params={"refund_id": body["params"]["refund_id"]}), "halted")
    assert status(fixtures.guard(other)) == ("DENY", "denied", "duplicate_resource")
    assert fixtures.broken_invariants() == []


def paid_under_a_halt(fixtures: Fixtures) -> bool:
    """Whether asking for a person is a way around a halt."""
    halt(fixtures)
    body = asks(guard_body(), "halted")
    answer = fixtures.guard(body)
    if "permit_token" in answer or answer["status"] != "pending":
        return True
    decide(fixtures, answer["approval_id"])
    return "permit_token" in fixtures.guard(body)


def test_asking_for_a_person_is_no_way_around_a_halt(fixtures: Fixtures) -> None:
    assert not paid_under_a_halt(fixtures)


def test_mutant_whose_approval_lifts_the_halt_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(fixtures, "sentinel.replay",
                  "if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null then", "if false then")  # fmt: skip
        assert paid_under_a_halt(fixtures)
    finally:
        fixtures.close()
