"""Decisions: what rules found, how findings become one verdict, and the reason codes.

Every rule is asked; the strictest finding wins; an ALLOW needs an explicit ALLOW finding and no rule
that failed to answer. These values are what the policy returns, the store keeps and the API shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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
    # Reason code → sentence, in order of precedence among findings that are equally strict.
    "engine_unavailable": "The decision could not be recorded; nothing is allowed.",
    "halted": "A halt covers this action.",
    "no_matching_policy": "No policy covers this action.",
    "duplicate_resource": "The same thing is already under way or done under another key.",
    "approval_rejected": "A person rejected this.",
    "approval_expired": "Nobody decided in time.",
    "fact_missing": "A fact that a rule needs is missing or malformed.",
    "duplicate_refund": "This refund was already made or is under way.",
    "stale_window": "The order is too old for a refund.",
    "suspicious_reason": "The stated reason is suspicious.",
    "too_many_attempts": "Too many attempts of this customer in 24 hours.",
    "currency_not_covered": "The policy has no numbers for this currency.",
    "over_limit": "The amount is above what the policy can allow.",
    "limit_exceeded": "A spending limit would be exceeded.",
    "repeated_attempts": "Several attempts of this customer in 24 hours.",
    "amount_needs_approval": "The amount needs a person's approval.",
    "within_policy_limit": "Within the policy limit.",
}


def reason_text(code: str) -> str:
    """The sentence for a reason code; a policy's own code reads as its words."""
    return REASONS.get(code) or code.replace("_", " ").capitalize() + "."


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule said. `failed` means it could not answer, which can only tighten."""

    rule_id: str
    verdict: Verdict
    reason_code: str
    failed: bool = False


class WindowKind(StrEnum):
    """How a limit's window moves."""

    CALENDAR_DAY = "calendar_day"
    CALENDAR_MONTH = "calendar_month"
    ROLLING = "rolling"


@dataclass(frozen=True, slots=True)
class LimitAsk:
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


@dataclass(frozen=True, slots=True)
class ApprovalTerms:
    """Who may lift an APPROVAL_REQUIRED, how many people, and for how long the question stands."""

    role: str
    people: int
    expires_seconds: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The policy's provisional word on one operation; halts and limits can still tighten it."""

    verdict: Verdict
    reason_code: str
    reasons: tuple[str, ...]
    """Reason codes of every finding that is not an ALLOW, strictest first, without repeats."""
    findings: tuple[Finding, ...]
    limits: tuple[LimitAsk, ...] = ()
    approval: ApprovalTerms | None = None
    once_key: str | None = None
    """What may happen only once, e.g. "retail-refund|rf_1"; None where the policy declares nothing."""
    policy_id: str = "none"
    policy_version: str = "none"
    policy_label: str = "No policy"
    policy_digest: str = field(default="sha256:" + "0" * 64)


def no_matching_policy() -> Decision:
    """The answer where no policy covers the action: DENY."""
    finding = Finding("no_matching_policy", Verdict.DENY, "no_matching_policy")
    return Decision(Verdict.DENY, "no_matching_policy", ("no_matching_policy",), (finding,))


def strictest(findings: tuple[Finding, ...]) -> tuple[Verdict, str, tuple[str, ...]]:
    """Findings → (verdict, reason code, reasons). Without an answered ALLOW or APPROVAL_REQUIRED it is DENY.

    Strictest first; among equals those that answered, then the policy's own order: that is the order of
    precedence. `reasons` lists the codes of all non-ALLOW findings in it. A failed finding never speaks for
    an operation, it only tightens: a failed ALLOW counts as APPROVAL_REQUIRED, and failures alone are a DENY
    (else a missing fact would turn "no rule applies", a DENY, into a question).
    """
    ordered = sorted(findings, key=lambda finding: (-_weight(finding), finding.failed))
    reasons = tuple(dict.fromkeys(f.reason_code for f in ordered if _weight(f) > 0))
    if ordered and ordered[0].verdict is Verdict.DENY:
        return Verdict.DENY, reasons[0], reasons
    spoken_for = [f for f in ordered if not f.failed]
    if not spoken_for:
        reasons = reasons or ("no_matching_policy",)
        return Verdict.DENY, reasons[0], reasons
    if reasons:
        return Verdict.APPROVAL_REQUIRED, reasons[0], reasons
    return Verdict.ALLOW, spoken_for[0].reason_code, ()


def _weight(finding: Finding) -> int:
    """How strict a finding is: an ALLOW that could not be answered is worth a person's look."""
    return max(finding.verdict.rank, 1) if finding.failed else finding.verdict.rank
