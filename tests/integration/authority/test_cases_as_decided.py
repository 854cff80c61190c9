"""Policy cases and the authority: the same requests under the same full limits have the same decision and reasons in both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sentinel.policy.cases import run_cases
from tests.support.fixtures import guard_body, make_fixtures, unique
from tests.support.harness import seeded

POLICIES, USED = 24, "90.00"
CODES = ("limit_exceeded", "total_exceeded", "over_limit", "high_risk")
OWNERS = ("[tenant, currency]", "[account, currency]")
QUESTIONS = {
    "allowed by its rules": ("20.00", {"suspicious_reason": False}),
    "asked by a rule": ("30.00", {"suspicious_reason": False}),
    "a rule could not answer": ("20.00", {}),
}
POLICY = """
policy: {name}
label: Several limits
version: v1
actions: [{name}.act]
facts:
  account:    {{type: string, from: params.account_ref, vouched_by: worker}}
  amount:     {{type: money, from: params.amount}}
  suspicious: {{type: bool, from: params.risk.suspicious_reason, vouched_by: worker}}
numbers: {{most: {{USD: "1000.00"}}}}
rules:
  - {{id: fine, says: Small enough., when: amount_minor <= numbers.most, then: ALLOW, reason: within_policy_limit}}
  - {{id: thirty, says: Thirty exactly., when: amount_minor == 3000, then: APPROVAL_REQUIRED, reason: amount_needs_approval}}
  - {{id: odd, says: The reason is suspicious., when: suspicious, then: APPROVAL_REQUIRED, reason: suspicious_reason}}
limits:
{limits}
approval: {{expires: 30m, role: approver, people: 1}}
"""
LIMIT = '  - {{id: {}, says: A cap., window: calendar_day, per: {}, cap: {{USD: "{}"}}, then: {}, reason: {}}}'


def test_cases_with_several_full_limits_say_what_the_authority_decides(database_url: str, tmp_path: Path) -> None:
    """Limits in any declared order, totals and others, of either verdict, full and not; guarded, checked and as cases."""
    dice, names = seeded(11, POLICIES), [f"several-{number}" for number in range(POLICIES)]
    caps = {}
    for name in names:
        ids = dice.sample(["account", "account_day", "total", "b_week", "z_first"], 4)
        caps[name] = {limit: dice.choice(["100.00", "100.00", "1000.00"]) for limit in ids}
        codes = dice.sample(CODES, 4)
        lines = [
            LIMIT.format(
                limit, dice.choice(OWNERS), cap, dice.choice(["DENY", *["APPROVAL_REQUIRED"] * 3]), codes.pop()
            )
            for limit, cap in caps[name].items()
        ]
        (tmp_path / f"{name}.yaml").write_text(POLICY.format(name=name, limits="\n".join(lines)))
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        (tmp_path / "cases").mkdir()
        several: set[str] = set()
        for name in names:
            account, cases = unique("acct"), []
            filled = guard_body(value=USED, action=f"{name}.act", params={"account_ref": account})
            assert fixtures.guard(filled)["decision"] == "ALLOW"
            for question, (value, risk) in QUESTIONS.items():
                body = guard_body(value=value, action=f"{name}.act", params={"account_ref": account, "risk": risk})
                asked = {field: body[field] for field in ("agent_id", "action", "params", "evidence_context")}
                checked = fixtures.post("action/check", asked).get_json()
                decided = fixtures.guard(body)
                want: dict[str, Any] = {"decision": decided["decision"], "reason": decided["reason_code"]}
                assert (checked["decision"], checked["reason_code"]) == tuple(want.values()), f"{name}: {question}"
                if want["decision"] == "APPROVAL_REQUIRED":
                    want["reasons"] = list(fixtures.one(
                        "select reasons from sentinel.approvals order by created_at desc, approval_id desc limit 1"
                    ))  # fmt: skip
                    several |= {question} if len(want["reasons"]) > 2 else set()
                cases.append(
                    {"name": question, "request": asked, "usage": dict.fromkeys(caps[name], USED), "want": want}
                )
            # JSON is YAML; with ids quoted, whatever they look like.
            (tmp_path / "cases" / f"{name}.yaml").write_text(json.dumps({"policy": name, "cases": cases}))
        report = run_cases(tmp_path)
        assert [f"{one.where} {one.name}: {one.problem}" for one in report.results if not one.passed] == []
        assert len(report.results) == POLICIES * len(QUESTIONS) and several == set(QUESTIONS)
    finally:
        fixtures.close()


def test_of_equally_strict_full_limits_the_first_by_its_id_gives_the_reason(database_url: str, tmp_path: Path) -> None:
    """Also where one id is the beginning of the other."""
    limits = [LIMIT.format(name, "[tenant, currency]", "100.00", "APPROVAL_REQUIRED", code)
              for name, code in (("day_total", "total_exceeded"), ("day", "limit_exceeded"))]  # fmt: skip
    (tmp_path / "two.yaml").write_text(POLICY.format(name="two", limits="\n".join(limits)))
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        body = guard_body(value=USED, action="two.act", params={"risk": {"suspicious_reason": False}})
        assert fixtures.guard(body)["decision"] == "ALLOW"
        body = guard_body(value="20.00", action="two.act", params={"risk": {"suspicious_reason": False}})
        asked = {field: body[field] for field in ("agent_id", "action", "params", "evidence_context")}
        assert fixtures.post("action/check", asked).get_json()["reason_code"] == "limit_exceeded"
        assert fixtures.guard(body)["reason_code"] == "limit_exceeded"
        usage = {"day": USED, "day_total": USED}
        want = {
            "decision": "APPROVAL_REQUIRED",
            "reason": "limit_exceeded",
            "reasons": ["limit_exceeded", "total_exceeded"],
        }
        (tmp_path / "cases").mkdir()
        case = {"name": "both full", "request": asked, "usage": usage, "want": want}
        (tmp_path / "cases" / "two.yaml").write_text(json.dumps({"policy": "two", "cases": [case]}))
        assert [(one.passed, one.problem) for one in run_cases(tmp_path).results] == [(True, "")]
    finally:
        fixtures.close()
