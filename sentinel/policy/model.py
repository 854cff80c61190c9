"""The policy model: frozen values that `parse` makes of a file, before conditions are compiled.

`Policy.document()` is the normalised form: the digest is taken over it, so comments, layout, the order of keys
and "150.0" against "150.00" do not change a policy, and anything that can change a decision does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.decision import Verdict, WindowKind

FactPath = tuple[str, ...]
"""Where a fact is in a guard request, one key per step: ("params", "risk", "duplicate_refund")."""

AMOUNT = "amount"
"""The money fact that is the operation's amount: limits count it, and all other money facts must have its currency."""
AMOUNT_PATH: FactPath = ("params", "amount")
"""The only path that the amount may come from."""

EVIDENCE = "evidence_context"
"""The part of a guard request that is not part of the operation."""


class FactType(StrEnum):
    """What a fact may be; a value of any other kind counts as missing."""

    BOOL = "bool"
    INT = "int"
    STRING = "string"
    MONEY = "money"
    TIMESTAMP = "timestamp"


class Voucher(StrEnum):
    """Who vouches for a fact: the requesting agent, the worker that collected it, or the authority itself."""

    AGENT = "agent"
    WORKER = "worker"
    AUTHORITY = "authority"


OWN_FIELDS = ("action", "agent_id")
"""Parts of a request that the authority itself checks against the key and the route, so that it can vouch for them."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One declared fact and where it comes from; the first path that holds anything is taken.

    `one_of`, for a string: any other value counts as malformed. A fact that names no voucher is the agent's, the least
    trusted one.
    """

    name: str
    type: FactType
    paths: tuple[FactPath, ...]
    minimum: int | None = None
    maximum: int | None = None
    one_of: frozenset[str] | None = None
    vouched_by: Voucher = Voucher.AGENT

    @property
    def is_amount(self) -> bool:
        """Whether it is the operation's amount. A fact of that name with another type is an ordinary fact."""
        return self.name == AMOUNT and self.type is FactType.MONEY

    @property
    def is_asked(self) -> bool:
        """Whether it is part of the question itself (the amount, the action, the agent), which an ALLOW is about, and no claim."""
        return self.is_amount or all(len(path) == 1 and path[0] in OWN_FIELDS for path in self.paths)

    @property
    def from_evidence(self) -> bool:
        """Whether it may come from `evidence_context`, which no digest binds: then it may only tighten."""
        return any(path[0] == EVIDENCE for path in self.paths)


def variable_name(fact: Fact) -> str:
    """Return the name of a fact in conditions: `<name>_minor` for money, else its own."""
    return f"{fact.name}_minor" if fact.type is FactType.MONEY else fact.name


@dataclass(frozen=True, slots=True)
class Rule:
    """`when` (CEL, normalised spacing) → verdict with a reason.

    With `reason_from` the reason is the value of that fact, and `reason_code` is the one for a missing value or one
    outside the fact's `one_of`. `approvable` False: a person may reject or handle by hand, not approve. `says` is the
    rule as a sentence for people; None only in a recorded policy from before files had to have it.
    """

    rule_id: str
    when: str
    verdict: Verdict
    reason_code: str
    reason_from: str | None = None
    approvable: bool = True
    says: str | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A cap per currency (minor units) over a window, for each combination of the `per` facts.

    `when`, if given, narrows it: only an answered "false" removes the limit. `says` is as for a rule.
    """

    limit_id: str
    window: WindowKind
    window_seconds: int
    bucket_seconds: int
    per: tuple[str, ...]
    cap: Mapping[str, int]
    verdict: Verdict
    reason_code: str
    when: str | None = None
    says: str | None = None


SUBJECTS = ("tenant", "agent", "key")
"""Parts of the requester that a limit's `per` may name. Tenant and key are known from the API key, and so is the agent
where the key is bound to one. With any other key the caller chooses the agent's name, and only a limit per key or
tenant is effective."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """A rate within minutes that, when passed, halts the agent or tenant that passed it (`per`: "agent" or "tenant") until a person lifts it.

    `count` operations allowed, or None; `amount` is in minor units by currency, empty where only operations are counted.
    """

    breaker_id: str
    per: str
    window_seconds: int
    count: int | None
    amount: Mapping[str, int]

    @property
    def bucket_seconds(self) -> int:
        """The step by which the window slides: a tenth of it."""
        return self.window_seconds // 10


def rolling_bucket_seconds(window_seconds: int) -> int:
    """Return the step by which a rolling window slides: 5 minutes up to a day, an hour up to a week, else a day."""
    return 300 if window_seconds <= 86400 else 3600 if window_seconds <= 7 * 86400 else 86400


@dataclass(frozen=True, slots=True)
class DeclaredApprovalTerms:
    """The approval terms of a policy; `two_people_from` is in minor units by currency, empty where not declared."""

    expires_seconds: int
    role: str
    people: int
    two_people_from: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Once:
    """The once-key: a kind of thing ("refund") that may happen only once, and the path of its id in a request.

    The key is per tenant and thing, so all policies that name the same thing share it. `thing` is None only in a
    recorded older policy, which had a key of its own; no file is read that way.
    """

    thing: str | None
    path: FactPath


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy file. `numbers` is name → currency → minor units."""

    policy_id: str
    label: str
    version: str
    actions: tuple[str, ...]
    zone: str
    facts: tuple[Fact, ...]
    numbers: Mapping[str, Mapping[str, int]]
    rules: tuple[Rule, ...]
    limits: tuple[Limit, ...]
    approval: DeclaredApprovalTerms
    once_per: Once | None
    breakers: tuple[Breaker, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the normalised policy: text, integers, booleans, None, lists and dicts only."""
        return {
            "policy": self.policy_id,
            "label": self.label,
            "version": self.version,
            "actions": sorted(self.actions),
            "zone": self.zone,
            "facts": {fact.name: _fact_document(fact) for fact in self.facts},
            "numbers": {name: dict(amounts) for name, amounts in self.numbers.items()},
            "rules": [_rule_document(rule) for rule in self.rules],
            "limits": [_limit_document(limit) for limit in self.limits],
            "approval": _terms_document(self.approval),
            "once_per": _once_document(self.once_per),
            **({"breakers": [_breaker_document(breaker) for breaker in self.breakers]} if self.breakers else {}),
        }

    def digest(self) -> str:
        """Return "sha256:…" over the canonical JSON of `document()`."""
        return sha256_hex(canonical_json(self.document()))


def _fact_document(fact: Fact) -> dict[str, Any]:
    paths = [".".join(path) for path in fact.paths]
    # Keys that were added to the format later are written only where they are used, so that other policies keep their
    # digest.
    one_of = {} if fact.one_of is None else {"one_of": sorted(fact.one_of)}
    vouched = {} if fact.vouched_by is Voucher.AGENT else {"vouched_by": fact.vouched_by.value}
    return {"type": fact.type.value, "from": paths, "min": fact.minimum, "max": fact.maximum, **one_of, **vouched}


def _rule_document(rule: Rule) -> dict[str, Any]:
    reason = {"reason": rule.reason_code} if rule.reason_from is None else {"reason_from": rule.reason_from}
    approvable = {} if rule.approvable else {"approvable": False}
    says = _says_document(rule.says)
    return {"id": rule.rule_id, "when": rule.when, "then": rule.verdict.value, **reason, **approvable, **says}


def _limit_document(limit: Limit) -> dict[str, Any]:
    return {
        "id": limit.limit_id,
        "window": limit.window.value,
        "seconds": limit.window_seconds,
        "per": list(limit.per),
        "cap": dict(limit.cap),
        "then": limit.verdict.value,
        "reason": limit.reason_code,
        "when": limit.when,
        **_says_document(limit.says),
    }


def _says_document(says: str | None) -> dict[str, str]:
    """Return `says` for the digest, because people approve by it; nothing for an older policy, which keeps its digest."""
    return {} if says is None else {"says": says}


def _once_document(once: Once | None) -> dict[str, str] | str | None:
    if once is None:
        return None
    path = ".".join(once.path)
    return path if once.thing is None else {once.thing: path}


def _breaker_document(breaker: Breaker) -> dict[str, Any]:
    return {
        "id": breaker.breaker_id,
        "per": breaker.per,
        "seconds": breaker.window_seconds,
        "count": breaker.count,
        "amount": dict(breaker.amount),
    }


def _terms_document(terms: DeclaredApprovalTerms) -> dict[str, Any]:
    return {
        "expires_seconds": terms.expires_seconds,
        "role": terms.role,
        "people": terms.people,
        "two_people_from": dict(terms.two_people_from),
    }
