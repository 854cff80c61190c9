"""What each rule of a policy says about a request: for people who look at a decision, not for deciding.

The rules are asked one by one on the request as it is on record. Of decisions from before evidence was kept, a rule whose
answer hangs on it says so, and one whose answer is the same whatever the evidence was is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Any

from sentinel.core.decision import Verdict
from sentinel.policy.compile import CompiledPolicy, CompiledRule, variables
from sentinel.policy.conditions import references
from sentinel.policy.facts import carries, gather
from sentinel.policy.model import EVIDENCE, Fact, variable_name


class Said(StrEnum):
    """How a rule answered."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    COULD_NOT_ANSWER = "could not answer"
    EVIDENCE_NOT_KEPT = "asked of evidence that is not kept"


@dataclass(frozen=True, slots=True)
class RuleSaid:
    """One rule, its condition, and what it finds where that holds."""

    rule_id: str
    when: str
    verdict: Verdict
    reason_code: str
    said: Said


def explain(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> list[RuleSaid]:
    """Every rule in the policy's order. `now` is the moment of the decision, with a zone."""
    facts = gather(policy, request).variables
    if "now" in policy.used:
        facts["now"] = now
    unknown = {
        name
        for fact in policy.facts
        if fact.from_evidence and not _is_on_record(fact, request)
        for name in (variable_name(fact), f"present.{fact.name}")
    }
    # Taken out, not false: CEL answers "no && unknown" with no, and gives no answer where the unknown would decide.
    activation = policy.conditions.activation({name: value for name, value in facts.items() if name not in unknown})
    known = variables(policy.policy)
    return [_said(rule, facts, _answer(rule, activation, known, unknown)) for rule in policy.rules]


def _is_on_record(fact: Fact, request: Mapping[str, Any]) -> bool:
    """Whether what was asked of is known: evidence is there, or the request carries the fact at a path before it."""
    return EVIDENCE in request or carries(request, tuple(takewhile(lambda path: path[0] != EVIDENCE, fact.paths)))


def _answer(rule: CompiledRule, activation: Any, known: Mapping[str, str], unknown: Set[str]) -> Said:
    holds = rule.condition.holds(activation)
    if holds is False:
        return Said.DOES_NOT_HOLD
    if holds is None:
        return Said.EVIDENCE_NOT_KEPT if references(rule.rule.when, known) & unknown else Said.COULD_NOT_ANSWER
    # It holds either way, but which of its reasons it gave stood in the evidence.
    return Said.EVIDENCE_NOT_KEPT if rule.rule.reason_from in unknown else Said.HOLDS


def _said(rule: CompiledRule, facts: Mapping[str, Any], said: Said) -> RuleSaid:
    finding = rule.failed if said is Said.COULD_NOT_ANSWER else rule.found(facts)
    return RuleSaid(rule.rule.rule_id, rule.rule.when, finding.verdict, finding.reason_code, said)
