"""Who may flip a switch and who is told of it: operators, agents, programs, tenants; and what a faulty file leaves on."""

from __future__ import annotations

import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.authority.gate_reports import GateReport, record_gate_report
from sentinel.authority.keys import DEFAULT_SCOPES
from sentinel.authority.switches import GateRefused, list_switches, turn_switch_on
from sentinel.core.errors import Forbidden
from sentinel.platform.resources import policies_dir
from sentinel.policy.switches import SwitchFile
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, WORKER
from tests.support.fixtures import Fixtures, add_tenant, make_fixtures, unique
from tests.support.harness import actor
from tests.support.switch_fixtures import BOOK, FEE, STANDARD, flips, in_force, off, on, record, seen


def test_on_takes_an_administrator_off_an_approver(fixtures: Fixtures) -> None:
    record(fixtures)
    for role in ("viewer", "approver"):
        with pytest.raises(Forbidden):
            on(fixtures, role=role)
    with pytest.raises(Forbidden):
        off(fixtures, role="viewer")
    with pytest.raises(Forbidden):
        record_gate_report(
            fixtures.console_pool, actor(fixtures, "viewer"), BOOK, GateReport(FEE, "fee", "", True, 1, 1, 1, 0, 0, {})
        )
    assert flips(fixtures) == []


ON = "select sentinel.turn_switch_on(%(tenant)s, 'retail.standard', null, null, 100, 100, 'me', 'x', gen_random_uuid())"
OFF = "select sentinel.turn_switch_off(%(tenant)s, 'retail.standard', 'me', 'x', gen_random_uuid())"
WRITES = (
    "insert into sentinel.switches values (%(tenant)s, 'retail.standard', true, 100, now(), 'me', 'x')",
    "update sentinel.switches set is_on = true, canary_percent = 100",
    "delete from sentinel.switches",
    "insert into sentinel.gate_reports select * from sentinel.gate_reports",
    "update sentinel.gate_reports set passed = true",
    "delete from sentinel.gate_reports",
)


def test_an_authority_may_turn_off_and_nothing_it_can_say_turns_on(fixtures: Fixtures) -> None:
    record(fixtures)
    on(fixtures)
    forge = (
        "select sentinel.record_gate_report(%(tenant)s, gen_random_uuid(), 'fee', 'small_refund.refund_fee', 'sha256:0', true,"
        " 1, 1, 1000000, 0, 0, '{}', 'me', gen_random_uuid())"
    )
    with fixtures.as_role(AUTHORITY) as connection:
        assert connection.execute(OFF.encode(), {"tenant": fixtures.tenant_id}).fetchone() == (True,)
        for statement in (ON, forge, *WRITES):
            _refused(connection, statement, fixtures)
    assert seen(fixtures, STANDARD)["on"] is False


def test_mutant_without_the_trigger_lets_an_authority_turn_on(fixtures: Fixtures) -> None:
    fixtures.admin.execute("drop trigger check_switch on sentinel.switches")
    with fixtures.as_role(AUTHORITY) as connection:
        connection.execute(WRITES[0].encode(), {"tenant": fixtures.tenant_id})
        connection.execute(WRITES[1].encode())


def test_no_other_program_flips_switches_or_says_what_is_in_force_and_none_unsays(fixtures: Fixtures) -> None:
    record(fixtures)
    said = "update sentinel.policies_in_force set policy_digest = policy_digest"
    unsay = (
        "delete from sentinel.switches",
        "update sentinel.gate_reports set passed = true",
        "delete from sentinel.gate_reports",
    )
    more = (ON, OFF, *WRITES, "select * from sentinel.switches", "select * from sentinel.gate_reports")
    for role, statements in ((CONSOLE, (said, *unsay)), (WORKER, (said, *more)), (BOARD, (said, *more))):
        with fixtures.as_role(role) as connection:
            for statement in statements:
                _refused(connection, statement, fixtures)


def _refused(connection: psycopg.Connection[Any], statement: str, fixtures: Fixtures) -> None:
    with pytest.raises(pg.InsufficientPrivilege):
        connection.execute(statement.encode(), {"tenant": fixtures.tenant_id} if "%(" in statement else None)


def test_two_tenants_do_not_see_or_flip_each_others_switches(fixtures: Fixtures) -> None:
    other_id, other_key, _ = add_tenant(fixtures.url, unique("other").replace("_", "-"))
    record(fixtures)
    on(fixtures)
    fixtures.post("switches/off", {"switch": STANDARD, "reason": "x"}, key=other_key)
    assert seen(fixtures)["on"] and seen(fixtures, STANDARD)["on"]
    other = fixtures.get("switches", key=other_key).get_json()["switches"]
    assert not other[FEE]["on"] and not other[STANDARD]["on"]
    stranger = replace(actor(fixtures, "admin"), tenant_id=other_id)
    with pytest.raises(GateRefused):
        turn_switch_on(fixtures.console_pool, stranger, BOOK, FEE, canary_percent=5, reason="theirs has a report")
    assert {row.name for row in list_switches(fixtures.console_pool, other_id, BOOK) if row.is_on} == set()


def test_agents_are_told_the_halts_over_their_tenant_and_the_policies_and_no_names_or_reasons(
    fixtures: Fixtures,
) -> None:
    other_id, _, _ = add_tenant(fixtures.url, unique("other").replace("_", "-"))
    for owner, scope, target in (
        (fixtures.tenant_id, "agent", "a"), (uuid.UUID(int=0), "global", ""), (other_id, "tenant", ""),
    ):  # fmt: skip
        fixtures.admin.execute(
            "select sentinel.set_halt(%s, gen_random_uuid(), %s, %s, 'kill', 'secret why', 'secret who', gen_random_uuid())",
            [owner, scope, target],
        )
    response = fixtures.get("switches")
    assert sorted(response.get_json()["halts"], key=str) == [
        {"scope": "agent", "target": "a", "level": "kill"}, {"scope": "global", "target": "", "level": "kill"},
    ]  # fmt: skip
    assert response.get_json()["policies"]["small-refund"] == in_force(fixtures)
    assert "secret" not in response.text


def test_a_key_that_is_bound_to_an_agent_is_not_told_the_halts_of_others(fixtures: Fixtures) -> None:
    own = {("tenant", ""), ("action", "x.y"), ("agent", "a"), ("agent_action", "a x.y")}
    others = {("agent", "ab"), ("agent", "b"), ("agent_action", "b x.y")}
    for scope, target in own | others:
        fixtures.admin.execute(
            "select sentinel.set_halt(%s, gen_random_uuid(), %s, %s, 'kill', 'why', 'who', gen_random_uuid())",
            [fixtures.tenant_id, scope, target],
        )

    def halts_for(key: str) -> set[tuple[str, str]]:
        return {(one["scope"], one["target"]) for one in fixtures.get("switches", key=key).get_json()["halts"]}

    assert halts_for(fixtures.new_key(agent_id="a")) == own
    assert halts_for(fixtures.key) == own | others


@pytest.mark.parametrize("prefix", ["/api/sentinel", "/api/haltstate/sentinel"])
def test_an_agent_turns_off_and_hears_the_same_answer_again(fixtures: Fixtures, prefix: str) -> None:
    key = fixtures.new_key(agent_id="a-1")
    body = {"switch": STANDARD, "reason": "a wrong execution"}
    answers = [fixtures.post("switches/off", body, key=key, prefix=prefix) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 200]
    assert [one.get_json()["already"] for one in answers] == [False, True]
    assert seen(fixtures, STANDARD) == {"on": False, "canary_percent": 0}
    assert [(one["changed_by"], one.get("already")) for one in flips(fixtures)] == [
        ("agent a-1", None),
        ("agent a-1", True),
    ]
    off(fixtures, STANDARD)
    assert len(flips(fixtures)) == 2, "a person's decision that changes nothing is no event"


def test_whoever_disproves_a_gate_report_of_a_switch_that_is_off_stands_in_the_events(fixtures: Fixtures) -> None:
    """Else no administrator knows whose key it is that keeps the switch off."""
    disproved = "select proven_after from sentinel.switches where name = %s"
    said = "select occurred_at from sentinel.events where kind = 'switch_off' order by occurred_at desc limit 1"
    record(fixtures)
    on(fixtures)
    for agent in ("a-1", "a-2", "a-3"):
        key = fixtures.new_key(agent_id=agent)
        record(fixtures)
        assert fixtures.post("switches/off", {"switch": FEE, "reason": f"{agent} saw it"}, key=key).status_code == 200
        with pytest.raises(GateRefused, match="turned the switch off because something went wrong"):
            on(fixtures)
        newest = flips(fixtures)[-1]
        assert (newest["changed_by"], newest["reason"]) == (f"agent {agent}", f"{agent} saw it")
        assert fixtures.one(said) == fixtures.one(disproved, FEE)
    assert [
        row.changed_by for row in list_switches(fixtures.console_pool, fixtures.tenant_id, BOOK) if row.name == FEE
    ] == ["agent a-1"]
    assert fixtures.broken_invariants() == []


def test_turning_off_again_because_the_answer_was_lost_is_the_same_call(fixtures: Fixtures) -> None:
    """A statement whose connection was lost is sent once more, with the event's id that it had."""
    record(fixtures)
    on(fixtures)
    again = [fixtures.tenant_id, FEE, uuid.uuid4()]
    off = "select sentinel.turn_switch_off(%s, %s, 'agent a', 'a wrong execution', %s, true)"
    assert [fixtures.one(off, *again) for _ in range(2)] == [True, False]
    disproved = "select proven_after from sentinel.switches where name = %s"
    before = fixtures.one(disproved, FEE)
    fixtures.one(off, *again)
    assert fixtures.one(disproved, FEE) == before and len(flips(fixtures)) == 2


def test_a_wrong_question_to_turn_off_is_a_400_that_changes_nothing(fixtures: Fixtures) -> None:
    for body in (
        {"switch": "retail.standart", "reason": "x"}, {"switch": STANDARD}, {"switch": STANDARD, "reason": ""},
        {"switch": STANDARD, "reason": "x", "on": True}, {"switch": 7, "reason": "x"},
    ):  # fmt: skip
        assert fixtures.post("switches/off", body).status_code == 400
    assert "did you mean" in fixtures.post("switches/off", {"switch": "retail.standart", "reason": "x"}).text
    assert flips(fixtures) == []


def test_keys_need_the_scopes_and_a_stranger_gets_nothing(fixtures: Fixtures) -> None:
    none = fixtures.new_key(scopes=tuple(one for one in DEFAULT_SCOPES if one not in ("heartbeat", "guard")))
    assert fixtures.get("switches", key=none).status_code == 403
    assert fixtures.post("switches/off", {"switch": STANDARD, "reason": "x"}, key=none).status_code == 403
    assert fixtures.get("switches", key="snt_live_nobody").status_code == 401
    assert flips(fixtures) == []


def test_a_missing_or_faulty_file_turns_everything_off_and_guards_go_on(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    fixtures = make_fixtures(database_url, policies=folder)
    file, good = folder / "switches.yaml", (folder / "switches.yaml").read_text()
    try:
        on(fixtures, STANDARD, 100)
        for content in (
            None,
            "switches: {",
            "switches: {small_refund.x: {default: true, gate: fee, policy: p, about: x}}",
            "switches: {small_refund.x: {default: false, gate: fee, policy: small-refnd, about: x}}",
        ):
            file.unlink() if content is None else file.write_text(content)
            assert fixtures.get("switches").get_json()["switches"] == {}
            assert fixtures.guard()["decision"] == "ALLOW"
        file.write_text(good)
        assert seen(fixtures, STANDARD)["on"] is True
    finally:
        fixtures.close()


def test_a_switch_of_a_policy_that_is_not_there_is_named_with_its_place_and_the_nearest(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "switches.yaml"
    file.write_text(file.read_text().replace("policy: small-refund", "policy: small-refnd", 1))
    fault = SwitchFile(folder).declared.fault or ""
    assert re.search(r"switches\.yaml:\d+:\d+: ", fault)
    assert 'did you mean "small-refund"?' in fault
