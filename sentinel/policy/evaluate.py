"""One request under one policy → `Decision`. Pure: no clock, no database, nothing remembered.

Every rule is asked and the strictest finding wins. A rule that cannot answer only tightens: removing or
corrupting a fact never loosens the decision (a condition that asks `present.<fact>` has chosen otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sentinel.core.decision import ApprovalTerms, Decision, Finding, LimitAsk, Verdict, strictest
from sentinel.policy.compile import CompiledLimit, CompiledPolicy
from sentinel.policy.facts import FactSet, gather, identifier

UNKNOWN = "~unknown"
"""Whose budget it is when the request does not say: one shared budget, so dropping the fact escapes no cap.
No identifier can contain the tilde."""

_ONCE_MISSING = Finding("once_per", Verdict.DENY, "fact_missing", failed=True)


def evaluate(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> Decision:
    """Decide one normalised guard request. `now` is the database clock, with a zone; ValueError without one."""
    return decide(policy, gather(policy, request), now)


def decide(policy: CompiledPolicy, facts: FactSet, now: datetime) -> Decision:
    """Decide on facts already gathered. A DENY asks for no limits, no approval and takes no once-key."""
    if now.tzinfo is None:
        raise ValueError("now needs a time zone")
    if "now" in policy.used:
        facts.variables["now"] = now
    activation = policy.conditions.activation(facts.variables)
    findings = ask_rules(policy, facts.variables, activation)
    if policy.policy.once_per and facts.once_value is None:
        findings.append(_ONCE_MISSING)
    asks: tuple[LimitAsk, ...] = ()
    if policy.limits and not any(finding.verdict is Verdict.DENY for finding in findings):
        asks, unasked = _ask_limits(policy, facts, activation)
        findings += unasked
    verdict, reason_code, reasons = strictest(tuple(findings))
    denied = verdict is Verdict.DENY
    return Decision(
        verdict,
        reason_code,
        reasons,
        tuple(findings),
        limits=() if denied else asks,
        approval=None if denied else _terms(policy, facts),
        approvable=all(finding.approvable for finding in findings),
        asks_person=any(finding.asks_person for finding in findings),
        once_key=None if denied else _once_key(policy, facts),
        policy_id=policy.policy.policy_id,
        policy_version=policy.policy.version,
        policy_label=policy.policy.label,
        policy_digest=policy.digest,
    )


def ask_rules(policy: CompiledPolicy, variables: Mapping[str, Any], activation: Any) -> list[Finding]:
    """What the rules found, in their order; a rule that does not apply finds nothing."""
    answers: list[bool] | None = policy.together.answers(activation) if policy.together else None
    if answers is not None:
        return [rule.found(variables) for rule, holds in zip(policy.rules, answers, strict=True) if holds]
    findings = []
    for rule in policy.rules:
        answer = rule.condition.holds(activation)
        if answer is not False:
            findings.append(rule.found(variables) if answer is True else rule.failed)
    return findings


def _ask_limits(policy: CompiledPolicy, facts: FactSet, activation: Any) -> tuple[tuple[LimitAsk, ...], list[Finding]]:
    asks, unasked = [], []
    subjects = {per: _subject(per, facts) for per in policy.subjects}
    answers: dict[str | None, bool | None] = {None: True}
    for compiled in policy.limits:
        when = compiled.limit.when
        if compiled.condition is not None and when not in answers:
            answers[when] = compiled.condition.holds(activation)  # once, however many limits share it
        # Only an answered "no" takes a limit away; one that cannot say whether it applies, applies.
        if answers[when] is False:
            continue
        cap = None if facts.currency is None else compiled.limit.cap.get(facts.currency)
        if cap is None:
            unasked.append(compiled.failed)
        else:
            asks.append(_ask(policy, compiled, subjects[compiled.limit.per], cap))
    return tuple(asks), unasked


def _subject(per: tuple[str, ...], facts: FactSet) -> str:
    return "|".join([identifier(facts.variables.get(name)) or UNKNOWN for name in per])


def _ask(policy: CompiledPolicy, compiled: CompiledLimit, subject: str, cap_minor: int) -> LimitAsk:
    limit = compiled.limit
    return LimitAsk(
        f"{compiled.key_prefix}{subject}",
        subject,
        limit.window,
        limit.window_seconds,
        limit.bucket_seconds,
        policy.policy.zone,
        cap_minor,
        limit.verdict,
        limit.reason_code,
    )


def _once_key(policy: CompiledPolicy, facts: FactSet) -> str | None:
    once = policy.policy.once_per
    if once is None or facts.once_value is None:
        return None
    # No identifier can contain the bar, so one thing's name never runs into another's.
    return f"{once.thing or policy.policy.policy_id}|{facts.once_value}"


def _terms(policy: CompiledPolicy, facts: FactSet) -> ApprovalTerms:
    terms = policy.policy.approval
    people = terms.people
    if terms.two_people_from:
        threshold = terms.two_people_from.get(facts.currency or "")
        # Without an amount or a threshold for its currency nobody can say that one person is enough.
        if threshold is None or facts.amount_minor is None or facts.amount_minor >= threshold:
            people = max(people, 2)
    return ApprovalTerms(terms.role, people, terms.expires_seconds)
