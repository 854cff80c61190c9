"""What must hold before a refund is executed, written from the rules and from nothing in the worker.

A `Situation` is everything that a row meets in one run. `unmet` names the steps that it has not passed: an execution is
right only when a person has approved every one of them, and none is of those that no approval lifts (`NEVER`).
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = "never"
WINDOW_DAYS = {"fee": 7, "price_diff": 15, "compensation": 30, "defect": 30, "quality": 30}
NO_PROOF_UP_TO = {"private/fee": 800, "public/fee": 0, "public/defect": -1, "public/quality": -1}
SYSTEMS = {
    "retail/standard": "simulated_refund", "private/fee": "private_refund", "private/price_diff": "price_difference",
    "private/compensation": "coupon", "public/fee": "platform_backend", "public/price_diff/price_drop": "platform_backend",
    "public/defect": "ticket_then_platform", "public/quality": "ticket_then_platform",
}  # fmt: skip


@dataclass(frozen=True)
class Situation:
    """As it should be; amounts in minor units, `age_seconds` since delivery."""

    amount: int = 400
    halted: bool = False
    master_on: bool = True
    switch_on: bool = True
    in_canary: bool = True
    complete: bool = True
    complaint: bool = False
    delayed: bool = False
    mismatch: bool = False
    blacklisted: bool = False
    refunded_before: bool = False
    order: str = "known"  # or unknown, silent
    shipping_fee: int = 1000
    price_drop: int = 1000
    age_seconds: float = 86_400.0
    image: str = "good"  # or missing, unreadable, silent, wrong
    rules: str = ""  # the code of the critic's no
    model: str = ""
    ready: bool = True
    card: str = "none"  # or pending, confirmed, declined, expired; other: confirmed for other terms
    policy: str = "ALLOW"  # or DENY, APPROVAL_REQUIRED
    replays: bool = False  # the authority answers ALLOW to who asks for a person
    guard: str = "answers"  # or silent
    start: str = "answers"  # or silent, refused
    settles: str = "answers"  # or silent, refused: what the settlement system says


def unmet(cell: str, now: Situation) -> set[str]:
    """Escalation reasons (or `NEVER`) of every step that stands in the way on this branch, in no order."""
    channel, _, rest = cell.partition("/")
    scenario = rest.partition("/")[0]
    return _common(channel, scenario, now) | _branch(cell, channel, scenario, now) | _end(cell, channel, now)


def _common(channel: str, scenario: str, now: Situation) -> set[str]:
    found = {
        "halted": now.halted,
        "switch_off": not now.switch_on or (channel != "retail" and not now.master_on),
        "outside_canary": not now.in_canary,
        "open_complaint": now.complaint,
        "delayed_shipment": now.delayed and scenario != "compensation",
        "account_mismatch": now.mismatch,
        "blacklisted": now.blacklisted,
        "refunded_before": now.refunded_before and channel != "retail",
        "order_directory_unavailable": now.order == "silent",
        # No person makes an order known that is not there.
        NEVER: not now.complete or (now.order == "unknown" and channel != "retail"),
    }
    reasons = {reason for reason, stands in found.items() if stands}
    if "switch_off" in reasons:
        reasons.discard("outside_canary")  # what is off has no canary
    return reasons


def _branch(cell: str, channel: str, scenario: str, now: Situation) -> set[str]:
    if cell not in SYSTEMS:
        return {NEVER}
    if channel == "retail":
        return {now.rules} - {""}
    found = {
        "outside_window": now.order == "known" and not 0 <= now.age_seconds <= WINDOW_DAYS[scenario] * 86_400,
        "fee_not_charged": scenario == "fee" and now.order == "known" and now.amount > now.shipping_fee,
        "price_not_dropped": scenario == "price_diff" and now.order == "known" and now.amount > now.price_drop,
        "not_in_scenario": now.order != "known" or (scenario == "compensation" and not now.delayed),
    }
    if cell in NO_PROOF_UP_TO and now.amount > NO_PROOF_UP_TO[cell]:
        words = {"missing": "image_missing", "unreadable": "image_unrecognised", "silent": "recogniser_unavailable"}
        found[words.get(now.image, "image_mismatch")] = now.image != "good"
    critic = now.rules or (now.model if channel == "public" else "")
    return {reason for reason, stands in found.items() if stands} | ({critic} - {""})


def _end(cell: str, channel: str, now: Situation) -> set[str]:
    no_word = channel != "retail" and now.card != "confirmed"
    silent = now.guard != "answers" or now.start != "answers" or now.settles != "answers"
    needs_person = {"policy"} if now.policy == "APPROVAL_REQUIRED" else set()
    return ({NEVER} if no_word or silent or not now.ready or now.policy == "DENY" else set()) | needs_person
