"""The guard request of one row: fixed when it is first sent, built anew until then.

Its risk facts are derived from the ledger; facts that were handed in can tighten them, never loosen. An unknown fact is left
out; the policy then cannot answer and does not allow (`fact_missing`). Zero or false is never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from sentinel.core.money import Money, money_out
from worker.critic.prompt_injection import SAME_TEXT_ACCOUNTS, is_suspicious
from worker.refunds.rows import KnownFacts
from worker.refunds.workflow.context import RunContext
from worker.refunds.workflow.directories import order_of
from worker.refunds.workflow.routes import IN_PARTS


def params_of(context: RunContext) -> Mapping[str, Any]:
    """The params (`docs/CONTRACT.md` §2). The customer's text is examined here and never sent."""
    row, facts = context.row, context.facts
    if row.guard_request is not None:
        return row.params
    # Asked about before the order was queried, the row still says what the ledger knows: the question is asked for good.
    order = context.order or order_of(facts)
    paid = Money(order.paid_minor, order.currency) if order is not None and order.paid_minor > 0 else None
    optional = {
        "mode": row.mode,
        "account_ref": facts.account_ref,
        "order_ref": row.order_ref,
        "source": row.source or None,
        "order": {"paid": money_out(paid)} if paid is not None and row.channel not in IN_PARTS else None,
    }
    return {
        "amount": money_out(row.money),
        "ledger_entry_id": row.ledger_entry_id,
        "refund_id": row.refund_id,
        "channel": row.channel,
        "scenario": row.scenario,
        **{name: value for name, value in optional.items() if value is not None},
        "risk": risk_facts(facts, in_parts=row.channel in IN_PARTS),
    }


def evidence_of(context: RunContext, *, system: str | None, is_ready: bool) -> Mapping[str, Any]:
    """What goes beside the question and can only tighten the answer: why a person is asked, and who could pay."""
    evidence: dict[str, Any] = {"correlation_id": context.row.ledger_entry_id}
    if context.escalation is not None:
        evidence |= {"escalation": context.escalation, "settlement": system or "none", "settlement_ready": is_ready}
    return evidence


def risk_facts(known: KnownFacts, *, in_parts: bool = True) -> dict[str, bool | int]:
    """{duplicate_refund, stale_window, suspicious_reason, customer_attempts_24h}, each only where it is known.

    `in_parts`: whether the order may be refunded in parts, up to what was paid.
    """
    given = _given(known.risk)
    found: dict[str, bool | int | None] = {
        "duplicate_refund": _flag(_duplicate(known, in_parts), given.get("duplicate_refund")),
        "stale_window": _flag(known.is_stale, given.get("stale_window")),
        "suspicious_reason": _flag(_suspicious(known), given.get("suspicious_reason")),
        "customer_attempts_24h": _count(known.attempts_24h, given.get("customer_attempts_24h")),
    }
    return {name: value for name, value in found.items() if value is not None}


def _duplicate(known: KnownFacts, in_parts: bool) -> bool | None:
    """The refund id is always known here; how much of the order is left is a step's question, where an order is named.

    Where an order is refunded once at most, a second refund is a step's question too (`refunded_before`).
    """
    if known.refund_seen:
        return True
    return None if in_parts and known.order_budget is None else False


def _suspicious(known: KnownFacts) -> bool:
    return known.same_text_accounts >= SAME_TEXT_ACCOUNTS or is_suspicious(known.reason or "")


def _flag(derived: bool | None, given: Any) -> bool | None:
    """True if anybody says so; False only from the ledger, or handed in where the ledger cannot know."""
    if derived is True or given is True:
        return True
    if given is not None and given is not False:
        return None  # something else than true or false was handed in: nobody knows what it meant
    return False if derived is False or given is False else None


def _count(derived: int | None, given: Any) -> int | None:
    """The larger of the two."""
    if given is None:
        return derived
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        return None
    return max(given, derived or 0)


def _given(text: str) -> Mapping[str, Any]:
    found = orjson.loads(text)
    return found if isinstance(found, dict) else {}
