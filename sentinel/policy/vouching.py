"""Checks that facts which nobody reliable vouches for can only tighten a decision: facts that the requesting agent
vouches for itself, and facts from `evidence_context`, which no digest binds.

An agent asks on its own behalf, so its claims about a case may be a reason to look closer but never a reason to allow.
Every rule that tightens may read a fact that the agent vouches for. An ALLOW, the condition of a limit and the `per` of
a limit may not: every name that an agent made up would have a cap of its own, also beside `tenant`, `agent` or `key`.
The question itself (the amount, the action, the agent) is no claim about the case: it is what the answer is about.

So whatever is allowed is allowed by rules that do not read the agent's claims: that is what "may never alone loosen"
means here, and why it is enough to look at the names in a condition, not at how it uses them. (An agent's claim may
still turn a denial into a question to a person: that releases nothing.)

A caller can send another `evidence_context` with every call of one operation. So facts from there may make an answer
stricter and do nothing else: no ALLOW, limit, amount or once-key may read them, they are used only for facts that the
operation itself does not have, and every rule is asked with and without them (`evaluate`).
"""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.core.decision import Verdict
from sentinel.policy.conditions import references
from sentinel.policy.errors import SourcePosition
from sentinel.policy.model import EVIDENCE, Limit, Policy, Voucher, variable_name
from sentinel.policy.parse import ParsedPolicy
from sentinel.policy.source import Source

_HINT = "declare who else vouches for it (vouched_by: worker), or use it in a rule that does not allow"

_PER_HINT = "declare who else vouches for it (vouched_by: worker), or count per agent, key or tenant"


def check_vouching(source: Source, parsed: ParsedPolicy, known: Mapping[str, str]) -> None:
    """Note an error for every rule and limit that a fact vouched for by the agent alone could loosen. Conditions must have compiled."""
    claims = _claims(parsed.policy)
    for limit in parsed.policy.limits:
        for fact in [name for name in limit.per if name in claims]:
            message = f'a limit\'s per may not rest on "{fact}": the agent vouches for it itself, and each new value would get a cap of its own'
            with source.collecting():
                raise source.within(limit.limit_id).error(parsed.ids[limit.limit_id], message, _PER_HINT)
    conditions = [
        (rule.rule_id, rule.when, "an ALLOW") for rule in parsed.policy.rules if rule.verdict is Verdict.ALLOW
    ]
    conditions += [
        (limit.limit_id, limit.when, "whether a limit applies") for limit in parsed.policy.limits if limit.when
    ]
    for name, when, what in conditions:
        for fact in sorted({claims[variable] for variable in references(when, known) if variable in claims}):
            message = f'{what} may not rest on "{fact}": the agent vouches for it itself'
            with source.collecting():
                raise source.within(name).error(parsed.conditions[name].place, message, _HINT)


def _claims(policy: Policy) -> dict[str, str]:
    """Return variable name → fact name for the facts that only the agent vouches for."""
    facts = [fact for fact in policy.facts if fact.vouched_by is Voucher.AGENT and not fact.is_asked]
    return {name: fact.name for fact in facts for name in (variable_name(fact), f"present.{fact.name}")}


def check_evidence(source: Source, parsed: ParsedPolicy, known: Mapping[str, str]) -> None:
    """Note an error for every place where a fact from the evidence context could loosen a decision. Conditions must have compiled."""
    facts = [fact for fact in parsed.policy.facts if fact.from_evidence]
    loose = {name: fact.name for fact in facts for name in (variable_name(fact), f"present.{fact.name}")}
    for fact in facts:
        of_operation = [path[0] != EVIDENCE for path in fact.paths]
        if of_operation != sorted(of_operation, reverse=True):
            with source.collecting():
                message = f'"{fact.name}": {EVIDENCE} would replace what the operation itself says'
                raise source.error(parsed.sections.get("facts"), message, f"list its {EVIDENCE} path last")
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
