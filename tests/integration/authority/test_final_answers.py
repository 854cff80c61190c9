"""A person's "not executed" is final: no start says go after it, and it cannot be said while somebody may act (G52)."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from sentinel.authority.housekeeping import run_housekeeping
from sentinel.core.errors import SentinelError, StillActing
from tests import mutants
from tests.support.fixtures import Fixtures, four_keys, guard_body, start_body
from tests.support.harness import let_leave_end, refused
from tests.support.not_executed import PROBLEM, WAYS, Way, alone, begun, ended, go_aheads, say, says_go, state


def test_no_way_starts_what_was_resolved_not_executed(fixtures: Fixtures) -> None:
    assert go_aheads(fixtures) == 0
    print(f"N={2 * len(WAYS)} ways, 0 go-aheads")
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: way.__name__)
def test_each_start_is_refused_by_its_own_code(fixtures: Fixtures, way: Way) -> None:
    found = way(fixtures, *ended(fixtures))
    assert (found["status"], found["type"]) == (409, PROBLEM)
    prefix = "/api/haltstate/sentinel"
    body, answer, start_id = ended(fixtures)
    also = fixtures.post("action/guard/start", start_body(body, answer, start_id), prefix=prefix)
    assert (also.status_code, also.get_json()["type"]) == (409, PROBLEM)


def test_a_replay_shows_the_recorded_decision_and_who_ended_it(fixtures: Fixtures) -> None:
    body, answer, _ = ended(fixtures)
    found = fixtures.guard(body)
    assert (found["status"], found["outcome"], found["resolution"]) == ("completed", "error", "not_executed")
    assert found["proof_pack"] == answer["proof_pack"] and "permit_token" not in found and "start" not in found


def test_another_key_of_the_tenant_reads_it_too(fixtures: Fixtures) -> None:
    body, _, _ = ended(fixtures)
    stranger = fixtures.new_key()
    found = fixtures.post("action/guard", body, key=stranger).get_json()
    assert (found["status"], found["outcome"], found.get("resolution")) == ("completed", "error", "not_executed")
    assert "permit_token" not in found and "start" not in found
    fixtures.report(body)
    found = fixtures.post("action/guard", body, key=stranger).get_json()
    assert (found["outcome"], found.get("resolution")) == ("success", "not_executed"), "both words stand"
    say(fixtures, body, executed=True)
    found = fixtures.post("action/guard", body, key=stranger).get_json()
    assert (found["outcome"], "resolution" in found) == ("success", False)


def test_a_caller_without_a_start_step_is_refused_too(fixtures: Fixtures) -> None:
    body = four_keys(guard_body(value=40))
    fixtures.guard(body)
    run_housekeeping(fixtures.authority.pool, 0)
    assert refused(lambda: say(fixtures, body, executed=False)) == "still-acting", (
        "it got no time, so the authority's counts"
    )
    let_leave_end(fixtures)
    say(fixtures, body, executed=False)
    found = fixtures.post("action/guard", body)
    assert (found.status_code, found.get_json()["type"]) == (409, PROBLEM)


def test_mutant_whose_start_honours_it_is_caught(fixtures: Fixtures) -> None:
    """The start and the replay of before: they looked at the status alone."""
    mutants.cut(fixtures, "sentinel.judge_start", "s.not_executed_at is not null", "false")
    mutants.cut(fixtures, "sentinel.replay", "s.not_executed_at is not null", "false")
    mutants.cut(fixtures, "sentinel.extend_leave", "if s.status not in ('started', 'in_doubt') then", "if true then")
    assert go_aheads(fixtures) > 0


# While somebody may act


def test_not_executed_waits_for_the_declared_time_and_says_until_when(fixtures: Fixtures) -> None:
    body, *_ = begun(fixtures, act_within_seconds=40)
    with pytest.raises(StillActing) as told:
        say(fixtures, body, executed=False)
    left = told.value.act_until - fixtures.one("select clock_timestamp()")
    assert 30 < left.total_seconds() <= 40
    assert told.value.act_until.strftime("%Y-%m-%dT%H:%M:%SZ") in told.value.detail
    fixtures.admin.execute("update sentinel.operation_states set act_until = act_until - interval '41 seconds'")
    say(fixtures, body, executed=False)
    assert state(fixtures, body)["not_executed_at"] is not None


def test_executed_can_be_said_at_any_time(fixtures: Fixtures) -> None:
    body, *_ = begun(fixtures, act_within_seconds=3000)
    say(fixtures, body, executed=True)
    assert state(fixtures, body)["outcome"] == "success"


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: way.__name__)
def test_every_answered_start_moves_the_time_forward(fixtures: Fixtures, way: Way) -> None:
    body, answer, start_id = begun(fixtures)
    let_leave_end(fixtures)
    assert says_go(way(fixtures, body, answer, start_id))
    assert refused(lambda: say(fixtures, body, executed=False)) == "still-acting"
    assert fixtures.broken_invariants() == []


def test_an_error_ends_the_attempt_and_a_start_answered_after_it_begins_another(fixtures: Fixtures) -> None:
    body, answer, start_id = begun(fixtures, act_within_seconds=3000)
    fixtures.report(body, "error")
    assert says_go(alone(fixtures, body, answer, start_id))
    assert refused(lambda: say(fixtures, body, executed=False)) == "still-acting"
    body, *_ = begun(fixtures, act_within_seconds=3000)
    fixtures.report(body, "error")
    say(fixtures, body, executed=False)
    assert fixtures.broken_invariants() == []


def test_a_declared_time_is_bounded(fixtures: Fixtures) -> None:
    body = guard_body(value=1)
    answer = fixtures.guard(body)
    for seconds in (0, -1, 3601, 100_000, "60", 1.5, True):
        found = fixtures.post("action/guard/start", {**start_body(body, answer), "act_within_seconds": seconds})
        assert (found.status_code, list(found.get_json()["errors"])) == (400, ["act_within_seconds"]), seconds
        asked = {**guard_body(value=1), "start_id": str(uuid.uuid4()), "act_within_seconds": seconds}
        assert fixtures.post("action/guard", asked).status_code == 400
    assert (
        fixtures.post("action/guard/start", {**start_body(body, answer), "act_within_seconds": 3600}).status_code == 200
    )


def test_the_database_itself_keeps_the_two_apart(fixtures: Fixtures) -> None:
    """Whatever a function says: a time to act past "not executed" is no row."""
    body, *_ = ended(fixtures)
    operation = state(fixtures, body)["operation_id"]
    with pytest.raises(psycopg.errors.CheckViolation, match="not_executed_is_final"):
        fixtures.admin.execute(
            "update sentinel.operation_states set act_until = clock_timestamp() where operation_id = %s", [operation]
        )
    with pytest.raises(psycopg.errors.CheckViolation, match="not_executed_was_started"):
        fixtures.admin.execute(
            "update sentinel.operation_states set status = 'started' where operation_id = %s", [operation]
        )
    with fixtures.as_role("sentinel_authority") as authority, pytest.raises(psycopg.errors.InsufficientPrivilege):
        authority.execute("update sentinel.operation_states set not_executed_at = null")


def test_refusals_are_ours() -> None:
    assert issubclass(StillActing, SentinelError)
