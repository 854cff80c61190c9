"""Stopping is easy, letting go takes more; and what is in doubt ends by a person's decision."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from sentinel.authority.halts import heartbeat_status, list_halts, list_lifted_too
from tests.integration.console.test_operators_commands import run


def test_an_approver_stops_and_an_administrator_lets_go(fixtures: Any) -> None:
    app = fixtures.app()
    ann, abe = fixtures.person("ann", app=app), fixtures.person("abe", "admin", app)
    halt_id = ann.post("/ops/api/halts", {"scope": "tenant", "reason": "something is off"}).json["halt_id"]
    assert fixtures.guard("10.00").reason_code == "halted"
    assert ann.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "fine again"}).status_code == 403
    assert abe.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "fine again"}).status_code == 200
    assert fixtures.guard("10.00").decision == "ALLOW"
    assert abe.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "again"}).status_code == 404
    assert [one["lifted_by"] for one in abe.get("/ops/api/halts?lifted=true").json["halts"]] == ["abe@demo.local"]
    assert abe.get("/ops/api/halts").json == {"halts": []}


def test_setting_the_same_halt_twice_leaves_one(fixtures: Any) -> None:
    ann, body = fixtures.person("ann"), {"scope": "agent", "target": "retail-refund-agent", "reason": "x"}
    first, second = (ann.post("/ops/api/halts", body) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json["halt_id"] == second.json["halt_id"]


def test_a_kill_takes_the_place_of_a_pause_and_not_the_other_way(fixtures: Any) -> None:
    ann, body = fixtures.person("ann"), {"scope": "tenant", "reason": "x"}
    ann.post("/ops/api/halts", {**body, "level": "pause"})
    assert heartbeat_status(fixtures.pool, fixtures.tenant_id, "any-agent") == "PAUSE"
    assert ann.post("/ops/api/halts", body).status_code == 201
    assert heartbeat_status(fixtures.pool, fixtures.tenant_id, "any-agent") == "KILL"
    assert ann.post("/ops/api/halts", {**body, "level": "pause"}).status_code == 200
    assert [halt.level for halt in list_halts(fixtures.pool, fixtures.tenant_id)] == ["kill"]
    assert len(list_lifted_too(fixtures.pool, fixtures.tenant_id)[0]) == 2


@pytest.mark.parametrize(
    ("scope", "target", "covered"),
    [("agent", "a", "KILL"), ("agent", "b", "OK"), ("action", "refund.*", "OK"), ("scenario", "standard", "OK")],
)
def test_a_heartbeat_mirrors_what_covers_the_whole_agent(fixtures: Any, scope: str, target: str, covered: str) -> None:
    assert (
        fixtures.person("ann").post("/ops/api/halts", {"scope": scope, "target": target, "reason": "x"}).status_code
        == 201
    )
    assert heartbeat_status(fixtures.pool, fixtures.tenant_id, "a") == covered


@pytest.mark.parametrize(
    "body",
    [
        {"scope": "everything"}, {"scope": "agent"}, {"scope": "tenant", "target": "x"}, {"scope": "agent", "target": "a b"},
        {"scope": "agent", "target": "refund.*"}, {"scope": "action", "target": "*"}, {"scope": "tenant", "level": "gently"},
        {"scope": "tenant", "reason": ""}, {"scope": "agent", "target": "\u0430gent"},
    ],
)  # fmt: skip
def test_a_halt_that_is_not_clear_is_refused(fixtures: Any, body: dict[str, str]) -> None:
    assert fixtures.person("ann").post("/ops/api/halts", {"reason": "x", **body}).status_code == 400


def test_a_global_halt_is_not_set_or_lifted_over_the_network(fixtures: Any) -> None:
    abe = fixtures.person("abe", "admin")
    assert abe.post("/ops/api/halts", {"scope": "global", "reason": "x"}).status_code == 403
    fixtures.sql(
        "select sentinel.set_halt(%s, %s, 'global', '', 'kill', 'x', 'root', %s)",
        uuid.UUID(int=0),
        uuid.uuid4(),
        uuid.uuid4(),
    )
    shown = abe.get("/ops/api/halts").json["halts"]
    assert [one["scope"] for one in shown] == ["global"]
    halt_id = shown[0]["halt_id"]
    refused = abe.post(f"/ops/api/halts/{halt_id}/lift", {"reason": "x"})
    assert (refused.status_code, f"`sentinel halts lift {halt_id} --reason …`" in refused.json["detail"]) == (403, True)
    assert [one["scope"] for one in abe.get("/ops/api/halts").json["halts"]] == ["global"]


def in_doubt(fixtures: Any) -> Any:
    """An operation that was started and reported nothing."""
    recorded = fixtures.guard("100.00")
    fixtures.sql(
        "update sentinel.operation_states set status = 'in_doubt', started_at = clock_timestamp(),"
        " in_doubt_since = clock_timestamp(), in_doubt_reason = 'no_report' where operation_id = %s",
        recorded.operation_id,
    )
    return recorded


def test_what_is_in_doubt_is_listed_to_its_end_or_with_a_word_that_there_is_more(fixtures: Any) -> None:
    ids = [str(in_doubt(fixtures).operation_id) for _ in range(3)]
    abe = fixtures.person("abe", "admin")
    first = abe.get("/ops/api/in-doubt?limit=2").json
    rest = abe.get(f"/ops/api/in-doubt?limit=2&cursor={first['next_cursor']}").json
    assert [[one["operation_id"] for one in page["in_doubt"]] for page in (first, rest)] == [ids[:2], ids[2:]]
    assert "next_cursor" not in rest
    assert abe.get("/ops/api/in-doubt?cursor=WzEsMl0").status_code == 400
    more = "There are more than these 2; --limit shows more."
    for limit, said in ((2, True), (3, False)):
        done = run(fixtures, "in-doubt", "list", "--limit", str(limit), "--json")
        assert [one["operation_id"] for one in json.loads(done.stdout)] == ids[:limit]
        assert (more in done.stderr) == said


def test_of_lifted_halts_the_newest_are_listed_with_a_word_that_there_are_more(fixtures: Any) -> None:
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at, lifted_by, lifted_at)"
        " select %s, gen_random_uuid(), 'agent', 'agent-' || n, 'kill', 'x', 'ann', clock_timestamp() - n * interval '1 hour', 'ann',"
        " clock_timestamp() from generate_series(1, 200) n",
        fixtures.tenant_id,
    )
    ann, body = fixtures.person("ann"), {"scope": "agent", "target": "an-agent", "reason": "x"}
    more = "There are more lifted halts than these 200"
    for is_more in (False, True):
        in_force = ann.post("/ops/api/halts", body).json["halt_id"]
        done = run(fixtures, "halts", "list", "--all", "--json")
        ids = [one["halt_id"] for one in json.loads(done.stdout)]
        assert (len(ids), in_force in ids, more in done.stderr) == (201, True, is_more)
        fixtures.sql(
            "update sentinel.halts set lifted_by = 'ann', lifted_at = clock_timestamp() where halt_id = %s", in_force
        )
    assert more not in run(fixtures, "halts", "list", "--json").stderr


@pytest.mark.parametrize(("executed", "budget"), [(True, "captured"), (False, "released")])
def test_an_administrator_ends_a_doubt_and_with_it_the_hold_on_the_budget(
    fixtures: Any, executed: bool, budget: str
) -> None:
    abe, recorded = fixtures.person("abe", "admin"), in_doubt(fixtures)
    shown = abe.get("/ops/api/in-doubt").json["in_doubt"]
    assert [(one["operation_id"], one["amount"]["value"]) for one in shown] == [(str(recorded.operation_id), 100)]
    path, body = (
        f"/ops/api/in-doubt/{recorded.operation_id}/resolve",
        {"executed": executed, "evidence": "the bank's statement"},
    )
    assert abe.post(path, body).status_code == 200
    assert fixtures.sql("select state from sentinel.reservations") == [(budget,)]
    assert abe.post(path, {**body, "executed": not executed}).status_code == 409
    assert fixtures.sql("select state from sentinel.reservations") == [(budget,)]


def test_a_contradiction_is_ended_only_by_who_names_it(fixtures: Any) -> None:
    """What a script repeats after a lost answer was meant for the doubt before."""
    abe, recorded = fixtures.person("abe", "admin"), in_doubt(fixtures)
    path, body = f"/ops/api/in-doubt/{recorded.operation_id}/resolve", {"executed": False, "evidence": "x"}

    def shown() -> str:
        (one,) = abe.get("/ops/api/in-doubt").json["in_doubt"]
        return str(one["in_doubt_since"])

    old = shown()
    fixtures.sql(
        "update sentinel.operation_states set in_doubt_reason = 'contradiction', in_doubt_since = clock_timestamp()"
    )
    for given in ({}, {"in_doubt_since": None}, {"in_doubt_since": old}):
        assert abe.post(path, {**body, **given}).status_code == 409, given
    for bad in ("today", "2026-05-03T10:00:00", 7):
        assert abe.post(path, {**body, "in_doubt_since": bad}).status_code == 400, bad
    assert fixtures.sql("select state from sentinel.reservations") == [("held",)]
    assert abe.post(path, {**body, "in_doubt_since": shown()}).status_code == 200
    assert fixtures.sql("select state from sentinel.reservations") == [("released",)]


@pytest.mark.parametrize(
    "body",
    [{"executed": True}, {"executed": 1, "evidence": "x"}, {"executed": "yes", "evidence": "x"}, {"evidence": "x"}],
)
def test_a_doubt_ends_by_a_plain_decision_and_evidence_only(fixtures: Any, body: dict[str, Any]) -> None:
    abe, recorded = fixtures.person("abe", "admin"), in_doubt(fixtures)
    assert abe.post(f"/ops/api/in-doubt/{recorded.operation_id}/resolve", body).status_code == 400


def test_one_action_of_one_agent_is_halted_whatever_their_names_come_to(fixtures: Any) -> None:
    """Each may have 128 characters; a breaker halts such a pair by itself."""
    ada = fixtures.person("ada", "admin")
    for agent, action, status in (("a" * 128, "b" * 128, 201), ("a" * 129, "b", 400)):
        body = {"scope": "agent_action", "target": f"{agent} {action}", "reason": "look"}
        assert ada.post("/ops/api/halts", body).status_code == status


def test_more_lifted_halts_than_are_listed_are_said_to_be(fixtures: Any) -> None:
    app = fixtures.app()
    ann, vic = fixtures.person("ann", app=app), fixtures.browser("vic", "viewer", app)
    fixtures.sql(
        """
        insert into sentinel.halts (halt_id, tenant_id, scope, target, level, reason, set_by, set_at, lifted_by, lifted_at)
        select gen_random_uuid(), %s, 'agent', 'agent-' || n, 'kill', 'a drill', 'ann', now() - n * interval '1 minute', 'ann', now()
        from generate_series(1, 201) n
        """,
        fixtures.tenant_id,
    )
    listed = ann.get("/ops/api/halts?lifted=true").json
    assert (len(listed["halts"]), listed["left_out"]) == (200, True)
    assert "agent-201" not in {one["target"] for one in listed["halts"]}
    page = vic.get("/ops/halts").get_data(as_text=True)
    assert "Only the newest 200 are shown" in page and page.count("a drill") == 200
    fixtures.sql("delete from sentinel.halts where target = 'agent-7'")
    assert ann.get("/ops/api/halts?lifted=true").json["left_out"] is False
    assert "are shown" not in vic.get("/ops/halts").get_data(as_text=True)
