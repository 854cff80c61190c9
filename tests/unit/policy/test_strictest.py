"""How findings become one verdict: all sets of up to three findings, compared with the rule said in plain words."""

from __future__ import annotations

from itertools import product

import pytest

from sentinel.core.decision import Finding, Verdict, strictest

KINDS = [Finding(f"{v.value}_{failed}", v, "fact_missing" if failed else v.value.lower(), failed)
         for v, failed in product(Verdict, (False, True))]  # fmt: skip
SETS = [findings for size in range(4) for findings in product(KINDS, repeat=size)]


def _in_words(findings: tuple[Finding, ...]) -> Verdict:
    if any(finding.verdict is Verdict.DENY for finding in findings):
        return Verdict.DENY
    if all(finding.failed for finding in findings):
        return Verdict.DENY
    if any(finding.failed or finding.verdict is Verdict.APPROVAL_REQUIRED for finding in findings):
        return Verdict.APPROVAL_REQUIRED
    return Verdict.ALLOW


def test_the_strictest_finding_wins_in_every_set() -> None:
    assert len(SETS) == 1 + 6 + 36 + 216
    for findings in SETS:
        assert strictest(findings)[0] is _in_words(findings), findings


def test_an_allow_needs_an_answered_allow_and_no_failure() -> None:
    for findings in SETS:
        if strictest(findings)[0] is Verdict.ALLOW:
            assert any(finding.verdict is Verdict.ALLOW for finding in findings)
            assert not any(finding.failed for finding in findings)


def test_one_more_failure_never_loosens_and_an_answer_that_fails_never_loosens() -> None:
    for findings in SETS:
        rank = strictest(findings)[0].rank
        for kind in KINDS:
            if kind.failed:
                assert strictest((*findings, kind))[0].rank >= rank
        for at, finding in enumerate(findings):
            spoilt = Finding(finding.rule_id, finding.verdict, "fact_missing", failed=True)
            assert strictest((*findings[:at], spoilt, *findings[at + 1 :]))[0].rank >= rank


def test_the_mutant_that_lets_a_failed_allow_through_is_caught() -> None:
    def mutant(findings: tuple[Finding, ...]) -> Verdict:
        return max((finding.verdict for finding in findings), key=lambda verdict: verdict.rank, default=Verdict.DENY)

    assert any(mutant(findings).rank < _in_words(findings).rank for findings in SETS)


@pytest.mark.parametrize("findings", [findings for findings in SETS if findings][:60])
def test_an_answered_reason_comes_before_a_failure_of_the_same_strictness(findings: tuple[Finding, ...]) -> None:
    verdict, reason, reasons = strictest(findings)
    answered = [f.reason_code for f in findings if f.verdict is verdict and not f.failed]
    if answered:
        assert reason == answered[0]
    assert len(set(reasons)) == len(reasons)


def test_reasons_list_every_finding_that_is_no_allow_strictest_first() -> None:
    findings = (
        Finding("a", Verdict.ALLOW, "fine"),
        Finding("b", Verdict.APPROVAL_REQUIRED, "look"),
        Finding("c", Verdict.DENY, "fact_missing", failed=True),
        Finding("d", Verdict.DENY, "never"),
        Finding("e", Verdict.APPROVAL_REQUIRED, "look"),
    )
    assert strictest(findings) == (Verdict.DENY, "never", ("never", "fact_missing", "look"))
