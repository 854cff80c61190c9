"""Builders for policy tests: a valid policy text, a valid request, and ways to spoil either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.core.canonical import canonical_json
from sentinel.policy.compile import CompiledPolicy, CompiledRule, try_compile
from sentinel.policy.conditions import Condition

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)

POLICY = """\
policy: sample
label: Sample Policy
version: sample-v1
actions: [sample.pay]
zone: UTC
facts:
  amount:     {type: money,     from: params.amount}
  account:    {type: string,    from: params.account_ref, vouched_by: worker}
  risk.known: {type: bool,      from: params.risk.known, vouched_by: worker}
  risk.count: {type: int,       from: params.risk.count, min: 0, vouched_by: worker}
  ordered_at: {type: timestamp, from: params.ordered_at, vouched_by: worker}
numbers:
  allow_up_to: {USD: "10.00", JPY: "1000"}
rules:
  - id: known_fraud
    says: The customer is known for fraud.
    when: risk.known
    then: DENY
    reason: known_fraud
  - id: often
    says: The customer asked three or more times.
    when: risk.count >= 3
    then: APPROVAL_REQUIRED
    reason: too_often
  - id: small
    says: The amount is small.
    when: amount_minor <= numbers.allow_up_to
    then: ALLOW
    reason: small_amount
limits:
  - id: account_day
    says: What one account gets in a day.
    window: calendar_day
    per: [account, currency]
    cap: {USD: "20.00", JPY: "2000"}
    then: APPROVAL_REQUIRED
    reason: limit_exceeded
approval: {expires: 30m, role: approver, people: 1, two_people_from: {USD: "9.00"}}
"""

ALLOW_ONLY = """\
policy: allow-only
label: Allow Only
version: v1
actions: [sample.pay]
facts:
  amount:     {type: money, from: params.amount}
  risk.known: {type: bool,  from: params.risk.known, vouched_by: worker}
numbers:
  allow_up_to: {USD: "10.00"}
rules:
  - id: small
    says: The amount is small.
    when: amount_minor <= numbers.allow_up_to && !risk.known
    then: ALLOW
    reason: small_amount
approval: {expires: 30m, role: approver, people: 1}
"""

WRONG_VALUES: tuple[Any, ...] = (
    None,
    "",
    "false",
    "0",
    0.0,
    [],
    {},
    -1,
    2**63,
    "\ud800",
    "a\0b",
    "x" * 501,
    "a|b",
    "~unknown",
)
"""What a fact may be spoiled with. (A value that is right for one type is left out by `spoilt`.)"""


def with_rules(policy: CompiledPolicy, rules: tuple[CompiledRule, ...]) -> CompiledPolicy:
    """The policy with other rules of its own conditions."""
    asked = policy.conditions.combined([rule.condition for rule in rules])
    return replace(policy, rules=rules, rule_conditions=asked)


def by_engine(policy: CompiledPolicy) -> CompiledPolicy:
    """The policy with every condition answered by the engine, none by a translation."""
    limits = dict.fromkeys(limit.limit.when for limit in policy.limits if limit.limit.when)
    narrowing = [untranslated(policy.conditions.compile(when)) for when in limits]
    rules = tuple(replace(rule, condition=untranslated(rule.condition)) for rule in policy.rules)
    return replace(with_rules(policy, rules), limit_conditions=policy.conditions.combined(narrowing))


def untranslated(condition: Condition) -> Condition:
    """The condition, for the engine to answer."""
    found = copy(condition)
    found.tree = None
    return found


def compile_file(path: Path, *, name: str | None = None) -> CompiledPolicy:
    """A policy file, ready to decide. Raises the first `PolicyError`; `name` is what messages call the file."""
    policy, errors = try_compile(path, name=name)
    if policy is None:
        raise errors[0]
    return policy


def compile_text(folder: Path, text: str, name: str = "sample.yaml") -> CompiledPolicy:
    """The policy of a text, written to a file first, as there is no other way in."""
    path = folder / name
    path.write_text(text)
    return compile_file(path, name=name)


def without_sentences(policy: CompiledPolicy) -> str:
    """The policy's canonical text as it was kept before rules and limits had to have a sentence."""
    document = policy.policy.document()
    for one in (*document["rules"], *document["limits"]):
        one.pop("says", None)
    return canonical_json(document)


def money(minor: int, currency: str = "USD") -> dict[str, Any]:
    """Money as the API hands it on."""
    return {"amount_minor": minor, "currency": currency}


def sample_request(**params: Any) -> dict[str, Any]:
    """A request that the sample policy allows; `params` replace its own."""
    given = {"amount": money(500), "account_ref": "acct_1", "risk": {"known": False, "count": 0}, **params}
    return {"agent_id": "sample-agent", "action": "sample.pay", "params": given}


def refund_request(minor: int = 12600, currency: str = "USD", attempts: int = 1, **flags: bool) -> dict[str, Any]:
    """A request that the retail refund policy allows; keywords raise its flags."""
    risk = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, **flags}
    params = {
        "amount": money(minor, currency),
        "account_ref": "acct_1",
        "refund_id": "rf_1",
        "risk": {**risk, "customer_attempts_24h": attempts},
    }
    return {"agent_id": "retail-refund-agent", "action": "refund.create", "params": params}


def small_refund(
    scenario: str = "fee",
    minor: int = 500,
    paid: int | None = 100_000,
    currency: str = "USD",
    attempts: int = 1,
    **flags: bool,
) -> dict[str, Any]:
    """A request that the small refund policy allows; `paid` in minor units."""
    request = refund_request(minor, currency, attempts, **flags)
    request["action"] = f"refund.small.{scenario}"
    request["params"] |= {"channel": "private", "scenario": scenario}
    if paid is not None:
        request["params"]["order"] = {"paid": {"value": f"{paid // 100}.{paid % 100:02}", "currency": currency}}
    return request


def with_evidence(request: Mapping[str, Any], **evidence: Any) -> dict[str, Any]:
    """The request with an evidence context."""
    return {**request, "evidence_context": {"correlation_id": "c_1", **evidence}}


def spoilt(request: Mapping[str, Any], paths: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The request with each of the paths removed or replaced by something of another kind; with what was done."""
    for path in paths:
        yield f"{path} removed", _changed(request, path, remove=True)
        for value in WRONG_VALUES:
            if type(value) is not type(_at(request, path)) or value in (-1, 2**63, "\ud800"):
                yield f"{path} = {value!r:.20}", _changed(request, path, value)


def _at(request: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        request = request.get(key) if isinstance(request, dict) else None
    return request


def _changed(request: Mapping[str, Any], path: tuple[str, ...], value: Any = None, *, remove: bool = False) -> Any:
    changed = deepcopy(dict(request))
    inner = _at(changed, path[:-1])
    if isinstance(inner, dict):
        inner.pop(path[-1], None)
        if not remove:
            inner[path[-1]] = value
    return changed
