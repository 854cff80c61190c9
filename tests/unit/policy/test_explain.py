"""What each rule said is told by the policy's kept text, and what hung on evidence that is not kept is named so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from policy_samples import NOW, POLICY, compile_text, sample_request, without_sentences

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.decision import Verdict
from sentinel.platform.resources import policies_dir
from sentinel.policy import explain as explaining
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.describe import describe
from sentinel.policy.evaluate import evaluate
from sentinel.policy.explain import RuleAnswer, compile_stored_policy, explain, reevaluate
from sentinel.policy.facts import WORKER_REQUESTER, Requester
from sentinel.policy.library import PolicyLibrary

EVIDENCE_RULES = POLICY.replace(
    "numbers:\n",
    "  why:   {type: string, from: [params.why, evidence_context.why], one_of: [late, halted]}\n"
    "  ready: {type: bool,   from: evidence_context.ready}\nnumbers:\n",
    1,
).replace(
    "rules:\n",
    "rules:\n"
    "  - {id: asked, says: Somebody asks for a person., when: present.why, then: APPROVAL_REQUIRED, reason_from: why}\n"
    "  - {id: unready, says: The other system is not ready., when: present.ready && !ready, then: APPROVAL_REQUIRED, reason: not_ready}\n"
    "  - {id: known_or_unready, says: Known and not ready., when: risk.known && !ready, then: DENY, reason: both}\n"
    "  - {id: small_or_late, says: Small or late., when: 'amount_minor < 100000 || why == \"late\"', then: APPROVAL_REQUIRED, reason_from: why}\n",
    1,
)
KEPT = RuleAnswer.EVIDENCE_NOT_KEPT
NAMED = POLICY.replace(
    "rules:\n",
    "rules:\n  - {id: named, says: The account is ours., when: account == 'acct_1', then: ALLOW, reason: named_account}\n",
    1,
)


def kept(policy: CompiledPolicy) -> CompiledPolicy:
    found = compile_stored_policy(canonical_json(policy.policy.document()), policy.digest)
    assert found is not None
    return found


def explained(
    policy: CompiledPolicy, request: dict[str, Any], requester: Requester = WORKER_REQUESTER
) -> dict[str, tuple[RuleAnswer, str]]:
    return {one.rule_id: (one.said, one.reason_code) for one in explain(policy, request, NOW, requester)}


@pytest.mark.parametrize("policy", PolicyLibrary.load(policies_dir()).policies, ids=lambda one: one.policy.policy_id)
def test_a_policys_kept_text_says_what_its_file_said(policy: CompiledPolicy) -> None:
    for action in (*policy.policy.actions, "refund.create"):
        for params in (
            {},
            {"amount": {"amount_minor": 12000, "currency": "USD"}, "band": "low", "risk": {"stale_window": True}},
        ):
            request = {"params": params, "action": action, "agent_id": "a", "resource": "r", "risk_class": "standard"}
            assert explain(kept(policy), request, NOW, WORKER_REQUESTER) == explain(
                policy, request, NOW, WORKER_REQUESTER
            )
            assert evaluate(kept(policy), request, NOW).findings == evaluate(policy, request, NOW).findings


def test_a_text_of_another_digest_or_that_cannot_be_asked_any_more_tells_nothing(tmp_path: Path) -> None:
    policy = compile_text(tmp_path, POLICY)
    text = canonical_json(policy.policy.document())
    document = orjson.loads(text)
    for spoilt in ("", "[]", "{}", '"x"', "null", text.replace("known_fraud", "other_fraud"), text.replace(">= 3", ">= three"),
                   canonical_json({**document, "approval": None}), text.replace('"bool"', '"double"')):  # fmt: skip
        assert compile_stored_policy(spoilt, policy.digest) is None, spoilt[:40]


def test_a_policy_kept_without_sentences_has_the_digest_it_always_had_and_is_told_by_its_conditions(
    tmp_path: Path,
) -> None:
    policy = compile_text(tmp_path, POLICY)
    text = without_sentences(policy)
    assert "says" not in text and text != canonical_json(policy.policy.document())
    older = compile_stored_policy(text, sha256_hex(text))
    assert older is not None and canonical_json(older.policy.document()) == text
    told = [*describe(older)["rules"], *describe(older)["limits"]]
    assert [one["says"] for one in told] == [None] * 4
    now, then = (explain(one, sample_request(), NOW, WORKER_REQUESTER) for one in (policy, older))
    assert [replace(one, says=None) for one in now] == then
    assert [one.says for one in now] == [one.says for one in policy.policy.rules]


def test_a_rule_whose_answer_hangs_on_evidence_says_so_and_any_other_is_answered(tmp_path: Path) -> None:
    policy, request = kept(compile_text(tmp_path, EVIDENCE_RULES)), sample_request()
    found = explained(policy, request)
    assert (found["asked"][0], found["unready"][0]) == (KEPT, KEPT)
    assert found["known_or_unready"][0] is RuleAnswer.DOES_NOT_HOLD, "no evidence could have made it hold"
    assert found["small_or_late"][0] is KEPT, "it held, but which reason it gave stood in the evidence"
    assert found["small"] == (RuleAnswer.HOLDS, "small_amount")
    risky = {**request, "params": {**request["params"], "risk": {**request["params"]["risk"], "known": True}}}
    assert explained(policy, risky)["known_or_unready"][0] is KEPT
    missing = {**request, "params": {**request["params"], "risk": {"known": False}}}
    assert explained(policy, missing)["often"] == (RuleAnswer.COULD_NOT_ANSWER, "fact_missing")


def test_what_the_operation_itself_carries_or_evidence_that_is_there_is_used(tmp_path: Path) -> None:
    policy, request = kept(compile_text(tmp_path, EVIDENCE_RULES)), sample_request()
    own = explained(policy, {**request, "params": {**request["params"], "why": "late"}})
    assert own["asked"] == (RuleAnswer.HOLDS, "late")
    assert own["unready"][0] is KEPT
    there = explained(policy, {**request, "evidence_context": {"ready": False}})
    assert there["unready"] == (RuleAnswer.HOLDS, "not_ready")
    assert there["asked"][0] is RuleAnswer.DOES_NOT_HOLD, "the evidence is there and says nothing of it"


def test_a_rule_that_rests_on_what_who_asked_cannot_vouch_for_says_so_as_it_was_decided(tmp_path: Path) -> None:
    policy, an_agent = kept(compile_text(tmp_path, NAMED)), Requester("key")
    request = {**sample_request(risk={"known": False, "count": 3}), "evidence_context": {}}
    assert explained(policy, request)["named"] == (RuleAnswer.HOLDS, "named_account")
    found = explained(policy, request, an_agent)
    assert found["known_fraud"] == found["named"] == (RuleAnswer.NOT_VOUCHED, "fact_not_vouched")
    assert found["often"] == (RuleAnswer.HOLDS, "too_often"), "what is said against the case counts"
    assert found["small"] == (RuleAnswer.HOLDS, "small_amount")
    decided = evaluate(policy, request, NOW, requester=an_agent)
    told = {(one.rule_id, one.verdict, one.reason_code) for one in explain(policy, request, NOW, an_agent)
            if one.said is not RuleAnswer.DOES_NOT_HOLD}  # fmt: skip
    assert told == {(one.rule_id, one.verdict, one.reason_code) for one in decided.findings}


def test_a_rule_that_only_evidence_answers_could_not_answer(tmp_path: Path) -> None:
    policy = kept(compile_text(tmp_path, EVIDENCE_RULES))
    known = {**sample_request(risk={"known": True, "count": 0}), "evidence_context": {"ready": True}}
    assert explained(policy, known)["known_or_unready"] == (RuleAnswer.COULD_NOT_ANSWER, "fact_missing")


def test_mutant_that_takes_what_is_not_kept_for_silence_would_tell_of_an_escalation_that_it_was_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = kept(compile_text(tmp_path, EVIDENCE_RULES))
    monkeypatch.setattr(explaining, "_is_on_record", lambda fact, request: True)
    assert explained(policy, sample_request())["asked"][0] is RuleAnswer.DOES_NOT_HOLD


def test_a_full_budget_that_is_shared_for_want_of_a_fact_has_the_reason_it_was_recorded_with() -> None:
    (policy,) = (one for one in PolicyLibrary.load(policies_dir()).policies if one.policy.policy_id == "retail-refund")
    request = {"action": "refund.create", "agent": "retail-refund-agent", "params": {"amount": {"amount_minor": 1000, "currency": "USD"}, "refund_id": "rf_1",
               "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}}}  # fmt: skip
    (name, *_) = (limit.limit_id for limit in policy.policy.limits if "account" in limit.per)
    for account, reason in (({"account_ref": "acct_1"}, "limit_exceeded"), ({}, "account_unknown")):
        asked = {**request, "params": {**request["params"], **account}}  # type: ignore[dict-item]
        told = reevaluate(policy, asked, {}, [name], NOW, WORKER_REQUESTER)
        assert (told.verdict, told.reason_code) == (Verdict.APPROVAL_REQUIRED, reason)
