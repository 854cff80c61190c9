"""Reads a policy back from its normalised document, the text that a policy digest covers.

The inverse of `Policy.document()`. Nothing is compiled: the result can be displayed, or compiled to explain a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.decision import Verdict, WindowKind
from sentinel.core.money import DIGITS, major_text
from sentinel.core.wording import counted
from sentinel.policy.model import (
    Breaker,
    DeclaredApprovalTerms,
    Fact,
    FactType,
    Limit,
    Once,
    Policy,
    Rule,
    Voucher,
    rolling_bucket_seconds,
)


def policy_from_document(document: Mapping[str, Any]) -> Policy:
    """Return the policy whose `document()` this is. Raises `KeyError` or `ValueError` for anything else."""
    terms = document["approval"]
    return Policy(
        policy_id=document["policy"],
        label=document["label"],
        version=document["version"],
        actions=tuple(document["actions"]),
        zone=document["zone"],
        facts=tuple(_fact(name, given) for name, given in document["facts"].items()),
        numbers=document["numbers"],
        rules=tuple(_rule(given) for given in document["rules"]),
        limits=tuple(_limit(given) for given in document["limits"]),
        approval=DeclaredApprovalTerms(
            terms["expires_seconds"], terms["role"], terms["people"], terms["two_people_from"]
        ),
        once_per=_once(document["once_per"]),
        breakers=tuple(_breaker(given) for given in document.get("breakers", ())),
    )


def covered_currencies(policy: Policy) -> frozenset[str]:
    """Return the currencies that every number, cap and breaker amount of the policy covers; all known ones where it has none."""
    amounts = [breaker.amount for breaker in policy.breakers if breaker.amount]
    return frozenset(DIGITS).intersection(*policy.numbers.values(), *(limit.cap for limit in policy.limits), *amounts)


def rate_in_words(breaker: Breaker, *currencies: str) -> str:
    """Return a breaker's rate as text, in the given currencies: "100 operations or 5000.00 USD in 5 minutes"."""
    rates = [] if breaker.count is None else [counted(breaker.count, "operation")]
    rates += [f"{major_text(breaker.amount[name], name)} {name}" for name in currencies if name in breaker.amount]
    minutes = breaker.window_seconds // 60
    return f"{' or '.join(rates)} in {counted(minutes, 'minute')}"


def _fact(name: str, given: Mapping[str, Any]) -> Fact:
    paths = tuple(tuple(path.split(".")) for path in given["from"])
    one_of = frozenset(given["one_of"]) if "one_of" in given else None
    voucher = Voucher(given.get("vouched_by", Voucher.AGENT))
    return Fact(name, FactType(given["type"]), paths, given["min"], given["max"], one_of, voucher)


def _breaker(given: Mapping[str, Any]) -> Breaker:
    return Breaker(given["id"], given["per"], given["seconds"], given["count"], given["amount"])


def _once(given: Mapping[str, str] | str | None) -> Once | None:
    if not given:
        return None
    ((thing, path),) = [(None, given)] if isinstance(given, str) else given.items()
    return Once(thing, tuple(path.split(".")))


def _rule(given: Mapping[str, Any]) -> Rule:
    fact = given.get("reason_from")
    reason = given["reason"] if fact is None else f"unknown_{fact.replace('.', '_')}"
    approvable, says = given.get("approvable", True), given.get("says")
    return Rule(given["id"], given["when"], Verdict(given["then"]), reason, fact, approvable, says)


def _limit(given: Mapping[str, Any]) -> Limit:
    kind, seconds = WindowKind(given["window"]), given["seconds"]
    return Limit(
        limit_id=given["id"],
        window=kind,
        window_seconds=seconds,
        bucket_seconds=rolling_bucket_seconds(seconds) if kind is WindowKind.ROLLING else 0,
        per=tuple(given["per"]),
        cap=given["cap"],
        verdict=Verdict(given["then"]),
        reason_code=given["reason"],
        when=given["when"],
        says=given.get("says"),
    )
