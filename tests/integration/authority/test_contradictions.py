"""A success that is reported after "not executed": recorded, held and halted, until a person has looked (G52)."""

from __future__ import annotations

import uuid

import pytest

from sentinel.authority.halts import list_halts
from tests.support.not_executed import PROBLEM, WAYS, alone, begun, ended, lift_all, say, says_go, state
from tests.support.world import ACTION, AGENT, World, guard_body, unique


def test_a_success_after_it_is_a_contradiction_that_holds_and_halts(world: World) -> None:
    body, _, _ = ended(world)
    first = world.report(body, result={"id": "tx"})
    told = first.get_json()
    assert (first.status_code, told["received"], told["duplicate"], told["contradiction"]) == (200, True, False, True)
    assert world.report(body, result={"id": "tx"}).get_json() == {**told, "duplicate": True}
    assert world.report(body, "error").status_code == 409
    event = world.one("select body::jsonb from sentinel.events where event_id = %s", told["receipt_event_id"])
    assert (event["event"], event["outcome"], event["agent_id"]) == ("contradiction", "success", AGENT)
    assert (
        world.one("select hash from sentinel.events where event_id = %s", told["receipt_event_id"])
        == told["receipt_hash"]
    )
    now = state(world, body)
    assert (now["status"], now["in_doubt_reason"], now["once_live"]) == ("in_doubt", "contradiction", True)
    assert world.one("select array_agg(state) from sentinel.reservations") == ["held"]
    assert world.one("select max(held_minor) from sentinel.usage") == 4000
    (halt,) = list_halts(world.console_pool, world.tenant_id)
    assert (halt.scope, halt.target, halt.level) == ("agent_action", f"{AGENT} {ACTION}", "kill")
    assert world.broken_invariants() == []


def test_the_halt_covers_that_action_of_that_agent_until_a_person_lifts_it(world: World) -> None:
    body, answer, start_id = ended(world)
    before = guard_body(value=1)
    permit = world.guard(before)
    world.report(body)
    assert world.guard(guard_body(value=1))["reason_code"] == "halted"
    assert world.start(before, permit).status_code == 403
    assert world.guard(guard_body(value=1, agent_id="another-agent"))["decision"] == "ALLOW"
    assert world.guard(guard_body(value=1, action="refund.create.other"))["reason_code"] != "halted"
    lift_all(world)
    assert world.guard(guard_body(value=1))["decision"] == "ALLOW"
    assert alone(world, body, answer, start_id)["type"] == PROBLEM, "what was said stays said"


@pytest.mark.parametrize("executed, left", [(True, ["captured"]), (False, ["released"])])
def test_a_person_ends_the_contradiction_and_nothing_starts_after_it(
    world: World, executed: bool, left: list[str]
) -> None:
    body, answer, start_id = ended(world)
    said_at = state(world, body)["not_executed_at"]
    world.report(body)
    say(world, body, executed=executed)
    now = state(world, body)
    assert (now["status"], now["outcome"], now["once_live"]) == (
        "completed",
        "success" if executed else "error",
        executed,
    )
    assert now["not_executed_at"] == said_at
    lift_all(world)
    assert world.one("select array_agg(state) from sentinel.reservations") == left
    assert sum(says_go(way(world, body, answer, start_id)) for way in WAYS) == 0
    assert world.report(body).get_json()["contradiction"] is True, "said again it is received again"
    assert world.broken_invariants() == []


def test_an_error_reported_first_does_not_hide_a_success(world: World) -> None:
    body, *_ = begun(world)
    world.report(body, "error")
    say(world, body, executed=False)
    assert world.report(body).get_json()["contradiction"] is True
    assert state(world, body)["in_doubt_reason"] == "contradiction"
    assert world.broken_invariants() == []


def test_where_its_room_and_its_once_key_are_gone_it_is_held_beside_them(world: World) -> None:
    account = unique("acct")
    body, start_id = guard_body(value=150, params={"account_ref": account}), str(uuid.uuid4())
    answer = world.guard({**body, "start_id": start_id})
    assert answer["start"]
    world.report(body, "error")
    say(world, body, executed=False)
    again = guard_body(value=150, params={"account_ref": account, "refund_id": body["params"]["refund_id"]})
    assert world.guard(again)["decision"] == "ALLOW", "the freed refund goes under another key"
    assert world.guard(guard_body(value=150, params={"account_ref": account}))["decision"] == "ALLOW"
    full = world.guard(guard_body(value=150, params={"account_ref": account}))
    assert full["decision"] != "ALLOW", "the day is full"
    assert world.report(body).get_json()["contradiction"] is True
    assert state(world, body)["once_live"] is False
    assert world.one("select once_held from sentinel.contradictions") is False
    assert world.one("select max(override_held_minor) from sentinel.usage") == 15000
    assert world.broken_invariants() == []
    say(world, body, executed=True)
    assert world.one("select max(override_captured_minor) from sentinel.usage") == 15000
    assert world.broken_invariants() == []


def test_a_batch_of_reports_keeps_its_neighbours(world: World) -> None:
    body, *_ = ended(world)
    other, answer = guard_body(value=1), None
    answer = world.guard(other)
    world.start(other, answer)
    requests = [
        {name: one[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
        for one in (body, other, body)
    ]
    found = [
        one["body"] for one in world.post("action/guard/report/batch", {"requests": requests}).get_json()["answers"]
    ]
    assert [one.get("contradiction", False) for one in found] == [True, False, True]
    assert [one["duplicate"] for one in found] == [False, False, True]
    assert world.broken_invariants() == []
