"""What became of a start: doubt holds the budget, a person resolves it, a report is said once."""

from __future__ import annotations

import uuid

import pytest

from sentinel.authority.housekeeping import keep_house
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.core.errors import Conflict, Forbidden, NotFound
from tests.support.harness import actor, at_once, let_leave_end, let_permits_expire
from tests.support.lifecycle import Body
from tests.support.world import World, guard_body, make_world, start_body, unique


def started(world: World, value: int = 40) -> Body:
    body = guard_body(value=value, params={"account_ref": unique("acct")})
    world.start(body, world.guard(body))
    return body


def status(world: World, body: Body) -> tuple[str, str | None]:
    """(status, in_doubt_reason) of an operation."""
    row = world.admin.execute(
        "select s.status, s.in_doubt_reason from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)"
        " where o.idempotency_key = %s", [body["idempotency_key"]]).fetchone()  # fmt: skip
    assert row is not None
    return row[0], row[1]


def operation_of(world: World, body: Body) -> uuid.UUID:
    return uuid.UUID(
        str(
            world.one(
                "select operation_id from sentinel.operations where idempotency_key = %s", body["idempotency_key"]
            )
        )
    )


def budget(world: World) -> list[int]:
    """[held, captured] of the fullest limit, in minor units."""
    return list(world.one("select array[max(held_minor), max(captured_minor)] from sentinel.usage"))


def resolve(world: World, body: Body, *, executed: bool, role: str = "admin") -> None:
    resolve_in_doubt(
        world.console_pool, actor(world, role), operation_of(world, body), executed=executed, evidence="looked it up"
    )


def test_an_error_after_a_start_is_doubt_and_keeps_budget_and_uniqueness(world: World) -> None:
    body = started(world)
    assert world.report(body, "error", error="timeout").status_code == 200
    assert status(world, body) == ("in_doubt", "error_reported")
    assert budget(world) == [4000, 0]
    twin = guard_body(value=1, params={"refund_id": body["params"]["refund_id"]})
    assert world.guard(twin)["reason_code"] == "duplicate_resource"
    assert world.broken_invariants() == []


def test_silence_past_the_deadline_is_doubt_and_not_before(world: World) -> None:
    body = started(world)
    assert keep_house(world.authority.pool, 300).fell_in_doubt == 0
    assert status(world, body)[0] == "started"
    assert keep_house(world.authority.pool, 0).fell_in_doubt == 1
    assert status(world, body) == ("in_doubt", "no_report")
    assert budget(world) == [4000, 0]


@pytest.mark.parametrize("executed, left", [(True, [0, 4000]), (False, [0, 0])])
def test_resolving_doubt_captures_what_was_executed_and_frees_what_was_not(
    world: World, executed: bool, left: list[int]
) -> None:
    body = started(world)
    world.report(body, "error")
    resolve(world, body, executed=executed)
    assert status(world, body) == ("completed", None)
    assert budget(world) == left
    twin = guard_body(value=1, params={"refund_id": body["params"]["refund_id"]})
    assert world.guard(twin)["decision"] == ("DENY" if executed else "ALLOW")
    with pytest.raises(Conflict):
        resolve(world, body, executed=not executed)
    assert world.broken_invariants() == []


def test_only_an_administrator_resolves_and_only_what_is_in_doubt(world: World) -> None:
    body = started(world)
    with pytest.raises(Conflict):
        resolve(world, body, executed=False)
    world.report(body, "error")
    with pytest.raises(Forbidden):
        resolve(world, body, executed=False, role="approver")
    with pytest.raises(NotFound):
        resolve_in_doubt(world.console_pool, actor(world, "admin"), uuid.uuid4(), executed=True, evidence="")
    assert status(world, body)[0] == "in_doubt"


def test_a_late_success_after_silence_ends_the_doubt(world: World) -> None:
    body = started(world)
    keep_house(world.authority.pool, 0)
    assert world.report(body).status_code == 200
    assert status(world, body) == ("completed", None)
    assert budget(world) == [0, 4000]
    assert world.broken_invariants() == []


@pytest.mark.parametrize(
    "executed, told, code",
    [(True, "success", 200), (False, "error", 200), (True, "error", 409)],
)
def test_a_late_report_must_agree_with_what_a_person_found_out(
    world: World, executed: bool, told: str, code: int
) -> None:
    """A success after "not executed" is another matter: see test_contradictions.py."""
    body = started(world)
    keep_house(world.authority.pool, 0)
    let_leave_end(world)
    resolve(world, body, executed=executed)
    before = budget(world)
    assert world.report(body, told).status_code == code
    assert budget(world) == before
    assert status(world, body) == ("completed", None)
    assert world.broken_invariants() == []


def test_a_report_repeated_exactly_gets_the_original_receipt_and_a_contradicting_one_is_refused(world: World) -> None:
    body = started(world)
    first = world.report(body, result={"id": "tx_1"}).get_json()
    again = world.report(body, result={"id": "tx_1"}).get_json()
    assert first["duplicate"] is False
    assert again == first | {"duplicate": True}
    for other in (world.report(body, result={"id": "tx_2"}), world.report(body, "error"), world.report(body)):
        assert (other.status_code, other.get_json()["type"]) == (409, "urn:sentinel:problem:report-contradicts")
    assert budget(world) == [0, 4000]
    assert world.broken_invariants() == []


def test_concurrent_contradicting_reports_record_one(world: World) -> None:
    body = started(world)
    fields = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}
    answers = at_once([
        lambda told=told: world.app.test_client().post(
            "/api/sentinel/action/guard/report", json={**fields, "outcome": told}, headers={"X-API-Key": world.key}).status_code
        for told in ["success", "error"] * 6
    ])  # fmt: skip
    assert sorted(answers) == [200] * 6 + [409] * 6  # type: ignore[type-var]
    assert world.broken_invariants() == []


def test_a_report_needs_a_start_and_matches_key_action_and_agent(world: World) -> None:
    body = guard_body(value=40)
    assert world.report(body).status_code == 403, "nothing was guarded"
    answer = world.guard(body)
    assert world.report(body).status_code == 409, "nothing was started"
    world.start(body, answer)
    assert world.report(body | {"agent_id": "another-agent"}).status_code == 403
    assert world.report(body | {"action": "refund.create2"}).status_code == 403
    assert world.report(body, resource="refund/other").status_code == 403
    assert world.report(body, risk_class="high").status_code == 403
    token = answer["permit_token"]
    assert world.report(body, permit_token=token[:-2] + ("AA" if token[-2:] != "AA" else "BB")).status_code == 403
    assert (
        world.report(
            body, permit_token=token, resource=answer["resource"], risk_class="standard", report_id=str(uuid.uuid4())
        ).status_code
        == 200
    )
    assert world.broken_invariants() == []


def test_a_report_of_an_abandoned_permit_does_not_capture(database_url: str) -> None:
    world = make_world(database_url)
    try:
        body = guard_body(value=40)
        old = world.guard(body)
        let_permits_expire(world)
        new = world.guard(body)
        world.post("action/guard/start", start_body(body, new))
        assert world.report(body, permit_token=old["permit_token"]).status_code == 403
        assert world.report(body, permit_token=new["permit_token"]).status_code == 200
        assert world.broken_invariants() == []
    finally:
        world.close()
