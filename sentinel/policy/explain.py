"""Explains a recorded decision, and re-evaluates it from its stored facts. For people and auditors, never to decide.

To explain is to give each rule's answer for the recorded request and requester. For a decision whose evidence was not
stored, a rule that depends on evidence says so; a rule whose answer is the same for any evidence is answered. To
re-evaluate is to ask the policy about the stored operation and evidence. What the database added in its own transaction
(exhausted limits, a halt, a once-key) cannot be evaluated again and is taken as recorded, in the order of
`sentinel.decide_new`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Any

import orjson

from sentinel.core.decision import Finding, Verdict
from sentinel.policy.compile import CompiledPolicy, CompiledRule, build_compiled_policy, variables
from sentinel.policy.conditions import ConditionError, Conditions, references
from sentinel.policy.document import policy_from_document
from sentinel.policy.evaluate import evaluate, rule_findings
from sentinel.policy.facts import WORKER_REQUESTER, Requester, carries, extract_facts
from sentinel.policy.model import EVIDENCE, Fact, variable_name


class RuleAnswer(StrEnum):
    """What a rule's condition evaluated to. `NOT_VOUCHED`: its answer rests on facts that the requester cannot vouch for."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    COULD_NOT_ANSWER = "could not answer"
    NOT_VOUCHED = "not vouched for"
    EVIDENCE_NOT_KEPT = "asked of evidence that is not kept"


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """One rule, its sentence and condition, its answer (`said`), and the verdict and reason code of its finding, or,
    where it has none, of the finding that it would make if its condition held.

    `says` is None in a policy recorded before rules had to have a sentence.
    """

    rule_id: str
    says: str | None
    when: str
    verdict: Verdict
    reason_code: str
    said: RuleAnswer


def explain(
    policy: CompiledPolicy, request: Mapping[str, Any], now: datetime, requester: Requester
) -> list[RuleExplanation]:
    """Explain every rule, in the policy's order. `now` is the moment of the decision, with a zone.

    A decision whose evidence was not stored does not record either whether a worker's key asked: then `requester` is
    not used, and the facts of the request count as vouched for.
    """
    facts = extract_facts(policy, request, requester if EVIDENCE in request else WORKER_REQUESTER)
    if "now" in policy.used:
        facts.variables["now"] = now
    unknown = {
        name
        for fact in policy.facts
        if fact.from_evidence and not _is_on_record(fact, request)
        for name in (variable_name(fact), f"present.{fact.name}")
    }
    # Unknown facts are left out, not set to false: "false && unknown" is still false, and where the unknown decides
    # there is no answer.
    facts.variables = {name: value for name, value in facts.variables.items() if name not in unknown}
    known = variables(policy.policy)
    return [
        _explained(rule, finding, facts.variables, bool(references(rule.rule.when, known) & unknown), unknown)
        for rule, finding in zip(policy.rules, rule_findings(policy, facts), strict=True)
    ]


def _is_on_record(fact: Fact, request: Mapping[str, Any]) -> bool:
    """Whether the fact's value is on record: the evidence is stored, or the request has the fact at an earlier path."""
    return EVIDENCE in request or carries(request, tuple(takewhile(lambda path: path[0] != EVIDENCE, fact.paths)))


def _explained(
    rule: CompiledRule, found: Finding | None, facts: Mapping[str, Any], asks_unknown: bool, unknown: Set[str]
) -> RuleExplanation:
    said = _answer(rule, found, asks_unknown, unknown)
    finding = rule.finding(rule.reason(facts)) if found is None or said is RuleAnswer.EVIDENCE_NOT_KEPT else found
    return RuleExplanation(
        rule.rule.rule_id, rule.rule.says, rule.rule.when, finding.verdict, finding.reason_code, said
    )


def _answer(rule: CompiledRule, found: Finding | None, asks_unknown: bool, unknown: Set[str]) -> RuleAnswer:
    if found is None:
        return RuleAnswer.DOES_NOT_HOLD
    if found.failed:
        return RuleAnswer.EVIDENCE_NOT_KEPT if asks_unknown else RuleAnswer.COULD_NOT_ANSWER
    if found.reason_code == rule.unvouched.reason_code:
        return RuleAnswer.NOT_VOUCHED
    # The rule holds for any evidence, but a reason code that comes from evidence is not known if the evidence is not
    # kept.
    return RuleAnswer.EVIDENCE_NOT_KEPT if rule.rule.reason_from in unknown else RuleAnswer.HOLDS


@dataclass(frozen=True, slots=True)
class ReevaluatedDecision:
    """The verdict, its leading reason code and the ids of the rules that fired."""

    verdict: Verdict
    reason_code: str
    rules: tuple[str, ...]


def reevaluate(
    policy: CompiledPolicy,
    request: Mapping[str, Any],
    evidence: Mapping[str, Any],
    tightened: Sequence[str],
    now: datetime,
    requester: Requester,
) -> ReevaluatedDecision:
    """Decide again on a request with its stored evidence; `tightened` are the ids that the database added, in its order."""
    decision = evaluate(policy, {**request, EVIDENCE: evidence}, now, requester=requester)
    verdict, code = decision.verdict, decision.reason_code
    # Limits as this request asked for them: the shared budget of requests without a fact has another reason code than
    # the limit itself.
    limits = {ask.limit_id: ask for ask in decision.limits}
    for name in tightened:
        if name in limits:
            if limits[name].verdict.rank > verdict.rank:
                verdict, code = limits[name].verdict, limits[name].reason_code
        elif name == "looks_like_duplicate":
            verdict, code = Verdict.APPROVAL_REQUIRED, name
        elif name == "halted" and decision.asks_person and decision.verdict is not Verdict.DENY:
            verdict, code = max(verdict, Verdict.APPROVAL_REQUIRED, key=lambda one: one.rank), name
        else:
            verdict, code = Verdict.DENY, name
    return ReevaluatedDecision(verdict, code, tuple(one.rule_id for one in decision.findings if not one.failed))


def compile_stored_policy(canonical: str, policy_digest: str) -> CompiledPolicy | None:
    """Return the compiled policy; None where the text does not have that digest, or this version can no longer compile it."""
    try:
        policy = policy_from_document(orjson.loads(canonical))
        conditions = Conditions(variables(policy))
        texts = {rule.rule_id: rule.when for rule in policy.rules}
        texts |= {limit.limit_id: limit.when for limit in policy.limits if limit.when is not None}
        compiled = {name: conditions.compile(text) for name, text in texts.items()}
    except (KeyError, ValueError, TypeError, AttributeError, ConditionError):
        return None
    return build_compiled_policy(policy, conditions, compiled) if policy.digest() == policy_digest else None
