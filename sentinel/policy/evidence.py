"""What may not rest on what no digest binds, and where a rule may take its reason from.

A caller can say something else in `evidence_context` at every call of one operation. So facts from there may make an
answer stricter and do nothing else: no ALLOW, no limit, no amount and no once-key may look at them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.core.decision import Verdict
from sentinel.policy.conditions import references
from sentinel.policy.errors import Place, nearest
from sentinel.policy.model import AMOUNT, EVIDENCE, FactType, Limit, Policy, Rule, variable_name
from sentinel.policy.parse import RESERVED_REASONS, Written
from sentinel.policy.parse_facts import NAME_FORM
from sentinel.policy.source import Source


def check_evidence(source: Source, written: Written, known: Mapping[str, str]) -> None:
    """Note every place where a fact from the evidence context could loosen an answer. Conditions must have compiled."""
    facts = [fact for fact in written.policy.facts if fact.from_evidence]
    loose = {name: fact.name for fact in facts for name in (variable_name(fact), f"present.{fact.name}")}
    if AMOUNT in loose.values():
        _refuse(source, written.sections.get("facts"), f'the fact "{AMOUNT}"', AMOUNT)
    for rule in written.policy.rules:
        if rule.verdict is Verdict.ALLOW:
            _check_condition(source, written, rule.rule_id, rule.when, loose, known, "an ALLOW")
    for limit in written.policy.limits:
        _check_limit(source, written, limit, loose, known)


def _check_limit(
    source: Source, written: Written, limit: Limit, loose: Mapping[str, str], known: Mapping[str, str]
) -> None:
    view = source.within(limit.limit_id)
    for name in set(limit.per) & set(loose.values()):
        _refuse(view, written.ids[limit.limit_id], "a limit's per", name)
    if limit.when is not None:
        _check_condition(source, written, limit.limit_id, limit.when, loose, known, "a limit")


def _check_condition(
    source: Source,
    written: Written,
    name: str,
    when: str,
    loose: Mapping[str, str],
    known: Mapping[str, str],
    what: str,
) -> None:
    used = sorted({loose[variable] for variable in references(when, known) if variable in loose})
    if used:
        _refuse(source.within(name), written.conditions[name].place, what, used[0])


def _refuse(source: Source, place: Place | None, what: str, fact: str) -> None:
    message = f'{what} may not rest on "{fact}": it may come from {EVIDENCE}, which is not part of the operation'
    with source.collecting():
        raise source.error(place, message, "take it from params alone, or use it in a rule that does not allow")


def check_reason(source: Source, rule: Rule, policy: Policy, place: Place) -> None:
    """`reason_from` names a text fact whose values can all be reason codes. Raises `PolicyError`."""
    if rule.reason_from is None:
        return
    fact = next((fact for fact in policy.facts if fact.name == rule.reason_from), None)
    if fact is None or fact.type is not FactType.STRING or fact.one_of is None:
        closed = [fact.name for fact in policy.facts if fact.one_of is not None]
        message = f'reason_from: "{rule.reason_from}" is not a fact of type string with one_of'
        raise source.error(place, message, nearest(rule.reason_from, closed))
    # A person asked about a halt is asked as "halted"; every other code of the engine would hide who refused.
    reserved = RESERVED_REASONS - ({"halted"} if rule.verdict is Verdict.APPROVAL_REQUIRED else set())
    for value in sorted(fact.one_of):
        if not NAME_FORM.fullmatch(value):
            raise source.error(
                place, f'reason_from: "{value}" is not a reason code of small letters, digits and underscores'
            )
        if value in reserved:
            raise source.error(place, f'reason_from: "{value}" is given by the engine only')
