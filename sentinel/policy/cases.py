"""Runs policy tests that are data: `policies/cases/*.yaml` has requests with the expected decision and reasons.

A case goes through the library like a guard request, so it also tests which policy covers the action. `usage` says
how much of a limit is already used; `null` in a case removes a field of the base request. `asked_by: agent` asks with
an agent's key; without it a worker's key asks, which can vouch for worker facts. `at` is the moment of the decision.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sentinel.core.decision import Decision, Finding, Verdict, no_matching_policy
from sentinel.core.errors import InvalidInput
from sentinel.core.money import parse_money
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.evaluate import decide
from sentinel.policy.facts import WORKER_REQUESTER, FactSet, Requester, extract_facts
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.source import Listing, Node, Scalar, Source, Table, plain, read_source

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
"""The moment of the decision in a case without `at`."""

_KEY = "case"
"""The principal of the key that asks in a case: a guard request always has one, so limits per key count for it."""
_FILE = ("policy", "base", "cases")
_CASE = ("name", "policy", "at", "request", "asked_by", "usage", "want")
_NOTHING = re.compile(r"0+(\.0+)?", re.ASCII)
_WANT = ("decision", "reason", "reasons", "people", "approvable")


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case: `policy` is the id of the policy that must decide ("none" for no policy), `usage` limit id → used minor units."""

    name: str
    where: str
    policy: str
    request: Mapping[str, Any]
    usage: Mapping[str, int]
    want: Mapping[str, Any]
    requester: Requester = WORKER_REQUESTER
    at: datetime = NOW


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case; `policy` is the policy that the case names, `problem` is empty when it passed."""

    name: str
    where: str
    policy: str
    decision: Verdict
    reason_code: str
    problem: str

    @property
    def passed(self) -> bool:
        """Whether the decision was the wanted one."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class CaseReport:
    """All results, and how often each rule and limit took effect, by policy id and then by rule or limit id."""

    results: tuple[CaseResult, ...]
    coverage: Mapping[str, Mapping[str, int]]

    @property
    def passed(self) -> bool:
        """Whether there are cases and every one passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def never_matched(self) -> tuple[str, ...]:
        """Rules and limits that no case triggers, as "policy/rule"."""
        return tuple(
            f"{policy}/{rule}" for policy, rules in self.coverage.items() for rule, n in rules.items() if not n
        )


def run_cases(directory: Path, *, library: PolicyLibrary | None = None) -> CaseReport:
    """Run `directory/cases/*.yaml` against the policies of `directory`. Raises `PolicyError` on a bad file."""
    library = library or PolicyLibrary.load(directory)
    coverage = {compiled.policy.policy_id: dict.fromkeys(_effects(compiled), 0) for compiled in library.policies}
    results = []
    for case in (case for path in sorted((directory / "cases").glob("*.yaml")) for case in read_cases(path)):
        decision = _decide(library, case)
        problem = _mismatch(case, decision)
        results.append(CaseResult(case.name, case.where, case.policy, decision.verdict, decision.reason_code, problem))
        for finding in decision.findings:
            if not finding.failed and decision.policy_id in coverage:
                coverage[decision.policy_id][finding.rule_id] += 1
    return CaseReport(tuple(results), coverage)


def read_cases(path: Path, *, limits: Mapping[str, Collection[str]] | None = None) -> tuple[PolicyCase, ...]:
    """Read a cases file, with the base request merged in and money normalised. Raises `PolicyError`.

    `limits`, if given, are the limit ids of every policy by its id: a file or case that names another policy or limit is
    refused.
    """
    source, root = read_source(path, regular=True)
    fields = source.fields(root, "a cases file", known=_FILE, required=("cases",)).entries
    base = plain(source, source.table(fields["base"], "base")) if "base" in fields else {}
    policy = source.text(fields["policy"], "policy") if "policy" in fields else None
    nodes = source.listing(fields["cases"], "cases")
    cases = tuple(_case(source, node, base, policy) for node in nodes)
    if limits is not None:
        if "policy" in fields:
            source.one_of(fields["policy"], "policy", (*limits, "none"))
        for node, case in zip(nodes, cases, strict=True):
            _check_names(source.within(case.name, "case"), source.table(node, "a case"), case, limits)
    found: dict[str, PolicyCase] = {}
    for node, case in zip(nodes, cases, strict=True):
        if case.name in found:
            other = found[case.name].where
            raise source.error(node.place, f'two cases are named "{case.name}"', f"the other is at {other}")
        found[case.name] = case
    return cases


def _case(source: Source, node: Node, base: Mapping[str, Any], policy: str | None) -> PolicyCase:
    table = source.fields(node, "a case", known=_CASE, required=("name", "want"))
    entries = table.entries
    name = source.text(entries["name"], "name")
    view = source.within(name, "case")
    want = view.fields(entries["want"], "want", known=_WANT, required=("decision", "reason"))
    view.one_of(want.entries["decision"], "want: decision", [verdict.value for verdict in Verdict])
    _check_want(view, want)
    if "policy" in entries:
        policy = view.text(entries["policy"], "policy")
    if policy is None:
        raise view.error(table.place, "a case must name its policy")
    change = plain(view, view.table(entries["request"], "request")) if "request" in entries else {}
    request = _merged(base, change)
    try:
        request = _with_money(request)
    except InvalidInput as error:
        raise view.error(table.place, f"request: {error.detail}") from error
    usage = _usage(view, view.table(entries["usage"], "usage"), request) if "usage" in entries else {}
    by = view.one_of(entries["asked_by"], "asked_by", ("agent", "worker")) if "asked_by" in entries else "worker"
    requester = Requester(_KEY, is_worker=by == "worker")
    at = _moment(view, entries["at"]) if "at" in entries else NOW
    return PolicyCase(
        name, f"{source.name}:{table.place.line}", policy, request, usage, plain(view, entries["want"]), requester, at
    )


def _check_want(source: Source, want: Table) -> None:
    """Raise `PolicyError` for a wanted value of a kind that no decision has: it would differ from one that reads the same."""
    if "people" in want.entries:
        source.integer(want.entries["people"], "want: people", least=0, most=5)
    if "approvable" in want.entries:
        source.boolean(want.entries["approvable"], "want: approvable")
    reasons = want.entries.get("reasons")
    if reasons is not None and not isinstance(reasons, Listing):
        raise source.error(reasons.place, "want: reasons must be a list")


def _usage(source: Source, table: Table, request: Mapping[str, Any]) -> dict[str, int]:
    """Return what is used of each limit, in minor units of the request's currency. Raises `PolicyError`."""
    params = request.get("params")
    amount = params.get("amount") if isinstance(params, dict) else None
    if not table.entries:
        return {}
    currency = amount.get("currency") if isinstance(amount, dict) and "amount_minor" in amount else None
    if not isinstance(currency, str):
        raise source.error(table.place, "usage: the request has no amount, so no limit is checked")
    return {name: _used(source, name, node, currency) for name, node in table.entries.items()}


def _used(source: Source, name: str, node: Node, currency: str) -> int:
    value = plain(source, node)
    if _NOTHING.fullmatch(str(value)):
        return 0
    try:
        return parse_money(value, currency, field="used").amount_minor
    except InvalidInput as error:
        raise source.error(node.place, f"usage: {name}: {error.detail}", 'e.g. "290.00", or "0"') from error


def _moment(source: Source, node: Node) -> datetime:
    if isinstance(node, Scalar) and node.kind in ("str", "timestamp"):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(node.text)
            if moment.tzinfo is not None:
                return moment.astimezone(UTC)
    raise source.error(node.place, "at must be a time with its zone", 'e.g. "2026-11-25T22:30:00+01:00"')


def _check_names(source: Source, case: Table, read: PolicyCase, limits: Mapping[str, Collection[str]]) -> None:
    """Check that the policy and the limits that a case names exist; "none" stands for no matching policy."""
    if "policy" in case.entries:
        source.one_of(case.entries["policy"], "policy", (*limits, "none"))
    if "usage" in case.entries:
        source.fields(case.entries["usage"], "usage", known=limits.get(read.policy, ()))


def _merged(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _with_money(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with its amount normalised as the API does it; everything else unchanged, malformed or not."""
    params = request.get("params")
    amount = params.get("amount") if isinstance(params, dict) else None
    if not isinstance(params, dict) or amount is None:
        return request
    if not isinstance(amount, dict) and "currency" in params:
        amount = {"value": amount, "currency": params["currency"]}
        params = {name: value for name, value in params.items() if name != "currency"}
    if not isinstance(amount, dict) or set(amount) != {"value", "currency"}:
        return request
    money = parse_money(amount["value"], amount["currency"])
    return {**request, "params": {**params, "amount": {"amount_minor": money.amount_minor, "currency": money.currency}}}


def _decide(library: PolicyLibrary, case: PolicyCase) -> Decision:
    compiled = library.find(str(case.request.get("action", "")))
    if compiled is None:
        return no_matching_policy()
    facts = extract_facts(compiled, case.request, case.requester)
    decision = decide(compiled, facts, case.at)
    # A DENY has no limits to check: its findings are the whole answer.
    return _with_limits(case, facts, decision) if decision.limits else decision


def _with_limits(case: PolicyCase, facts: FactSet, decision: Decision) -> Decision:
    """Return the decision after its limits are checked against the case's usage, as `sentinel.decide_new` does it.

    Exceeded limits that deny come first, then the others, each group by limit id. A limit gives the leading reason only
    where it is stricter than the decision so far; otherwise its reason is appended to the list.
    """
    full = [
        ask for ask in decision.limits if case.usage.get(ask.limit_id, 0) + (facts.amount_minor or 0) > ask.cap_minor
    ]
    verdict, reason, reasons = decision.verdict, decision.reason_code, list(decision.reasons)
    for ask in sorted(full, key=lambda ask: (ask.verdict is not Verdict.DENY, ask.limit_id)):
        if ask.verdict.rank > verdict.rank:
            verdict, reason = ask.verdict, ask.reason_code
        if ask.reason_code not in reasons:
            reasons.append(ask.reason_code)
    findings = decision.findings + tuple(Finding(ask.limit_id, ask.verdict, ask.reason_code) for ask in full)
    return msgspec.structs.replace(
        decision, verdict=verdict, reason_code=reason, reasons=tuple(reasons), findings=findings
    )


def _effects(compiled: CompiledPolicy) -> list[str]:
    limits = [limit.limit_id for limit in compiled.policy.limits]
    return [rule.rule_id for rule in compiled.policy.rules] + limits


def _mismatch(case: PolicyCase, decision: Decision) -> str:
    """Return the differences from the expected result in one line; "" where there are none."""
    got = {
        "policy": decision.policy_id,
        "decision": decision.verdict.value,
        "reason": decision.reason_code,
        "reasons": list(decision.reasons),
        "people": decision.approval.people if decision.approval else 0,
        "approvable": decision.approvable,
    }
    wanted = {"policy": case.policy, **case.want}
    unasked = set(case.usage) - {ask.limit_id for ask in decision.limits}
    problems = [f"{key}: wanted {want}, got {got[key]}" for key, want in wanted.items() if got[key] != want]
    problems += [f"usage: no limit {name} was checked" for name in sorted(unasked)]
    if decision.verdict.value != case.want["decision"] and decision.findings:
        said = (f"{one.rule_id} ({one.reason_code})" for one in decision.findings if one.verdict is decision.verdict)
        problems.append(f"{decision.verdict.value} comes from {', '.join(said)}")
    return "; ".join(problems)
