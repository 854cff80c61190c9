"""Stopping is easy, letting go takes more; and what is in doubt ends by a person's word."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from sentinel.authority.halts import covering, list_halts


def test_an_approver_stops_and_an_administrator_lets_go(world: Any) -> None:
    app = world.app()
    ann, abe = world.person("ann", app=app), world.person("abe", "admin", app)
    halt_id = ann.post("/ops/api/halts", {"scope": "tenant", "reason": "something is off"}).json["halt_id"]
    assert world.guard("10.00").reason_code == "halted"
    assert ann.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "fine again"}).status_code == 403
    assert abe.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "fine again"}).status_code == 200
    assert world.guard("10.00").decision == "ALLOW"
    assert abe.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "again"}).status_code == 404
    assert [one["lifted_by"] for one in abe.get("/ops/api/halts?lifted=true").json["halts"]] == ["abe@demo.local"]
    assert abe.get("/ops/api/halts").json == {"halts": []}


def test_setting_the_same_halt_twice_leaves_one(world: Any) -> None:
    ann, body = world.person("ann"), {"scope": "agent", "target": "retail-refund-agent", "reason": "x"}
    first, second = (ann.post("/ops/api/halts", body) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json["halt_id"] == second.json["halt_id"]


def test_a_kill_takes_the_place_of_a_pause_and_not_the_other_way(world: Any) -> None:
    ann, body = world.person("ann"), {"scope": "tenant", "reason": "x"}
    ann.post("/ops/api/halts", {**body, "level": "pause"})
    assert covering(world.pool, world.tenant_id, "any-agent") == "PAUSE"
    assert ann.post("/ops/api/halts", body).status_code == 201
    assert covering(world.pool, world.tenant_id, "any-agent") == "KILL"
    assert ann.post("/ops/api/halts", {**body, "level": "pause"}).status_code == 200
    assert [halt.level for halt in list_halts(world.pool, world.tenant_id)] == ["kill"]
    assert len(list_halts(world.pool, world.tenant_id, lifted_too=True)) == 2


@pytest.mark.parametrize(
    ("scope", "target", "covered"),
    [("agent", "a", "KILL"), ("agent", "b", "OK"), ("action", "refund.*", "OK"), ("scenario", "standard", "OK")],
)
def test_a_heartbeat_mirrors_what_covers_the_whole_agent(world: Any, scope: str, target: str, covered: str) -> None:
    assert (
        world.person("ann").post("/ops/api/halts", {"scope": scope, "target": target, "reason": "x"}).status_code == 201
    )
    assert covering(world.pool, world.tenant_id, "a") == covered


@pytest.mark.parametrize(
    "body",
    [
        {"scope": "everything"}, {"scope": "agent"}, {"scope": "tenant", "target": "x"}, {"scope": "agent", "target": "a b"},
        {"scope": "agent", "target": "refund.*"}, {"scope": "action", "target": "*"}, {"scope": "tenant", "level": "gently"},
        {"scope": "tenant", "reason": ""}, {"scope": "agent", "target": "\u0430gent"},
    ],
)  # fmt: skip
def test_a_halt_that_is_not_clear_is_refused(world: Any, body: dict[str, str]) -> None:
    assert world.person("ann").post("/ops/api/halts", {"reason": "x", **body}).status_code == 400


def test_a_global_halt_is_not_set_or_lifted_over_the_network(world: Any) -> None:
    abe = world.person("abe", "admin")
    assert abe.post("/ops/api/halts", {"scope": "global", "reason": "x"}).status_code == 403
    world.sql(
        "select sentinel.set_halt(%s, %s, 'global', '', 'kill', 'x', 'root', %s)",
        uuid.UUID(int=0),
        uuid.uuid4(),
        uuid.uuid4(),
    )
    shown = abe.get("/ops/api/halts").json["halts"]
    assert [one["scope"] for one in shown] == ["global"]
    assert abe.post(f"/ops/api/halts/{shown[0]['halt_id']}/lift", {"reason": "x"}).status_code == 404


def in_doubt(world: Any) -> Any:
    """An operation that was started and reported nothing."""
    recorded = world.guard("100.00")
    world.sql(
        "update sentinel.operation_states set status = 'in_doubt', started_at = clock_timestamp(),"
        " in_doubt_since = clock_timestamp(), in_doubt_reason = 'no_report' where operation_id = %s",
        recorded.operation_id,
    )
    return recorded


@pytest.mark.parametrize(("executed", "budget"), [(True, "captured"), (False, "released")])
def test_an_administrator_ends_a_doubt_and_with_it_the_hold_on_the_budget(
    world: Any, executed: bool, budget: str
) -> None:
    abe, recorded = world.person("abe", "admin"), in_doubt(world)
    shown = abe.get("/ops/api/in-doubt").json["in_doubt"]
    assert [(one["operation_id"], one["amount"]["value"]) for one in shown] == [(str(recorded.operation_id), 100)]
    path, body = (
        f"/ops/api/in-doubt/{recorded.operation_id}/resolve",
        {"executed": executed, "evidence": "the bank's statement"},
    )
    assert abe.post(path, body).status_code == 200
    assert world.sql("select state from sentinel.reservations") == [(budget,)]
    assert abe.post(path, {**body, "executed": not executed}).status_code == 409
    assert world.sql("select state from sentinel.reservations") == [(budget,)]


@pytest.mark.parametrize(
    "body",
    [{"executed": True}, {"executed": 1, "evidence": "x"}, {"executed": "yes", "evidence": "x"}, {"evidence": "x"}],
)
def test_a_doubt_ends_by_a_plain_word_and_evidence_only(world: Any, body: dict[str, Any]) -> None:
    abe, recorded = world.person("abe", "admin"), in_doubt(world)
    assert abe.post(f"/ops/api/in-doubt/{recorded.operation_id}/resolve", body).status_code == 400
