"""A success that is reported after "not executed": recorded, held and halted, until a person has looked (G52)."""

from __future__ import annotations

import uuid

import pytest

from sentinel.authority.halts import list_halts
from tests.support.fixtures import ACTION, AGENT, Fixtures, guard_body, unique
from tests.support.not_executed import PROBLEM, WAYS, alone, begun, ended, lift_all, say, says_go, state


def test_a_success_after_it_is_a_contradiction_that_holds_and_halts(fixtures: Fixtures) -> None:
    body, _, _ = ended(fixtures)
    first = fixtures.report(body, result={"id": "tx"})
    told = first.get_json()
    assert (first.status_code, told["received"], told["duplicate"], told["contradiction"]) == (200, True, False, True)
    assert fixtures.report(body, result={"id": "tx"}).get_json() == {**told, "duplicate": True}
    assert fixtures.report(body, "error").status_code == 409
    event = fixtures.one("select body::jsonb from sentinel.events where event_id = %s", told["receipt_event_id"])
    assert (event["event"], event["outcome"], event["agent_id"]) == ("contradiction", "success", AGENT)
    assert (
        fixtures.one("select hash from sentinel.events where event_id = %s", told["receipt_event_id"])
        == told["receipt_hash"]
    )
    now = state(fixtures, body)
    assert (now["status"], now["in_doubt_reason"], now["once_live"]) == ("in_doubt", "contradiction", True)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == ["held"]
    assert fixtures.one("select max(held_minor) from sentinel.usage") == 4000
    (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
    assert (halt.scope, halt.target, halt.level) == ("agent_action", f"{AGENT} {ACTION}", "kill")
    assert fixtures.broken_invariants() == []


def test_the_halt_covers_that_action_of_that_agent_until_a_person_lifts_it(fixtures: Fixtures) -> None:
    body, answer, start_id = ended(fixtures)
    before = guard_body(value=1)
    permit = fixtures.guard(before)
    fixtures.report(body)
    assert fixtures.guard(guard_body(value=1))["reason_code"] == "halted"
    assert fixtures.start(before, permit).status_code == 403
    assert fixtures.guard(guard_body(value=1, agent_id="another-agent"))["decision"] == "ALLOW"
    assert fixtures.guard(guard_body(value=1, action="refund.create.other"))["reason_code"] != "halted"
    lift_all(fixtures)
    assert fixtures.guard(guard_body(value=1))["decision"] == "ALLOW"
    assert alone(fixtures, body, answer, start_id)["type"] == PROBLEM, "what was said stays said"


@pytest.mark.parametrize("executed, left", [(True, ["captured"]), (False, ["released"])])
def test_a_person_ends_the_contradiction_and_nothing_starts_after_it(
    fixtures: Fixtures, executed: bool, left: list[str]
) -> None:
    body, answer, start_id = ended(fixtures)
    said_at = state(fixtures, body)["not_executed_at"]
    fixtures.report(body)
    say(fixtures, body, executed=executed)
    now = state(fixtures, body)
    assert (now["status"], now["outcome"], now["once_live"]) == (
        "completed",
        "success" if executed else "error",
        executed,
    )
    assert now["not_executed_at"] == said_at
    lift_all(fixtures)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == left
    assert sum(says_go(way(fixtures, body, answer, start_id)) for way in WAYS) == 0
    assert fixtures.report(body).get_json()["contradiction"] is True, "said again it is received again"
    assert fixtures.broken_invariants() == []


def test_an_error_reported_first_does_not_hide_a_success(fixtures: Fixtures) -> None:
    body, *_ = begun(fixtures)
    fixtures.report(body, "error")
    say(fixtures, body, executed=False)
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert state(fixtures, body)["in_doubt_reason"] == "contradiction"
    assert fixtures.broken_invariants() == []


def test_where_its_room_and_its_once_key_are_gone_it_is_held_beside_them(fixtures: Fixtures) -> None:
    account = unique("acct")
    body, start_id = guard_body(value=150, params={"account_ref": account}), str(uuid.uuid4())
    answer = fixtures.guard({**body, "start_id": start_id})
    assert answer["start"]
    fixtures.report(body, "error")
    say(fixtures, body, executed=False)
    again = guard_body(value=150, params={"account_ref": account, "refund_id": body["params"]["refund_id"]})
    assert fixtures.guard(again)["decision"] == "ALLOW", "the freed refund goes under another key"
    assert fixtures.guard(guard_body(value=150, params={"account_ref": account}))["decision"] == "ALLOW"
    full = fixtures.guard(guard_body(value=150, params={"account_ref": account}))
    assert full["decision"] != "ALLOW", "the day is full"
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert state(fixtures, body)["once_live"] is False
    assert fixtures.one("select once_held from sentinel.contradictions") is False
    assert fixtures.one("select max(override_held_minor) from sentinel.usage") == 15000
    assert fixtures.broken_invariants() == []
    say(fixtures, body, executed=True)
    assert fixtures.one("select max(override_captured_minor) from sentinel.usage") == 15000
    assert fixtures.broken_invariants() == []


def test_a_batch_of_reports_keeps_its_neighbours(fixtures: Fixtures) -> None:
    body, *_ = ended(fixtures)
    other, answer = guard_body(value=1), None
    answer = fixtures.guard(other)
    fixtures.start(other, answer)
    requests = [
        {name: one[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
        for one in (body, other, body)
    ]
    found = [
        one["body"] for one in fixtures.post("action/guard/report/batch", {"requests": requests}).get_json()["answers"]
    ]
    assert [one.get("contradiction", False) for one in found] == [True, False, True]
    assert [one["duplicate"] for one in found] == [False, False, True]
    assert fixtures.broken_invariants() == []
