"""One request under one policy → `Decision`. Pure: no clock, no database, nothing remembered.

First the policy's facts are read from the request (`facts.py`). Then every rule is asked and the strictest finding wins. A rule that
cannot answer only tightens: removing or corrupting a fact never loosens the decision (except through a condition that
asks `present.<fact>`, which is its author's choice).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sentinel.core.decision import (
    ApprovalTerms,
    BreakerCheck,
    CombinedFindings,
    Decision,
    Finding,
    ReservationRequest,
    Verdict,
    combine,
)
from sentinel.policy.compile import CompiledLimit, CompiledPolicy, CompiledRule
from sentinel.policy.facts import (
    WHOLE_TENANT,
    WORKER_REQUESTER,
    FactSet,
    Requester,
    carries,
    extract_facts,
    identifier,
    without,
)
from sentinel.policy.model import SUBJECTS, Limit, variable_name

UNKNOWN = "~unknown"
"""The part of a subject where the request has no value, or one its sender cannot vouch for: all of these share one
budget, so that neither omitting nor inventing a fact escapes a cap. No identifier can contain the tilde."""

_ONCE_MISSING = Finding("once_per", Verdict.DENY, "fact_missing", failed=True)


def evaluate(
    policy: CompiledPolicy, request: Mapping[str, Any], now: datetime, *, requester: Requester = WORKER_REQUESTER
) -> Decision:
    """Decide one normalised guard request. `now` is the database's time, with a zone. Raises `ValueError` without a zone."""
    return decide(policy, extract_facts(policy, request, requester), now)


def decide(policy: CompiledPolicy, facts: FactSet, now: datetime) -> Decision:
    """Decide on facts already extracted, as `evaluate`. A DENY has no limits, no approval terms and no once-key."""
    if now.tzinfo is None:
        raise ValueError("now needs a time zone")
    said = known = facts.variables
    if "now" in policy.used:
        said["now"] = now
    answers, vouched, bound = policy.rule_conditions.answers(said), None, None
    if facts.claimed:
        known = facts.vouched()
        vouched = policy.rule_conditions.answers(known)
    if facts.unbound:
        bound = _bound_answers(policy, facts)
    who = facts.who
    outcome = _outcome(
        policy, answers, vouched, bound, _limit_answers(policy, said, known), _reasons(policy, said), facts.currency, who["agent"],
        who["key"], facts.once_value is None,
    )  # fmt: skip
    combined = outcome.combined
    denied = combined.verdict is Verdict.DENY
    return Decision(
        combined.verdict, combined.reason_code, combined.reasons, combined.findings,
        limits=() if denied else (*outcome.totals, *_own_limits(policy, facts, outcome.own)), breakers=outcome.breakers,
        approval=None if denied else _terms(policy, facts), approvable=combined.approvable, asks_person=combined.asks_person,
        once_key=None if denied else _once_key(policy, facts), policy_id=policy.policy.policy_id,
        policy_version=policy.policy.version, policy_label=policy.policy.label, policy_digest=policy.digest,
    )  # fmt: skip


_Answers = tuple[bool | None, ...]


def _limit_answers(policy: CompiledPolicy, said: Mapping[str, Any], known: Mapping[str, Any]) -> _Answers:
    """Return the answers of the limits' conditions: "false" only where it is the answer with claimed facts (`said`) and
    without (`known`)."""
    sure = policy.limit_conditions.answers(known)
    if known is said:
        return sure
    heard = policy.limit_conditions.answers(said)
    return tuple([one if other is False else other for one, other in zip(sure, heard, strict=True)])


class _Bound(NamedTuple):
    """The rules' answers on the operation alone, without any fact from `evidence_context`; the fields are those of `_outcome`."""

    answers: _Answers
    vouched: _Answers | None
    reasons: tuple[str | None, ...]


def _bound_answers(policy: CompiledPolicy, facts: FactSet) -> _Bound:
    known = without(facts.variables, facts.unbound)
    vouched = policy.rule_conditions.answers(without(known, facts.claimed)) if facts.claimed else None
    return _Bound(policy.rule_conditions.answers(known), vouched, _reasons(policy, known))


def _reasons(policy: CompiledPolicy, variables: Mapping[str, Any]) -> tuple[str | None, ...]:
    return tuple([value if (value := variables.get(name)) in known else None for name, known in policy.reasons])


class _Outcome(NamedTuple):
    """The result of one set of answers for one requester, which is the same for most requests and so is cached.

    `totals` are the requests of limits that count per requester only; `own` are the other limits, each with its cap in
    minor units. With a DENY there are no limits and no breakers.
    """

    combined: CombinedFindings
    totals: tuple[ReservationRequest, ...]
    own: tuple[tuple[CompiledLimit, int], ...]
    breakers: tuple[BreakerCheck, ...]


@lru_cache(maxsize=4096)
def _outcome(
    policy: CompiledPolicy, answers: _Answers, vouched: _Answers | None, bound: _Bound | None, limit_answers: _Answers,
    reasons: tuple[str | None, ...], currency: str | None, agent: str | None, key: str | None, lacks_once_key: bool,
) -> _Outcome:  # fmt: skip
    """Combine the answers into findings, limits and breakers.

    `answers` are those of the rules; `vouched`, where the request has claimed facts, those without them; `bound`, where
    it has facts from evidence, all of it without those; `reasons` are the values for rules that take their reason from
    a fact.
    """
    found = _found(policy, answers, vouched, bound, reasons)
    findings = [one for one in found if one is not None]
    if vouched is not None:
        # Real findings come before `fact_not_vouched`, which says less to an operator.
        findings.sort(key=lambda one: one.reason_code == "fact_not_vouched")
    if policy.policy.once_per and lacks_once_key:
        findings.append(_ONCE_MISSING)
    if any(finding.verdict is Verdict.DENY for finding in findings):
        return _Outcome(combine(tuple(findings)), (), (), ())
    applying, unasked = _applying_limits(policy, limit_answers, currency)
    breakers, uncounted = _breaker_checks(policy, currency, agent)
    combined = combine((*findings, *unasked, *uncounted))
    if combined.verdict is Verdict.DENY:
        return _Outcome(combined, (), (), ())
    who = {"tenant": WHOLE_TENANT, "agent": agent, "key": key, "currency": identifier(currency)}
    totals = tuple(
        _ask(limit, policy.policy.zone, "|".join([who[name] or UNKNOWN for name in limit.limit.per]), cap)
        for limit, cap in applying
        if limit.is_total
    )
    return _Outcome(combined, totals, tuple(one for one in applying if not one[0].is_total), breakers)


def rule_findings(policy: CompiledPolicy, facts: FactSet) -> list[Finding | None]:
    """Return each rule's finding, in the policy's order; None where it does not match. `facts.variables` must have `now` if it is read."""
    vouched = policy.rule_conditions.answers(facts.vouched()) if facts.claimed else None
    bound = _bound_answers(policy, facts) if facts.unbound else None
    said = facts.variables
    return _found(policy, policy.rule_conditions.answers(said), vouched, bound, _reasons(policy, said))


def certain_denial(policy: CompiledPolicy, request: Mapping[str, Any], now: datetime) -> str | None:
    """Return the reason code with which any request is denied that contains what `request` does, whatever else it
    contains and whoever asks; None where the decision depends on the rest. `now` as for `evaluate`.

    A fact without a value at its first path in `request` is unknown, and so is whether it will be present: both
    variables are left out, not set to false, so that no rule answers by them. Limits are not asked.
    """
    facts = extract_facts(policy, request)
    for fact in policy.policy.facts:
        if not carries(request, fact.paths[:1]):
            facts.variables.pop(variable_name(fact), None)
            facts.variables.pop(f"present.{fact.name}", None)
    if "now" in policy.used:
        facts.variables["now"] = now
    findings = [one for one in rule_findings(policy, facts) if one is not None]
    denials = tuple(one for one in findings if one.verdict is Verdict.DENY and not one.failed)
    return combine(denials).reason_code if denials or not findings else None


def _found(
    policy: CompiledPolicy,
    answers: _Answers,
    vouched: _Answers | None,
    bound: _Bound | None,
    reasons: Sequence[str | None],
) -> list[Finding | None]:
    """Return each rule's finding, None where it does not match; the arguments are those of `_outcome`."""
    found = _findings(policy, answers, vouched, reasons)
    if bound is None:
        return found
    return [_stricter(*both) for both in zip(found, _findings(policy, *bound), strict=True)]


def _findings(
    policy: CompiledPolicy, answers: _Answers, vouched: _Answers | None, reasons: Sequence[str | None]
) -> list[Finding | None]:
    """Return each rule's finding by its answer; `vouched` are the answers without claimed facts."""
    taken = iter(reasons)
    matched = [rule.matched if rule.by_value is None else rule.finding(next(taken)) for rule in policy.rules]
    if vouched is None:
        return [
            None if answer is False else rule.failed if answer is None else finding
            for rule, finding, answer in zip(policy.rules, matched, answers, strict=True)
        ]
    return [
        _finding_with_claims(rule, finding, said, sure)
        for rule, finding, said, sure in zip(policy.rules, matched, answers, vouched, strict=True)
    ]


def _finding_with_claims(rule: CompiledRule, matched: Finding, heard: bool | None, sure: bool | None) -> Finding | None:
    """Return a rule's stricter finding of its answers with (`heard`) and without (`sure`) the facts that the sender cannot vouch for."""
    if heard is None:
        return rule.failed
    if rule.rule.verdict is Verdict.ALLOW:
        return None if heard is False or sure is False else rule.matched if sure else rule.unvouched
    if heard or sure:
        return matched
    return None if sure is False else rule.unvouched


def _stricter(told: Finding | None, bound: Finding | None) -> Finding | None:
    """Combine one rule's findings with evidence (`told`) and without (`bound`): evidence may add a finding and give its
    reason, but never remove one."""
    if told is None or bound is None:
        return told or bound
    if bound.verdict.rank > told.verdict.rank:
        return bound
    return told if bound.approvable or not told.approvable else replace(told, approvable=False)


def _breaker_checks(
    policy: CompiledPolicy, currency: str | None, agent: str | None
) -> tuple[tuple[BreakerCheck, ...], list[Finding]]:
    asks, uncounted = [], []
    for compiled in policy.breakers:
        breaker = compiled.breaker
        if breaker.amount and breaker.amount.get(currency or "") is None:
            uncounted.append(compiled.failed)
            continue
        # A halt of the whole tenant names no target.
        target = "" if breaker.per == "tenant" else agent or UNKNOWN
        asks.append(BreakerCheck(
            f"{compiled.key}|{target}", breaker.per, target, breaker.window_seconds, breaker.bucket_seconds, breaker.count,
            breaker.amount.get(currency or ""), compiled.declared[(currency or "") if breaker.amount else ""],
        ))  # fmt: skip
    return tuple(asks), uncounted


def _applying_limits(
    policy: CompiledPolicy, answers: Sequence[bool | None], currency: str | None
) -> tuple[list[tuple[CompiledLimit, int]], list[Finding]]:
    """Return the limits that apply, each with its cap in minor units, and the failed findings of those without a cap in
    this currency.

    `answers` are those of the policy's `limit_conditions`.
    """
    applying, unasked = [], []
    for compiled in policy.limits:
        # Only a condition answered "false" removes a limit; one whose condition could not answer applies.
        if compiled.condition is not None and answers[compiled.condition] is False:
            continue
        cap = None if currency is None else compiled.limit.cap.get(currency)
        if cap is None:
            unasked.append(compiled.failed)
        else:
            applying.append((compiled, cap))
    return applying, unasked


def _own_limits(
    policy: CompiledPolicy, facts: FactSet, applying: Sequence[tuple[CompiledLimit, int]]
) -> list[ReservationRequest]:
    """Return the requests of the limits that count by facts of the request, and not per requester only."""
    zone, asks = policy.policy.zone, []
    subjects: dict[tuple[str, ...], str] = {}
    for compiled, cap in applying:
        per = compiled.limit.per
        subject = subjects.get(per)
        if subject is None:
            subject = subjects[per] = _subject(per, facts)
        asks.append(_ask(compiled, zone, subject, cap))
    return asks


def _subject(per: tuple[str, ...], facts: FactSet) -> str:
    """Return the owner of a budget: its parts in the order of `per`, joined by "|", which no part can contain."""
    parts = []
    for name in per:
        if name in SUBJECTS:
            part = facts.who[name]
        else:
            part = None if name in facts.claimed else identifier(facts.variables.get(name))
        parts.append(part or UNKNOWN)
    return "|".join(parts)


def _ask(compiled: CompiledLimit, zone: str, subject: str, cap_minor: int) -> ReservationRequest:
    known = _known_terms(compiled, zone, cap_minor)
    if UNKNOWN in subject:
        known = (*known[:-2], _unknown_reason(compiled.limit, subject), compiled.is_total)
    return ReservationRequest._make((compiled.key_prefix + subject, subject, *known))


@lru_cache(maxsize=4096)
def _known_terms(compiled: CompiledLimit, zone: str, cap_minor: int) -> tuple[Any, ...]:
    """The fields of a `ReservationRequest` that do not depend on whose budget it is."""
    limit = compiled.limit
    return (
        limit.window, limit.window_seconds, limit.bucket_seconds, zone, cap_minor, limit.verdict, limit.reason_code,
        compiled.is_total,
    )  # fmt: skip


def _unknown_reason(limit: Limit, subject: str) -> str:
    """Return the reason code of a limit that is exceeded in the budget shared by requests without a fact: `<fact>_unknown`."""
    missing = [name for name, value in zip(limit.per, subject.split("|"), strict=True) if value == UNKNOWN]
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
