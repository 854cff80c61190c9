"""What each rule of a policy says about a request: for people who look at a decision, not for deciding.

The rules are asked one by one on the request as it is on record. What comes from evidence is not on record with it, so a
rule that reads evidence is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sentinel.core.decision import Verdict
from sentinel.policy.compile import CompiledPolicy, CompiledRule, variables
from sentinel.policy.conditions import references
from sentinel.policy.facts import gather
from sentinel.policy.model import variable_name


class Said(StrEnum):
    """How a rule answered."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    COULD_NOT_ANSWER = "could not answer"
    NOT_ASKED = "reads evidence"


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
    activation = policy.conditions.activation(facts)
    known = variables(policy.policy)
    unknown = {
        name for fact in policy.facts if fact.from_evidence for name in (variable_name(fact), f"present.{fact.name}")
    }
    return [
        _said(rule, facts, Said.NOT_ASKED if references(rule.rule.when, known) & unknown else _answer(rule, activation))
        for rule in policy.rules
    ]


def _answer(rule: CompiledRule, activation: Any) -> Said:
    holds = rule.condition.holds(activation)
    return Said.COULD_NOT_ANSWER if holds is None else Said.HOLDS if holds else Said.DOES_NOT_HOLD


def _said(rule: CompiledRule, facts: Mapping[str, Any], said: Said) -> RuleSaid:
    finding = rule.failed if said is Said.COULD_NOT_ANSWER else rule.found(facts)
    return RuleSaid(rule.rule.rule_id, rule.rule.when, finding.verdict, finding.reason_code, said)
