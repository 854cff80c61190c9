"""One request under one policy → `Decision`. Pure: no clock, no database, nothing remembered.

Every rule is asked and the strictest finding wins. A rule that cannot answer only tightens: removing or
corrupting a fact never loosens the decision (a condition that asks `present.<fact>` has chosen otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sentinel.core.decision import (
    ApprovalTerms,
    BreakerCheck,
    Decision,
    Finding,
    ReservationRequest,
    Verdict,
    combine,
)
from sentinel.policy.compile import CompiledBreaker, CompiledLimit, CompiledPolicy, CompiledRule
from sentinel.policy.facts import WORKER_REQUESTER, FactSet, Requester, extract_facts, identifier
from sentinel.policy.model import SUBJECTS, Limit

UNKNOWN = "~unknown"
"""The subject when the request has no value, or one its sender cannot vouch for: all of these share one budget, so that
neither omitting nor inventing a fact escapes a cap.
No identifier can contain the tilde."""

_ONCE_MISSING = Finding("once_per", Verdict.DENY, "fact_missing", failed=True)


def evaluate(
    policy: CompiledPolicy, request: Mapping[str, Any], now: datetime, *, requester: Requester = WORKER_REQUESTER
) -> Decision:
    """Decide one normalised guard request. `now` is the database clock, with a zone; ValueError without one."""
    return decide(policy, extract_facts(policy, request, requester), now)


def decide(policy: CompiledPolicy, facts: FactSet, now: datetime) -> Decision:
    """Decide on facts already extracted. A DENY asks for no limits, no approval and takes no once-key."""
    if now.tzinfo is None:
        raise ValueError("now needs a time zone")
    if "now" in policy.used:
        facts.variables["now"] = now
    heard, known = policy.rule_conditions.answers(facts.variables), facts.variables
    if facts.claimed:
        known = facts.vouched()
        findings = _findings_with_claims(policy, facts.variables, heard, policy.rule_conditions.answers(known))
    else:
        findings = _findings(policy, known, heard)
    if policy.policy.once_per and facts.once_value is None:
        findings.append(_ONCE_MISSING)
    asks: tuple[ReservationRequest, ...] = ()
    breakers: tuple[BreakerCheck, ...] = ()
    if Verdict.DENY not in [finding.verdict for finding in findings]:
        asks, unasked = _reservation_requests(policy, facts, known)
        breakers, uncounted = _breaker_checks(policy, facts)
        findings += [*unasked, *uncounted]
    combined = combine(tuple(findings))
    denied = combined.verdict is Verdict.DENY
    return Decision(
        combined.verdict,
        combined.reason_code,
        combined.reasons,
        combined.findings,
        limits=() if denied else asks,
        breakers=() if denied else breakers,
        approval=None if denied else _terms(policy, facts),
        approvable=combined.approvable,
        asks_person=combined.asks_person,
        once_key=None if denied else _once_key(policy, facts),
        policy_id=policy.policy.policy_id,
        policy_version=policy.policy.version,
        policy_label=policy.policy.label,
        policy_digest=policy.digest,
    )


def _findings(policy: CompiledPolicy, variables: Mapping[str, Any], answers: Sequence[bool | None]) -> list[Finding]:
    """The rules' findings, in the policy's order; a rule that does not apply makes none."""
    return [
        rule.failed if answer is None else rule.matched if rule.by_value is None else rule.finding(variables)
        for rule, answer in zip(policy.rules, answers, strict=True)
        if answer is not False
    ]


def _findings_with_claims(
    policy: CompiledPolicy, said: Mapping[str, Any], heard: Sequence[bool | None], vouched: Sequence[bool | None]
) -> list[Finding]:
    """Findings where the request has facts that its sender cannot vouch for: the stricter of with and without them."""
    findings = [
        _finding_with_claims(rule, said, *both) for rule, *both in zip(policy.rules, heard, vouched, strict=True)
    ]
    # Real findings come before `fact_not_vouched`, which says less to an operator.
    return sorted((one for one in findings if one is not None), key=lambda one: one.reason_code == "fact_not_vouched")


def _finding_with_claims(
    rule: CompiledRule, said: Mapping[str, Any], heard: bool | None, sure: bool | None
) -> Finding | None:
    if heard is None:
        return rule.failed
    if rule.rule.verdict is Verdict.ALLOW:
        return None if heard is False or sure is False else rule.matched if sure else rule.unvouched
    if heard or sure:
        return rule.finding(said)
    return None if sure is False else rule.unvouched


def _breaker_checks(policy: CompiledPolicy, facts: FactSet) -> tuple[tuple[BreakerCheck, ...], list[Finding]]:
    asks, uncounted = [], []
    for compiled in policy.breakers:
        if compiled.breaker.amount and compiled.breaker.amount.get(facts.currency or "") is None:
            uncounted.append(compiled.failed)
        else:
            # A halt of the whole tenant names no target.
            target = "" if compiled.breaker.per == "tenant" else facts.who["agent"] or UNKNOWN
            asks.append(_breaker(compiled, target, facts.currency or ""))
    return tuple(asks), uncounted


@lru_cache(maxsize=4096)
def _breaker(compiled: CompiledBreaker, target: str, currency: str) -> BreakerCheck:
    breaker = compiled.breaker
    return BreakerCheck(
        f"{compiled.key}|{target}", breaker.per, target, breaker.window_seconds, breaker.bucket_seconds, breaker.count,
        breaker.amount.get(currency), compiled.declared[currency if breaker.amount else ""],
    )  # fmt: skip


def _reservation_requests(
    policy: CompiledPolicy, facts: FactSet, known: Mapping[str, Any]
) -> tuple[tuple[ReservationRequest, ...], tuple[Finding, ...]]:
    subjects = {per: _subject(per, facts) for per in policy.subjects}
    applying, unasked = _applying_limits(policy, tuple(policy.limit_conditions.answers(known)), facts.currency)
    zone = policy.policy.zone
    return tuple([
        (_total if limit.is_total else _ask)(limit, zone, subjects[limit.limit.per], cap) for limit, cap in applying
    ]), unasked  # fmt: skip


@lru_cache(maxsize=4096)
def _applying_limits(
    policy: CompiledPolicy, answers: tuple[bool | None, ...], currency: str | None
) -> tuple[tuple[tuple[CompiledLimit, int], ...], tuple[Finding, ...]]:
    """The limits that apply, each with its cap in minor units, and the findings of those without a cap in this currency.

    `answers` are those of the policy's `limit_conditions`.
    """
    applying, unasked = [], []
    for compiled in policy.limits:
        # Only an answered "no" removes a limit; one whose condition has no answer applies.
        if compiled.condition is not None and answers[compiled.condition] is False:
            continue
        cap = None if currency is None else compiled.limit.cap.get(currency)
        if cap is None:
            unasked.append(compiled.failed)
        else:
            applying.append((compiled, cap))
    return tuple(applying), tuple(unasked)


def _subject(per: tuple[str, ...], facts: FactSet) -> str:
    """The owner of a budget: its parts in the order of `per`. No part can contain the "|" that stands between them."""
    parts = [facts.who[name] if name in SUBJECTS else _vouched(name, facts) for name in per]
    return "|".join([part or UNKNOWN for part in parts])


def _vouched(name: str, facts: FactSet) -> str | None:
    return None if name in facts.claimed else identifier(facts.variables.get(name))


def _ask(compiled: CompiledLimit, zone: str, subject: str, cap_minor: int) -> ReservationRequest:
    limit = compiled.limit
    return ReservationRequest(
        compiled.key_prefix + subject, subject, limit.window, limit.window_seconds, limit.bucket_seconds, zone, cap_minor,
        limit.verdict, _exceeded_reason(limit, subject), compiled.is_total,
    )  # fmt: skip


_total = lru_cache(maxsize=4096)(_ask)
"""A limit of who asks: the same for most requests."""


def _exceeded_reason(limit: Limit, subject: str) -> str:
    """The reason code of an exceeded limit; `<fact>_unknown` where the shared budget of requests without that fact is used."""
    if UNKNOWN not in subject:
        return limit.reason_code
    missing = [name for name, value in zip(limit.per, subject.split("|"), strict=False) if value == UNKNOWN]
    if not missing:
        return limit.reason_code
    return f"{'account' if 'account' in missing else missing[0]}_unknown".replace(".", "_")


def _once_key(policy: CompiledPolicy, facts: FactSet) -> str | None:
    once = policy.policy.once_per
    if once is None or facts.once_value is None:
        return None
    # No identifier can contain "|", so two parts cannot be confused.
    return f"{once.thing or policy.policy.policy_id}|{facts.once_value}"


def _terms(policy: CompiledPolicy, facts: FactSet) -> ApprovalTerms:
    terms = policy.policy.approval
    people = terms.people
    if terms.two_people_from:
        threshold = terms.two_people_from.get(facts.currency or "")
        # Without an amount or a threshold for its currency, two people have to approve.
        if threshold is None or facts.amount_minor is None or facts.amount_minor >= threshold:
            people = max(people, 2)
    return ApprovalTerms(terms.role, people, terms.expires_seconds)
