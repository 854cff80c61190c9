"""Decisions: findings, how they combine into one verdict, and the reason codes.

Every rule is asked; the strictest finding wins; an ALLOW needs an explicit ALLOW finding and no rule
that failed to answer. These values are what the policy returns, the store keeps and the API shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Verdict(StrEnum):
    """The three answers, loosest first."""

    ALLOW = "ALLOW"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    DENY = "DENY"

    @property
    def rank(self) -> int:
        """0 for ALLOW, 1 for APPROVAL_REQUIRED, 2 for DENY: higher is stricter."""
        return _RANKS[self]


_RANKS = {Verdict.ALLOW: 0, Verdict.APPROVAL_REQUIRED: 1, Verdict.DENY: 2}

REASONS: dict[str, str] = {
    # Reason code → sentence. Which of several findings gives the reason is decided by `strictest`, not by this order.
    "engine_unavailable": "The decision could not be recorded; nothing is allowed.",
    "velocity_halted": "The rate of a velocity breaker was exceeded, so the agent or tenant was halted; a person must lift the halt.",
    "halted": "A halt covers this action.",
    "no_matching_policy": "No policy covers this action, or no rule of its policy permits it.",
    "duplicate_resource": "This may happen only once, and it is already approved, in progress or done under another idempotency key.",
    "looks_like_duplicate": "Its once-key differs only in case or trailing punctuation from one that is already approved, in progress or done.",
    "once_key_changed": "The policy now counts it as something that may happen only once; ask again under a new idempotency key.",
    "approval_rejected": "A person rejected this.",
    "handled_by_person": "A person handled this elsewhere.",
    "second_administrator": "This change gives somebody access or rights, so a second administrator must approve it.",
    "customer_declined": "The customer declined the confirmation.",
    "confirmation_expired": "The customer did not confirm in time.",
    "approval_expired": "Nobody decided in time.",
    "fact_missing": "A fact that a rule needs is missing or malformed.",
    "fact_not_vouched": "A fact that a rule needs comes from a requester that cannot vouch for it.",
    "duplicate_refund": "This refund was already made or is under way.",
    "stale_window": "The order is too old for a refund.",
    "suspicious_reason": "The stated reason is suspicious.",
    "too_many_attempts": "This customer made too many attempts in 24 hours.",
    "currency_not_covered": "The policy has no amounts for this currency.",
    "over_limit": "The amount is above what the policy can allow.",
    "over_transaction_limit": "The amount is above the maximum of one refund of this kind.",
    "limit_exceeded": "A spending limit would be exceeded.",
    "account_unknown": "The request names no account, and the budget that all such operations share would be exceeded.",
    "total_exceeded": "A total limit of the agent or of the tenant would be exceeded.",
    "repeated_attempts": "This customer made several attempts in 24 hours.",
    "frequent_refunds": "The account got many refunds in 30 days.",
    "high_risk": "The order's signals say that it should not be fulfilled.",
    "facts_missing": "The order lacks facts that its source always sends.",
    "needs_analyst": "The order's signals call for an analyst.",
    "amount_needs_analyst": "The order's amount calls for an analyst.",
    "low_risk": "Nothing speaks against the order.",
    "amount_needs_approval": "The amount needs a person's approval.",
    "within_policy_limit": "Within the policy limit.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rule. `failed` means it could not answer, which can only tighten.

    `approvable` is False where a person may reject or handle by hand, but not approve; `asks_person` is True where
    the request itself asks for a person, with the reason of this finding.
    """

    rule_id: str
    verdict: Verdict
    reason_code: str
    failed: bool = False
    approvable: bool = True
    asks_person: bool = False


class WindowKind(StrEnum):
    """How a limit's window moves."""

    CALENDAR_DAY = "calendar_day"
    CALENDAR_MONTH = "calendar_month"
    ROLLING = "rolling"


class ReservationRequest(NamedTuple):
    """A cap that this operation must fit under: checked and reserved in the decision's transaction.

    `subject` names whose budget it is ("acct_1|USD"); `limit_key` is unique per limit and subject.
    `window_seconds` is 0 for calendar windows; `bucket_seconds` is how finely a rolling one slides.
    """

    limit_key: str
    subject: str
    window: WindowKind
    window_seconds: int
    bucket_seconds: int
    zone: str
    cap_minor: int
    verdict: Verdict
    reason_code: str
    is_total: bool = False
    """True for a limit per tenant, agent, key and currency only: most operations share it, so a batch sums it up once."""

    @property
    def limit_id(self) -> str:
        """The limit's name in its policy."""
        return self.limit_key.split("|")[0].rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class BreakerCheck:
    """A rate that this operation, if allowed, counts towards; passing it halts `target` in `scope` ("agent" or "tenant").

    `most_operations` and `most_minor` may each be None: not counted.
    """

    breaker_key: str
    scope: str
    target: str
    window_seconds: int
    bucket_seconds: int
    most_operations: int | None
    most_minor: int | None
    declared: str
    """The rate in words, for people: "100 operations or 5000.00 USD in 5 minutes"."""


NO_POLICY, NO_POLICY_DIGEST = "none", "sha256:" + "0" * 64
"""The policy id and digest of a decision on an action that no policy covers."""


class ApprovalTerms(NamedTuple):
    """The role and number of people who may approve an APPROVAL_REQUIRED, and after how many seconds the approval expires."""

    role: str
    people: int
    expires_seconds: int


class Decision(msgspec.Struct, frozen=True):
    """The policy's provisional decision on one operation; halts and limits can still tighten it."""

    verdict: Verdict
    reason_code: str
    reasons: tuple[str, ...]
    """Reason codes of every finding that is not an ALLOW, strictest first, without repeats."""
    findings: tuple[Finding, ...]
    limits: tuple[ReservationRequest, ...] = ()
    breakers: tuple[BreakerCheck, ...] = ()
    approval: ApprovalTerms | None = None
    approvable: bool = True
    """False where any finding says so: the question to a person then does not offer "approve"."""
    asks_person: bool = False
    """True where the request itself asks for a person: a halt then leaves the decision to a person instead of denying for good."""
    once_key: str | None = None
    """The once-key, e.g. "refund|rf_1"; None where the policy declares none, the request has no value for it, or with a DENY."""
    policy_id: str = NO_POLICY
    policy_version: str = "none"
    policy_label: str = "No policy"
    policy_digest: str = NO_POLICY_DIGEST


def stricter_reason(first: Decision, now: Decision) -> str | None:
    """Return the reason code for which `now` is not covered by what was decided on `first`, or None if it is.

    It is covered if it is no DENY and has no reason, budget or breaker that `first` has not, and the same once-key and
    terms of approval.
    """
    if now.verdict is Verdict.DENY or now.verdict.rank > first.verdict.rank:
        return now.reason_code
    added = [reason for reason in now.reasons if reason not in first.reasons]
    if added:
        return added[0]
    if (now.approval, now.approvable) != (first.approval, first.approvable) and now.verdict is not Verdict.ALLOW:
        return now.reason_code
    budgets = [limit.reason_code for limit in now.limits if limit not in first.limits]
    if any(breaker not in first.breakers for breaker in now.breakers):
        budgets.append("velocity_halted")
    if now.once_key != first.once_key:
        budgets.append("once_key_changed")
    return budgets[0] if budgets else None


def no_matching_policy() -> Decision:
    """The answer where no policy covers the action: DENY."""
    finding = Finding("no_matching_policy", Verdict.DENY, "no_matching_policy")
    return Decision(Verdict.DENY, "no_matching_policy", ("no_matching_policy",), (finding,))


class CombinedFindings(NamedTuple):
    """Findings and their combined result; the fields mean the same as in a `Decision`."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    reason_code: str
    reasons: tuple[str, ...]
    approvable: bool
    asks_person: bool


def combine(findings: tuple[Finding, ...]) -> CombinedFindings:
    """Combine the findings on one request into a verdict, its reason codes, and what a person may do."""
    return CombinedFindings(
        findings,
        *strictest(findings),
        approvable=all(finding.approvable for finding in findings),
        asks_person=any(finding.asks_person for finding in findings),
    )


def strictest(findings: tuple[Finding, ...]) -> tuple[Verdict, str, tuple[str, ...]]:
    """Return (verdict, reason code, reasons). Without an answered ALLOW or APPROVAL_REQUIRED the verdict is DENY.

    Order of precedence: the strictest first, among equals those that answered, then the policy's own order. `reasons`
    lists the codes of all non-ALLOW findings in that order. A failed finding never speaks for an operation, it only
    tightens: a failed ALLOW counts as APPROVAL_REQUIRED, and failures alone are a DENY (else a missing fact would turn
    "no rule applies", a DENY, into a question to a person).
    """
    ordered = sorted(findings, key=lambda finding: (-_strictness(finding), finding.failed))
    reasons = tuple(dict.fromkeys(f.reason_code for f in ordered if _strictness(f) > 0))
    if ordered and ordered[0].verdict is Verdict.DENY:
        return Verdict.DENY, reasons[0], reasons
    spoken_for = [f for f in ordered if not f.failed]
    if not spoken_for:
        reasons = reasons or ("no_matching_policy",)
        return Verdict.DENY, reasons[0], reasons
    if reasons:
        return Verdict.APPROVAL_REQUIRED, reasons[0], reasons
    return Verdict.ALLOW, spoken_for[0].reason_code, ()


def _strictness(finding: Finding) -> int:
    """Return how strict a finding is (a rank): a failed ALLOW counts as APPROVAL_REQUIRED."""
    return max(finding.verdict.rank, 1) if finding.failed else finding.verdict.rank
