"""Describes a policy in words, and lints it for parts that are valid but unlikely to be intended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sentinel.core.decision import Verdict, WindowKind
from sentinel.core.money import major_text
from sentinel.core.wording import counted
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.document import rate_in_words
from sentinel.policy.expression_parts import CheckedExpression, ExpressionPart
from sentinel.policy.model import Breaker, DeclaredApprovalTerms, Fact, Limit, Once, Policy, Rule, variable_name

_CALENDAR = {WindowKind.CALENDAR_DAY: "per calendar day", WindowKind.CALENDAR_MONTH: "per calendar month"}


def describe(compiled: CompiledPolicy) -> dict[str, Any]:
    """Return the policy as plain data with a `words` sentence for each rule, limit and breaker and for the approval
    terms.

    `says` of a rule or limit is its own sentence; None in a policy recorded before files had to have one.
    """
    return describe_policy(compiled.policy, digest=compiled.digest, covered=compiled.covered)


def describe_policy(policy: Policy, *, digest: str, covered: Collection[str]) -> dict[str, Any]:
    """Describe a policy that is not compiled, as `describe`; `covered` are the currencies that every number and cap has."""
    return {
        "policy": policy.policy_id,
        "label": policy.label,
        "version": policy.version,
        "digest": digest,
        "actions": list(policy.actions),
        "zone": policy.zone,
        "currencies": sorted(covered) if _names_currencies(policy) else [],
        "facts": [_fact(fact) for fact in policy.facts],
        "numbers": {name: _amounts(values) for name, values in policy.numbers.items()},
        "rules": [_rule(rule) for rule in policy.rules],
        "limits": [_limit(limit, policy.zone) for limit in policy.limits],
        "breakers": [_breaker(breaker) for breaker in policy.breakers],
        "once_per": _once(policy.once_per) if policy.once_per else None,
        "approval": _terms(policy.approval),
    }


def _names_currencies(policy: Policy) -> bool:
    """Whether the policy has amounts; `covered_currencies` of one that has none are all that are known."""
    return bool(policy.numbers or policy.limits or any(breaker.amount for breaker in policy.breakers))


def lint_policy(compiled: CompiledPolicy) -> list[str]:
    """Return warnings: unused facts and numbers, an ALLOW that depends on a fact's absence, no ALLOW at all, missing currencies."""
    policy, found = compiled.policy, []
    named = {name for limit in policy.limits for name in limit.per} | {rule.reason_from for rule in policy.rules}
    for fact in policy.facts:
        if not {variable_name(fact), f"present.{fact.name}"} & compiled.used and not (
            fact.is_amount or fact.name in named
        ):
            found.append(f'fact "{fact.name}" is used nowhere')
    found += [f"numbers.{name} is used nowhere" for name in policy.numbers if f"numbers.{name}" not in compiled.used]
    for rule in policy.rules:
        parts = compiled.conditions.parts(rule.when)
        if rule.verdict is Verdict.ALLOW and _may_hold_by_absence(parts, parts.root, _UPRIGHT):
            found.append(
                f'rule "{rule.rule_id}" allows because a fact is absent: a request that leaves it out is allowed'
            )
    if not any(rule.verdict is Verdict.ALLOW for rule in policy.rules):
        found.append("no rule allows anything: no operation passes without a person")
    if policy.approval.two_people_from and policy.approval.people > 1:
        found.append(f"two_people_from changes nothing: {policy.approval.people} people approve in any case")
    return found + _lint_currencies(policy)


_UPRIGHT, _TURNED, _EITHER = frozenset({True}), frozenset({False}), frozenset({True, False})
"""How a part affects the whole condition: the values of the part that may help to make the whole true."""


def _may_hold_by_absence(expression: CheckedExpression, part: ExpressionPart, bears: frozenset[bool]) -> bool:
    """Whether a `present.<fact>` within the part may make the whole true by being false. Judged by the form of the
    condition alone; `bears` are the values of the part that may help to make the whole true."""
    if part.variable is not None:
        return part.variable.startswith("present.") and False in bears
    overload = expression.overload(part)
    if overload in ("logical_and", "logical_or"):
        inner = [bears] * len(part.parts)
    elif overload == "logical_not":
        inner = [_turned(bears)]
    elif overload in ("equals", "not_equals"):
        inner = [_beside(other.truth, bears, same=overload == "equals") for other in reversed(part.parts)]
    elif overload == "conditional":
        _, one, other = part.parts
        # "c ? x : false" is "c && x"; "c ? x : true" is "!c || x"; the other way round where the first branch is the constant.
        known = one.truth if other.truth is None else not other.truth
        inner = [_beside(known, bears, same=True), bears, bears]
    else:
        inner = [_EITHER] * len(part.parts)
    return any(_may_hold_by_absence(expression, one, how) for one, how in zip(part.parts, inner, strict=True))


def _turned(bears: frozenset[bool]) -> frozenset[bool]:
    return frozenset(not way for way in bears)


def _beside(truth: bool | None, bears: frozenset[bool], *, same: bool) -> frozenset[bool]:
    """Return how a part affects the whole if it is compared with the constant `truth` (None: no constant), by equality
    if `same`. For the condition of a choice, `truth` is its value that may help to make the whole true."""
    return _EITHER if truth is None else bears if truth is same else _turned(bears)


def _lint_currencies(policy: Policy) -> list[str]:
    """Return warnings on currencies that one place has and another lacks, with what follows for an operation in them."""
    denied = "an operation in it is denied"
    places = [
        (f"numbers.{name}", values, "a rule that needs it cannot answer") for name, values in policy.numbers.items()
    ]
    places += [(f'the cap of "{limit.limit_id}"', limit.cap, denied) for limit in policy.limits]
    places += [(f'the amount of "{one.breaker_id}"', one.amount, denied) for one in policy.breakers if one.amount]
    two = policy.approval.two_people_from
    places += [("two_people_from", two, "two people approve, whatever the amount")] if two else []
    named = sorted({currency for _, values, _ in places for currency in values})
    return [
        f"{name} has no {currency}, which other amounts have: {follows}"
        for name, values, follows in places
        for currency in named
        if currency not in values
    ]


def _fact(fact: Fact) -> dict[str, Any]:
    one_of = {} if fact.one_of is None else {"one_of": sorted(fact.one_of)}
    bounds = {name: bound for name, bound in (("min", fact.minimum), ("max", fact.maximum)) if bound is not None}
    return {"name": fact.name, "type": fact.type.value, "from": [".".join(path) for path in fact.paths], **one_of, **bounds,
            "among": _among(fact), "vouched_by": fact.vouched_by.value}  # fmt: skip


def _among(fact: Fact) -> str:
    """Return in words which values of its type are accepted; "" where all are."""
    if fact.one_of is not None:
        return f"one of {', '.join(sorted(fact.one_of))}"
    bounds = (("at least", fact.minimum), ("at most", fact.maximum))
    return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)


def _once(once: Once) -> dict[str, Any]:
    path = ".".join(once.path)
    return {"thing": once.thing, "from": path}


def _rule(rule: Rule) -> dict[str, Any]:
    reason = rule.reason_code if rule.reason_from is None else f"as {rule.reason_from} says"
    words = f"{rule.verdict.value} ({reason}) when {rule.when}"
    if not rule.approvable:
        words += "; a person may reject it or handle it by hand, not approve it"
    return {
        "id": rule.rule_id,
        "says": rule.says,
        "when": rule.when,
        "then": rule.verdict.value,
        "reason": reason,
        "reason_from": rule.reason_from,
        "approvable": rule.approvable,
        "note": "" if rule.approvable else "cannot be approved",
        "words": words,
    }


def _limit(limit: Limit, zone: str) -> dict[str, Any]:
    window = window_in_words(limit.window, limit.window_seconds, zone)
    amounts = ", ".join(f"{text} {currency}" for currency, text in _amounts(limit.cap).items())
    scope = f" when {limit.when}" if limit.when else ""
    words = f"at most {amounts} for each {_listed(limit.per)} {window}{scope}; over it {limit.verdict.value}"
    return {
        "id": limit.limit_id,
        "says": limit.says,
        "window": limit.window.value,
        "window_seconds": limit.window_seconds,
        "window_words": window,
        "per": list(limit.per),
        "cap": _amounts(limit.cap),
        "then": limit.verdict.value,
        "reason": limit.reason_code,
        "when": limit.when,
        "words": f"{words} ({limit.reason_code})",
    }


def _breaker(breaker: Breaker) -> dict[str, Any]:
    rate = rate_in_words(breaker, *breaker.amount)
    return {
        "id": breaker.breaker_id,
        "per": breaker.per,
        "window_seconds": breaker.window_seconds,
        "count": breaker.count,
        "amount": _amounts(breaker.amount),
        "words": f"halts the {breaker.per} that would be allowed more than {rate}; only a person can lift the halt",
    }


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def window_in_words(window: WindowKind, seconds: int, zone: str) -> str:
    """Return the window of a limit in words; a calendar window's days and months are those of `zone`, and its `seconds` is 0."""
    if window in _CALENDAR:
        return f"{_CALENDAR[window]} in {zone}"
    return f"in any {_length(seconds).removeprefix('1 ')}"


def _length(seconds: int) -> str:
    """Return a length of time in the largest unit that is exact; one day is "24 hours", because it is no calendar day."""
    units = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
    unit, size = next(
        (unit, size) for unit, size in units.items() if seconds % size == 0 and seconds > size * (unit == "day")
    )
    return counted(seconds // size, unit)


def _terms(terms: DeclaredApprovalTerms) -> dict[str, Any]:
    people = "one person" if terms.people == 1 else f"{terms.people} people"
    words = f"{people} with role {terms.role}, within {_length(terms.expires_seconds)}"
    two = _amounts(terms.two_people_from)
    if two and terms.people < 2:
        amounts = ", ".join(f"{text} {currency}" for currency, text in two.items())
        words += f"; two people from {amounts}, and where the amount is in another currency or there is none"
    return {
        "role": terms.role,
        "people": terms.people,
        "expires_seconds": terms.expires_seconds,
        "two_people_from": two,
        "words": words,
    }


def _amounts(minor_by_currency: Mapping[str, int]) -> dict[str, str]:
    return {currency: major_text(minor, currency) for currency, minor in minor_by_currency.items()}
