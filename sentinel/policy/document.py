"""A policy from its normalised document: what a digest in a proof pack stands for, readable without the file it came from.

The way back of `Policy.document()`. Nothing is compiled and nothing can be decided with it; it is for showing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.decision import Verdict, WindowKind
from sentinel.core.money import DIGITS, major_text
from sentinel.policy.model import (
    Breaker,
    Fact,
    FactType,
    Limit,
    Once,
    Policy,
    Rule,
    Terms,
    Voucher,
    rolling_bucket_seconds,
)


def policy_of(document: Mapping[str, Any]) -> Policy:
    """The policy whose `document()` this is. Raises `KeyError` or `ValueError` for what none of ours wrote."""
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
        approval=Terms(terms["expires_seconds"], terms["role"], terms["people"], terms["two_people_from"]),
        once_per=_once(document["once_per"]),
        breakers=tuple(_breaker(given) for given in document.get("breakers", ())),
    )


def covered_currencies(policy: Policy) -> frozenset[str]:
    """The currencies that every number, cap and breaker's amount of the policy has; all that we know where it has none."""
    amounts = [breaker.amount for breaker in policy.breakers if breaker.amount]
    return frozenset(DIGITS).intersection(*policy.numbers.values(), *(limit.cap for limit in policy.limits), *amounts)


def rate_in_words(breaker: Breaker, *currencies: str) -> str:
    """What a breaker declares, in the given currencies of its own: "100 operations or 5000.00 USD in 5 minutes"."""
    counted = [] if breaker.count is None else [f"{breaker.count} operations"]
    counted += [f"{major_text(breaker.amount[name], name)} {name}" for name in currencies if name in breaker.amount]
    return f"{' or '.join(counted)} in {breaker.window_seconds // 60} minutes"


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
    return Rule(given["id"], given["when"], Verdict(given["then"]), reason, fact, given.get("approvable", True))


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
    )
