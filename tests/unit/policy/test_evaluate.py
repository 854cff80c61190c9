"""Decisions: the boundaries, the gaps, and that no missing or malformed fact ever loosens an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from policy_samples import (
    ALLOW_ONLY,
    NOW,
    POLICY,
    by_engine,
    compile_file,
    compile_text,
    money,
    refund_request,
    sample_request,
    small_refund,
    spoilt,
    with_evidence,
    with_rules,
)
from test_conditions import Truthy

from sentinel.core.decision import Decision, Finding, Verdict
from sentinel.platform.resources import policies_dir
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.evaluate import certain_denial, decide, evaluate
from sentinel.policy.facts import extract_facts

Evaluator = Callable[[CompiledPolicy, Mapping[str, Any], datetime], Decision]

REFUND_FACTS = (
    ("params", "amount"),
    ("params", "amount", "amount_minor"),
    ("params", "amount", "currency"),
    ("params", "account_ref"),
    ("params", "refund_id"),
    ("params", "risk"),
    ("params", "risk", "duplicate_refund"),
    ("params", "risk", "stale_window"),
    ("params", "risk", "suspicious_reason"),
    ("params", "risk", "customer_attempts_24h"),
    ("params",),
)
SMALL_FACTS = (
    *REFUND_FACTS,
    ("action",),
    ("params", "channel"),
    ("params", "scenario"),
    ("params", "order"),
    ("params", "order", "paid"),
    ("params", "order", "paid", "value"),
    ("params", "order", "paid", "currency"),
)


@pytest.fixture(scope="module")
def small() -> CompiledPolicy:
    return compile_file(policies_dir() / "small_refund.yaml")


@pytest.fixture(scope="module")
def retail() -> CompiledPolicy:
    return compile_file(policies_dir() / "retail_refund.yaml")


@pytest.fixture
def sample(tmp_path: Path) -> CompiledPolicy:
    return compile_text(tmp_path, POLICY)


# --- boundaries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("currency", ["USD", "EUR", "GBP"])
@pytest.mark.parametrize(
    ("minor", "verdict", "reason", "people"),
    [
        (1, Verdict.ALLOW, "within_policy_limit", 1),
        (15_000, Verdict.ALLOW, "within_policy_limit", 1),
        (15_001, Verdict.APPROVAL_REQUIRED, "amount_needs_approval", 1),
        (49_999, Verdict.APPROVAL_REQUIRED, "amount_needs_approval", 1),
        (50_000, Verdict.APPROVAL_REQUIRED, "amount_needs_approval", 2),
        (100_000, Verdict.APPROVAL_REQUIRED, "amount_needs_approval", 2),
        (100_001, Verdict.DENY, "over_limit", None),
        (10**12, Verdict.DENY, "over_limit", None),
    ],
)
def test_exactly_equal_passes_and_one_minor_unit_over_does_not(
    retail: CompiledPolicy, currency: str, minor: int, verdict: Verdict, reason: str, people: int | None
) -> None:
    decision = evaluate(retail, refund_request(minor, currency), NOW)
    assert (decision.verdict, decision.reason_code) == (verdict, reason)
    assert (decision.approval.people if decision.approval else None) == people


def test_an_uncovered_currency_is_named_as_the_reason(retail: CompiledPolicy) -> None:
    decision = evaluate(retail, refund_request(100, "JPY"), NOW)
    assert (decision.verdict, decision.reason_code) == (Verdict.DENY, "currency_not_covered")
    assert decision.limits == ()


def test_the_limits_of_the_retail_policy_are_asked_as_written(retail: CompiledPolicy) -> None:
    decision = evaluate(retail, refund_request(), NOW)
    asked = {
        ask.limit_key: (ask.window, ask.window_seconds, ask.bucket_seconds, ask.cap_minor) for ask in decision.limits
    }
    assert asked == {
        "retail-refund/account_day|acct_1|USD": ("calendar_day", 0, 0, 30_000),
        "retail-refund/account_24h|acct_1|USD": ("rolling", 86_400, 300, 30_000),
        "retail-refund/account_month|acct_1|USD": ("calendar_month", 0, 0, 100_000),
        "retail-refund/account_90d|acct_1|USD": ("rolling", 90 * 86_400, 86_400, 200_000),
        "retail-refund/agent_hour|retail-refund-agent|USD": ("rolling", 3600, 300, 1_000_000),
        "retail-refund/agent_day|retail-refund-agent|USD": ("calendar_day", 0, 0, 4_000_000),
        "retail-refund/tenant_hour|~tenant|USD": ("rolling", 3600, 300, 2_000_000),
        "retail-refund/tenant_day|~tenant|USD": ("calendar_day", 0, 0, 8_000_000),
    }
    assert {(ask.subject, ask.zone, ask.verdict, ask.reason_code) for ask in decision.limits} == {
        ("acct_1|USD", "UTC", Verdict.APPROVAL_REQUIRED, "limit_exceeded"),
        ("retail-refund-agent|USD", "UTC", Verdict.APPROVAL_REQUIRED, "total_exceeded"),
        ("~tenant|USD", "UTC", Verdict.APPROVAL_REQUIRED, "total_exceeded"),
    }


def test_a_decision_names_its_policy_and_what_may_happen_once(retail: CompiledPolicy) -> None:
    decision = evaluate(retail, refund_request(), NOW)
    assert decision.once_key == "refund|rf_1"
    assert (decision.policy_id, decision.policy_version) == ("retail-refund", "retail-refund-policy-v1")
    assert (decision.policy_label, decision.policy_digest) == ("Retail Refund Policy v1", retail.digest)


def test_a_denial_asks_for_nothing(retail: CompiledPolicy) -> None:
    decision = evaluate(retail, refund_request(stale_window=True), NOW)
    assert (decision.limits, decision.approval, decision.once_key) == ((), None, None)


@pytest.mark.parametrize("account", [None, 7, "", "a|USD", "~unknown", "acct\n1", "аcct_1", "x" * 201])
def test_whoever_does_not_name_an_account_shares_one_budget(retail: CompiledPolicy, account: Any) -> None:
    request = refund_request()
    request["params"]["account_ref"] = account
    assert accounts(evaluate(retail, request, NOW)) == {"~unknown|USD"}


def accounts(decision: Decision) -> set[str]:
    """Whose budgets are asked for, besides the totals."""
    return {ask.subject for ask in decision.limits if "/account_" in ask.limit_key}


def test_the_first_path_that_holds_anything_is_taken(retail: CompiledPolicy) -> None:
    request = refund_request()
    request["params"] |= {"account_ref": None, "account_id": "acct_2"}
    assert accounts(evaluate(retail, request, NOW)) == {"acct_2|USD"}


def test_a_limit_without_a_number_for_the_currency_cannot_be_lifted(tmp_path: Path) -> None:
    policy = compile_text(tmp_path, POLICY.replace('cap: {USD: "20.00", JPY: "2000"}', 'cap: {USD: "20.00"}'))
    decision = evaluate(policy, sample_request(amount=money(500, "JPY")), NOW)
    assert (decision.verdict, decision.reasons) == (Verdict.DENY, ("fact_missing",))
    assert Finding("account_day", Verdict.DENY, "fact_missing", failed=True) in decision.findings


def test_two_people_are_asked_where_nobody_says_that_one_is_enough(sample: CompiledPolicy) -> None:
    def people(minor: int, currency: str) -> int:
        approval = evaluate(sample, sample_request(amount=money(minor, currency)), NOW).approval
        assert approval is not None
        return approval.people

    assert [people(899, "USD"), people(900, "USD"), people(1, "JPY")] == [1, 2, 2]


def test_a_limit_narrowed_by_a_condition_goes_only_with_an_answered_no(tmp_path: Path) -> None:
    policy = compile_text(tmp_path, POLICY.replace("    window:", "    when: ordered_at < now\n    window:"))

    def asked(ordered_at: str | None) -> int:
        return len(evaluate(policy, sample_request(ordered_at=ordered_at), NOW).limits)

    assert asked("2026-11-21T09:59:59Z") == 1
    assert asked("2026-11-21T10:00:01Z") == 0
    assert asked("2026-11-21T10:00:01") == 1  # no zone: no time
    assert asked(None) == 1


def test_presence_is_carrying_anything_at_all(tmp_path: Path) -> None:
    rule = "  - {id: asked, says: The time of the order is given., when: present.ordered_at, then: APPROVAL_REQUIRED, reason: asked}\nlimits:"
    policy = compile_text(tmp_path, POLICY.replace("limits:", rule, 1))
    assert evaluate(policy, sample_request(), NOW).verdict is Verdict.ALLOW
    assert evaluate(policy, sample_request(ordered_at=None), NOW).verdict is Verdict.ALLOW
    for value in ("2026-11-21T10:00:00Z", "garbage", 0, False, ""):
        assert evaluate(policy, sample_request(ordered_at=value), NOW).reasons == ("asked",), value


def test_money_in_another_currency_than_the_amounts_counts_as_missing(tmp_path: Path) -> None:
    text = POLICY.replace("  account: ", "  paid: {type: money, from: params.paid, vouched_by: worker}\n  account: ")
    text = text.replace("amount_minor <= numbers.allow_up_to", "amount_minor <= paid_minor / 10")
    policy = compile_text(tmp_path, text)
    assert evaluate(policy, sample_request(paid=money(5009)), NOW).verdict is Verdict.ALLOW
    assert evaluate(policy, sample_request(paid=money(4999)), NOW).verdict is Verdict.DENY
    written = {"value": "50.09", "currency": "USD"}
    assert evaluate(policy, sample_request(paid=written), NOW).verdict is Verdict.ALLOW
    for wrong in ({"value": "50.091", "currency": "USD"}, {"value": 50.09, "currency": "USD"}, {**written, "more": 1}):
        assert evaluate(policy, sample_request(paid=wrong), NOW).reasons == ("fact_missing",)
    decision = evaluate(policy, sample_request(paid=money(5009, "JPY")), NOW)
    assert (decision.verdict, decision.reason_code) == (Verdict.DENY, "fact_missing")


DENIALS = {
    "risk.known": {"account": None, "amount": None},
    "present.risk.known && risk.known": {},
    "!present.account": {},
    "!present.account || amount_minor > 900": {"amount": "sample"},
    "account == 'acct_1' && amount_minor > 900": {},
    "amount_minor > 900": {"amount": "sample"},
    "amount_minor > 900 && !present.risk.count": {},
    "resource == 'sample.pay'": {},
    "now < timestamp('2027-01-01T00:00:00Z')": {"amount": "sample", "account": "sample"},
}
"""Conditions of a DENY, and by what a request of 10.00 says alone: the reason for which it is denied for certain, if it is."""


@pytest.mark.parametrize("when", DENIALS)
@pytest.mark.parametrize("says", ["amount", "account"])
def test_a_denial_is_certain_where_no_fact_that_is_not_known_yet_could_change_it(
    when: str, says: str, tmp_path: Path
) -> None:
    """The finding: a DENY that could not answer for want of a fact counted as one of every request."""
    text = POLICY.replace("when: risk.known", f'when: "{when}"').replace("reason: known_fraud", "reason: sample")
    text = text.replace("facts:\n", "facts:\n  resource: {type: string, from: resource}\n", 1)
    policy = compile_text(tmp_path, text)
    known = {"amount": money(1000)} if says == "amount" else {"account_ref": "acct_2"}
    found = certain_denial(policy, {"action": "sample.pay", "params": known}, NOW)
    assert found == DENIALS[when].get(says)
    rest: dict[str, Any] = {
        "amount": money(500), "account_ref": "acct_1", "risk": {"known": True, "count": 9}, "resource": "r"
    }  # fmt: skip
    for left_out in product([True, False], repeat=len(rest)):
        more = {name: value for (name, value), out in zip(rest.items(), left_out, strict=True) if not out}
        request = {"agent_id": "a", "action": "sample.pay", "resource": more.pop("resource", "sample.pay")}
        answer = evaluate(policy, {**request, "params": {**more, **known}}, NOW)
        assert found is None or (answer.verdict, found in answer.reasons) == (Verdict.DENY, True)


def test_what_no_rule_can_speak_for_is_denied_for_certain(tmp_path: Path) -> None:
    text = ALLOW_ONLY.replace("&& !risk.known", "&& (amount_minor < 9 || !risk.known)")
    policy = compile_text(tmp_path, text)
    found = {
        minor: certain_denial(policy, {"action": "sample.pay", "params": {"amount": money(minor)}}, NOW)
        for minor in (5, 1000, 1001)
    }
    assert found == {5: None, 1000: None, 1001: "no_matching_policy"}


def test_a_clock_without_a_zone_is_refused(retail: CompiledPolicy) -> None:
    with pytest.raises(ValueError, match="time zone"):
        evaluate(retail, refund_request(), datetime(2026, 11, 21))


def test_no_request_of_any_shape_raises_or_is_allowed(retail: CompiledPolicy) -> None:
    shapes: tuple[dict[str, Any], ...] = (
        {},
        {"params": None},
        {"params": []},
        {"params": {"amount": []}},
        {"params": {"risk": "x"}},
    )
    for request in shapes:
        assert evaluate(retail, request, NOW).verdict is Verdict.DENY


# --- never looser -------------------------------------------------------------------------------------------


def _looser(before: Decision, after: Decision) -> bool:
    """Whether `after` lets more through: a looser verdict, approval offered, fewer people, a once-key or a limit gone.

    A limit is not gone where it could not be applied and says so: then its verdict holds without any count.
    """
    if after.verdict.rank != before.verdict.rank or after.verdict is Verdict.DENY:
        return after.verdict.rank < before.verdict.rank
    fewer = before.approval is None or after.approval is None or after.approval.people < before.approval.people
    gone = before.once_key is not None and after.once_key is None
    failed = {finding.rule_id for finding in after.findings if finding.failed}
    lost = {(name, cap) for name, cap in _limited(before) - _limited(after) if name not in failed}
    return fewer or gone or bool(lost) or (after.approvable and not before.approvable)


def _limited(decision: Decision) -> set[tuple[str, int]]:
    return {(ask.limit_key.split("|")[0].rpartition("/")[2], ask.cap_minor) for ask in decision.limits}


def _refunds() -> Iterator[dict[str, Any]]:
    for minor, currency, attempts in product((15_000, 15_001, 100_001), ("USD", "JPY"), (0, 3, 6)):
        for flag in (None, "duplicate_refund", "stale_window", "suspicious_reason"):
            yield refund_request(minor, currency, attempts, **({flag: True} if flag else {}))


def _small_refunds() -> Iterator[dict[str, Any]]:
    for scenario, minor, paid in product(("fee", "defect"), (500, 1501, 5001), (100_000, 4_999)):
        for raised in ({}, {"duplicate_refund": True}, {"suspicious_reason": True}, {"attempts": 3}):
            plain = small_refund(scenario, minor, paid, **raised)
            yield from (
                plain,
                with_evidence(plain, escalation="blacklisted"),
                with_evidence(plain, settlement_ready=False),
            )


def _find_loosening(policies: list[tuple[CompiledPolicy, list[dict[str, Any]]]], ask: Evaluator) -> str | None:
    """The first spoilt request that is answered more loosely than the whole one; what was done to it."""
    for policy, requests in policies:
        for request in requests:
            before = ask(policy, request, NOW)
            for what, changed in spoilt(request, (*SMALL_FACTS, ("params", "risk", "known"))):
                after = ask(policy, changed, NOW)
                if _looser(before, after):
                    return f"{before.verdict} → {after.verdict}: {what}"
    return None


def _subjects(retail: CompiledPolicy, tmp_path: Path) -> list[tuple[CompiledPolicy, list[dict[str, Any]]]]:
    allow_only = compile_text(tmp_path, ALLOW_ONLY, "allow_only.yaml")
    pays = [
        sample_request(risk={"known": known}, amount=money(minor)) for known, minor in product((True, False), (1, 1001))
    ]
    return [(allow_only, pays), (retail, list(_refunds()))]


def test_no_missing_or_malformed_fact_loosens_a_decision(retail: CompiledPolicy, tmp_path: Path) -> None:
    assert _find_loosening(_subjects(retail, tmp_path), evaluate) is None


def test_no_missing_or_malformed_fact_loosens_a_small_refund(small: CompiledPolicy) -> None:
    assert _find_loosening([(small, list(_small_refunds()))], evaluate) is None


def _missing_is_zero(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> Decision:
    """Mutant: what is missing reads as false or zero."""
    facts = extract_facts(policy, request)
    for name, kind in policy.conditions.variables.items():
        if kind in ("bool", "int"):
            facts.variables.setdefault(name, False if kind == "bool" else 0)
    return decide(policy, facts, now)


def _truthy(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> Decision:
    """Mutant: the engine's error texts count as true."""
    rules = []
    for rule in policy.rules:
        condition = Truthy.__new__(Truthy)
        condition._evaluate, condition.tree = rule.condition._evaluate, None
        rules.append(replace(rule, condition=condition))
    return evaluate(with_rules(policy, tuple(rules)), request, now)


def _skips_the_failed(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> Decision:
    """Mutant: a rule that cannot answer is passed over, so an ALLOW needs no whole set of rules."""
    facts = extract_facts(policy, request)
    activation = policy.conditions.activation(facts.variables)
    answered = tuple(rule for rule in policy.rules if rule.condition.holds(activation) is not None)
    return decide(with_rules(policy, answered), facts, now)


def _caps_only_the_named(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> Decision:
    """Mutant: a limit is not asked where nobody says whose budget it is."""
    decision = evaluate(policy, request, now)
    return msgspec.structs.replace(
        decision, limits=tuple(ask for ask in decision.limits if "~unknown" not in ask.subject)
    )


@pytest.mark.parametrize("mutant", [_missing_is_zero, _truthy, _skips_the_failed, _caps_only_the_named])
def test_the_mutants_that_read_gaps_kindly_are_caught(
    mutant: Evaluator, retail: CompiledPolicy, tmp_path: Path
) -> None:
    assert _find_loosening(_subjects(retail, tmp_path), mutant) is not None


@pytest.mark.parametrize("mutant", [_missing_is_zero, _skips_the_failed, _caps_only_the_named])
def test_the_mutants_are_caught_on_small_refunds_too(mutant: Evaluator, small: CompiledPolicy) -> None:
    assert _find_loosening([(small, list(_small_refunds()))], mutant) is not None


# --- the same for policies that nobody wrote ----------------------------------------------------------------

ATOMS = ("risk.known", "risk.count >= 3", "amount_minor <= numbers.allow_up_to", "account == 'acct_1'", "true")
CONDITIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=4,
)
RULES = st.lists(st.tuples(CONDITIONS, st.sampled_from([v.value for v in Verdict])), min_size=1, max_size=4)
REQUESTS = st.builds(
    lambda minor, known, count: sample_request(amount=money(minor), risk={"known": known, "count": count}),
    st.sampled_from([1, 1000, 1001]),
    st.booleans(),
    st.sampled_from([0, 3]),
)
SAMPLE_FACTS = (
    ("params", "amount"),
    ("params", "account_ref"),
    ("params", "risk"),
    ("params", "risk", "known"),
    ("params", "risk", "count"),
)


def _policy_of(rules: list[tuple[str, str]]) -> str:
    head, tail = POLICY.split("rules:\n")
    lines = [
        f'  - {{id: r{at}, says: Rule {at}., when: "{when}", then: {then}, reason: r{at}}}\n'
        for at, (when, then) in enumerate(rules)
    ]
    return head + "rules:\n" + "".join(lines) + tail[tail.index("limits:") :]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=RULES, request_=REQUESTS)
@example(rules=[("risk.known", "APPROVAL_REQUIRED")], request_=sample_request())
@example(rules=[("risk.known || true", "ALLOW"), ("risk.count >= 3", "ALLOW")], request_=sample_request())
def test_in_any_policy_no_gap_loosens_and_asking_at_once_changes_nothing(
    tmp_path: Path, rules: list[tuple[str, str]], request_: dict[str, Any]
) -> None:
    policy = compile_text(tmp_path, _policy_of(rules))
    one_by_one = by_engine(policy)
    before = evaluate(policy, request_, NOW)
    assert before == evaluate(one_by_one, request_, NOW)
    for what, changed in spoilt(request_, SAMPLE_FACTS):
        after = evaluate(policy, changed, NOW)
        assert not _looser(before, after), (what, rules)
        assert after == evaluate(one_by_one, changed, NOW)


def test_a_budget_shared_for_want_of_a_fact_says_which_fact(retail: CompiledPolicy, small: CompiledPolicy) -> None:
    request = refund_request()
    del request["params"]["account_ref"]
    asked = {(ask.subject, ask.reason_code) for ask in evaluate(retail, request, NOW).limits}
    assert {one for one in asked if "unknown" in one[0]} == {("~unknown|USD", "account_unknown")}
    assert "account_unknown" not in {reason for subject, reason in asked if "unknown" not in subject}
