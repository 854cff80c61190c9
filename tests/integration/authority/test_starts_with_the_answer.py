"""Starts in the commit that gives the answer: callers without a start step, and those that name a start id."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.api.guard import GUARD, to_operation
from sentinel.authority.guard import decided_row
from sentinel.authority.halts import lift_halt, set_halt
from tests import mutants
from tests.support.commits import record_decisions
from tests.support.fixtures import Fixtures, four_keys, guard_body
from tests.support.harness import at_once, caller_of, decide, let_permits_expire

pytestmark = pytest.mark.usefixtures("patient")


def test_handing_out_the_permit_is_the_start_for_callers_without_a_start_step(fixtures: Fixtures) -> None:
    body = four_keys(guard_body(value=40))
    first = fixtures.guard(body)
    assert (first["status"], first["resource"], first["risk_class"]) == ("allowed", body["action"], "standard")
    assert fixtures.one("select status from sentinel.operation_states") == "started"
    again = fixtures.guard(body)
    assert (again["status"], "permit_token" in again) == ("already_started", False)
    assert fixtures.report(body).status_code == 200
    done = fixtures.guard(body)
    assert (done["status"], done["outcome"]) == ("completed", "success")
    assert fixtures.one("select max(captured_minor) from sentinel.usage") == 4000
    assert fixtures.broken_invariants() == []


def test_a_row_that_is_sent_again_gets_its_first_answer_unless_a_halt_came_between(fixtures: Fixtures) -> None:
    """A connection that is lost after its commit costs nobody the permission; what a halt came over stays in doubt."""
    for body in (four_keys(guard_body(value=40)), with_start(guard_body(value=40))):
        asked = GUARD.of_object(body)
        row = decided_row(
            fixtures.authority, caller_of(fixtures), to_operation(asked, asked.idempotency_key),
            has_start_step=asked.has_start_step, start_id=asked.start_id, elapsed_ms=0, act_seconds=60,
        )  # fmt: skip
        (first,) = record_decisions(fixtures.authority.pool, [row])
        fixtures.admin.execute("update sentinel.operation_states set act_until = now()")
        (again,) = record_decisions(fixtures.authority.pool, [row])
        assert again == first and (again.result, again.status) == ("decided", "allowed")
        assert fixtures.one("select act_until > now() from sentinel.operation_states where operation_id = %s", first.operation_id)  # fmt: skip
        halted = set_halt(
            fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill"
        )
        (late,) = record_decisions(fixtures.authority.pool, [row])
        assert (late.result, late.status, late.permit_id) == ("replayed", "already_started", None)
        lift_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), halted.halt_id, reason="over")
    assert fixtures.broken_invariants() == []


def test_concurrent_callers_without_a_start_step_get_one_permit(fixtures: Fixtures) -> None:
    body = four_keys(guard_body(value=40))
    headers = {"X-API-Key": fixtures.key}
    answers = at_once(
        [
            lambda: fixtures.app.test_client().post("/api/sentinel/action/guard", json=body, headers=headers).json
            for _ in range(16)
        ]
    )
    assert sum("permit_token" in answer for answer in answers) == 1  # type: ignore[operator]
    assert sorted({answer["status"] for answer in answers}) == ["allowed", "already_started"]  # type: ignore[index]


def test_an_approved_operation_starts_when_it_is_handed_out_without_a_start_step(fixtures: Fixtures) -> None:
    body = four_keys(guard_body(value=200))
    asked = fixtures.guard(body)
    decide(fixtures, asked["approval_id"])
    assert fixtures.guard(body)["status"] == "approved"
    assert fixtures.guard(body)["status"] == "already_started"
    assert fixtures.broken_invariants() == []


def with_start(body: dict[str, Any], start_id: str | None = None) -> dict[str, Any]:
    return {**body, "start_id": start_id or str(uuid.uuid4())}


def test_a_decision_is_before_its_start_in_the_feed(fixtures: Fixtures) -> None:
    for number in range(12):
        fixtures.guard(with_start(guard_body(f"alone-{number}", value=1)))
    at_once([lambda key=f"set-{n}": fixtures.guard(with_start(guard_body(key, value=1))) for n in range(24)])  # type: ignore[misc]
    fixtures.run_housekeeping()
    kinds = fixtures.admin.execute(
        "select array_agg(e.kind order by f.position) from sentinel.event_rows e join sentinel.feed f using (tenant_id, event_id)"
        " where e.operation_id is not null group by e.operation_id"
    ).fetchall()
    assert kinds == [(["decision", "start"],)] * 36


def started(fixtures: Fixtures) -> list[tuple[Any, ...]]:
    """Every start there is: its event, and the state that names it."""
    return fixtures.admin.execute(
        "select e.event_id::text, e.hash, s.start_id::text, e.body::jsonb ->> 'start_id', e.body::jsonb ->> 'permit_id' = s.permit_id::text"
        " from sentinel.events e join sentinel.operation_states s on s.operation_id = e.operation_id and s.start_event_id = e.event_id"
        " where e.kind = 'start' and e.hash = s.start_hash"
    ).fetchall()  # fmt: skip


def test_a_permission_is_started_under_the_start_id_of_its_question(fixtures: Fixtures) -> None:
    body = with_start(guard_body(value=40))
    answer = fixtures.guard(body)
    receipt = answer["start"]
    assert (answer["status"], receipt["started"], receipt["duplicate"]) == ("allowed", True, False)
    assert started(fixtures) == [
        (receipt["start_event_id"], receipt["start_hash"], body["start_id"], body["start_id"], True)
    ]
    assert fixtures.one("select sum(held_minor) from sentinel.usage where limit_key like '%%account_day%%'") == 4000
    # The same again, also as a separate start: the same receipt, and nothing more happens.
    again = fixtures.guard(body)
    assert (again["status"], again["start"]) == ("already_started", {**receipt, "duplicate": True})
    assert "permit_token" not in again
    assert fixtures.start(guard_body(body["idempotency_key"], value=40), answer, body["start_id"]).get_json() == {
        **receipt, "duplicate": True,
    }  # fmt: skip
    assert fixtures.report(guard_body(body["idempotency_key"], value=40)).status_code == 200
    done = fixtures.guard(body)
    assert (done["status"], done["outcome"], done["start"]["duplicate"]) == ("completed", "success", True)
    assert len(started(fixtures)) == 1
    assert fixtures.broken_invariants() == []


def test_another_start_id_learns_that_it_came_too_late(fixtures: Fixtures) -> None:
    body = with_start(guard_body(value=40))
    first = fixtures.guard(body)
    late = fixtures.guard(with_start(body))
    assert (late["status"], "start" in late, "permit_token" in late) == ("already_started", False, False)
    plain = {name: value for name, value in body.items() if name != "start_id"}
    assert "start" not in fixtures.guard(plain)
    assert fixtures.start(plain, first, str(uuid.uuid4())).status_code == 409
    assert len(started(fixtures)) == 1


def test_what_is_not_permitted_is_not_started(fixtures: Fixtures) -> None:
    denied, asked = with_start(guard_body(value=5000)), with_start(guard_body(value=200))
    assert (fixtures.guard(denied)["status"], fixtures.guard(asked)["status"]) == ("denied", "pending")
    set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    halted = fixtures.guard(with_start(guard_body(value=1)))
    assert (halted["decision"], halted["reason_code"], "start" in halted) == ("DENY", "halted", False)
    assert started(fixtures) == []


def test_an_approved_operation_starts_with_the_answer_unless_a_halt_covers_it(fixtures: Fixtures) -> None:
    body = with_start(guard_body(value=200))
    decide(fixtures, fixtures.guard(body)["approval_id"])
    halted = set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    assert "start" not in fixtures.guard(body)
    lift_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), halted.halt_id, reason="over")
    answer = fixtures.guard(body)
    assert (answer["status"], answer["start"]["duplicate"]) == ("approved", False)
    assert fixtures.guard(body)["start"] == {**answer["start"], "duplicate": True}
    assert len(started(fixtures)) == 1
    assert fixtures.broken_invariants() == []


def test_an_expired_permit_is_renewed_and_started_at_once(fixtures: Fixtures) -> None:
    plain = guard_body(value=40)
    first = fixtures.guard(plain)
    let_permits_expire(fixtures)
    answer = fixtures.guard(with_start(plain))
    assert (answer["status"], answer["start"]["duplicate"]) == ("allowed", False)
    assert answer["permit_token"] != first["permit_token"]
    assert fixtures.one("select sum(held_minor) from sentinel.usage where limit_key like '%%account_day%%'") == 4000
    assert fixtures.broken_invariants() == []


def several_starts(fixtures: Fixtures) -> int:
    """How many of 24 callers at once, each with a start id of its own, got a fresh receipt for the one operation."""
    plain, headers = guard_body(value=40), {"X-API-Key": fixtures.key}
    answers = at_once(
        [
            lambda: fixtures.app.test_client().post("/api/sentinel/action/guard", json=with_start(plain), headers=headers).json
            for _ in range(24)
        ]
    )  # fmt: skip
    return sum("start" in answer for answer in answers)  # type: ignore[operator]


def test_of_many_start_ids_at_once_one_starts(fixtures: Fixtures) -> None:
    assert several_starts(fixtures) == 1
    assert len(started(fixtures)) == 1


def test_mutant_that_gives_everybody_a_receipt_is_caught(fixtures: Fixtures) -> None:
    mutants.cut(fixtures, "sentinel.current_answer", "case when s.start_id = ask.start_id then", "case when true then")
    assert several_starts(fixtures) == 24


def test_a_start_id_that_is_none_is_refused_by_name(fixtures: Fixtures) -> None:
    refused = fixtures.post("action/guard", {**guard_body(), "start_id": "soon"})
    assert refused.status_code == 400
    assert "start_id" in refused.get_data(as_text=True)
    assert fixtures.one("select count(*) from sentinel.operations") == 0
