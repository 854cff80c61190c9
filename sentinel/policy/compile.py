"""A policy file → `CompiledPolicy`: conditions compiled, names checked against each other, numbers by currency.

Every fault that can be found in a file is refused here, so that at run time only a request can be incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.core.decision import Finding, Verdict
from sentinel.policy.closed_values import ClosedValues, check_closed_values, closed_values
from sentinel.policy.conditions import Condition, ConditionError, Conditions, ConditionSet, references, written
from sentinel.policy.document import covered_currencies, rate_in_words
from sentinel.policy.errors import PolicyError, SourcePosition, nearest
from sentinel.policy.model import (
    AMOUNT,
    AMOUNT_PATH,
    EVIDENCE,
    SUBJECTS,
    Breaker,
    Fact,
    FactPath,
    FactType,
    Limit,
    Policy,
    Rule,
    variable_name,
)
from sentinel.policy.parse import RESERVED_REASONS, ParsedPolicy, parse_policy
from sentinel.policy.parse_facts import NAME_FORM
from sentinel.policy.source import Node, Scalar, Source, character_place, read_source
from sentinel.policy.vouching import check_evidence, check_vouching


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule, its compiled condition and its prebuilt findings; with `reason_from` one for each value.

    `unvouched` is its finding where its answer rests on a fact that the requester cannot vouch for: a person has to
    look.
    """

    rule: Rule
    condition: Condition
    matched: Finding
    failed: Finding
    unvouched: Finding
    by_value: Mapping[str, Finding] | None = None

    def reason(self, variables: Mapping[str, Any]) -> str | None:
        """Return the value of its `reason_from` fact if there is a finding for that value, else None."""
        value: Any = variables.get(self.rule.reason_from or "")
        return value if self.by_value is not None and value in self.by_value else None

    def finding(self, reason: str | None) -> Finding:
        """Return the finding where its condition holds; `reason` is the result of the method `reason`."""
        return self.matched if self.by_value is None or reason is None else self.by_value[reason]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledLimit:
    """A limit, and the finding (`failed`) where it cannot be applied.

    `key_prefix` is the part of its keys before the subject: "retail-refund/account_day|". `condition` is the index of
    its narrowing condition in the policy's `limit_conditions`, None for a limit without one.
    """

    limit: Limit
    key_prefix: str
    condition: int | None
    failed: Finding
    is_total: bool


@dataclass(frozen=True, slots=True, eq=False)
class CompiledBreaker:
    """A breaker, its key, its rate as text by currency, and the finding (`failed`) for a currency it has no amount for."""

    breaker: Breaker
    key: str
    declared: Mapping[str, str]
    failed: Finding


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPolicy:
    """What `evaluate` works on. Immutable and safe to share between threads and forked processes.

    `rule_conditions` are those of all rules, in their order, `limit_conditions` the distinct ones of limits; `reasons`
    are the facts that rules take their reason from, in the order of the rules, each with the rule's findings by value;
    `facts` has the amount first; `presence` names the facts whose `present.` variable a condition reads, `used` every
    variable that one reads; `numbers` is currency → variable → minor units; `covered` are the currencies that every
    number and cap has; `evidence` are the paths within `evidence_context` that facts are read from, the shorter ones
    first.
    """

    policy: Policy
    digest: str
    conditions: Conditions
    rules: tuple[CompiledRule, ...]
    reasons: tuple[tuple[str, Mapping[str, Finding]], ...]
    rule_conditions: ConditionSet
    limit_conditions: ConditionSet
    limits: tuple[CompiledLimit, ...]
    breakers: tuple[CompiledBreaker, ...]
    facts: tuple[Fact, ...]
    presence: frozenset[str]
    used: frozenset[str]
    numbers: Mapping[str, Mapping[str, int]]
    covered: frozenset[str]
    evidence: tuple[tuple[FactPath, Fact], ...]


def try_compile(path: Path, *, name: str | None = None) -> tuple[CompiledPolicy | None, list[PolicyError]]:
    """Return the compiled policy and no errors, or None and all errors. Never raises, whatever the file holds."""
    try:
        return _try_compile(*read_source(path, name=name, regular=True))
    except PolicyError as error:
        return None, [error]
    except Exception as error:  # a file that makes a check itself fail must not end the authority
        return None, [_unforeseen(error, name or str(path))]


def _try_compile(source: Source, root: Node) -> tuple[CompiledPolicy | None, list[PolicyError]]:
    parsed = parse_policy(source, root)
    compiled = _compile(source, parsed) if parsed.facts_are_sound else None
    if source.errors or compiled is None:
        return None, sorted(source.errors, key=lambda error: (error.line, error.column))
    return compiled, []


def _unforeseen(error: Exception, file: str) -> PolicyError:
    """Return the error for a file on which a check itself raised; its `__cause__` has the traceback."""
    said = " ".join(str(error).split())[:200]
    hint = "the place is not known: look at what was changed last"
    fault = PolicyError(f"cannot be compiled: {type(error).__name__}: {said}", file=file, hint=hint)
    fault.__cause__ = error
    return fault


def variables(policy: Policy) -> dict[str, str]:
    """Return the variables that conditions may use, by name, with the type of each.

    A fact has its name (money: `<name>_minor`, an INT), every fact has `present.<name>`, every number
    `numbers.<name>`; `now`, and with an amount `currency` and `currency_covered`, are built in.
    """
    known = {"now": "timestamp"}
    for fact in policy.facts:
        known[f"present.{fact.name}"] = "bool"
        known[variable_name(fact)] = "int" if fact.type is FactType.MONEY else fact.type.value
    if any(fact.is_amount for fact in policy.facts):
        known |= {"currency": "string", "currency_covered": "bool"}
    return known | {f"numbers.{name}": "int" for name in policy.numbers}


def _compile(source: Source, parsed: ParsedPolicy) -> CompiledPolicy | None:
    policy, known = parsed.policy, variables(parsed.policy)
    _check_names(source, parsed)
    conditions = Conditions(known)
    closed = closed_values(policy)
    compiled = {
        name: _condition(source.within(name), conditions, text, closed) for name, text in parsed.conditions.items()
    }
    if not source.errors:
        check_evidence(source, parsed, known)
        check_vouching(source, parsed, known)
    if source.errors:
        return None
    return build_compiled_policy(policy, conditions, {name: one for name, one in compiled.items() if one is not None})


def build_compiled_policy(policy: Policy, conditions: Conditions, compiled: Mapping[str, Condition]) -> CompiledPolicy:
    """The `CompiledPolicy` of a valid policy and its compiled conditions by rule or limit id; nothing is checked."""
    known = variables(policy)
    texts = [rule.when for rule in policy.rules] + [limit.when for limit in policy.limits if limit.when]
    used = frozenset(name for text in texts for name in references(text, known))
    narrowing = {limit.when: compiled[limit.limit_id] for limit in policy.limits if limit.when}
    rules = tuple(_compiled_rule(policy, rule, compiled) for rule in policy.rules)
    return CompiledPolicy(
        policy=policy,
        digest=policy.digest(),
        conditions=conditions,
        rules=rules,
        reasons=tuple((str(one.rule.reason_from), one.by_value) for one in rules if one.by_value is not None),
        rule_conditions=conditions.combined([compiled[rule.rule_id] for rule in policy.rules]),
        limit_conditions=conditions.combined(list(narrowing.values())),
        limits=tuple(_compiled_limit(policy, limit, list(narrowing)) for limit in policy.limits),
        breakers=tuple(_compiled_breaker(policy, breaker) for breaker in policy.breakers),
        facts=tuple(sorted(policy.facts, key=lambda fact: not fact.is_amount)),
        presence=frozenset(name.removeprefix("present.") for name in used if name.startswith("present.")),
        used=used,
        numbers=_numbers_by_currency(policy),
        covered=covered_currencies(policy),
        evidence=_evidence(policy),
    )


def _evidence(policy: Policy) -> tuple[tuple[FactPath, Fact], ...]:
    found = [(path[1:], fact) for fact in policy.facts for path in fact.paths if path[0] == EVIDENCE]
    return tuple(sorted(found, key=lambda one: len(one[0])))


def _condition(
    source: Source, conditions: Conditions, parsed: Scalar, closed: Mapping[str, ClosedValues]
) -> Condition | None:
    try:
        text = written(parsed)
        compiled, parts = conditions.compile(text), conditions.parts(text)
        conditions.check_constants(parts)
        check_closed_values(parts, closed)
        return compiled
    except ConditionError as error:
        hint = error.hint or (nearest(error.unknown, conditions.variables) if error.unknown else None)
        if error.unknown and hint is None:
            hint = "declare it under facts: or numbers:"
        source.errors.append(
            source.error(character_place(source, parsed, error.offset), f"when: {error.message}", hint)
        )
        return None


def _check_names(source: Source, parsed: ParsedPolicy) -> None:
    policy = parsed.policy
    amount = next((fact for fact in policy.facts if fact.is_amount), None)
    counted = policy.limits or any(breaker.amount for breaker in policy.breakers)
    needs = policy.numbers or counted or policy.approval.two_people_from
    if amount is None and (needs or any(fact.type is FactType.MONEY for fact in policy.facts)):
        with source.collecting():
            message = 'a policy about money needs the fact "amount" of type money'
            raise source.error(parsed.sections.get("facts"), message, "amount: {type: money, from: params.amount}")
    if amount is not None and amount.paths != (AMOUNT_PATH,):
        with source.collecting():
            # From another path the rules would judge one sum, which nobody vouches for, and another would be reserved
            # and paid.
            message = f'the fact "{AMOUNT}" of type money is the operation\'s own amount: it must come from {".".join(AMOUNT_PATH)}'
            raise source.error(
                parsed.sections.get("facts"), message, "give another sum another name, and say who vouches for it"
            )
    for rule in policy.rules:
        with source.collecting():
            _check_reason(source.within(rule.rule_id), rule, policy, parsed.ids[rule.rule_id])
    for limit in policy.limits:
        with source.collecting():
            _check_per(source.within(limit.limit_id), limit, policy, parsed.ids[limit.limit_id])


def _check_reason(source: Source, rule: Rule, policy: Policy, place: SourcePosition) -> None:
    """Raise `PolicyError` unless `reason_from` names a text fact whose values can all be reason codes."""
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
            raise source.error(place, f'reason_from: "{value}" is reserved for the engine')


def _check_per(source: Source, limit: Limit, policy: Policy, place: SourcePosition) -> None:
    texts = [fact.name for fact in policy.facts if fact.type is FactType.STRING]
    for name in limit.per:
        if name not in (*SUBJECTS, "currency", *texts):
            hint = nearest(name, [*texts, *SUBJECTS, "currency"])
            raise source.error(place, f'per: "{name}" is neither {", ".join(SUBJECTS)} nor a fact of type string', hint)
        fact = next((fact for fact in policy.facts if fact.name == name and name in SUBJECTS), None)
        if fact is not None and (name != "agent" or fact.paths != (("agent_id",),)):
            # The requester is known from its key; a fact of that name would let the requester choose the budget.
            raise source.error(
                place, f'per: "{name}" means the requester, and a fact has the same name', "give the fact another name"
            )
    if "currency" not in limit.per:
        raise source.error(place, "per must contain currency: caps are per currency and nothing is converted")
    if len(set(limit.per)) < len(limit.per):
        raise source.error(place, "per: a name is listed twice")


def _compiled_rule(policy: Policy, rule: Rule, compiled: Mapping[str, Condition]) -> CompiledRule:
    taken = rule.reason_from is not None
    asks = taken and rule.verdict is Verdict.APPROVAL_REQUIRED
    said = Finding(rule.rule_id, rule.verdict, rule.reason_code, approvable=rule.approvable, asks_person=asks)
    # An approval binds the listed reasons; one with an unknown reason cannot be approved.
    matched = replace(said, approvable=rule.approvable and not taken)
    values = next((fact.one_of for fact in policy.facts if fact.name == rule.reason_from), None)
    by_value = {value: replace(said, reason_code=value) for value in values} if values else None
    # An ALLOW rule that cannot answer allows nothing: at least a person has to look.
    verdict = Verdict.APPROVAL_REQUIRED if rule.verdict is Verdict.ALLOW else rule.verdict
    failed = Finding(rule.rule_id, verdict, "fact_missing", failed=True, approvable=rule.approvable)
    # The fact is there, but its sender cannot vouch for it: a person has to look.
    unvouched = Finding(rule.rule_id, Verdict.APPROVAL_REQUIRED, "fact_not_vouched", approvable=rule.approvable)
    return CompiledRule(rule, compiled[rule.rule_id], matched, failed, unvouched, by_value)


def _compiled_limit(policy: Policy, limit: Limit, narrowing: Sequence[str]) -> CompiledLimit:
    # A limit that cannot be checked could not be reserved either, even after a person's approval: so the finding is a
    # DENY.
    failed = Finding(limit.limit_id, Verdict.DENY, "fact_missing", failed=True)
    prefix = f"{policy.policy_id}/{limit.limit_id}|"
    place = narrowing.index(limit.when) if limit.when else None
    return CompiledLimit(limit, prefix, place, failed, set(limit.per) <= {*SUBJECTS, "currency"})


def _compiled_breaker(policy: Policy, breaker: Breaker) -> CompiledBreaker:
    failed = Finding(breaker.breaker_id, Verdict.DENY, "fact_missing", failed=True)
    declared = {currency: rate_in_words(breaker, currency) for currency in ("", *breaker.amount)}
    return CompiledBreaker(breaker, f"{policy.policy_id}/{breaker.breaker_id}", declared, failed)


def _numbers_by_currency(policy: Policy) -> dict[str, dict[str, int]]:
    by_currency: dict[str, dict[str, int]] = {}
    for name, amounts in policy.numbers.items():
        for currency, minor in amounts.items():
            by_currency.setdefault(currency, {})[f"numbers.{name}"] = minor
    return by_currency
