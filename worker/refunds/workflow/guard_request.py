"""The guard request of one row: fixed when it is first sent, built anew until then.

Its risk facts are those of `risk_facts.py`; one that nobody knows is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.money import Money, money_out
from worker.refunds.risk_facts import risk_facts
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
