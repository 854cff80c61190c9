"""Callers without a start step: handing out the permit is the start."""

from __future__ import annotations

from tests.harness import at_once, decide
from tests.world import World, four_keys, guard_body


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
