"""A success that is reported after "not executed": recorded, held and halted, until a person has looked (G52)."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg
import pytest

from sentinel.authority.decisions import RECORD_CONTRADICTION
from sentinel.authority.guard import report_row
from sentinel.authority.halts import list_halts
from sentinel.store.ids import new_id
from tests import mutants
from tests.support.fixtures import ACTION, AGENT, Fixtures, guard_body, unique
from tests.support.harness import caller_of, let_leave_end, let_permits_expire, refused
from tests.support.ledger_fixtures import wait_until
from tests.support.not_executed import PROBLEM, WAYS, alone, begun, ended, lift_all, say, say_of, says_go, since, state


def test_a_success_after_it_is_a_contradiction_that_holds_and_halts(fixtures: Fixtures) -> None:
    body, _, _ = ended(fixtures)
    first = fixtures.report(body, result={"id": "tx"})
    told = first.get_json()
    assert (first.status_code, told["received"], told["duplicate"], told["contradiction"]) == (200, True, False, True)
    assert fixtures.report(body, result={"id": "tx"}).get_json() == {**told, "duplicate": True}
    assert fixtures.report(body, "error").status_code == 409
    event = fixtures.one("select body::jsonb from sentinel.events where event_id = %s", told["receipt_event_id"])
    assert (event["event"], event["outcome"], event["agent_id"]) == ("contradiction", "success", AGENT)
    assert (
        fixtures.one("select hash from sentinel.events where event_id = %s", told["receipt_event_id"])
        == told["receipt_hash"]
    )
    now = state(fixtures, body)
    assert (now["status"], now["in_doubt_reason"], now["once_live"]) == ("in_doubt", "contradiction", True)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == ["held"]
    assert fixtures.one("select max(held_minor) from sentinel.usage") == 4000
    (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
    assert (halt.scope, halt.target, halt.level) == ("agent_action", f"{AGENT} {ACTION}", "kill")
    assert fixtures.broken_invariants() == []


def test_the_halt_covers_that_action_of_that_agent_until_a_person_lifts_it(fixtures: Fixtures) -> None:
    body, answer, start_id = ended(fixtures)
    before = guard_body(value=1)
    permit = fixtures.guard(before)
    fixtures.report(body)
    assert fixtures.guard(guard_body(value=1))["reason_code"] == "halted"
    assert fixtures.start(before, permit).status_code == 403
    assert fixtures.guard(guard_body(value=1, agent_id="another-agent"))["decision"] == "ALLOW"
    assert fixtures.guard(guard_body(value=1, action="refund.create.other"))["reason_code"] != "halted"
    lift_all(fixtures)
    assert fixtures.guard(guard_body(value=1))["decision"] == "ALLOW"
    assert alone(fixtures, body, answer, start_id)["type"] == PROBLEM, "what was said stays said"


def words(fixtures: Fixtures, body: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """(status, outcome, resolution) of the answer to who asks again."""
    found = fixtures.guard(body)
    return found["status"], found.get("outcome"), found.get("resolution")


@pytest.mark.parametrize("executed, left", [(True, ["captured"]), (False, ["released"])])
def test_a_person_ends_the_contradiction_and_nothing_starts_after_it(
    fixtures: Fixtures, executed: bool, left: list[str]
) -> None:
    body, answer, start_id = ended(fixtures)
    said_at = state(fixtures, body)["not_executed_at"]
    fixtures.report(body)
    assert words(fixtures, body) == ("completed", "success", "not_executed"), (
        "both words stand while nobody has decided"
    )
    say(fixtures, body, executed=executed)
    assert words(fixtures, body) == (
        ("completed", "success", None) if executed else ("completed", "error", "not_executed")
    ), "the last decision is the answer"
    now = state(fixtures, body)
    assert (now["status"], now["outcome"], now["once_live"]) == (
        "completed",
        "success" if executed else "error",
        executed,
    )
    assert now["not_executed_at"] == said_at
    lift_all(fixtures)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == left
    assert sum(says_go(way(fixtures, body, answer, start_id)) for way in WAYS) == 0
    assert fixtures.report(body).get_json()["contradiction"] is True, "said again it is received again"
    assert fixtures.broken_invariants() == []


def stale_words(fixtures: Fixtures) -> list[str]:
    """The checker: what becomes of words that were meant for the doubt before, or that name none, after a contradiction."""
    body, *_ = begun(fixtures)
    let_leave_end(fixtures)
    looked_at = since(fixtures, body)
    assert looked_at is not None
    say_of(fixtures, body, looked_at, executed=False)
    assert fixtures.report(body).get_json()["contradiction"] is True

    def refusal(doubt: datetime | None, executed: bool) -> str:
        return refused(lambda: say_of(fixtures, body, doubt, executed=executed))

    found = [refusal(looked_at, False), refusal(looked_at, True), refusal(None, False)]
    if not all(found):
        return found
    now = state(fixtures, body)
    assert (now["status"], now["in_doubt_reason"], now["once_live"]) == ("in_doubt", "contradiction", True)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == ["held"]
    say(fixtures, body, executed=False)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == ["released"], "who looked may say so"
    return found


def test_a_decision_meant_for_the_doubt_before_or_for_none_ends_no_contradiction(fixtures: Fixtures) -> None:
    """It frees money that was reported as paid."""
    assert stale_words(fixtures) == ["conflict"] * 3
    assert fixtures.broken_invariants() == []


def test_mutant_that_does_not_ask_which_doubt_was_looked_at_is_caught(fixtures: Fixtures) -> None:
    mutants.cut(
        fixtures, "sentinel.resolve_in_doubt", "when s.in_doubt_since is distinct from shown and", "when false and"
    )
    assert "" in stale_words(fixtures)


def test_that_a_contradiction_was_executed_is_said_without_saying_which_doubt(fixtures: Fixtures) -> None:
    """It frees nothing: it is what was reported."""
    body, *_ = begun(fixtures)
    let_leave_end(fixtures)
    say_of(fixtures, body, None, executed=False)
    fixtures.report(body)
    say_of(fixtures, body, None, executed=True)
    assert fixtures.one("select array_agg(state) from sentinel.reservations") == ["captured"]
    assert fixtures.broken_invariants() == []


def test_an_ordinary_doubt_is_ended_without_saying_which_one(fixtures: Fixtures) -> None:
    body, *_ = begun(fixtures)
    let_leave_end(fixtures)
    say_of(fixtures, body, None, executed=False)
    assert state(fixtures, body)["not_executed_at"] is not None


def test_an_error_that_is_reported_of_a_doubt_leaves_it_the_same_doubt(fixtures: Fixtures) -> None:
    body, *_ = begun(fixtures)
    looked_at = since(fixtures, body)
    fixtures.report(body, "error")
    assert state(fixtures, body)["in_doubt_reason"] == "error_reported"
    let_leave_end(fixtures)
    say_of(fixtures, body, looked_at, executed=False)
    assert state(fixtures, body)["status"] == "completed"


def test_an_error_reported_first_does_not_hide_a_success(fixtures: Fixtures) -> None:
    body, *_ = begun(fixtures)
    fixtures.report(body, "error")
    say(fixtures, body, executed=False)
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert state(fixtures, body)["in_doubt_reason"] == "contradiction"
    assert fixtures.broken_invariants() == []


def test_where_its_room_and_its_once_key_are_gone_it_is_held_beside_them(fixtures: Fixtures) -> None:
    account = unique("acct")
    body, start_id = guard_body(value=150, params={"account_ref": account}), str(uuid.uuid4())
    answer = fixtures.guard({**body, "start_id": start_id})
    assert answer["start"]
    fixtures.report(body, "error")
    say(fixtures, body, executed=False)
    again = guard_body(value=150, params={"account_ref": account, "refund_id": body["params"]["refund_id"]})
    assert fixtures.guard(again)["decision"] == "ALLOW", "the freed refund goes under another key"
    assert fixtures.guard(guard_body(value=150, params={"account_ref": account}))["decision"] == "ALLOW"
    full = fixtures.guard(guard_body(value=150, params={"account_ref": account}))
    assert full["decision"] != "ALLOW", "the day is full"
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert state(fixtures, body)["once_live"] is False
    assert fixtures.one("select once_held from sentinel.contradictions") is False
    assert fixtures.one("select max(override_held_minor) from sentinel.usage") == 15000
    assert fixtures.broken_invariants() == []
    say(fixtures, body, executed=True)
    assert fixtures.one("select max(override_captured_minor) from sentinel.usage") == 15000
    assert fixtures.broken_invariants() == []


NEIGHBOUR = """
insert into sentinel.usage_parts (tenant_id, limit_key, bucket, window_seconds, cap_minor, captured_minor)
select tenant_id, limit_key, bucket + make_interval(mins => %(minutes)s), %(seconds)s, cap_minor, cap_minor
from sentinel.usage where limit_key like '%%/agent_hour|%%'
"""
HELD_BESIDE = """
select l.beside from sentinel.reservations r cross join lateral unnest(r.limit_keys, r.overrides) as l (limit_key, beside)
where r.state = 'held' and l.limit_key like '%%/agent_hour|%%'
"""


@pytest.mark.parametrize(
    ("minutes", "seconds", "beside"),
    [(-60, 3600, False), (-55, 3600, True), (55, 3600, True), (60, 3600, False), (90, 7200, True), (-90, 7200, False)],
)
def test_it_is_held_beside_the_cap_where_any_window_that_covers_it_is_full(
    fixtures: Fixtures, minutes: int, seconds: int, beside: bool
) -> None:
    """The budget of its hour is used up in one other part, so many minutes later, of a window of so many seconds."""
    body, _, _ = ended(fixtures)
    fixtures.admin.execute(NEIGHBOUR.encode(), {"minutes": minutes, "seconds": seconds})
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert fixtures.one(HELD_BESIDE) is beside


def test_a_refund_that_was_made_again_under_another_spelling_is_no_damage_beside_its_contradiction(
    fixtures: Fixtures,
) -> None:
    body = guard_body(value=1, params={"refund_id": unique("rf_a")})
    assert fixtures.guard({**body, "start_id": str(uuid.uuid4())})["start"]
    fixtures.report(body, "error")
    say(fixtures, body, executed=False)
    again = guard_body(value=1, params={"refund_id": body["params"]["refund_id"].upper()})
    assert fixtures.guard(again)["decision"] == "ALLOW", "nothing live is spelled alike"
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert state(fixtures, body)["once_live"] is True
    assert fixtures.broken_invariants() == []
    say(fixtures, body, executed=True)
    assert fixtures.broken_invariants() == []


def test_a_batch_of_reports_keeps_its_neighbours(fixtures: Fixtures) -> None:
    body, *_ = ended(fixtures)
    other, answer = guard_body(value=1), None
    answer = fixtures.guard(other)
    fixtures.start(other, answer)
    requests = [
        {name: one[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
        for one in (body, other, body)
    ]
    found = [
        one["body"] for one in fixtures.post("action/guard/report/batch", {"requests": requests}).get_json()["answers"]
    ]
    assert [one.get("contradiction", False) for one in found] == [True, False, True]
    assert [one["duplicate"] for one in found] == [False, False, True]
    assert fixtures.broken_invariants() == []


def test_a_contradiction_that_cannot_be_recorded_now_leaves_its_neighbours_their_receipts(fixtures: Fixtures) -> None:
    """They are committed by then; reported again, a first report was told that it is a duplicate."""
    body, *_ = ended(fixtures)
    other = guard_body(value=1)
    fixtures.start(other, fixtures.guard(other))
    requests = [
        {name: one[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
        for one in (body, other)
    ]
    with psycopg.connect(fixtures.url) as deciding:
        deciding.execute("select pg_advisory_xact_lock_shared(sentinel.halt_lock())")
        found = fixtures.post("action/guard/report/batch", {"requests": requests}).get_json()["answers"]
        assert fixtures.report(body).status_code == 409
    assert [one["status"] for one in found] == [409, 200]
    assert found[0]["body"]["type"] == "urn:sentinel:problem:still-deciding"
    assert found[1]["body"]["duplicate"] is False
    assert fixtures.report(body).get_json()["contradiction"] is True
    assert fixtures.broken_invariants() == []


# Beside a report or the housekeeper, who hold no halt lock -------------------------------------------------------------


def success_of(fixtures: Fixtures, body: dict[str, Any]) -> str:
    """The row of a report of success, as JSON."""
    row = report_row(
        fixtures.authority, caller_of(fixtures), outcome="success", error=None, result=None, permit_token=None,
        idempotency_key=body["idempotency_key"], action=body["action"], agent_id=body["agent_id"], resource=None, risk_class=None,
        report_id=None,
    )  # fmt: skip
    return json.dumps({**row, "seq": 0}, default=str)


def beside(fixtures: Fixtures, how: str) -> tuple[list[str], list[tuple[int, int]]]:
    """A contradiction about 40 while another operation of the same account, of 70, is captured or given back in a transaction that has not
    ended yet: invariants that are broken then, and what is held and captured of the account's limits."""
    body, _, _ = ended(fixtures)
    other = guard_body(value=70, params={"account_ref": body["params"]["account_ref"]})
    answer = fixtures.guard(other)
    if how == "reported":
        assert fixtures.start(other, answer).status_code == 200
    else:
        let_permits_expire(fixtures)
    # Who captures or gives back may stand still meanwhile: the wait for it is not what is tried.
    mutants.cut(fixtures, "sentinel.record_contradiction", "interval '2 seconds'", "interval '1 minute'")
    named = {"seq": 0, "ask": success_of(fixtures, body), "halt_id": new_id(), "halt_event_id": new_id()}
    with psycopg.connect(fixtures.url) as first, psycopg.connect(fixtures.url, autocommit=True) as second:
        if how == "reported":
            first.execute("select sentinel.report_outcomes(%s::jsonb, 2000)", [f"[{success_of(fixtures, other)}]"])
        else:
            first.execute("select sentinel.release_run_out(200)")
        with ThreadPoolExecutor(1) as thread:
            contradicted = thread.submit(second.execute, RECORD_CONTRADICTION, named)
            wait_until(lambda: fixtures.one("select count(*) from pg_locks where not granted") > 0)
            first.commit()
            contradicted.result(60)
    used = fixtures.admin.execute(
        "select distinct held, captured from (select unnest(held) as held, unnest(captured) as captured from sentinel.budgets"
        " where subject like %s) as slots", [f"{body['params']['account_ref']}|%"]).fetchall()  # fmt: skip
    return fixtures.broken_invariants(), used


@pytest.mark.parametrize(("how", "left"), [("reported", (4000, 7000)), ("given back", (4000, 0))])
def test_a_contradiction_beside_a_settlement_of_the_same_budget_loses_neither(
    fixtures: Fixtures, how: str, left: tuple[int, int]
) -> None:
    """The finding: held 110 and captured nothing."""
    assert beside(fixtures, how) == ([], [left])


@pytest.mark.parametrize("how", ["reported", "given back"])
def test_mutant_that_contradicts_without_the_budgets_locks_is_caught(fixtures: Fixtures, how: str) -> None:
    mutants.cut(fixtures, "sentinel.record_contradiction", "perform sentinel.take_locks(", "perform (")
    mutants.cut(fixtures, "sentinel.hold_part", "= sentinel.policy_of(key) for update;", "= sentinel.policy_of(key);")
    assert beside(fixtures, how)[0] != []


def test_a_settlement_limit_by_limit_that_finds_a_budget_moved_says_so(fixtures: Fixtures) -> None:
    """As for a whole budget: what moved without its lock is no reason to lose an outcome in silence."""
    body = guard_body(value=40)
    fixtures.guard(body)
    let_permits_expire(fixtures)
    answer = fixtures.guard(body)
    assert fixtures.start(body, answer).status_code == 200
    fixtures.admin.execute(
        "create function sentinel.no_move() returns trigger language plpgsql as $$ begin return null; end $$;"
        "create trigger no_move before update on sentinel.budgets for each row execute function sentinel.no_move()"
    )
    assert fixtures.report(body).status_code == 503
    fixtures.admin.execute("drop trigger no_move on sentinel.budgets")
    assert fixtures.report(body).status_code == 200
    assert fixtures.broken_invariants() == []
