"""A gated switch goes on by a fresh passing report only and off by a word; every flip leaves evidence."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.authority.engine import Caller
from sentinel.authority.gate_reports import MAX_AGE_DAYS, gate_states, record_gate_report
from sentinel.authority.switches import (
    CanaryTooWide,
    GateRefused,
    SwitchChange,
    SwitchView,
    list_switches,
    switch_states,
    switches_and_halts,
    turn_switch_off,
    turn_switch_off_by_agent,
    turn_switch_on,
)
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.platform.outside_systems import NEVER_TRIED, OUTSIDE_SYSTEMS
from sentinel.policy.switches import DeclaredSwitches, SwitchFile
from sentinel.store.database import Pool
from tests.mutants import cut
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, at_once, refused, scaled
from tests.support.ledger_fixtures import wait_until
from tests.support.lost_connections import LosesConnection
from tests.support.switch_fixtures import (
    BOOK,
    FEE,
    MASTER,
    STANDARD,
    flips,
    in_force,
    off,
    on,
    passing_report,
    record,
    seen,
)

pytestmark = pytest.mark.usefixtures("patient")


def age(fixtures: Fixtures, days: float) -> None:
    """The newest report was recorded that long ago."""
    fixtures.admin.execute("alter table sentinel.gate_reports disable trigger append_only")
    fixtures.admin.execute(
        "update sentinel.gate_reports set created_at = created_at - make_interval(secs => %s)", [days * 86400]
    )
    fixtures.admin.execute("alter table sentinel.gate_reports enable trigger append_only")


def no_report(fixtures: Fixtures) -> str:
    return "no_report"


def failed_after_a_passed_one(fixtures: Fixtures) -> str:
    record(fixtures)
    record(fixtures, passed=False, wrong_executions=1)
    return "report_failed"


def of_another_policy_text(fixtures: Fixtures) -> str:
    record(fixtures, policy_digest="sha256:" + "0" * 64)
    return "report_stale"


def of_the_text_before_a_reload(fixtures: Fixtures) -> str:
    record(fixtures)
    fixtures.admin.execute("update sentinel.policies_in_force set policy_digest = %s", ["sha256:" + "1" * 64])
    return "report_stale"


def too_old(fixtures: Fixtures) -> str:
    record(fixtures)
    age(fixtures, MAX_AGE_DAYS + 0.001)
    return "report_old"


def no_policy_in_force(fixtures: Fixtures) -> str:
    record(fixtures)
    fixtures.admin.execute("delete from sentinel.policies_in_force")
    return "policy_not_in_force"


def about_another_switch(fixtures: Fixtures) -> str:
    record(fixtures, switch="small_refund.defect", scenario="defect")
    return "no_report"


UNPROVEN = (
    no_report, failed_after_a_passed_one, of_another_policy_text, of_the_text_before_a_reload, too_old, no_policy_in_force,
    about_another_switch,
)  # fmt: skip


def stayed_off(fixtures: Fixtures) -> bool:
    """Whether an administrator's attempt to turn the fee switch on left it off, for agents and in the evidence."""
    try:
        on(fixtures)
    except GateRefused:
        pass
    return seen(fixtures) == {"on": False, "canary_percent": 0} and flips(fixtures) == []


@pytest.mark.parametrize("arranged", UNPROVEN)
def test_a_gated_switch_stays_off_without_a_fresh_passing_report_of_the_policy_in_force(
    fixtures: Fixtures, arranged: Any
) -> None:
    wanted = arranged(fixtures)
    assert stayed_off(fixtures)
    with pytest.raises(GateRefused) as refused:
        on(fixtures)
    assert refused.value.why == wanted
    shown = {view.name: view for view in list_switches(fixtures.console_pool, fixtures.tenant_id, BOOK)}[FEE]
    assert shown.gate_state is not None and shown.gate_state.refusal == wanted


@pytest.mark.parametrize(
    "closed", [too_old, failed_after_a_passed_one, of_the_text_before_a_reload, no_policy_in_force]
)
def test_what_is_on_goes_down_to_fewer_accounts_although_its_gate_is_closed(fixtures: Fixtures, closed: Any) -> None:
    record(fixtures)
    on(fixtures)
    on(fixtures, percent=20)
    wanted = closed(fixtures)
    for percent in (40, 100):
        with pytest.raises(GateRefused) as refused:
            on(fixtures, percent=percent)
        assert refused.value.why == wanted
        assert refused.value.detail.startswith(f"{FEE} stays on for 20 % of the accounts: ")
    assert on(fixtures, percent=20).already
    assert on(fixtures, percent=5) == SwitchChange(FEE, True, 5, already=False)
    assert seen(fixtures) == {"on": True, "canary_percent": 5, "unproven": ["stripe"]}
    with pytest.raises(GateRefused, match="stays on for 5 %"):
        on(fixtures, percent=20)
    off(fixtures)
    with pytest.raises(GateRefused, match="stays off"):
        on(fixtures, percent=1)
    assert fixtures.broken_invariants() == []


def went_wide_at_once(fixtures: Fixtures) -> bool:
    """Whether the fee switch, off until now, goes on for more accounts than its first canary may have."""
    try:
        on(fixtures, percent=BOOK.switches[FEE].first_canary + 1)
    except CanaryTooWide:
        pass
    return bool(seen(fixtures)["on"])


def test_what_was_off_goes_on_for_its_first_canary_and_may_be_moved_from_there(fixtures: Fixtures) -> None:
    record(fixtures)
    first = BOOK.switches[FEE].first_canary
    for _ in range(2):
        before = len(flips(fixtures))
        assert not went_wide_at_once(fixtures) and len(flips(fixtures)) == before
        assert on(fixtures, percent=first) == SwitchChange(FEE, True, first, already=False)
        assert on(fixtures, percent=100) == SwitchChange(FEE, True, 100, already=False)
        off(fixtures)


def test_what_is_on_by_default_goes_down_to_fewer_accounts(fixtures: Fixtures) -> None:
    """The finding: nobody had flipped it, so it was refused as if it were off: "it goes on for at most 10 % first"."""
    declared = replace(BOOK.switches[STANDARD], default_on=True, first_canary=10)
    book = replace(BOOK, switches={**BOOK.switches, STANDARD: declared})
    assert on(fixtures, STANDARD, 40, declared_switches=book) == SwitchChange(STANDARD, True, 40, already=False)
    assert on(fixtures, STANDARD, 40, declared_switches=book).already
    assert on(fixtures, STANDARD, 60, declared_switches=book) == SwitchChange(STANDARD, True, 60, already=False)
    off(fixtures, STANDARD)
    with pytest.raises(CanaryTooWide):
        on(fixtures, STANDARD, 11, declared_switches=book)
    assert [one.get("canary_percent") for one in flips(fixtures)] == [40, 60, None]
    assert fixtures.broken_invariants() == []


def test_mutant_that_does_not_ask_how_wide_is_caught(fixtures: Fixtures) -> None:
    record(fixtures)
    cut(fixtures, "sentinel.turn_switch_on", "and (percent <= first_percent", "and (true")
    assert went_wide_at_once(fixtures)


def test_two_who_turn_it_on_at_once_cannot_make_the_first_step_wide(fixtures: Fixtures) -> None:
    record(fixtures)
    first = BOOK.switches[FEE].first_canary
    for _ in range(scaled(5)):
        at_once(
            [lambda: refused(lambda: on(fixtures, percent=100)), lambda: refused(lambda: on(fixtures, percent=first))]
        )
        shares = [one.get("canary_percent") for one in flips(fixtures)]
        assert shares[0] == first
        off(fixtures)
    shares = [one.get("canary_percent") for one in flips(fixtures)]
    begun = [share for before, share in zip([None, *shares], shares, strict=False) if before is None and share]
    assert begun == [first] * scaled(5), "once a round, and not wide"


@pytest.mark.parametrize("turn", [lambda fixtures: on(fixtures, percent=50), off], ids=["on", "off"])
def test_a_flip_that_waited_for_another_is_told_after_it(fixtures: Fixtures, turn: Any) -> None:
    record(fixtures)
    on(fixtures)
    with psycopg.connect(fixtures.url) as another, ThreadPoolExecutor(1) as thread:
        another.execute("update sentinel.switches set reason = reason")
        waits = thread.submit(turn, fixtures)
        wait_until(lambda: fixtures.one("select exists (select from pg_locks where not granted)"))
        over = another.execute("select clock_timestamp()").fetchone()
        another.commit()
        waits.result()
    newest = "select max(occurred_at) from sentinel.events where kind in ('switch_on', 'switch_off')"
    assert over is not None and fixtures.one(newest) > over[0]
    assert fixtures.one("select changed_at from sentinel.switches") == fixtures.one(newest)


def test_who_looked_before_another_turned_it_off_turns_nothing_on(fixtures: Fixtures) -> None:
    record(fixtures)
    on(fixtures)

    def looked() -> SwitchView:
        return {view.name: view for view in list_switches(fixtures.console_pool, fixtures.tenant_id, BOOK)}[FEE]

    def turn_on(view: SwitchView, percent: int, pool: Any = fixtures.console_pool) -> SwitchChange:
        admin = actor(fixtures, "admin")
        return turn_switch_on(pool, admin, BOOK, FEE, canary_percent=percent, reason="x", seen=view)

    before = looked()
    with psycopg.connect(fixtures.url) as another, ThreadPoolExecutor(1) as thread:
        stop = "select sentinel.turn_switch_off(%s, %s, 'ann', 'it pays twice', gen_random_uuid())"
        another.execute(stop, [fixtures.tenant_id, FEE])
        waits = thread.submit(refused, lambda: turn_on(before, 3))
        wait_until(lambda: fixtures.one("select exists (select from pg_locks where not granted)"))
        another.commit()
        assert waits.result() == "conflict"
    assert refused(lambda: turn_on(before, 5)) == "conflict"
    assert seen(fixtures) == {"on": False, "canary_percent": 0, "unproven": ["stripe"]}
    # Who looks again may, a double click is no conflict, and neither is an attempt whose answer was lost.
    again = looked()
    assert turn_on(again, 5) == SwitchChange(FEE, True, 5, already=False)
    assert turn_on(again, 5) == SwitchChange(FEE, True, 5, already=True)
    lost = LosesConnection(fixtures.console_pool, is_committed=True)
    assert turn_on(looked(), 50, lost) == SwitchChange(FEE, True, 50, already=False)
    never = {view.name: view for view in list_switches(fixtures.console_pool, fixtures.tenant_id, BOOK)}[MASTER]
    admin = actor(fixtures, "admin")
    first = BOOK.switches[MASTER].first_canary
    for is_again in (False, True):
        done = turn_switch_on(fixtures.console_pool, admin, BOOK, MASTER, canary_percent=first, reason="x", seen=never)
        assert done.already is is_again
    off(fixtures, MASTER)
    with pytest.raises(Conflict, match="has been changed in the meantime"):
        turn_switch_on(fixtures.console_pool, admin, BOOK, MASTER, canary_percent=first, reason="x", seen=never)
    assert fixtures.broken_invariants() == []


def test_a_report_whose_answer_was_lost_is_recorded_once(fixtures: Fixtures) -> None:
    """The finding: the second try was refused as a duplicate, and the report that was in force was told as refused."""
    lost, report = LosesConnection(fixtures.console_pool, is_committed=True), passing_report(in_force(fixtures))
    told = record_gate_report(lost, actor(fixtures, "approver"), BOOK, report)  # type: ignore[arg-type]
    assert fixtures.admin.execute("select report_id from sentinel.gate_reports").fetchall() == [(told,)]
    assert fixtures.one("select count(*) from sentinel.events where kind = 'gate_report_recorded'") == 1
    on(fixtures)
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_flip_whose_answer_was_lost_is_told_as_made(fixtures: Fixtures, is_committed: bool) -> None:
    """The finding: the second try found what the first one had done, and who had done it was told that nothing changed."""
    record(fixtures)

    def lost(pool: Pool) -> Any:
        return LosesConnection(pool, is_committed=is_committed)

    def off_by_agent(pool: Pool) -> SwitchChange:
        caller = Caller(fixtures.tenant_id, uuid.uuid4(), uuid.uuid4(), "a-1", frozenset({"guard"}), None)
        return turn_switch_off_by_agent(pool, caller, BOOK, FEE, reason="a wrong execution")

    def turned_on() -> SwitchChange:
        admin = actor(fixtures, "admin")
        return turn_switch_on(lost(fixtures.console_pool), admin, BOOK, FEE, canary_percent=5, reason="ready")

    assert turned_on() == SwitchChange(FEE, True, 5, already=False)
    assert turned_on().already
    approver = actor(fixtures, "approver")
    done = turn_switch_off(lost(fixtures.console_pool), approver, BOOK, FEE, reason="not sure")
    assert done == SwitchChange(FEE, False, 0, already=False) and off(fixtures).already
    assert not turned_on().already
    assert off_by_agent(lost(fixtures.authority.pool)) == SwitchChange(FEE, False, 0, already=False)
    assert off_by_agent(fixtures.authority.pool).already and off_by_agent(lost(fixtures.authority.pool)).already
    assert [one["event"] for one in flips(fixtures)] == ["switch_on", "switch_off", "switch_on", *["switch_off"] * 3]
    assert fixtures.broken_invariants() == []


def never_changed(fixtures: Fixtures, name: str) -> SwitchView:
    """The switch as a person sees it before its first change."""
    view = {one.name: one for one in list_switches(fixtures.console_pool, fixtures.tenant_id, BOOK)}[name]
    assert view.changed_at is None
    return view


def test_who_looked_before_the_first_change_of_all_turns_nothing_on(fixtures: Fixtures) -> None:
    """The finding: a switch that was never changed has no row to lock, so one person's first change undid another's."""
    before = never_changed(fixtures, STANDARD)

    def turn_on() -> SwitchChange:
        admin = actor(fixtures, "admin")
        return turn_switch_on(fixtures.console_pool, admin, BOOK, STANDARD, canary_percent=50, reason="x", seen=before)

    with psycopg.connect(fixtures.url) as another, ThreadPoolExecutor(1) as thread:
        stop = "select sentinel.turn_switch_off(%s, %s, 'ann', 'it pays twice', gen_random_uuid())"
        another.execute(stop, [fixtures.tenant_id, STANDARD])
        waits = thread.submit(refused, turn_on)
        wait_until(lambda: fixtures.one("select exists (select from pg_locks where not granted)"))
        another.commit()
        assert waits.result() == "conflict"
    assert seen(fixtures, STANDARD) == {"on": False, "canary_percent": 0}
    assert [one["event"] for one in flips(fixtures)] == ["switch_off"]


@pytest.mark.parametrize("percent", [100, 50, 0])
def test_the_first_change_of_what_was_seen_as_it_is_declared_is_made_with_its_event(
    fixtures: Fixtures, percent: int
) -> None:
    admin, before = actor(fixtures, "admin"), never_changed(fixtures, STANDARD)
    for is_again in (False, True):
        done = turn_switch_on(
            fixtures.console_pool, admin, BOOK, STANDARD, canary_percent=percent, reason="x", seen=before
        )
        assert done == SwitchChange(STANDARD, True, percent, already=is_again)
    assert seen(fixtures, STANDARD) == {"on": True, "canary_percent": percent}
    assert [one["canary_percent"] for one in flips(fixtures)] == [percent]
    assert fixtures.broken_invariants() == []


def test_a_first_change_that_is_refused_leaves_the_switch_as_it_is_declared(fixtures: Fixtures) -> None:
    admin, before = actor(fixtures, "admin"), never_changed(fixtures, FEE)
    for percent, code in ((5, "gate-not-passed"), (50, "canary-too-wide")):
        turned = refused(
            lambda: turn_switch_on(
                fixtures.console_pool, admin, BOOK, FEE, canary_percent=percent, reason="x", seen=before
            )
        )
        assert turned == code
        never_changed(fixtures, FEE)
        record(fixtures)
    assert flips(fixtures) == [] and fixtures.broken_invariants() == []


def test_agents_are_told_which_systems_a_gate_did_not_try_for_real(fixtures: Fixtures) -> None:
    tried = ["platform", "price_difference", "ticket"]
    record(fixtures, report={"sandbox": tried, "unproven": ["price_difference", "ticket", "stripe"]})
    on(fixtures)
    assert seen(fixtures) == {"on": True, "canary_percent": 5, "unproven": ["price_difference", "ticket", "stripe"]}
    record(fixtures, report={"sandbox": tried, "unproven": ["stripe"]})
    assert seen(fixtures) == {"on": True, "canary_percent": 5, "unproven": ["stripe"]}


@pytest.mark.parametrize(
    ("recorded", "proven"),
    [
        ({"sandbox": ["platform"], "unproven": []}, {"platform_backend"}),
        ({"sandbox": [], "unproven": ["price_difference"]}, set()), ({"simulated": []}, set()), ({}, set()),
    ],
)  # fmt: skip
def test_a_report_proves_no_system_that_its_version_did_not_know(
    fixtures: Fixtures, recorded: dict[str, Any], proven: set[str]
) -> None:
    """The finding: a report from before Stripe could be settled in did not name it, so that Stripe counted as proven."""
    record(fixtures, report=recorded)
    on(fixtures)
    outside = {system.name for system in OUTSIDE_SYSTEMS} | {*NEVER_TRIED}
    assert set(seen(fixtures)["unproven"]) == outside - proven


def test_a_switch_whose_gate_was_taken_out_of_the_file_needs_no_proof_of_its_systems(fixtures: Fixtures) -> None:
    """No gate can try Stripe, so its branches need a switch without one: an old report must not hold their rows back for ever."""
    record(fixtures, report={"sandbox": ["platform", "price_difference"], "unproven": ["ticket", "stripe"]})
    on(fixtures)
    found = switches_and_halts(fixtures.console_pool, fixtures.tenant_id, BOOK)
    assert switch_states(BOOK, found)[FEE] == (True, 5, ["ticket", "stripe"])
    ungated = {**BOOK.switches, FEE: replace(BOOK.switches[FEE], gate=None, policy=None)}
    assert switch_states(DeclaredSwitches(ungated), found)[FEE] == (True, 5, ())


def test_agents_read_no_switch_that_was_turned_off_while_the_file_declared_none(fixtures: Fixtures) -> None:
    unreadable = replace(BOOK, switches={}, fault="cannot be read")
    off(fixtures, "made.up", declared_switches=unreadable)
    off(fixtures)
    found = switches_and_halts(fixtures.console_pool, fixtures.tenant_id, BOOK)
    assert [one.name for one in found] == [FEE]
    assert switches_and_halts(fixtures.console_pool, fixtures.tenant_id, unreadable) == []


@pytest.mark.parametrize("arranged", [no_report, of_the_text_before_a_reload])
def test_mutant_that_asks_for_no_report_is_caught(fixtures: Fixtures, arranged: Any) -> None:
    arranged(fixtures)
    cut(
        fixtures,
        "sentinel.turn_switch_on",
        "(gate is null or narrows or sentinel.gate_refusal(tenant, switch_name, gate, policy) = '')",
        "true",
    )
    assert not stayed_off(fixtures)


def test_with_its_report_a_switch_goes_on_moves_and_goes_off_and_each_flip_has_its_proof(fixtures: Fixtures) -> None:
    record(fixtures)
    age(fixtures, MAX_AGE_DAYS - 0.001)
    assert on(fixtures, percent=5) == SwitchChange(FEE, True, 5, already=False)
    assert seen(fixtures) == {"on": True, "canary_percent": 5, "unproven": ["stripe"]}
    assert on(fixtures, percent=5).already
    assert on(fixtures, percent=50) == SwitchChange(FEE, True, 50, already=False)
    assert seen(fixtures) == {"on": True, "canary_percent": 50, "unproven": ["stripe"]}
    assert off(fixtures) == SwitchChange(FEE, False, 0, already=False)
    assert seen(fixtures) == {"on": False, "canary_percent": 0, "unproven": ["stripe"]}
    assert off(fixtures).already
    found = flips(fixtures)
    assert [one["event"] for one in found] == ["switch_on", "switch_on", "switch_off"]
    assert [one.get("canary_percent") for one in found] == [5, 50, None]
    assert found[0]["policy_digest"] == in_force(fixtures) and found[0]["switch"] == FEE
    assert found[2]["changed_by"] == "approver@somewhere.example" and found[2]["reason"] == "not sure"
    fixtures.run_housekeeping()
    assert fixtures.broken_invariants() == []
    # Its mutant: a flip behind the functions' back is seen.
    fixtures.admin.execute(
        "update sentinel.switches set is_on = true, canary_percent = 100, changed_at = clock_timestamp()"
    )
    assert fixtures.broken_invariants() == ["flips_in_evidence"]


def test_turning_off_works_when_a_report_failed_the_policy_is_gone_and_the_file_is_unreadable(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    record(fixtures)
    on(fixtures)
    fixtures.admin.execute("delete from sentinel.policies_in_force")
    record_failed = replace(BOOK, switches={}, fault="cannot be read")
    assert off(fixtures, declared_switches=record_failed).is_on is False
    assert fixtures.one("select is_on from sentinel.switches") is False
    with pytest.raises(Conflict):
        on(fixtures, declared_switches=SwitchFile(tmp_path).declared)
    with pytest.raises(NotFound):
        off(fixtures, "Not A Name", declared_switches=record_failed)


def test_what_an_agent_turned_off_goes_on_again_only_by_a_report_from_after_that(fixtures: Fixtures) -> None:
    record(fixtures)
    on(fixtures)
    went_wrong = {"switch": FEE, "reason": "a wrong execution"}
    assert fixtures.post("switches/off", went_wrong).get_json()["already"] is False
    with pytest.raises(GateRefused, match="turned the switch off because something went wrong"):
        on(fixtures)
    record(fixtures)
    on(fixtures)
    # A person's own word takes nothing away from the report, and what goes wrong while it is off counts too.
    off(fixtures)
    on(fixtures)
    off(fixtures)
    assert fixtures.post("switches/off", went_wrong).get_json()["already"] is True
    with pytest.raises(GateRefused):
        on(fixtures)
    assert seen(fixtures)["on"] is False


def test_a_report_from_before_the_clock_was_set_back_is_still_older_than_what_came_after(fixtures: Fixtures) -> None:
    """As after a failover to a server whose clock is right. The finding: it counted as the newest, and disproved by nothing."""
    record(fixtures)
    age(fixtures, -1 / 24)
    record(fixtures, passed=False, wrong_executions=1)
    assert gate_refusal(fixtures) == "report_failed"
    record(fixtures)
    assert gate_refusal(fixtures) == ""
    fixtures.post("switches/off", {"switch": FEE, "reason": "a wrong execution"})
    assert gate_refusal(fixtures) == "report_disproved"
    record(fixtures)
    assert gate_refusal(fixtures) == ""
    fixtures.run_housekeeping()
    assert fixtures.broken_invariants() == []


def gate_refusal(fixtures: Fixtures) -> str:
    [state] = gate_states(fixtures.console_pool, fixtures.tenant_id, [(FEE, "fee", "small-refund")]).values()
    return state.refusal


@pytest.mark.parametrize("was_flipped", [True, False], ids=["on before", "never flipped before"])
def test_who_waits_for_an_agent_that_turns_it_off_asks_the_gate_after_it(fixtures: Fixtures, was_flipped: bool) -> None:
    record(fixtures)
    if was_flipped:
        on(fixtures)
    with psycopg.connect(fixtures.url) as agent, ThreadPoolExecutor(1) as thread:
        agent.execute(
            "select sentinel.turn_switch_off(%s, %s, 'agent a', 'a wrong execution', gen_random_uuid(), true)",
            [fixtures.tenant_id, FEE],
        )
        waits = thread.submit(refused, lambda: on(fixtures, percent=5))
        wait_until(lambda: fixtures.one("select exists (select from pg_locks where not granted)"))
        agent.commit()
        assert waits.result() == "gate-not-passed"
    assert seen(fixtures)["on"] is False


def test_what_needs_no_gate_is_on_or_off_by_word_alone(fixtures: Fixtures) -> None:
    assert seen(fixtures, MASTER) == {"on": False, "canary_percent": 0}
    assert seen(fixtures, STANDARD) == {"on": True, "canary_percent": 100}
    on(fixtures, MASTER, 100)
    off(fixtures, STANDARD)
    assert (seen(fixtures, MASTER)["on"], seen(fixtures, STANDARD)["on"]) == (True, False)
    assert "policy_digest" not in flips(fixtures)[0]


def test_an_unknown_switch_is_refused_with_the_nearest_name(fixtures: Fixtures) -> None:
    for name, hint in (("small_refund.refund_fees", "small_refund.refund_fee"), ("x.y", "known:")):
        for flip in (on, off):
            with pytest.raises(NotFound, match=hint):
                flip(fixtures, name)


CONTRADICTIONS: tuple[dict[str, Any], ...] = (
    {"scenario": "defect"}, {"switch": MASTER}, {"wrong_executions": 1}, {"lower_bound_ppm": 949_999}, {"correct": 201},
    {"not_covered": 3}, {"cases": 0, "correct": 0}, {"correct": 0}, {"policy_digest": "sha256:x"}, {"lower_bound_ppm": 10**7},
)  # fmt: skip


def test_a_report_that_contradicts_itself_is_refused(fixtures: Fixtures) -> None:
    for over in CONTRADICTIONS:
        with pytest.raises(InvalidInput):
            record(fixtures, **over)
    assert fixtures.one("select count(*) from sentinel.gate_reports") == 0


def test_the_database_too_keeps_the_bar_and_the_age_that_the_program_says(fixtures: Fixtures) -> None:
    statement = "select sentinel.record_gate_report(%s, %s, 'fee', %s, %s, true, 10, 10, %s, %s, 0, '{}', 'x', %s)"
    for bound, wrong in ((949_999, 0), (950_000, 1)):
        with pytest.raises(pg.CheckViolation):
            fixtures.admin.execute(
                statement, [fixtures.tenant_id, uuid.uuid4(), FEE, "sha256:" + "0" * 64, bound, wrong, uuid.uuid4()]
            )
    days = fixtures.one("select extract(epoch from sentinel.gate_report_max_age()) / 86400")
    assert days == MAX_AGE_DAYS


def test_reports_are_never_changed(fixtures: Fixtures) -> None:
    record(fixtures, passed=False)
    for change in ("update sentinel.gate_reports set passed = true", "delete from sentinel.gate_reports"):
        with pytest.raises(pg.InsufficientPrivilege):
            fixtures.admin.execute(change.encode())
