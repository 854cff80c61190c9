"""Starts, reports and a person's "not executed" at once: whatever comes first binds the others (G52)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from sentinel.core.errors import StillDeciding
from tests.support.fixtures import Fixtures, guard_body, start_body
from tests.support.harness import actor, at_once, let_leave_end, refused, scaled, seeded
from tests.support.ledger_fixtures import wait_until
from tests.support.not_executed import PROBLEM, Body, alone, begun, lift_all, say, says_go, state

pytestmark = pytest.mark.usefixtures("patient")


@contextmanager
def row_held(
    fixtures: Fixtures, body: Body, last: Callable[[psycopg.Connection[Any]], object] = lambda _: None
) -> Iterator[threading.Event]:
    """The operation's row locked until the event is set: who comes after queues, in an order the test chooses. `last` is done before
    the end of the transaction that holds it."""
    let_go = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with psycopg.connect(fixtures.url) as other:
            other.execute("select from sentinel.operation_states where operation_id = %s for update", [
                state(fixtures, body)["operation_id"]])  # fmt: skip
            held.set()
            let_go.wait(120)
            last(other)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(60)
    try:
        yield let_go
    finally:
        let_go.set()
        thread.join(60)


def waiting(fixtures: Fixtures) -> int:
    """How many sessions wait for a lock."""
    return int(
        fixtures.one(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
    )


@pytest.mark.parametrize("first", ["start", "resolve"])
def test_of_a_start_and_not_executed_at_once_the_first_binds_the_second(fixtures: Fixtures, first: str) -> None:
    """Both wait at the row; whichever has it first, never are both answered with yes."""
    for _ in range(3):
        results = both_at_the_row(fixtures, first)
        # Who stood still in the queue for longer than one waits for a lock is told to come back.
        if results["resolve"] != StillDeciding.code and not str(results["start"].get("type")).endswith(
            StillDeciding.code
        ):
            break
    if first == "start":
        assert says_go(results["start"]) and results["resolve"] == "still-acting"
    else:
        assert results["resolve"] == "" and results["start"]["type"] == PROBLEM
    assert fixtures.broken_invariants() == []


def both_at_the_row(fixtures: Fixtures, first: str) -> dict[str, Any]:
    """What a start and a person's "not executed" are answered that wait for the same row, the `first` of them before the other."""
    body, answer, start_id = begun(fixtures)
    let_leave_end(fixtures)
    jobs: dict[str, Callable[[], Any]] = {
        "start": lambda: alone_in_a_thread(fixtures, body, answer, start_id),
        "resolve": lambda: refused(lambda: say(fixtures, body, executed=False)),
    }
    order = [first, *(name for name in jobs if name != first)]
    results: dict[str, Any] = {}
    threads = []
    with row_held(fixtures, body) as let_go:
        for queued, name in enumerate(order, start=1):
            thread = threading.Thread(target=lambda name=name: results.update({name: jobs[name]()}), daemon=True)
            thread.start()
            threads.append(thread)
            # Who came before may have given the lock up meanwhile.
            wait_until(lambda queued=queued: waiting(fixtures) >= queued or len(results) > 0, 60)
        let_go.set()
        for thread in threads:
            thread.join(60)
    return results


def alone_in_a_thread(fixtures: Fixtures, body: Body, answer: Body, start_id: str) -> Any:
    return fixtures.app.test_client().post(
        "/api/sentinel/action/guard/start", json=start_body(body, answer, start_id), headers={"X-API-Key": fixtures.key}
    ).get_json()  # fmt: skip


def test_starts_reports_and_decisions_at_once_never_say_go_after_not_executed(fixtures: Fixtures) -> None:
    number = scaled(20)
    dice = seeded(52, number)
    for _ in range(number):
        body, answer, start_id = begun(fixtures)
        let_leave_end(fixtures)
        headers = {"X-API-Key": fixtures.key}
        fields = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}

        def start(body: Body = body, answer: Body = answer, start_id: str = start_id) -> Any:
            return says_go(alone_in_a_thread(fixtures, body, answer, start_id))

        def resolve(body: Body = body) -> str:
            return refused(lambda: say(fixtures, body, executed=False))

        def report(fields: Body = fields) -> Any:
            client = fixtures.app.test_client()
            return client.post(
                "/api/sentinel/action/guard/report", json={**fields, "outcome": "success"}, headers=headers
            ).status_code

        jobs: list[Callable[[], Any]] = [start, start, resolve, resolve, report]
        dice.shuffle(jobs)
        results = list(zip(jobs, at_once(jobs), strict=True))
        assert not any(isinstance(said, BaseException) for _, said in results), results
        went, ended = ((start, True) in results, (resolve, "") in results)
        assert not (went and ended), "whoever goes has leave to act, in which nobody says that it was not executed"
        assert not says_go(alone(fixtures, body, answer, start_id)) or state(fixtures, body)["not_executed_at"] is None
        assert (report, 200) in results, "a success is always received"
        lift_all(fixtures)
    print(f"N={number} rounds")
    assert fixtures.broken_invariants() == []


def test_a_start_that_waited_for_the_vote_that_permits_it_is_dated_after_it(fixtures: Fixtures) -> None:
    for _ in range(3):
        found = asked_behind_its_vote(fixtures)
        # Who stood still behind the vote for longer than one waits for a lock is told to come back.
        if found["type"] != "urn:sentinel:problem:still-deciding":
            break
    assert found["start"], found
    assert fixtures.one(
        "select s.started_at >= a.decided_at from sentinel.operation_states s join sentinel.approvals a using (approval_id)"
        " where s.started_at is not null"
    )
    assert fixtures.broken_invariants() == []


def asked_behind_its_vote(fixtures: Fixtures) -> dict[str, Any]:
    """What a question with a start is answered that waits for the vote which permits it; "type" is a refusal's."""
    body = guard_body(value="200.00")
    asked = fixtures.guard(body)
    approver = actor(fixtures, "approver").operator_id
    found: dict[str, Any] = {}

    def vote(connection: psycopg.Connection[Any]) -> None:
        digest = fixtures.one("select digest from sentinel.approvals where approval_id = %s", asked["approval_id"])
        connection.execute(
            "select sentinel.resolve_approval(%s, %s, %s, 'approve', 'looked', %s, 'console', gen_random_uuid(), gen_random_uuid())",
            [fixtures.tenant_id, asked["approval_id"], approver, digest],
        )

    def ask() -> None:
        answer = fixtures.post("action/guard", {**body, "start_id": str(uuid.uuid4())})
        found.update({"type": "", **answer.get_json()})

    with row_held(fixtures, body, vote) as let_go:
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        wait_until(lambda: waiting(fixtures) or found, 60)
        let_go.set()
        asking.join(60)
    return found
