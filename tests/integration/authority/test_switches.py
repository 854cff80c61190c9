"""Turning on takes proof and an administrator, turning off takes nothing; every flip leaves evidence, within one tenant."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from sentinel.core.proof import pack_hash
from sentinel.policy.switches import SwitchBook, SwitchFile
from sentinel.resources import policies_dir
from sentinel.services.flip_switch import Flipped, GateRefused, turn_switch_off, turn_switch_on
from sentinel.services.list_switches import list_switches
from sentinel.services.record_gate_report import record_gate_report
from sentinel.store.agent_keys import DEFAULT_SCOPES
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, WORKER
from sentinel.store.gate_reports import MAX_AGE_DAYS, GateReport
from tests.harness import actor
from tests.twins import cut
from tests.world import World, add_tenant, make_world, unique

FEE, MASTER, STANDARD = "small_refund.refund_fee", "small_refund.enabled", "retail.standard"
BOOK = SwitchFile(policies_dir()).book


def in_force(world: World) -> str:
    """The digest of the policy that covers small refunds."""
    return str(world.one("select policy_digest from sentinel.policies_in_force where policy_id = 'small-refund'"))


def record(world: World, **over: Any) -> uuid.UUID:
    """A report of the fee gate, passing and about the policy in force unless `over` says otherwise."""
    good = GateReport(
        switch=FEE, scenario="fee", policy_digest=in_force(world), passed=True, cases=200, correct=198,
        lower_bound_ppm=964_300, wrong_executions=0, not_covered=1, report={"by": "a test"},
    )  # fmt: skip
    return record_gate_report(world.console_pool, actor(world, "approver"), BOOK, replace(good, **over))


def on(world: World, name: str = FEE, percent: int = 5, *, role: str = "admin", book: SwitchBook = BOOK) -> Flipped:
    """An operator's flip."""
    return turn_switch_on(world.console_pool, actor(world, role), book, name, canary_percent=percent, reason="ready")


def off(world: World, name: str = FEE, *, role: str = "approver", book: SwitchBook = BOOK) -> Flipped:
    """An operator's flip."""
    return turn_switch_off(world.console_pool, actor(world, role), book, name, reason="not sure")


def seen(world: World, name: str = FEE) -> dict[str, Any]:
    """What an agent is told about a switch."""
    response = world.get("switches")
    assert response.status_code == 200, response.text
    return dict(response.get_json()["switches"][name])


def flips(world: World) -> list[dict[str, Any]]:
    """Bodies of the events of flips, oldest first; each one's hash is recomputed on the way."""
    found = world.admin.execute(
        "select body, hash from sentinel.events where kind in ('switch_on', 'switch_off') order by occurred_at, event_id"
    ).fetchall()
    bodies = [json.loads(body) for body, _ in found]
    assert [pack_hash(body) for body in bodies] == [recorded for _, recorded in found]
    return bodies


def age(world: World, days: float) -> None:
    """The newest report was recorded that long ago."""
    world.admin.execute("alter table sentinel.gate_reports disable trigger append_only")
    world.admin.execute(
        "update sentinel.gate_reports set created_at = created_at - make_interval(secs => %s)", [days * 86400]
    )
    world.admin.execute("alter table sentinel.gate_reports enable trigger append_only")


def no_report(world: World) -> str:
    return "no_report"


def failed_after_a_passed_one(world: World) -> str:
    record(world)
    record(world, passed=False, wrong_executions=1)
    return "report_failed"


def of_another_policy_text(world: World) -> str:
    record(world, policy_digest="sha256:" + "0" * 64)
    return "report_stale"


def of_the_text_before_a_reload(world: World) -> str:
    record(world)
    world.admin.execute("update sentinel.policies_in_force set policy_digest = %s", ["sha256:" + "1" * 64])
    return "report_stale"


def too_old(world: World) -> str:
    record(world)
    age(world, MAX_AGE_DAYS + 0.001)
    return "report_old"


def no_policy_in_force(world: World) -> str:
    record(world)
    world.admin.execute("delete from sentinel.policies_in_force")
    return "policy_not_in_force"


def about_another_switch(world: World) -> str:
    record(world, switch="small_refund.defect", scenario="defect")
    return "no_report"


UNPROVEN = (
    no_report, failed_after_a_passed_one, of_another_policy_text, of_the_text_before_a_reload, too_old, no_policy_in_force,
    about_another_switch,
)  # fmt: skip


def stayed_off(world: World) -> bool:
    """Whether an administrator's attempt to turn the fee switch on left it off, for agents and in the evidence."""
    try:
        on(world)
    except GateRefused:
        pass
    return seen(world) == {"on": False, "canary_percent": 0} and flips(world) == []


@pytest.mark.parametrize("arranged", UNPROVEN)
def test_a_gated_switch_stays_off_without_a_fresh_passing_report_of_the_policy_in_force(
    world: World, arranged: Any
) -> None:
    wanted = arranged(world)
    assert stayed_off(world)
    with pytest.raises(GateRefused) as refused:
        on(world)
    assert refused.value.why == wanted
    shown = {view.name: view for view in list_switches(world.console_pool, world.tenant_id, BOOK)}[FEE]
    assert shown.gate_state is not None and shown.gate_state.refusal == wanted


@pytest.mark.parametrize("arranged", [no_report, of_the_text_before_a_reload])
def test_twin_that_asks_for_no_report_is_caught(world: World, arranged: Any) -> None:
    arranged(world)
    cut(
        world,
        "sentinel.flip_switch",
        "where gate is null or sentinel.gate_refusal(tenant, switch_name, gate, policy) = ''",
    )
    assert not stayed_off(world)


def test_with_its_report_a_switch_goes_on_moves_and_goes_off_and_each_flip_has_its_proof(world: World) -> None:
    record(world)
    age(world, MAX_AGE_DAYS - 0.001)
    assert on(world, percent=5) == Flipped(FEE, True, 5, already=False)
    assert seen(world) == {"on": True, "canary_percent": 5}
    assert on(world, percent=5).already
    assert on(world, percent=50) == Flipped(FEE, True, 50, already=False)
    assert seen(world) == {"on": True, "canary_percent": 50}
    assert off(world) == Flipped(FEE, False, 0, already=False)
    assert seen(world) == {"on": False, "canary_percent": 0}
    assert off(world).already
    found = flips(world)
    assert [one["event"] for one in found] == ["switch_on", "switch_on", "switch_off"]
    assert [one.get("canary_percent") for one in found] == [5, 50, None]
    assert found[0]["policy_digest"] == in_force(world) and found[0]["switch"] == FEE
    assert found[2]["changed_by"] == "approver@somewhere.example" and found[2]["reason"] == "not sure"
    world.keep_house()
    assert world.broken_invariants() == []
    # Its twin: a flip behind the functions' back is seen.
    world.admin.execute(
        "update sentinel.switches set is_on = true, canary_percent = 100, changed_at = clock_timestamp()"
    )
    assert world.broken_invariants() == ["flips_in_evidence"]


def test_turning_off_works_when_a_report_failed_the_policy_is_gone_and_the_file_is_unreadable(
    world: World, tmp_path: Path
) -> None:
    record(world)
    on(world)
    world.admin.execute("delete from sentinel.policies_in_force")
    record_failed = replace(BOOK, switches={}, fault="cannot be read")
    assert off(world, book=record_failed).is_on is False
    assert world.one("select is_on from sentinel.switches") is False
    with pytest.raises(Conflict):
        on(world, book=SwitchFile(tmp_path).book)
    with pytest.raises(NotFound):
        off(world, "Not A Name", book=record_failed)


def test_what_an_agent_turned_off_goes_on_again_only_by_a_report_from_after_that(world: World) -> None:
    record(world)
    on(world)
    went_wrong = {"switch": FEE, "reason": "a wrong execution"}
    assert world.post("switches/off", went_wrong).get_json()["already"] is False
    with pytest.raises(GateRefused, match="from before something went wrong"):
        on(world)
    record(world)
    on(world)
    # A person's own word takes nothing away from the report, and what goes wrong while it is off counts too.
    off(world)
    on(world)
    off(world)
    assert world.post("switches/off", went_wrong).get_json()["already"] is True
    with pytest.raises(GateRefused):
        on(world)
    assert seen(world)["on"] is False


def test_what_needs_no_gate_is_on_or_off_by_word_alone(world: World) -> None:
    assert seen(world, MASTER) == {"on": False, "canary_percent": 0}
    assert seen(world, STANDARD) == {"on": True, "canary_percent": 100}
    on(world, MASTER, 100)
    off(world, STANDARD)
    assert (seen(world, MASTER)["on"], seen(world, STANDARD)["on"]) == (True, False)
    assert "policy_digest" not in flips(world)[0]


def test_on_takes_an_administrator_off_an_approver(world: World) -> None:
    record(world)
    for role in ("viewer", "approver"):
        with pytest.raises(Forbidden):
            on(world, role=role)
    with pytest.raises(Forbidden):
        off(world, role="viewer")
    with pytest.raises(Forbidden):
        record_gate_report(
            world.console_pool, actor(world, "viewer"), BOOK, GateReport(FEE, "fee", "", True, 1, 1, 1, 0, 0, {})
        )
    assert flips(world) == []


def test_an_unknown_switch_is_refused_with_the_nearest_name(world: World) -> None:
    for name, hint in (("small_refund.refund_fees", "small_refund.refund_fee"), ("x.y", "known:")):
        for flip in (on, off):
            with pytest.raises(NotFound, match=hint):
                flip(world, name)


CONTRADICTIONS: tuple[dict[str, Any], ...] = (
    {"scenario": "defect"}, {"switch": MASTER}, {"wrong_executions": 1}, {"lower_bound_ppm": 949_999}, {"correct": 201},
    {"not_covered": 3}, {"cases": 0, "correct": 0}, {"correct": 0}, {"policy_digest": "sha256:x"}, {"lower_bound_ppm": 10**7},
)  # fmt: skip


def test_a_report_that_contradicts_itself_is_refused(world: World) -> None:
    for over in CONTRADICTIONS:
        with pytest.raises(InvalidInput):
            record(world, **over)
    assert world.one("select count(*) from sentinel.gate_reports") == 0


def test_the_database_too_keeps_the_bar_and_the_age_that_the_program_says(world: World) -> None:
    statement = "select sentinel.record_gate_report(%s, %s, 'fee', %s, %s, true, 10, 10, %s, %s, 0, '{}', 'x', %s)"
    for bound, wrong in ((949_999, 0), (950_000, 1)):
        with pytest.raises(pg.CheckViolation):
            world.admin.execute(
                statement, [world.tenant_id, uuid.uuid4(), FEE, "sha256:" + "0" * 64, bound, wrong, uuid.uuid4()]
            )
    days = world.one("select extract(epoch from sentinel.gate_report_lasts()) / 86400")
    assert days == MAX_AGE_DAYS


def test_reports_are_never_changed(world: World) -> None:
    record(world, passed=False)
    for change in ("update sentinel.gate_reports set passed = true", "delete from sentinel.gate_reports"):
        with pytest.raises(pg.InsufficientPrivilege):
            world.admin.execute(change.encode())


ON = "select sentinel.flip_switch(%(tenant)s, 'retail.standard', null, null, 100, 'me', 'x', gen_random_uuid())"
OFF = "select sentinel.turn_switch_off(%(tenant)s, 'retail.standard', 'me', 'x', gen_random_uuid())"
WRITES = (
    "insert into sentinel.switches values (%(tenant)s, 'retail.standard', true, 100, now(), 'me', 'x')",
    "update sentinel.switches set is_on = true, canary_percent = 100",
    "delete from sentinel.switches",
    "insert into sentinel.gate_reports select * from sentinel.gate_reports",
    "update sentinel.gate_reports set passed = true",
    "delete from sentinel.gate_reports",
)


def test_an_authority_may_turn_off_and_nothing_it_can_say_turns_on(world: World) -> None:
    record(world)
    on(world)
    forge = (
        "select sentinel.record_gate_report(%(tenant)s, gen_random_uuid(), 'fee', 'small_refund.refund_fee', 'sha256:0', true,"
        " 1, 1, 1000000, 0, 0, '{}', 'me', gen_random_uuid())"
    )
    with world.as_role(AUTHORITY) as connection:
        assert connection.execute(OFF.encode(), {"tenant": world.tenant_id}).fetchone() == (True,)
        for statement in (ON, forge, *WRITES):
            _refused(connection, statement, world)
    assert seen(world, STANDARD)["on"] is False


def test_twin_without_the_trigger_lets_an_authority_turn_on(world: World) -> None:
    world.admin.execute("drop trigger check_switch on sentinel.switches")
    with world.as_role(AUTHORITY) as connection:
        connection.execute(WRITES[0].encode(), {"tenant": world.tenant_id})
        connection.execute(WRITES[1].encode())


def test_no_other_program_flips_switches_or_says_what_is_in_force_and_none_unsays(world: World) -> None:
    record(world)
    said = "update sentinel.policies_in_force set policy_digest = policy_digest"
    unsay = (
        "delete from sentinel.switches",
        "update sentinel.gate_reports set passed = true",
        "delete from sentinel.gate_reports",
    )
    more = (ON, OFF, *WRITES, "select * from sentinel.switches", "select * from sentinel.gate_reports")
    for role, statements in ((CONSOLE, (said, *unsay)), (WORKER, (said, *more)), (BOARD, (said, *more))):
        with world.as_role(role) as connection:
            for statement in statements:
                _refused(connection, statement, world)


def _refused(connection: psycopg.Connection[Any], statement: str, world: World) -> None:
    with pytest.raises(pg.InsufficientPrivilege):
        connection.execute(statement.encode(), {"tenant": world.tenant_id} if "%(" in statement else None)


def test_two_tenants_do_not_see_or_flip_each_others_switches(world: World) -> None:
    other_id, other_key, _ = add_tenant(world.url, unique("other").replace("_", "-"))
    record(world)
    on(world)
    world.post("switches/off", {"switch": STANDARD, "reason": "x"}, key=other_key)
    assert seen(world)["on"] and seen(world, STANDARD)["on"]
    other = world.get("switches", key=other_key).get_json()["switches"]
    assert not other[FEE]["on"] and not other[STANDARD]["on"]
    stranger = replace(actor(world, "admin"), tenant_id=other_id)
    with pytest.raises(GateRefused):
        turn_switch_on(world.console_pool, stranger, BOOK, FEE, canary_percent=5, reason="theirs has a report")
    assert {row.name for row in list_switches(world.console_pool, other_id, BOOK) if row.is_on} == set()


def test_agents_are_told_the_halts_over_their_tenant_and_the_policies_and_no_names_or_reasons(world: World) -> None:
    other_id, _, _ = add_tenant(world.url, unique("other").replace("_", "-"))
    for owner, scope, target in (
        (world.tenant_id, "agent", "a"), (uuid.UUID(int=0), "global", ""), (other_id, "tenant", ""),
    ):  # fmt: skip
        world.admin.execute(
            "select sentinel.set_halt(%s, gen_random_uuid(), %s, %s, 'kill', 'secret why', 'secret who', gen_random_uuid())",
            [owner, scope, target],
        )
    response = world.get("switches")
    assert sorted(response.get_json()["halts"], key=str) == [
        {"scope": "agent", "target": "a", "level": "kill"}, {"scope": "global", "target": "", "level": "kill"},
    ]  # fmt: skip
    assert response.get_json()["policies"]["small-refund"] == in_force(world)
    assert "secret" not in response.text


@pytest.mark.parametrize("prefix", ["/api/sentinel", "/api/haltstate/sentinel"])
def test_an_agent_turns_off_and_hears_the_same_answer_again(world: World, prefix: str) -> None:
    key = world.new_key(agent_id="a-1")
    body = {"switch": STANDARD, "reason": "a wrong execution"}
    answers = [world.post("switches/off", body, key=key, prefix=prefix) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 200]
    assert [one.get_json()["already"] for one in answers] == [False, True]
    assert seen(world, STANDARD) == {"on": False, "canary_percent": 0}
    assert [one["changed_by"] for one in flips(world)] == ["agent a-1"]


def test_a_wrong_question_to_turn_off_is_a_400_that_changes_nothing(world: World) -> None:
    for body in (
        {"switch": "retail.standart", "reason": "x"}, {"switch": STANDARD}, {"switch": STANDARD, "reason": ""},
        {"switch": STANDARD, "reason": "x", "on": True}, {"switch": 7, "reason": "x"},
    ):  # fmt: skip
        assert world.post("switches/off", body).status_code == 400
    assert "did you mean" in world.post("switches/off", {"switch": "retail.standart", "reason": "x"}).text
    assert flips(world) == []


def test_keys_need_the_scopes_and_a_stranger_gets_nothing(world: World) -> None:
    none = world.new_key(scopes=tuple(one for one in DEFAULT_SCOPES if one not in ("heartbeat", "guard")))
    assert world.get("switches", key=none).status_code == 403
    assert world.post("switches/off", {"switch": STANDARD, "reason": "x"}, key=none).status_code == 403
    assert world.get("switches", key="snt_live_nobody").status_code == 401
    assert flips(world) == []


def test_a_missing_or_faulty_file_turns_everything_off_and_guards_go_on(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    world = make_world(database_url, policies=folder)
    file, good = folder / "switches.yaml", (folder / "switches.yaml").read_text()
    try:
        on(world, STANDARD, 100)
        for content in (
            None,
            "switches: {",
            "switches: {small_refund.x: {default: true, gate: fee, policy: p, about: x}}",
            "switches: {small_refund.x: {default: false, gate: fee, policy: small-refnd, about: x}}",
        ):
            file.unlink() if content is None else file.write_text(content)
            assert world.get("switches").get_json()["switches"] == {}
            assert world.guard()["decision"] == "ALLOW"
        file.write_text(good)
        assert seen(world, STANDARD)["on"] is True
    finally:
        world.close()


def test_a_switch_of_a_policy_that_is_not_there_is_named_with_its_place_and_the_nearest(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "switches.yaml"
    file.write_text(file.read_text().replace("policy: small-refund", "policy: small-refnd", 1))
    fault = SwitchFile(folder).book.fault or ""
    assert re.search(r"switches\.yaml:\d+:\d+: ", fault)
    assert 'did you mean "small-refund"?' in fault
