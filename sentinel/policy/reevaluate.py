"""Re-evaluates a recorded decision from its stored facts: for operators and auditors, never to decide.

The policy is evaluated on the stored operation and evidence. What the database added in its own transaction (exhausted
limits, a halt, a once-key) cannot be evaluated again and is taken as recorded, in the order of `sentinel.decide_new`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from sentinel.core.decision import Verdict
from sentinel.policy.compile import CompiledPolicy, build_compiled_policy, variables
from sentinel.policy.conditions import ConditionError, Conditions
from sentinel.policy.document import policy_from_document
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester
from sentinel.policy.model import EVIDENCE


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
    """The verdict on a request with its stored evidence; `tightened` are the ids that the database added, in its order."""
    decision = evaluate(policy, {**request, EVIDENCE: evidence}, now, requester=requester)
    verdict, code = decision.verdict, decision.reason_code
    limits = {limit.limit_id: limit for limit in policy.policy.limits}
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
    """The compiled policy; None where the text does not have that digest, or this version cannot compile it any more."""
    try:
        policy = policy_from_document(orjson.loads(canonical))
        conditions = Conditions(variables(policy))
        texts = {rule.rule_id: rule.when for rule in policy.rules}
        texts |= {limit.limit_id: limit.when for limit in policy.limits if limit.when is not None}
        compiled = {name: conditions.compile(text) for name, text in texts.items()}
    except (KeyError, ValueError, TypeError, AttributeError, ConditionError):
        return None
    return build_compiled_policy(policy, conditions, compiled) if policy.digest() == policy_digest else None
