"""Checks that facts from `evidence_context`, which no digest binds, can only tighten; and checks `reason_from`.

A caller can say something else in `evidence_context` at every call of one operation. So facts from there may make an
answer stricter and do nothing else: no ALLOW, no limit, no amount and no once-key may look at them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.core.decision import Verdict
from sentinel.policy.conditions import references
from sentinel.policy.errors import SourcePosition, nearest
from sentinel.policy.model import AMOUNT, EVIDENCE, FactType, Limit, Policy, Rule, variable_name
from sentinel.policy.parse import RESERVED_REASONS, ParsedPolicy
from sentinel.policy.parse_facts import NAME_FORM
from sentinel.policy.source import Source


def check_evidence(source: Source, parsed: ParsedPolicy, known: Mapping[str, str]) -> None:
    """Note every place where a fact from the evidence context could loosen an answer. Conditions must have compiled."""
    facts = [fact for fact in parsed.policy.facts if fact.from_evidence]
    loose = {name: fact.name for fact in facts for name in (variable_name(fact), f"present.{fact.name}")}
    if AMOUNT in loose.values():
        _refuse(source, parsed.sections.get("facts"), f'the fact "{AMOUNT}"', AMOUNT)
    for rule in parsed.policy.rules:
        if rule.verdict is Verdict.ALLOW:
            _check_condition(source, parsed, rule.rule_id, rule.when, loose, known, "an ALLOW")
    for limit in parsed.policy.limits:
        _check_limit(source, parsed, limit, loose, known)


def _check_limit(
    source: Source, parsed: ParsedPolicy, limit: Limit, loose: Mapping[str, str], known: Mapping[str, str]
) -> None:
    view = source.within(limit.limit_id)
    for name in set(limit.per) & set(loose.values()):
        _refuse(view, parsed.ids[limit.limit_id], "a limit's per", name)
    if limit.when is not None:
        _check_condition(source, parsed, limit.limit_id, limit.when, loose, known, "a limit")


def _check_condition(
    source: Source,
    parsed: ParsedPolicy,
    name: str,
    when: str,
    loose: Mapping[str, str],
    known: Mapping[str, str],
    what: str,
) -> None:
    used = sorted({loose[variable] for variable in references(when, known) if variable in loose})
    if used:
        _refuse(source.within(name), parsed.conditions[name].place, what, used[0])


def _refuse(source: Source, place: SourcePosition | None, what: str, fact: str) -> None:
    message = f'{what} may not rest on "{fact}": it may come from {EVIDENCE}, which is not part of the operation'
    with source.collecting():
        raise source.error(place, message, "take it from params alone, or use it in a rule that does not allow")


def check_reason(source: Source, rule: Rule, policy: Policy, place: SourcePosition) -> None:
    """`reason_from` names a text fact whose values can all be reason codes. Raises `PolicyError`."""
    if rule.reason_from is None:
        return
    fact = next((fact for fact in policy.facts if fact.name == rule.reason_from), None)
    if fact is None or fact.type is not FactType.STRING or fact.one_of is None:
        closed = [fact.name for fact in policy.facts if fact.one_of is not None]
        message = f'reason_from: "{rule.reason_from}" is not a fact of type string with one_of'
        raise source.error(place, message, nearest(rule.reason_from, closed))
    # Approval of a halted request uses "halted"; any other engine code would hide who refused.
    reserved = RESERVED_REASONS - ({"halted"} if rule.verdict is Verdict.APPROVAL_REQUIRED else set())
    for value in sorted(fact.one_of):
        if not NAME_FORM.fullmatch(value):
            raise source.error(
                place, f'reason_from: "{value}" is not a reason code of small letters, digits and underscores'
            )
        if value in reserved:
            raise source.error(place, f'reason_from: "{value}" is given by the engine only')
