"""A person's "not executed" is final: no start says go after it, and it cannot be said while somebody may act (G52)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from sentinel.core.errors import SentinelError, StillActing
from sentinel.services.lift_halt import lift_halt
from sentinel.services.resolve_in_doubt import resolve_in_doubt
from sentinel.store.halts import list_halts
from sentinel.store.housekeeping import keep_house
from tests import twins
from tests.harness import actor, at_once, let_leave_end, refused, scaled, seeded
from tests.world import ACTION, AGENT, World, four_keys, guard_body, start_body, unique

Body = dict[str, Any]
Way = Callable[[World, Body, Body, str], Any]
PROBLEM = "urn:sentinel:problem:resolved-not-executed"


def say(world: World, body: Body, *, executed: bool) -> None:
    """An administrator says what became of it."""
    operation = world.one(
        "select operation_id from sentinel.operations where idempotency_key = %s", body["idempotency_key"]
    )
    resolve_in_doubt(world.console_pool, actor(world, "admin"), operation, executed=executed, evidence="looked it up")


def lift_all(world: World) -> None:
    """A person has looked."""
    for halt in list_halts(world.console_pool, world.tenant_id):
        lift_halt(world.console_pool, actor(world, "admin"), halt.halt_id, reason="found out")


def state(world: World, body: Body) -> Body:
    """The operation's state."""
    return dict(world.one(
        "select to_jsonb(s) from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)"
        " where o.idempotency_key = %s", body["idempotency_key"]))  # fmt: skip


def begun(world: World, **over: Any) -> tuple[Body, Body, str]:
    """(request, answer with its permit, start id) of an operation that was started and fell in doubt."""
    body, start_id = guard_body(value=40, params={"account_ref": unique("acct")}), str(uuid.uuid4())
    answer = world.guard(body)
    assert world.post("action/guard/start", {**start_body(body, answer, start_id), **over}).status_code == 200
    keep_house(world.authority.pool, 0)
    return body, answer, start_id


def ended(world: World) -> tuple[Body, Body, str]:
    """The same, and a person said "not executed"."""
    body, answer, start_id = begun(world)
    let_leave_end(world)
    say(world, body, executed=False)
    return body, answer, start_id


def alone(world: World, body: Body, answer: Body, start_id: str) -> Any:
    return world.post("action/guard/start", start_body(body, answer, start_id)).get_json()


def in_a_batch(world: World, body: Body, answer: Body, start_id: str) -> Any:
    other = guard_body(value=1)
    fine = start_body(other, world.guard(other))
    found = world.post(
        "action/guard/start/batch", {"requests": [fine, start_body(body, answer, start_id)]}
    ).get_json()["answers"]  # fmt: skip
    assert found[0]["body"]["started"] is True, "the neighbour is started"
    return found[1]["body"]


def enclosed(world: World, body: Body, answer: Body, start_id: str) -> Any:
    return world.post("action/guard", {**body, "start_id": start_id}).get_json()


def enclosed_in_a_batch(world: World, body: Body, answer: Body, start_id: str) -> Any:
    requests = [{**body, "start_id": start_id}, guard_body(value=1)]
    return world.post("action/guard/batch", {"requests": requests}).get_json()["answers"][0]["body"]


def replayed(world: World, body: Body, answer: Body, start_id: str) -> Any:
    return world.guard(body)


WAYS: list[Way] = [alone, in_a_batch, enclosed, enclosed_in_a_batch, replayed]


def says_go(found: Any) -> bool:
    """Whether a caller could act on this answer."""
    return bool(found.get("started") or "start" in found or "permit_token" in found)


def go_aheads(world: World) -> int:
    """The checker: how many of all ways, by the same start id and by others, get a go-ahead after "not executed"."""
    body, answer, start_id = ended(world)
    asked = [(way, one) for way in WAYS for one in (start_id, str(uuid.uuid4()))]
    return sum(says_go(way(world, body, answer, one)) for way, one in asked)


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


# A success that comes all the same


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


# Races


@contextmanager
def row_held(world: World, body: Body) -> Iterator[threading.Event]:
    """The operation's row locked until the event is set: who comes after queues, in an order the test chooses."""
    let_go = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with psycopg.connect(world.url) as other:
            other.execute("select from sentinel.operation_states where operation_id = %s for update", [
                state(world, body)["operation_id"]])  # fmt: skip
            held.set()
            let_go.wait(30)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(10)
    try:
        yield let_go
    finally:
        let_go.set()
        thread.join(10)


def waiting(world: World) -> int:
    """How many sessions wait for a lock."""
    return int(
        world.one(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
    )


@pytest.mark.parametrize("first", ["start", "resolve"])
def test_of_a_start_and_not_executed_at_once_the_first_binds_the_second(world: World, first: str) -> None:
    """Both wait at the row; whichever has it first, never are both answered with yes."""
    body, answer, start_id = begun(world)
    let_leave_end(world)
    jobs: dict[str, Callable[[], Any]] = {
        "start": lambda: alone_in_a_thread(world, body, answer, start_id),
        "resolve": lambda: refused(lambda: say(world, body, executed=False)),
    }
    order = [first, *(name for name in jobs if name != first)]
    results: dict[str, Any] = {}
    threads = []
    with row_held(world, body) as let_go:
        for queued, name in enumerate(order, start=1):
            thread = threading.Thread(target=lambda name=name: results.update({name: jobs[name]()}), daemon=True)
            thread.start()
            threads.append(thread)
            until = time.monotonic() + 10
            while waiting(world) < queued:
                assert time.monotonic() < until
                time.sleep(0.01)
        let_go.set()
        for thread in threads:
            thread.join(20)
    if first == "start":
        assert says_go(results["start"]) and results["resolve"] == "still-acting"
    else:
        assert results["resolve"] == "" and results["start"]["type"] == PROBLEM
    assert world.broken_invariants() == []


def alone_in_a_thread(world: World, body: Body, answer: Body, start_id: str) -> Any:
    return world.app.test_client().post(
        "/api/sentinel/action/guard/start", json=start_body(body, answer, start_id), headers={"X-API-Key": world.key}
    ).get_json()  # fmt: skip


def test_starts_reports_and_words_at_once_never_say_go_after_not_executed(world: World) -> None:
    number = scaled(20)
    dice = seeded(52, number)
    for _ in range(number):
        body, answer, start_id = begun(world)
        let_leave_end(world)
        headers = {"X-API-Key": world.key}
        fields = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}

        def start(body: Body = body, answer: Body = answer, start_id: str = start_id) -> Any:
            return says_go(alone_in_a_thread(world, body, answer, start_id))

        def word(body: Body = body) -> str:
            return refused(lambda: say(world, body, executed=False))

        def report(fields: Body = fields) -> Any:
            client = world.app.test_client()
            return client.post(
                "/api/sentinel/action/guard/report", json={**fields, "outcome": "success"}, headers=headers
            ).status_code

        jobs: list[Callable[[], Any]] = [start, start, word, word, report]
        dice.shuffle(jobs)
        results = dict(zip([id(job) for job in jobs], at_once(jobs), strict=True))
        assert not any(isinstance(one, BaseException) for one in results.values()), results
        assert not says_go(alone(world, body, answer, start_id)) or state(world, body)["not_executed_at"] is None
        assert results[id(report)] == 200, "a success is always received"
        lift_all(world)
    print(f"N={number} rounds")
    assert world.broken_invariants() == []


def test_refusals_are_ours() -> None:
    assert issubclass(StillActing, SentinelError)
