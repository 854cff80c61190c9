"""A person's "not executed" is final: no start says go after it, and it cannot be said while somebody may act (G52)."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from sentinel.authority.housekeeping import keep_house
from sentinel.core.errors import SentinelError, StillActing
from tests import twins
from tests.support.harness import let_leave_end, refused
from tests.support.not_executed import PROBLEM, WAYS, Way, alone, begun, ended, go_aheads, say, says_go, state
from tests.support.world import World, four_keys, guard_body, start_body


def test_no_way_starts_what_was_resolved_not_executed(world: World) -> None:
    assert go_aheads(world) == 0
    print(f"N={2 * len(WAYS)} ways, 0 go-aheads")
    assert world.broken_invariants() == []


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: way.__name__)
def test_each_start_is_refused_by_its_own_code(world: World, way: Way) -> None:
    found = way(world, *ended(world))
    assert (found["status"], found["type"]) == (409, PROBLEM)
    prefix = "/api/haltstate/sentinel"
    body, answer, start_id = ended(world)
    also = world.post("action/guard/start", start_body(body, answer, start_id), prefix=prefix)
    assert (also.status_code, also.get_json()["type"]) == (409, PROBLEM)


def test_a_replay_shows_the_recorded_decision_and_who_ended_it(world: World) -> None:
    body, answer, _ = ended(world)
    found = world.guard(body)
    assert (found["status"], found["outcome"], found["resolution"]) == ("completed", "error", "not_executed")
    assert found["proof_pack"] == answer["proof_pack"] and "permit_token" not in found and "start" not in found


def test_a_caller_without_a_start_step_is_refused_too(world: World) -> None:
    body = four_keys(guard_body(value=40))
    world.guard(body)
    keep_house(world.authority.pool, 0)
    assert refused(lambda: say(world, body, executed=False)) == "still-acting", (
        "it got no time, so the authority's counts"
    )
    let_leave_end(world)
    say(world, body, executed=False)
    found = world.post("action/guard", body)
    assert (found.status_code, found.get_json()["type"]) == (409, PROBLEM)


def test_twin_whose_start_honours_it_is_caught(world: World) -> None:
    """The start and the replay of before: they looked at the status alone."""
    twins.cut(world, "sentinel.start_operation", "s.not_executed_at is not null", "false")
    twins.cut(world, "sentinel.replay", "s.not_executed_at is not null", "false")
    twins.cut(world, "sentinel.extend_leave", "if s.status not in ('started', 'in_doubt') then", "if true then")
    assert go_aheads(world) > 0


# While somebody may act


def test_not_executed_waits_for_the_declared_time_and_says_until_when(world: World) -> None:
    body, *_ = begun(world, act_within_seconds=40)
    with pytest.raises(StillActing) as told:
        say(world, body, executed=False)
    left = told.value.act_until - world.one("select clock_timestamp()")
    assert 30 < left.total_seconds() <= 40
    assert told.value.act_until.strftime("%Y-%m-%dT%H:%M:%SZ") in told.value.detail
    world.admin.execute("update sentinel.operation_states set act_until = act_until - interval '41 seconds'")
    say(world, body, executed=False)
    assert state(world, body)["not_executed_at"] is not None


def test_executed_can_be_said_at_any_time(world: World) -> None:
    body, *_ = begun(world, act_within_seconds=3000)
    say(world, body, executed=True)
    assert state(world, body)["outcome"] == "success"


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: way.__name__)
def test_every_answered_start_moves_the_time_forward(world: World, way: Way) -> None:
    body, answer, start_id = begun(world)
    let_leave_end(world)
    assert says_go(way(world, body, answer, start_id))
    assert refused(lambda: say(world, body, executed=False)) == "still-acting"
    assert world.broken_invariants() == []


def test_an_error_ends_the_attempt_and_a_start_answered_after_it_begins_another(world: World) -> None:
    body, answer, start_id = begun(world, act_within_seconds=3000)
    world.report(body, "error")
    assert says_go(alone(world, body, answer, start_id))
    assert refused(lambda: say(world, body, executed=False)) == "still-acting"
    body, *_ = begun(world, act_within_seconds=3000)
    world.report(body, "error")
    say(world, body, executed=False)
    assert world.broken_invariants() == []


def test_a_declared_time_is_bounded(world: World) -> None:
    body = guard_body(value=1)
    answer = world.guard(body)
    for seconds in (0, -1, 3601, 100_000, "60", 1.5, True):
        found = world.post("action/guard/start", {**start_body(body, answer), "act_within_seconds": seconds})
        assert (found.status_code, list(found.get_json()["errors"])) == (400, ["act_within_seconds"]), seconds
        asked = {**guard_body(value=1), "start_id": str(uuid.uuid4()), "act_within_seconds": seconds}
        assert world.post("action/guard", asked).status_code == 400
    assert world.post("action/guard/start", {**start_body(body, answer), "act_within_seconds": 3600}).status_code == 200


def test_the_database_itself_keeps_the_two_apart(world: World) -> None:
    """Whatever a function says: a time to act past "not executed" is no row."""
    body, *_ = ended(world)
    operation = state(world, body)["operation_id"]
    with pytest.raises(psycopg.errors.CheckViolation, match="not_executed_is_final"):
        world.admin.execute(
            "update sentinel.operation_states set act_until = clock_timestamp() where operation_id = %s", [operation]
        )
    with pytest.raises(psycopg.errors.CheckViolation, match="not_executed_was_started"):
        world.admin.execute(
            "update sentinel.operation_states set status = 'started' where operation_id = %s", [operation]
        )
    with world.as_role("sentinel_authority") as authority, pytest.raises(psycopg.errors.InsufficientPrivilege):
        authority.execute("update sentinel.operation_states set not_executed_at = null")


def test_refusals_are_ours() -> None:
    assert issubclass(StillActing, SentinelError)
