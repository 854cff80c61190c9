"""A recorded decision, decided again from what is kept of it: for people and auditors, not for deciding.

The policy is asked on the operation and the evidence as they were kept; what the database found in its own transaction
(limits that were full, a halt, a once-key) cannot be asked again and is taken as it was recorded. The order is that of
`sentinel.decide_new`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.core.decision import Verdict
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Asker
from sentinel.policy.model import EVIDENCE


@dataclass(frozen=True, slots=True)
class DecidedAgain:
    """The verdict and its leading reason, and the rules that fired for them."""

    verdict: Verdict
    reason_code: str
    rules: tuple[str, ...]


def decide_again(
    policy: CompiledPolicy,
    request: Mapping[str, Any],
    evidence: Mapping[str, Any],
    tightened: Sequence[str],
    now: datetime,
    asker: Asker,
) -> DecidedAgain:
    """The verdict on a request with its kept evidence; `tightened` are the ids that the database added, in its order."""
    decision = evaluate(policy, {**request, EVIDENCE: evidence}, now, asker=asker)
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
    return DecidedAgain(verdict, code, tuple(one.rule_id for one in decision.findings if not one.failed))
