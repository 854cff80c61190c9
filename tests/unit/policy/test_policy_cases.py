"""Policy cases: the shipped ones pass and touch every rule; a changed policy or a wrong case turns red."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from policy_samples import NOW, POLICY, compile_file

from sentinel.core.operation import build_operation
from sentinel.platform.resources import policies_dir
from sentinel.policy.cases import run_cases
from sentinel.policy.errors import PolicyError
from sentinel.policy.evaluate import evaluate
from sentinel.policy.folder import check_folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(policies_dir(), tmp_path / "policies")
    return tmp_path / "policies"


def test_the_shipped_cases_pass_and_every_rule_and_limit_takes_effect_in_one() -> None:
    report = run_cases(policies_dir())
    assert [f"{result.where} {result.name}: {result.problem}" for result in report.results if not result.passed] == []
    assert report.passed
    assert report.never_matched == ()
    assert len(report.results) > 50


@pytest.mark.timeout(20)
def test_a_pipe_among_the_cases_is_refused_and_not_waited_for(copy: Path) -> None:
    os.mkfifo(copy / "cases" / "pipe.yaml")
    (fault,) = check_folder(copy)[1]
    assert (fault.file, fault.message) == (str(copy / "cases" / "pipe.yaml"), "is a pipe or device, not a file")
    with pytest.raises(PolicyError, match="is a pipe or device"):
        run_cases(copy)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "150.01"'),
        ('allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "149.99"'),
        ('approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "1000.01"'),
        ('two_people_from: {USD: "500.00"', 'two_people_from: {USD: "500.01"'),
        ("customer_attempts_24h >= 6", "customer_attempts_24h > 6"),
        ("customer_attempts_24h >= 3", "customer_attempts_24h > 3"),
        ('cap: {USD: "300.00"', 'cap: {USD: "300.01"'),
        ('cap: {USD: "300.00"', 'cap: {USD: "299.99"'),
        ('cap: {USD: "1000.00"', 'cap: {USD: "1000.01"'),
        ('cap: {USD: "2000.00"', 'cap: {USD: "1999.99"'),
        ("amount_minor > numbers.approve_up_to", "amount_minor >= numbers.approve_up_to"),
        ("when: risk.stale_window", "when: '!risk.stale_window'"),
        ("once_per: {refund: params.refund_id}", "# never mind"),
        ("min: 0", "min: -9"),
    ],
)
def test_a_policy_that_is_off_by_one_turns_its_cases_red(old: str, new: str, copy: Path) -> None:
    path = copy / "retail_refund.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert not run_cases(copy).passed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('cap_compensation: {USD: "20.00"', 'cap_compensation: {USD: "20.01"'),
        ('EUR: "15.00"', 'EUR: "15.01"'),
        ('GBP: "30.00"', 'GBP: "29.99"'),
        ("amount_minor * 10 > order", "amount_minor * 10 >= order"),
        ("amount_minor * 10 <= order", "amount_minor * 10 < order"),
        ("amount_minor <= numbers.cap_defect", "amount_minor < numbers.cap_defect"),
        ('cap: {USD: "100.00"', 'cap: {USD: "100.01"'),
        ("customer_attempts_24h >= 6", "customer_attempts_24h > 6"),
        ("customer_attempts_24h >= 3", "customer_attempts_24h > 3"),
        ("present.settlement_ready && !settlement_ready", "present.settlement_ready && settlement_ready"),
        ("approvable: false", "approvable: true"),
        ("reason_from: escalation", "reason: over_limit"),
        ('action != "refund.small." + scenario', 'action.startsWith("nothing")'),
        ("once_per: {refund: params.refund_id}", "# never mind"),
    ],
)  # fmt: skip
def test_a_small_refund_policy_that_is_off_by_one_turns_its_cases_red(old: str, new: str, copy: Path) -> None:
    path = copy / "small_refund.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert not run_cases(copy).passed


def _cases(folder: Path, text: str) -> Path:
    (folder / "cases").mkdir()
    (folder / "sample.yaml").write_text(POLICY)
    (folder / "cases" / "sample.yaml").write_text(text)
    return folder


SAMPLE_CASE = """\
policy: sample
base:
  action: sample.pay
  params: {amount: {value: "5.00", currency: USD}, risk: {known: false, count: 0}}
cases:
  - name: small
    want: {decision: ALLOW, reason: small_amount, reasons: [], people: 1}
"""


def test_rules_that_no_case_touches_are_named(tmp_path: Path) -> None:
    report = run_cases(_cases(tmp_path, SAMPLE_CASE))
    assert report.passed
    assert report.never_matched == ("sample/known_fraud", "sample/often", "sample/account_day")
    assert report.coverage["sample"]["small"] == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("decision: ALLOW", "decision: DENY", "decision: wanted DENY, got ALLOW"),
        ("reason: small_amount", "reason: other", "reason: wanted other, got small_amount"),
        ("reasons: []", "reasons: [x]", "reasons: wanted ['x'], got []"),
        ("people: 1", "people: 2", "people: wanted 2, got 1"),
        ("policy: sample", "policy: other", "policy: wanted other, got sample"),
        ("  - name: small", '  - usage: {account_week: "1.00"}\n    name: small', "no limit account_week was checked"),
    ],
)
def test_a_wrong_case_says_what_it_got(old: str, new: str, problem: str, tmp_path: Path) -> None:
    report = run_cases(_cases(tmp_path, SAMPLE_CASE.replace(old, new, 1)))
    assert not report.passed
    assert problem in report.results[0].problem
    assert report.results[0].where.endswith("sample.yaml:6")


USING = SAMPLE_CASE + '    usage: {account_day: "15.01"}\n'


@pytest.mark.parametrize(
    ("used", "decision"),
    [('"0"', "ALLOW"), ("0", "ALLOW"), ('"0.00"', "ALLOW"), ("15", "ALLOW"), ('"15.00"', "ALLOW"), ('"15.01"', "APPROVAL_REQUIRED")],
)  # fmt: skip
def test_what_is_used_of_a_limit_is_an_amount_or_nothing(used: str, decision: str, tmp_path: Path) -> None:
    (result,) = run_cases(_cases(tmp_path, USING.replace('"15.01"', used))).results
    assert result.decision.value == decision


@pytest.mark.parametrize("used", ['"abc"', "-1", '"-0"', "true", "null", '"0.001"', '""', "[1]"])
def test_usage_that_is_no_amount_is_refused_with_its_line_and_case(used: str, tmp_path: Path) -> None:
    folder = _cases(tmp_path, USING.replace('"15.01"', used))
    with pytest.raises(PolicyError) as caught:
        run_cases(folder)
    assert (caught.value.file.rpartition("/")[2], caught.value.line, caught.value.rule) == ("sample.yaml", 8, "small")
    assert "usage" in caught.value.message
    assert [fault.line for fault in check_folder(folder)[1] if isinstance(fault, PolicyError)] == [8]


@pytest.mark.parametrize("amount", ["", "amount: {amount_minor: 100}, ", "amount: {amount_minor: 100, currency: 1}, "])
def test_usage_without_an_amount_in_the_request_is_refused(amount: str, tmp_path: Path) -> None:
    folder = _cases(tmp_path, USING.replace('amount: {value: "5.00", currency: USD}, ', amount))
    with pytest.raises(PolicyError, match="usage: the request has no amount"):
        run_cases(folder)


def test_no_usage_wants_no_amount(tmp_path: Path) -> None:
    text = USING.replace('amount: {value: "5.00", currency: USD}, ', "").replace('{account_day: "15.01"}', "{}")
    [result] = run_cases(_cases(tmp_path, text)).results
    assert "usage" not in result.problem


def test_a_wrong_case_says_which_rule_or_breaker_decided(tmp_path: Path) -> None:
    folder = _cases(tmp_path, SAMPLE_CASE.replace('value: "5.00", currency: USD', 'value: "5", currency: JPY'))
    breaker = 'breakers: [{id: fast, per: agent, window: 5m, amount: {USD: "9.00"}, then: halt}]\n'
    (folder / "sample.yaml").write_text(POLICY + breaker)
    [result] = run_cases(folder).results
    assert result.problem.endswith("DENY comes from fast (fact_missing)")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("decision: ALLOW", "decision: MAYBE"),
        ("reason: small_amount, ", ""),
        ("want:", "wants:"),
        ('value: "5.00"', 'value: "5.001"'),
        ('value: "5.00"', "value: 5.00"),
        ("policy: sample\n", ""),
        ("people: 1", 'people: "1"'),
        ("reasons: []", "reasons: small_amount"),
        ("people: 1", 'approvable: "true"'),
    ],
)
def test_a_malformed_case_is_refused(old: str, new: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        run_cases(_cases(tmp_path, SAMPLE_CASE.replace(old, new, 1)))


def test_a_second_case_of_the_same_name_is_refused_with_its_line(tmp_path: Path) -> None:
    again = "  - {name: small, want: {decision: ALLOW, reason: small_amount}}\n"
    with pytest.raises(PolicyError, match='two cases are named "small"') as caught:
        run_cases(_cases(tmp_path, SAMPLE_CASE + again))
    assert caught.value.line == 8 and (caught.value.hint or "").endswith("sample.yaml:6")


@pytest.mark.parametrize("written", ["", "null", "text", "[action]", "7"])
def test_a_request_or_base_that_is_no_mapping_is_refused_with_its_line(written: str, tmp_path: Path) -> None:
    folder = _cases(tmp_path, SAMPLE_CASE + f"    request: {written}\n")
    with pytest.raises(PolicyError, match='case "small": request must be a mapping') as caught:
        run_cases(folder)
    assert caught.value.line == 8
    assert [fault.line for fault in check_folder(folder)[1]] == [8]
    (folder / "cases" / "sample.yaml").write_text(f"base: {written}\npolicy: sample\ncases: [{{name: x}}]\n")
    with pytest.raises(PolicyError, match="base must be a mapping"):
        run_cases(folder)


def test_the_cases_of_a_file_may_all_be_of_actions_that_no_policy_covers(tmp_path: Path) -> None:
    text = "policy: none\ncases: [{name: other, request: {action: other}, want: {decision: DENY, reason: no_matching_policy}}]\n"
    folder = _cases(tmp_path, text)
    assert check_folder(folder)[1] == []
    assert run_cases(folder).passed


def test_a_case_that_names_no_resource_or_risk_class_is_decided_as_a_guard_request_that_does_not(
    tmp_path: Path,
) -> None:
    rules = (
        "  - {id: plain, says: No risk class is named., when: risk_class == 'standard', then: APPROVAL_REQUIRED, reason: plain}\n"
        "  - {id: itself, says: No resource is named., when: thing == 'sample.pay', then: APPROVAL_REQUIRED, reason: itself}\n"
    )
    facts = "  risk_class: {type: string, from: risk_class}\n  thing: {type: string, from: resource}\n"
    cases = """\
  - name: nothing is named
    want: {decision: APPROVAL_REQUIRED, reason: plain, reasons: [plain, itself]}
  - name: all is named
    request: {resource: r, risk_class: high}
    want: {decision: ALLOW, reason: small_amount}
"""
    folder = _cases(tmp_path, SAMPLE_CASE[: SAMPLE_CASE.index("  - name")] + cases)
    text = POLICY.replace("facts:\n", f"facts:\n{facts}").replace("rules:\n", f"rules:\n{rules}")
    (folder / "sample.yaml").write_text(text)
    assert [result.problem for result in run_cases(folder).results] == ["", ""]
    body = {"amount": {"value": "5.00", "currency": "USD"}, "risk": {"known": False, "count": 0}}
    asked = build_operation(idempotency_key="k", agent_id="a", action="sample.pay", params=body)
    assert evaluate(compile_file(folder / "sample.yaml"), asked.facts(), NOW).reasons == ("plain", "itself")


def test_a_case_asks_with_a_key_of_its_own_as_a_guard_request_does(tmp_path: Path) -> None:
    folder = _cases(
        tmp_path,
        SAMPLE_CASE.replace("small_amount, reasons: []", "limit_exceeded").replace("ALLOW", "APPROVAL_REQUIRED")
        + '    usage: {key_day: "1999.00"}\n',
    )
    limit = "{id: key_day, says: A key's day., window: calendar_day, per: [key, currency], cap: {USD: '2000.00'}, then: APPROVAL_REQUIRED, reason: limit_exceeded}"
    (folder / "sample.yaml").write_text(POLICY.replace("limits:\n", f"limits:\n  - {limit}\n"))
    assert [result.problem for result in run_cases(folder).results] == [""]


def test_a_case_may_write_the_amount_beside_its_currency_as_a_guard_request_may(tmp_path: Path) -> None:
    beside = 'amount: "5.00", currency: USD'
    folder = _cases(tmp_path, USING.replace('amount: {value: "5.00", currency: USD}', beside).replace("15.01", "15.00"))
    assert [result.problem for result in run_cases(folder).results] == [""]
    params = {"amount": "5.00", "currency": "USD", "risk": {"known": False, "count": 0}}
    asked = build_operation(idempotency_key="k", agent_id="a", action="sample.pay", params=params)
    assert evaluate(compile_file(folder / "sample.yaml"), asked.facts(), NOW).reason_code == "small_amount"


BY_HOUR = POLICY.replace("when: risk.count >= 3", 'when: now.getHours("Europe/Berlin") >= 22')


@pytest.mark.parametrize(
    ("at", "wanted"),
    [
        ("", "ALLOW"),
        ('at: "2026-11-21T21:59:59+01:00", ', "ALLOW"),
        ('at: "2026-11-21T22:00:00+01:00", ', "APPROVAL_REQUIRED"),
        ('at: "2026-11-21T21:00:00Z", ', "APPROVAL_REQUIRED"),
        ("at: 2026-11-21T21:00:00Z, ", "APPROVAL_REQUIRED"),
    ],
)
def test_a_case_says_at_what_time_it_is_decided(at: str, wanted: str, tmp_path: Path) -> None:
    folder = _cases(tmp_path, SAMPLE_CASE)
    (folder / "sample.yaml").write_text(BY_HOUR)
    case = f"  - {{name: late, {at}want: {{decision: {wanted}, reason: {'small_amount' if wanted == 'ALLOW' else 'too_often'}}}}}\n"
    (folder / "cases" / "sample.yaml").write_text(SAMPLE_CASE + case)
    assert [result.problem for result in run_cases(folder).results] == ["", ""]


@pytest.mark.parametrize(
    "at", ["2026-11-21", '"22:00"', '"2026-11-21T22:00:00"', '"0001-01-01T00:00:00+01:00"', "late", "[now]", "7"]
)
def test_a_case_at_no_time_is_refused(at: str, tmp_path: Path) -> None:
    folder = _cases(tmp_path, SAMPLE_CASE.replace("    want:", f"    at: {at}\n    want:", 1))
    with pytest.raises(PolicyError, match='case "small": at must be a time with its zone'):
        run_cases(folder)


def test_no_cases_are_no_success(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(POLICY)
    assert not run_cases(tmp_path).passed
