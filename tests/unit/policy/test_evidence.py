"""What no digest binds can make an answer stricter and nothing else; asking for a person gets one, with its reason."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from policy_samples import (
    NOW,
    POLICY,
    WRONG_VALUES,
    compile_file,
    compile_text,
    refund_request,
    sample_request,
    small_refund,
    with_evidence,
)

from sentinel.authority.reasons import ESCALATIONS, REASONS
from sentinel.core.canonical import canonical_json
from sentinel.core.decision import Decision, Verdict
from sentinel.core.operation import build_operation
from sentinel.platform.resources import policies_dir
from sentinel.policy import compile as compiling
from sentinel.policy import evaluate as evaluating
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.describe import describe, lint_policy
from sentinel.policy.errors import PolicyError
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester, declared_evidence, extract_facts
from worker.refunds import transitions
from worker.refunds.workflow.graph import Escalation

FACTS = """\
facts:
  why:   {type: string, from: [params.why, evidence_context.why], one_of: [late, halted]}
  ready: {type: bool,   from: evidence_context.ready}
"""
RULES = """\
rules:
  - {id: asked, says: Somebody asks for a person., when: present.why, then: APPROVAL_REQUIRED, reason_from: why}
  - {id: unready, says: The other system is not ready., when: present.ready && !ready, then: APPROVAL_REQUIRED, reason: not_ready, approvable: false}
"""
ASKING = POLICY.replace("facts:\n", FACTS, 1).replace("rules:\n", RULES, 1)

CAPS = {"fee": 1500, "price_diff": 3000, "compensation": 2000, "defect": 5000, "quality": 5000}
EVIDENCE: tuple[dict[str, Any], ...] = (
    *({"escalation": value} for value in ("blacklisted", "halted", "system_not_ready", "because", *WRONG_VALUES)),
    *({"settlement_ready": value} for value in (True, False, *WRONG_VALUES)),
    {"escalation": "blacklisted", "settlement_ready": False},
    {"duplicate_refund": False, "amount": {"amount_minor": 1, "currency": "USD"}, "params": {}, "risk": {}},
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> CompiledPolicy:
    return compile_file(policies_dir() / "small_refund.yaml")


@pytest.fixture(scope="module")
def retail() -> CompiledPolicy:
    return compile_file(policies_dir() / "retail_refund.yaml")


@pytest.fixture
def asking(tmp_path: Path) -> CompiledPolicy:
    return compile_text(tmp_path, ASKING)


# --- evidence only tightens ---------------------------------------------------------------------------------


def _refunds() -> Iterator[dict[str, Any]]:
    for minor, flag in product((500, 15_001, 100_001), ({}, {"duplicate_refund": True}, {"attempts": 3})):
        yield refund_request(minor, **flag)  # type: ignore[arg-type]
    for scenario, minor, paid in product(CAPS, (500, 5_001), (100_000, 4_999, None)):
        yield small_refund(scenario, minor, paid)
        yield small_refund(scenario, minor, paid, suspicious_reason=True)


def _loosened(plain: Decision, told: Decision) -> bool:
    """Whether evidence won anything: an ALLOW, a denial that a rule had spoken, a limit, a person, a once-key."""
    if plain.verdict is Verdict.DENY:
        spoken = any(finding.verdict is Verdict.DENY for finding in plain.findings)
        return told.verdict is Verdict.ALLOW or (spoken and told.verdict is not Verdict.DENY)
    same = (told.limits, told.once_key, told.approval) == (plain.limits, plain.once_key, plain.approval)
    return told.verdict.rank < plain.verdict.rank or not same or (told.approvable and not plain.approvable)


def _won_by_evidence(policies: tuple[CompiledPolicy, ...]) -> str | None:
    for request in _refunds():
        for policy in policies:
            if request["action"].startswith("refund.small") != (policy.policy.policy_id == "small-refund"):
                continue
            plain = evaluate(policy, request, NOW)
            for evidence in EVIDENCE:
                if _loosened(plain, evaluate(policy, with_evidence(request, **evidence), NOW)):
                    return f"{evidence} on {request}"
    return None


def test_no_evidence_loosens_any_answer_of_a_shipped_policy(small: CompiledPolicy, retail: CompiledPolicy) -> None:
    assert _won_by_evidence((small, retail)) is None


def test_the_mutant_that_lets_an_allow_rest_on_evidence_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (policies_dir() / "small_refund.yaml").read_text()
    # Without the rule that asks a person above a tenth, only the ALLOW's own condition stands in between.
    text = text.replace("when: amount_minor * 10 > order.paid_minor", "when: amount_minor < 0", 1)
    old = 'when: action == "refund.small.fee" && amount_minor * 10 <='
    allowed = text.replace(old, old.replace("when: ", "when: present.settlement_ready || "), 1)
    assert allowed != text
    with pytest.raises(PolicyError, match=r'small_refund\.yaml:\d+:\d+: rule "small_fee": an ALLOW may not rest on'):
        compile_text(tmp_path, allowed, "small_refund.yaml")
    monkeypatch.setattr(compiling, "check_evidence", lambda *_: None)
    assert _won_by_evidence((compile_text(tmp_path, allowed, "small_refund.yaml"),)) is not None


HELD = POLICY.replace(
    "facts:\n",
    """facts:
  score: {type: int,    from: [params.score, evidence_context.score]}
  seen:  {type: int,    from: evidence_context.seen}
  told:  {type: bool,   from: evidence_context.told, vouched_by: worker}
  why:   {type: string, from: evidence_context.why, one_of: [late, halted]}
""",
    1,
).replace(
    "rules:\n",
    """rules:
  - {id: scored, says: The score is high., when: score >= 5, then: DENY, reason: high_risk}
  - {id: seen,   says: Seen too often., when: seen >= 5, then: APPROVAL_REQUIRED, reason: seen_often}
  - {id: untold, says: Not told., when: '!present.told || !told', then: APPROVAL_REQUIRED, reason: not_told}
  - {id: asked,  says: A large amount., when: amount_minor > 700 || present.why, then: APPROVAL_REQUIRED, reason_from: why}
""",
    1,
)
"""Rules that are quiet only if evidence says something."""


@pytest.fixture
def held(tmp_path: Path) -> CompiledPolicy:
    return compile_text(tmp_path, HELD)


@pytest.mark.parametrize(
    ("params", "evidence", "verdict", "reasons"),
    [
        ({}, {"score": 1, "seen": 1, "told": True}, "DENY", ("fact_missing",)),
        ({"score": 1}, {"seen": 1, "told": True}, "APPROVAL_REQUIRED", ("fact_missing", "not_told")),
        ({"score": 1}, {"seen": 9, "told": True}, "APPROVAL_REQUIRED", ("seen_often", "not_told")),
        ({"score": 9}, {"score": 1}, "DENY", ("high_risk",)),
    ],
)
def test_no_rule_is_quiet_only_because_of_evidence(
    held: CompiledPolicy, params: dict[str, Any], evidence: dict[str, Any], verdict: str, reasons: tuple[str, ...]
) -> None:
    decision = evaluate(held, with_evidence(sample_request(**params), **evidence), NOW)
    assert decision.verdict is Verdict(verdict)
    assert set(reasons) <= set(decision.reasons)


def test_a_reason_from_evidence_is_told_and_makes_nothing_approvable(held: CompiledPolicy) -> None:
    request = sample_request(amount={"amount_minor": 701, "currency": "USD"}, score=1)
    plain = evaluate(held, with_evidence(request), NOW)
    told = evaluate(held, with_evidence(request, why="late", seen=1), NOW)
    assert not plain.approvable and "unknown_why" in plain.reasons
    assert not told.approvable and "late" in told.reasons


def _loosened_by_what_rules_ask_for(held: CompiledPolicy) -> str | None:
    names: dict[str, tuple[Any, ...]] = {
        "score": (..., 1, 9, "x"), "seen": (..., 1, 9, "x"), "told": (..., True, False, "x"), "why": (..., "late", "other"),
    }  # fmt: skip
    number = 0
    for requester, score, minor in product((Requester("w", is_worker=True), Requester("a")), (..., 1, 9), (500, 701)):
        own = {} if score is ... else {"score": score}
        request = sample_request(amount={"amount_minor": minor, "currency": "USD"}, **own)
        plain = evaluate(held, request, NOW, requester=requester)
        for values in product(*names.values()):
            evidence = {name: value for name, value in zip(names, values, strict=True) if value is not ...}
            number += 1
            if _loosened(plain, evaluate(held, with_evidence(request, **evidence), NOW, requester=requester)):
                return f"{evidence} on {request}, asked by {requester}"
    print(f"N={number}")
    return None


def test_no_evidence_loosens_an_answer_of_rules_that_ask_for_it(held: CompiledPolicy) -> None:
    assert _loosened_by_what_rules_ask_for(held) is None


def test_the_mutant_that_asks_rules_with_their_evidence_alone_is_caught(
    held: CompiledPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "_outcome", evaluating._outcome.__wrapped__)
    monkeypatch.setattr(evaluating, "_stricter", lambda told, bound: told)
    assert _loosened_by_what_rules_ask_for(held) is not None


def test_evidence_that_would_hide_what_the_operation_says_is_refused_at_load(tmp_path: Path) -> None:
    text = HELD.replace("[params.score, evidence_context.score]", "[evidence_context.score, params.score]")
    with pytest.raises(
        PolicyError, match='"score": evidence_context would replace what the operation itself says'
    ) as caught:
        compile_text(tmp_path, text)
    assert caught.value.line > 0


@pytest.mark.parametrize(
    ("old", "new", "rule", "message"),
    [
        ("when: amount_minor <=", "when: why == 'late' && amount_minor <=", "small", "an ALLOW may not rest"),
        ("when: amount_minor <=", "when: present.why || amount_minor <=", "small", "an ALLOW may not rest"),
        ("when: amount_minor <=", "when: '!present.ready && amount_minor <= 1'\n    # ", "small", "an ALLOW may not rest"),
        ("    window:", "    when: ready\n    window:", "account_day", "a limit may not rest"),
        ("    window:", "    when: '! present.why'\n    window:", "account_day", "a limit may not rest"),
        ("per: [account,", "per: [why,", "account_day", "a limit's per may not rest"),
    ],
)  # fmt: skip
def test_what_could_be_loosened_by_evidence_is_refused_at_load_with_its_rule(
    old: str, new: str, rule: str, message: str, tmp_path: Path
) -> None:
    assert old in ASKING
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, ASKING.replace(old, new, 1))
    assert (caught.value.rule, caught.value.line > 0) == (rule, True)
    assert message in caught.value.message


def test_an_amount_from_evidence_is_refused_even_without_limits(tmp_path: Path) -> None:
    text = POLICY.replace("from: params.amount}", "from: [params.amount, evidence_context.amount]}")
    text = text[: text.index("limits:")] + text[text.index("approval:") :]
    with pytest.raises(PolicyError, match="it must come from params.amount"):
        compile_text(tmp_path, text)


# --- reasons that the request gives -------------------------------------------------------------------------


def test_the_reason_is_the_facts_value_and_what_is_bound_comes_first(asking: CompiledPolicy) -> None:
    assert evaluate(asking, with_evidence(sample_request(), why="late"), NOW).reasons == ("late",)
    assert evaluate(asking, sample_request(why="late"), NOW).reasons == ("late",)
    both = with_evidence(sample_request(why="halted"), why="late")
    assert evaluate(asking, both, NOW).reasons == ("halted",)
    assert evaluate(asking, with_evidence(sample_request()), NOW).verdict is Verdict.ALLOW


@pytest.mark.parametrize("value", [value for value in WRONG_VALUES if value is not None])
def test_a_reason_outside_the_list_still_asks_a_person_who_cannot_approve_it(
    value: Any, asking: CompiledPolicy
) -> None:
    decision = evaluate(asking, with_evidence(sample_request(), why=value), NOW)
    assert (decision.verdict, decision.reasons) == (Verdict.APPROVAL_REQUIRED, ("unknown_why",))
    assert (decision.approvable, decision.asks_person) == (False, True)


def test_only_a_carried_reason_asks_for_a_person(asking: CompiledPolicy) -> None:
    assert evaluate(asking, with_evidence(sample_request(), why="late"), NOW).asks_person
    assert not evaluate(asking, sample_request(), NOW).asks_person
    assert not evaluate(asking, with_evidence(sample_request(risk={"known": False, "count": 9})), NOW).asks_person


def test_a_rule_that_is_not_approvable_makes_the_whole_question_so(asking: CompiledPolicy) -> None:
    unready = evaluate(asking, with_evidence(sample_request(), ready=False, why="late"), NOW)
    assert (unready.reasons, unready.approvable) == (("late", "not_ready"), False)
    garbage = evaluate(asking, with_evidence(sample_request(), ready="yes"), NOW)
    assert (garbage.reasons, garbage.approvable) == (("fact_missing",), False)
    assert evaluate(asking, with_evidence(sample_request(), ready=True), NOW).verdict is Verdict.ALLOW


@pytest.mark.parametrize("values", ["[Late]", "['2 late']", "[approval_rejected]", "[fact_missing, late]"])
def test_a_list_of_reasons_holds_reason_codes_only(values: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="reason_from") as caught:
        compile_text(tmp_path, ASKING.replace("[late, halted]", values))
    assert caught.value.rule == "asked"


def test_only_a_question_to_a_person_may_be_called_halted(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match='"halted" is reserved for the engine'):
        compile_text(tmp_path, ASKING.replace("APPROVAL_REQUIRED, reason_from", "DENY, reason_from"))


def test_a_policy_says_in_words_where_reasons_come_from_and_what_cannot_be_approved(asking: CompiledPolicy) -> None:
    told = describe(asking)
    assert told["rules"][0]["words"] == "APPROVAL_REQUIRED (as why says) when present.why"
    assert told["rules"][1]["words"].endswith("a person may reject it or handle it by hand, not approve it")
    assert [rule["approvable"] for rule in told["rules"][:3]] == [True, False, True]
    assert told["facts"][0]["one_of"] == ["halted", "late"]
    assert not any("why" in remark for remark in lint_policy(asking))


@pytest.mark.parametrize(
    ("old", "new"),
    [("reason_from: why", "reason: why"), ("approvable: false", "approvable: true"), ("[late, halted]", "[late]")],
)
def test_what_a_reason_comes_from_is_part_of_the_digest(old: str, new: str, tmp_path: Path) -> None:
    assert compile_text(tmp_path, ASKING.replace(old, new)).digest != compile_text(tmp_path, ASKING).digest


def test_the_order_of_a_list_of_values_is_no_part_of_the_digest(tmp_path: Path) -> None:
    turned = ASKING.replace("[late, halted]", "[halted, late]")
    assert compile_text(tmp_path, turned).digest == compile_text(tmp_path, ASKING).digest


def test_evidence_is_no_part_of_the_operation() -> None:
    def operation(evidence: Any) -> Any:
        return build_operation(idempotency_key="k", agent_id="a", action="b", params={"x": 1}, evidence=evidence)

    assert operation({"escalation": "halted"}) == operation(None)
    assert operation({"escalation": "halted"}).digest == operation({"x": 1}).digest
    assert "evidence_context" not in operation(None).facts() | operation({}).facts()
    assert operation({"x": 1}).facts()["evidence_context"] == {"x": 1}


# --- what is kept of it ---------------------------------------------------------------------------------------

KEEPING = POLICY.replace(
    "facts:\n",
    """facts:
  why:    {type: string, from: [params.why, evidence_context.why], one_of: [late, halted]}
  ready:  {type: bool,   from: evidence_context.ready}
  deep:   {type: int,    from: evidence_context.ready.deep, max: 5}
  cost:   {type: money,  from: evidence_context.cost}
  part:   {type: string, from: evidence_context.cost.currency}
  age:    {type: int,    from: evidence_context.cost.value}
  since:  {type: timestamp, from: evidence_context.since}
  same:   {type: string, from: evidence_context.since}
""",
    1,
)
MONEY = (
    {"value": "1.50", "currency": "USD"},
    {"value": Decimal("1.50"), "currency": "USD"},
    {"value": 3, "currency": "EUR"},
)


def test_what_is_kept_of_evidence_decides_as_all_of_it_and_holds_nothing_else(tmp_path: Path) -> None:
    policy = compile_text(tmp_path, KEEPING)
    values = [*WRONG_VALUES, "late", True, 3, 9, {"deep": 3}, {"deep": "x"}, "2026-11-21T10:00:00Z", *MONEY]
    names = ("why", "ready", "cost", "since", "other")
    rng, number = random.Random(12), 2000
    for _ in range(number):
        evidence = {name: rng.choice(values) for name in names if rng.random() < 0.6}
        kept = declared_evidence(policy, evidence)
        whole, again = (
            extract_facts(policy, {**sample_request(), "evidence_context": one}) for one in (evidence, kept)
        )
        assert whole == again, evidence
        assert json.loads(canonical_json(kept)) == kept
        assert "other" not in kept
        assert declared_evidence(policy, kept) == kept
    print(f"N={number}")


# --- the shipped lists and numbers --------------------------------------------------------------------------


def test_both_refund_policies_know_every_escalation_and_every_reason_has_a_sentence(
    small: CompiledPolicy, retail: CompiledPolicy
) -> None:
    for policy in (small, retail):
        (fact,) = [fact for fact in policy.policy.facts if fact.name == "escalation"]
        assert fact.one_of == frozenset(ESCALATIONS) == frozenset(Escalation)
        assert {rule.reason_code for rule in policy.policy.rules} <= set(REASONS)
    assert {"handled_by_person", "customer_declined", "confirmation_expired"} <= set(REASONS)
    of_rows = {
        transitions.STARTED_ELSEWHERE,
        transitions.EXECUTED_ELSEWHERE,
        transitions.REFUSED,
        transitions.NOT_EXECUTED,
        "awaiting_customer",
    }
    assert of_rows | {"no_report", "error_reported", "contradiction"} <= set(REASONS)


@pytest.mark.parametrize("currency", ["USD", "EUR", "GBP"])
@pytest.mark.parametrize("scenario", CAPS)
def test_a_small_refund_is_a_tenth_up_to_the_cap_to_the_minor_unit(
    small: CompiledPolicy, scenario: str, currency: str
) -> None:
    cap = CAPS[scenario]

    def verdict(minor: int, paid: int) -> Verdict:
        return evaluate(small, small_refund(scenario, minor, paid, currency), NOW).verdict

    assert [verdict(cap, cap * 10), verdict(cap, 10**9), verdict(1, 10)] == [Verdict.ALLOW] * 3
    over = [verdict(cap + 1, 10**9), verdict(cap, cap * 10 - 1), verdict(1, 9), verdict(cap + 1, cap * 10 + 10)]
    assert over == [Verdict.APPROVAL_REQUIRED] * 4


@pytest.mark.parametrize("currency", ["USD", "EUR", "GBP"])
@pytest.mark.parametrize("scenario", CAPS)
def test_the_limits_of_a_small_refund_are_its_scenarios_own(
    small: CompiledPolicy, scenario: str, currency: str
) -> None:
    cap, subject = CAPS[scenario], f"private|acct_1|{scenario}|{currency}"
    asked = [
        ask for ask in evaluate(small, small_refund(scenario, currency=currency), NOW).limits if ask.subject == subject
    ]
    assert {ask.limit_key: (ask.window.value, ask.window_seconds, ask.cap_minor) for ask in asked} == {
        f"small-refund/{scenario}_day|{subject}": ("calendar_day", 0, cap * 2),
        f"small-refund/{scenario}_24h|{subject}": ("rolling", 86_400, cap * 2),
        f"small-refund/{scenario}_month|{subject}": ("calendar_month", 0, cap * 4),
        f"small-refund/{scenario}_90d|{subject}": ("rolling", 90 * 86_400, cap * 8),
    }
    assert {(ask.subject, ask.zone, ask.verdict) for ask in asked} == {(subject, "UTC", Verdict.APPROVAL_REQUIRED)}
