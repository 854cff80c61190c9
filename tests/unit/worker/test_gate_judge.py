"""The verdict of a launch gate: what counts, what does not, and everything that keeps it from passing."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.cli.gate_report_output import print_report
from worker.gates.boundaries import Boundary, counts_in, of_case, wanted
from worker.gates.case_inputs import AGO, CaseInputs, EarlierRefund
from worker.gates.cases import Case, CaseFile, Want
from worker.gates.fixtures import names_of
from worker.gates.judge import NOT_WIRED, GateCaseResult, GateResult, ReplayedRow, judge, report_of, wilson
from worker.gates.run_request import RunRequest, Window
from worker.gates.wrong_executions import Executed, MoneyMovement, WrongExecution, wrong_executions
from worker.refunds.settings import WorkerSettings
from worker.settlement.registry import Systems

DAY = 86_400
WINDOWS = (
    Window("day", "EUR", "calendar_day", 0, "p/day|", 3000),
    Window("24h", "EUR", "rolling", DAY, "p/24h|", 3000),
    Window("month", "EUR", "calendar_month", 0, "p/month|", 6000),
    Window("90d", "EUR", "rolling", 90 * DAY, "p/90d|", 12000),
)
JOB = RunRequest(
    "fee",
    "refund.small.fee",
    "s.fee",
    Path("c.yaml"),
    "",
    uuid.uuid4(),
    "",
    "",
    Path("p"),
    False,
    {},
    "UTC",
    {"EUR": 1500},
    WINDOWS,
)
GIVEN = CaseInputs(
    "private", None, None, "EUR", 490, 20000, "known", "EUR", 490, None, None, 60, None, None, 0, frozenset(), (), "confirm", (),
    "on", False, None,
)  # fmt: skip
PERSON, EXECUTE = Want("person"), Want("execute")


def case(name: str, want: Want = EXECUTE, **given: object) -> Case:
    return Case(name, "c.yaml:1:1", replace(GIVEN, **given), want)


def boundary_cases() -> list[Case]:
    """One correct case on each side of each limit."""
    found = [
        case("tenth", amount_minor=800, paid_minor=8009), case("over_tenth", PERSON, amount_minor=801, paid_minor=8009),
        case("cap", amount_minor=1500), case("over_cap", PERSON, amount_minor=1501),
    ]  # fmt: skip
    for ago, used in (("today", 2000), ("yesterday", 2000), ("this_month", 5000), ("older", 11000)):
        found.append(case(f"w_{ago}", amount_minor=1000, before=(EarlierRefund(used, ago),)))
        found.append(case(f"over_{ago}", PERSON, amount_minor=1000, before=(EarlierRefund(used + 1, ago),)))
    return found


def a_file(cases: Sequence[Case], number: int = 100) -> CaseFile:
    more = [case(f"plain{n}") for n in range(number - len(cases))]
    return CaseFile("c.yaml", "sha256:x", "fee", {"private": "private_refund"}, (*cases, *more))


def as_wanted(file: CaseFile, over: Mapping[str, ReplayedRow] | None = None) -> dict[str, ReplayedRow]:
    states = {
        "execute": ReplayedRow("EXECUTED"),
        "person": ReplayedRow("APPROVAL_REQUIRED", "operator"),
        "deny": ReplayedRow("DENIED"),
    }
    return {**{one.id: states[one.want.end] for one in file.cases}, **(over or {})}


def result_of(
    file: CaseFile, over: Mapping[str, ReplayedRow] | None = None, wrong: Sequence[WrongExecution] = ()
) -> GateResult:
    return judge(JOB, file, as_wanted(file, over), wrong)


def test_a_full_set_of_correct_cases_passes() -> None:
    found = result_of(a_file(boundary_cases()))
    assert found.passed and found.problems == () and found.open == ()


def test_one_wrong_execution_fails_whatever_the_rate_is() -> None:
    file = a_file(boundary_cases(), 1000)
    found = result_of(file, wrong=[WrongExecution("plain1", "other_amount", "x")])
    assert found.lower > 0.98 and not found.passed and found.results["plain1"] is GateCaseResult.INCORRECT
    assert not result_of(file, wrong=[WrongExecution(None, "moved_without_execution", "x")]).passed


@pytest.mark.parametrize("reason", NOT_WIRED)
def test_what_was_not_wired_counts_neither_as_right_nor_in_the_number(reason: str) -> None:
    file = a_file([*boundary_cases(), case("unwired"), case("unwired_no", Want("person", reason))])
    seen = ReplayedRow("APPROVAL_REQUIRED", "operator", reason)
    found = result_of(file, {"unwired": seen, "unwired_no": seen})
    assert found.count(GateCaseResult.NOT_COVERED) == 2 and found.count(GateCaseResult.CORRECT) == 98
    assert found.lower == wilson(98, 98)[0]


def test_a_gate_of_which_nothing_was_wired_does_not_pass() -> None:
    file = a_file(boundary_cases())
    seen = ReplayedRow("APPROVAL_REQUIRED", "operator", "system_not_ready")
    found = result_of(file, {one.id: seen for one in file.cases if one.want == EXECUTE})
    assert not found.passed and "no case was executed" in " ".join(found.problems) and found.open


@pytest.mark.parametrize("left_out", [one.id for one in boundary_cases()])
def test_each_missing_side_of_a_limit_fails_and_is_named(left_out: str) -> None:
    file = a_file([one for one in boundary_cases() if one.id != left_out])
    found = result_of(file)
    assert not found.passed and found.open
    assert all(str(side) in found.problems[0] for side in found.open)


def test_a_boundary_of_an_incorrect_case_is_not_covered() -> None:
    found = result_of(
        a_file(boundary_cases()), {"cap": ReplayedRow("APPROVAL_REQUIRED", "operator", "over_limit_early")}
    )
    assert found.open == (Boundary("cap", "EUR", "exact"),) and not found.passed


def test_too_few_cases_prove_nothing() -> None:
    (problem,) = result_of(a_file(boundary_cases(), 72)).problems
    assert problem.endswith("must be at least 0.95")
    assert result_of(a_file(boundary_cases(), 73)).passed


def test_a_case_is_right_only_with_its_end_and_its_reason() -> None:
    file = a_file([*boundary_cases(), case("why", Want("person", "halted"))])
    for seen, result in (
        (ReplayedRow("APPROVAL_REQUIRED", "operator", "halted"), GateCaseResult.CORRECT),
        (ReplayedRow("APPROVAL_REQUIRED", "operator", "blacklisted"), GateCaseResult.INCORRECT),
        (ReplayedRow("APPROVAL_REQUIRED", "customer", "halted"), GateCaseResult.INCORRECT),
        (ReplayedRow("NEW"), GateCaseResult.INCORRECT),
        (ReplayedRow(None), GateCaseResult.INCORRECT),
    ):
        assert result_of(file, {"why": seen}).results["why"] is result


def test_a_label_execute_without_a_row_is_incorrect_and_no_wrong_execution() -> None:
    file = a_file(boundary_cases())
    assert wrong_executions(file, []) == []
    assert result_of(file, {"plain1": ReplayedRow("DENIED")}).results["plain1"] is GateCaseResult.INCORRECT


def executed(of: Case, **over: object) -> Executed:
    names = names_of(of)
    row = Executed(names.entry, names.refund, of.given.amount_minor, of.given.currency, "private_refund")
    return replace(row, **over)


@pytest.mark.parametrize(
    ("over", "what"),
    [
        ({}, None),
        ({"amount_minor": 491}, "other_amount"),
        ({"currency": "USD"}, "other_amount"),
        ({"system": "coupon"}, "other_system"),
        ({"ledger_entry_id": "elsewhere"}, "of_no_case"),
    ],
)
def test_an_execution_row_other_than_labelled_is_wrong(over: dict[str, object], what: str | None) -> None:
    one = case("one")
    found = wrong_executions(a_file([one], 1), [executed(one, **over)])
    assert [wrong.what for wrong in found] == ([what] if what else [])


def test_executed_against_the_label_twice_or_without_a_row_is_wrong() -> None:
    one, never = case("one"), case("never", PERSON)
    file = a_file([one, never], 2)
    assert [wrong.what for wrong in wrong_executions(file, [executed(never)])] == ["executed_against_label"]
    assert [wrong.what for wrong in wrong_executions(file, [executed(one)] * 2)] == ["executed_twice"]
    moved = [MoneyMovement(names_of(one).entry, "platform_backend")]
    assert [wrong.what for wrong in wrong_executions(file, [executed(one)], moved * 2)] == ["moved_twice"]
    assert [wrong.what for wrong in wrong_executions(file, [], moved)] == ["moved_without_execution"]
    two = executed(never, ledger_entry_id="elsewhere", refund_id=names_of(one).refund)
    assert "refund_executed_twice" in [wrong.what for wrong in wrong_executions(file, [executed(one), two])]


@pytest.mark.parametrize(
    ("right", "number", "lower", "upper"),
    [(0, 0, 0.0, 1.0), (10, 10, 0.722460, 1.0), (81, 100, 0.722203, 0.874918), (0, 10, 0.0, 0.277540), (1, 2, 0.094531, 0.905469)],
)  # fmt: skip
def test_wilsons_interval_is_the_known_one(right: int, number: int, lower: float, upper: float) -> None:
    found = wilson(right, number)
    assert math.isclose(found[0], lower, abs_tol=2e-4) and math.isclose(found[1], upper, abs_tol=2e-4)


def test_what_was_ago_counts_in_fewer_windows_the_longer_it_is() -> None:
    counted = {ago: [window.id for window in WINDOWS if counts_in(ago, window)] for ago in AGO}
    assert counted == {
        "today": ["day", "24h", "month", "90d"], "yesterday": ["24h", "month", "90d"], "this_month": ["month", "90d"],
        "older": ["90d"], "long_ago": [],
    }  # fmt: skip


def test_only_cases_exactly_at_a_limit_or_one_unit_over_it_stand_on_it() -> None:
    sides = {str(side) for one in boundary_cases() for side in of_case(one, JOB)}
    assert sides == {str(side) for side in wanted(JOB)} and len(sides) == 12
    for amount in (799, 802):
        assert (
            of_case(case("off", PERSON if amount > 800 else EXECUTE, amount_minor=amount, paid_minor=8009), JOB)
            == set()
        )
    assert of_case(case("two_over", PERSON, amount_minor=1000, before=(EarlierRefund(2002, "today"),)), JOB) == set()


SANDBOXES = {"platform_url": "http://127.0.0.1:1", "ticket_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    "sandbox, system, tried",
    [
        ({}, "platform_backend", set()), (SANDBOXES, None, set()), (SANDBOXES, "private_refund", set()),
        (SANDBOXES, "platform_backend", {"platform_backend"}),
        (SANDBOXES, "ticket_then_platform", {"ticket", "platform_backend"}),
    ],
)  # fmt: skip
def test_a_report_proves_only_the_outside_systems_that_were_tried_and_never_stripe(
    sandbox: dict[str, str], system: str | None, tried: set[str]
) -> None:
    """A sandbox that no correct case was executed in, as one that was not ready, proves nothing. A worker sends rows that
    would settle in another one to a person, and Stripe moves money as the others do."""
    file = a_file(boundary_cases())
    executed = [] if system is None else [Executed(names_of(file.cases[0]).entry, "rf", 800, "EUR", system)]
    found = judge(JOB, file, as_wanted(file), [], executed=executed)
    report = report_of(replace(JOB, sandbox=sandbox), file, found)
    assert report["passed"]
    outside = set(Systems.from_settings(WorkerSettings()).adapters)
    assert set(report["unproven"]) == outside - tried
    with_stripe = Systems.from_settings(WorkerSettings(stripe_key="rk_live_x"))
    assert with_stripe.configured_outside("stripe") & set(report["unproven"]) == {"stripe"}


def test_the_printed_report_says_what_it_does_not_prove_also_where_no_sandbox_was_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The finding: only a run with sandboxes said so, and the others prove no outside system at all."""
    file = a_file(boundary_cases())
    report = report_of(JOB, file, judge(JOB, file, as_wanted(file), []))
    print_report({**report, "policy_id": "sample", "policy_digest": "sha256:0", "seconds": 1.0})
    told = (
        "unproven          price_difference, platform_backend, ticket, stripe: rows that settle there go to a person\n"
    )
    assert told in capsys.readouterr().out


def test_a_system_in_which_a_case_came_out_wrong_is_not_proven_by_it() -> None:
    file = a_file(boundary_cases(), 1000)
    executed = [Executed(names_of(file.cases[0]).entry, "rf", 800, "EUR", "platform_backend")]
    found = judge(JOB, file, as_wanted(file, {file.cases[0].id: ReplayedRow("DENIED")}), [], executed=executed)
    assert "platform_backend" in report_of(replace(JOB, sandbox=SANDBOXES), file, found)["unproven"]
