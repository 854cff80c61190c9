"""Asking for a person is no way around a halt."""

from __future__ import annotations

import uuid

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests import twins
from tests.support.escalations import asks, shown, status
from tests.support.harness import decide
from tests.support.world import World, guard_body, make_world


def halt(world: World) -> uuid.UUID:
    set_halt(world.console_pool, local_administrator(world.tenant_id), scope="tenant", reason="drill")
    found: uuid.UUID = world.one("select halt_id from sentinel.halts where lifted_at is null")
    return found


def test_under_a_halt_an_escalation_waits_for_a_person_and_nothing_is_paid_before_the_halt_is_lifted(
    world: World,
) -> None:
    halted = halt(world)
    body = asks(guard_body(), "halted")
    question = {name: body[name] for name in ("agent_id", "action", "params", "evidence_context")}
    assert world.post("action/check", question).get_json()["decision"] == "APPROVAL_REQUIRED"
    answer = world.guard(body)
    assert status(answer) == ("APPROVAL_REQUIRED", "pending", "halted")
    assert shown(world, answer).reasons == ["halted"]
    decide(world, answer["approval_id"])
    refused = world.guard(body)
    assert (status(refused), "permit_token" in refused) == (("DENY", "denied", "halted"), False)
    lift_halt(world.console_pool, local_administrator(world.tenant_id), halted, reason="over")
    assert "permit_token" in world.guard(asks(body))
    assert world.broken_invariants() == []


def test_under_a_halt_the_policys_own_reasons_are_asked_about_too(world: World) -> None:
    halt(world)
    answer = world.guard(asks(guard_body(value=200), "blacklisted"))
    assert shown(world, answer).reasons == ["halted", "blacklisted", "amount_needs_approval"]


def test_under_a_halt_everything_that_asks_for_nobody_is_denied_for_good_as_ever(world: World) -> None:
    halt(world)
    bodies = {
        "no escalation": asks(guard_body()),
        "needs a person anyway": asks(guard_body(value=200)),
        "a system that is not ready": asks(guard_body(), ready=False),
        "a denial of the policy": asks(guard_body(value=1001), "blacklisted"),
        "an action that no policy covers": asks(guard_body(action="unknown.action"), "blacklisted"),
        "a policy that knows no escalation": asks(guard_body(action="gift_card.issue"), "blacklisted"),
    }
    assert {name: status(world.guard(body)) for name, body in bodies.items()} == dict.fromkeys(
        bodies, ("DENY", "denied", "halted")
    )
    assert world.one("select count(*) from sentinel.approvals") == 0


def test_under_a_halt_a_second_key_for_the_same_refund_is_still_a_duplicate(world: World) -> None:
    body = guard_body()
    world.guard(body)
    halt(world)
    other = asks(guard_body(params={"refund_id": body["params"]["refund_id"]}), "halted")
    assert status(world.guard(other)) == ("DENY", "denied", "duplicate_resource")
    assert world.broken_invariants() == []


def paid_under_a_halt(world: World) -> bool:
    """Whether asking for a person is a way around a halt."""
    halt(world)
    body = asks(guard_body(), "halted")
    answer = world.guard(body)
    if "permit_token" in answer or answer["status"] != "pending":
        return True
    decide(world, answer["approval_id"])
    return "permit_token" in world.guard(body)


def test_asking_for_a_person_is_no_way_around_a_halt(world: World) -> None:
    assert not paid_under_a_halt(world)


def test_twin_whose_approval_lifts_the_halt_is_caught(database_url: str) -> None:
    world = make_world(database_url)
    try:
        twins.cut(world, "sentinel.replay",
                  "if sentinel.halt_over(ask.tenant_id, ask.agent_id, ask.action, ask.scenario) is not null then", "if false then")  # fmt: skip
        assert paid_under_a_halt(world)
    finally:
        world.close()
