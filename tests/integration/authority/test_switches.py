"""A gated switch goes on by a fresh passing report only and off by a word; every flip leaves evidence."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import errors as pg

from sentinel.authority.gate_reports import MAX_AGE_DAYS
from sentinel.authority.switches import CanaryTooWide, Flipped, GateRefused, list_switches
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.policy.switches import SwitchFile
from tests.support.harness import at_once, refused, scaled
from tests.support.switch_world import BOOK, FEE, MASTER, STANDARD, flips, in_force, off, on, record, seen
from tests.support.world import World
from tests.twins import cut


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


def went_wide_at_once(world: World) -> bool:
    """Whether the fee switch, off until now, goes on for more accounts than its first canary may have."""
    try:
        on(world, percent=BOOK.switches[FEE].first_canary + 1)
    except CanaryTooWide:
        pass
    return bool(seen(world)["on"])


def test_what_was_off_goes_on_for_its_first_canary_and_may_be_moved_from_there(world: World) -> None:
    record(world)
    first = BOOK.switches[FEE].first_canary
    for _ in range(2):
        before = len(flips(world))
        assert not went_wide_at_once(world) and len(flips(world)) == before
        assert on(world, percent=first) == Flipped(FEE, True, first, already=False)
        assert on(world, percent=100) == Flipped(FEE, True, 100, already=False)
        off(world)


def test_twin_that_does_not_ask_how_wide_is_caught(world: World) -> None:
    record(world)
    cut(world, "sentinel.flip_switch", "and (percent <= first_percent", "and (true")
    assert went_wide_at_once(world)


def test_two_who_turn_it_on_at_once_cannot_make_the_first_step_wide(world: World) -> None:
    record(world)
    first = BOOK.switches[FEE].first_canary
    for _ in range(scaled(5)):
        at_once([lambda: refused(lambda: on(world, percent=100)), lambda: refused(lambda: on(world, percent=first))])
        shares = [one.get("canary_percent") for one in flips(world)]
        assert shares[0] == first
        off(world)
    shares = [one.get("canary_percent") for one in flips(world)]
    assert all(
        share == first for before, share in zip([None, *shares], shares, strict=False) if before is None and share
    )


def test_agents_are_told_which_systems_a_gate_saw_as_simulations_only(world: World) -> None:
    record(world, report={"simulated": ["price_difference", "ticket"]})
    on(world)
    assert seen(world) == {"on": True, "canary_percent": 5, "simulated": ["price_difference", "ticket"]}
    record(world, report={"simulated": [], "sandbox": ["price_difference", "ticket"]})
    assert seen(world) == {"on": True, "canary_percent": 5}


@pytest.mark.parametrize("arranged", [no_report, of_the_text_before_a_reload])
def test_twin_that_asks_for_no_report_is_caught(world: World, arranged: Any) -> None:
    arranged(world)
    cut(
        world,
        "sentinel.flip_switch",
        "(gate is null or sentinel.gate_refusal(tenant, switch_name, gate, policy) = '')",
        "true",
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
