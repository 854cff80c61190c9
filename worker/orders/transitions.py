"""Pure functions from an answer of the authority or the shop to the event and the rows that are stored for an order.

Only a start under the order's own start id leads to STARTED. Where the outcome is not certain the order is postponed;
one that was started elsewhere is held.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from sentinel.client import GuardAnswer
from sentinel.core.money import Money, money_out
from sentinel.core.wording import EXECUTED_BY_PERSON
from sentinel.platform.backoff import Backoff
from worker.orders.lanes import LaneEvent
from worker.orders.order import ClaimedOrder, Lane, Order, ReviewStatus, Score, order_key
from worker.orders.responses import OrderResponse, order_response
from worker.orders.scoring import FACTS_MISSING
from worker.orders.shop import SHIPPED_BEFORE, shop_payload
from worker.outbound.effects import EffectRefused, EffectResult, Settled

APPROVED = "approved"
"""The event of an approved order: the review stays QUEUED for a moment and is started in the same transaction."""

ASKED_AGAIN = "asked_again"
"""The event of an order whose terms became stricter after the approval: the review stays QUEUED and waits for another one."""
QUEUES = (LaneEvent.NEEDS_ANALYST, ASKED_AGAIN)
"""The events after which an order waits for an analyst."""

BACKOFF = Backoff(2.0, 300.0)
BACKOFF_IN_SILENCE = Backoff(2.0, 48.0)
"""While the authority gives no answer, or the shop is silent; with the spread a minute, within which orders go on once it answers again."""
_UNDECIDED = (ReviewStatus.SCORED, ReviewStatus.DECIDED)


def score_row(order: Order, score: Score, seconds: float) -> dict[str, Any]:
    """The row that stores a score, with the question to the authority, which never changes afterwards."""
    return {
        "band": score.band.value, "model": score.model, "score_ms": round(seconds * 1000),
        "signals": [{"code": signal.code, "detail": signal.detail} for signal in score.signals],
        "guard_params": asked_params(order.source, order.order_id, order.amount, order.account_ref, score),
    }  # fmt: skip


def scored_work(work: ClaimedOrder, row: Mapping[str, Any]) -> ClaimedOrder:
    """The order as it is after its score was stored."""
    return replace(
        work, status=ReviewStatus.SCORED, band=row["band"], model=row["model"], signals=row["signals"],
        guard_params=row["guard_params"],
    )  # fmt: skip


def asked_params(source: str, order_id: str, amount: Money, account_ref: str | None, score: Score) -> dict[str, Any]:
    """The parameters of the question about an order; of the signals only the codes are sent."""
    # An amount must be more than zero (`docs/CONTRACT.md` §1): an order with nothing to pay says that instead.
    money = {"amount": money_out(amount)} if amount.amount_minor else {"nothing_to_pay": True}
    return {
        **money, "order_id": order_id, "source": source,
        "order_key": order_key(source, order_id), "band": score.band.value, "model": score.model,
        "signals": sorted({signal.code for signal in score.signals}),
        **({"facts_missing": True} if any(signal.code == FACTS_MISSING for signal in score.signals) else {}),
        **({"account_ref": account_ref} if account_ref else {}),
    }  # fmt: skip


def event_of(work: ClaimedOrder, answer: GuardAnswer) -> str | None:
    """Map a guard's answer to the event for its order; None: nothing to record yet, ask again later."""
    undecided = work.status in _UNDECIDED
    if is_started(answer) or is_executed(answer):
        if not undecided:
            return APPROVED
        # Approved before it was queued here: it still enters the medium lane's queue first, and is due at once.
        return LaneEvent.ALLOWED if answer.decision == "ALLOW" else LaneEvent.NEEDS_ANALYST
    match answer.status:
        case "pending" if undecided:
            return LaneEvent.NEEDS_ANALYST
        case "pending":
            return None if answer.approval_id in (None, str(work.approval_id)) else ASKED_AGAIN
        case "denied" if answer.is_halted_for_now:
            # Decided before the halt: the refusal lasts only as long as the halt.
            return None
        case _:
            return LaneEvent.DENIED if undecided else LaneEvent.REJECTED


def is_started(answer: GuardAnswer) -> bool:
    """Whether the order is started under its own start id, by this question or an earlier one, and has no outcome yet:
    the shop may be asked."""
    return answer.start is not None and answer.status != "completed"


def is_executed(answer: GuardAnswer) -> bool:
    """Whether the order is started under its own start id and on record as executed. A person resolved it so: the
    intake reports a success only for settled orders, which are not asked about again."""
    return answer.start is not None and answer.status == "completed" and answer.outcome == "success"


def is_start_ruled_out(answer: GuardAnswer) -> bool:
    """Whether the operation was started elsewhere or resolved as not executed: it must not be started any more."""
    return answer.status in ("already_started", "completed") and not (is_started(answer) or is_executed(answer))


EXECUTED = Settled(EXECUTED_BY_PERSON)
"""The result of an order that a person resolved as executed; the shop is not asked, as it may know nothing of the order."""
NOT_EXECUTED = EffectRefused("a person said that it was not executed")
STARTED_ELSEWHERE = EffectRefused("started or settled elsewhere")
"""The results of a started order that must not be fulfilled any more, where the shop has not fulfilled it. The shop refused nothing."""


def row_of(work: ClaimedOrder, answer: GuardAnswer, event: str) -> dict[str, Any]:
    """The row that stores a guard's answer and its event."""
    return {
        "event": event, "operation_id": answer.operation_id, "decision_event_id": answer.decision_event_id,
        "decision": answer.decision, "reason_code": reason_of(answer), "proof_id": answer.proof_id,
        "approval_id": answer.approval_id, "start_id": work.own_start_id if answer.start else None,
        "due_at": answer.expires_at if event in QUEUES else None, "at_once": answer.start is not None,
    }  # fmt: skip


def reason_of(answer: GuardAnswer) -> str:
    """The authority's reason code, or one of ours for an expired approval, a resolution or a start elsewhere."""
    if answer.status == "expired":
        return "approval_expired"
    if answer.resolution is not None:
        return f"resolved_{answer.resolution}"
    if answer.status in ("already_started", "completed") and answer.start is None:
        return "started_elsewhere"
    return answer.reason_code


def decided_work(work: ClaimedOrder, answer: GuardAnswer, event: str, row: Mapping[str, Any]) -> ClaimedOrder:
    """The order as it is after `orders.decide_reviews` has stored the event."""
    status, lane = _after(work, event)
    return replace(
        work, status=status, lane=lane, decision=answer.decision, reason_code=row["reason_code"],
        operation_id=work.operation_id or uuid.UUID(answer.operation_id), decision_event_id=row["decision_event_id"],
        approval_id=row["approval_id"] or work.approval_id, start_id=row["start_id"] or work.start_id,
        due_at=row["due_at"] or work.due_at, attempts=0 if status == ReviewStatus.STARTED else work.attempts,
    )  # fmt: skip


def _after(work: ClaimedOrder, event: str) -> tuple[str, str | None]:
    match event:
        case LaneEvent.ALLOWED:
            return ReviewStatus.STARTED, Lane.LOW
        case "approved":
            return ReviewStatus.STARTED, work.lane
        case LaneEvent.NEEDS_ANALYST | "asked_again":
            return ReviewStatus.QUEUED, Lane.MEDIUM
        case LaneEvent.DENIED:
            return ReviewStatus.HELD, Lane.HIGH
        case _:
            return ReviewStatus.HELD, work.lane


def shipped_row(work: ClaimedOrder, row: Mapping[str, Any]) -> tuple[dict[str, Any], OrderResponse]:
    """The row that `orders.ship_scored` takes for a permitted order, and the response that it stores."""
    assert work.operation_id is not None
    response = order_response(work, status=ReviewStatus.FULFILLED)
    told = shop_payload(work.review, work.operation_id)
    return {**row, "operation_id": work.operation_id, "told": told, **response.as_json()}, response


def settled_row(work: ClaimedOrder, answer: Settled | EffectRefused) -> dict[str, Any]:
    """The row that stores the shop's answer to a fulfilment, with the response to the sender."""
    if isinstance(answer, Settled):
        response = order_response(work, status=ReviewStatus.FULFILLED)
        return {"done": True, "reference": answer.reference[:200], "answered": response.as_json()}
    response = order_response(work, status=ReviewStatus.SHOP_REFUSED)
    return {
        "done": False, "error": answer.reason[:500], "alert": _not_fulfilled_alert(work, answer),
        "answered": response.as_json(),
    }  # fmt: skip


def held_alert(work: ClaimedOrder, reason: str) -> dict[str, Any]:
    """The alert about an order that is held, with its signals."""
    return _alert("order_held", f"order held: {reason}", work, reason)


def question_refused_alert(work: ClaimedOrder, why: str) -> dict[str, Any]:
    """The alert about an order whose question the authority refuses: without a decision, a person may hold the order.

    While the order has no lane, this alert puts it into the analysts' queue (`orders.resolve_returned`).
    """
    summary = f"the authority refuses to decide on the order: {why}"
    return _alert("question_refused", summary, work, why) | {"occasion": work.status.lower()}


def refused_alert(work: ClaimedOrder, verb: str, reason: str) -> dict[str, Any]:
    """The alert about a shop that refuses a fulfilment or hold (`verb`); a person's retry that is refused raises another one."""
    refused = _alert("shop_refused", f"the shop refused to {verb}: {reason}", work, reason)
    return refused | {"occasion": verb, "each_time": True}


def _not_fulfilled_alert(work: ClaimedOrder, answer: EffectRefused) -> dict[str, Any]:
    alert = refused_alert(work, "fulfil", answer.reason)
    if answer in (NOT_EXECUTED, STARTED_ELSEWHERE):
        return alert | {"summary": f"it must not be fulfilled any more: {answer.reason}"}
    return alert


LATE_TRIES = 6
"""After this many attempts without an answer, some two minutes, an alert is raised; the attempts continue."""


def late_alert(work: ClaimedOrder, verb: str, tries_before: int, why: str) -> dict[str, Any] | None:
    """The alert about an effect that the shop has not taken after `LATE_TRIES` attempts; None before that."""
    if tries_before + 1 < LATE_TRIES:
        return None
    summary = f"the shop has not accepted the {verb} after {tries_before + 1} attempts: {why}"
    return _alert("shop_late", summary, work, why) | {"occasion": verb, "each_time": True}


def unseen_alert(work: ClaimedOrder, why: str) -> dict[str, Any] | None:
    """The alert about a started order that must not be fulfilled any more, where the shop has not said after `LATE_TRIES`
    attempts whether it was; None before that."""
    attempts = work.attempts + 1
    if attempts < LATE_TRIES:
        return None
    summary = (
        f"it must not be fulfilled any more, and after {attempts} attempts the shop has not said whether it was: {why}"
    )
    return _alert("shop_late", summary, work, why) | {"occasion": "look", "each_time": True}


def hold_row(
    work: ClaimedOrder, answer: EffectResult, tries_before: int, spread: float, under_way_seconds: float
) -> dict[str, Any]:
    """The row that stores an attempt of a hold, which is repeated until the shop has the hold or turns out to have shipped.

    The next attempt is at least `under_way_seconds` later: before that it would only look, and each attempt that is
    recorded begins this time anew, so that the shop would not be asked again.
    """
    if isinstance(answer, Settled):
        return {"state": "done", "reference": answer.reference[:200]}
    why = answer.reason if isinstance(answer, EffectRefused) else answer.detail
    if answer is SHIPPED_BEFORE:
        return {"state": "refused", "error": why, "alert": refused_alert(work, "hold", why)}
    refused = refused_alert(work, "hold", why) if isinstance(answer, EffectRefused) else None
    return {
        "state": "intended", "error": why[:500],
        "pause_seconds": max(BACKOFF.pause_seconds(tries_before, spread), under_way_seconds),
        "alert": refused or late_alert(work, "hold", tries_before, why),
    }  # fmt: skip


def _alert(kind: str, summary: str, work: ClaimedOrder, reason: str) -> dict[str, Any]:
    details = {
        "reason": reason, "lane": work.lane, "band": work.band, "amount": money_out(work.amount),
        "operation_id": work.operation_id, "signals": list(work.signals or ()),
    }  # fmt: skip
    return {"kind": kind, "summary": summary[:500], "details": details}
