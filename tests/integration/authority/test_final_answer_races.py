"""Starts, reports and a person's "not executed" at once: whatever comes first binds the others (G52)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support.harness import at_once, let_leave_end, refused, scaled, seeded
from tests.support.not_executed import PROBLEM, Body, alone, begun, lift_all, say, says_go, state
from tests.support.world import World, start_body


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
