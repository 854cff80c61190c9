"""The budget row of an order, as the console shows it beside the order or beside one refund of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sentinel.store.database import Pool
from sentinel.store.queries import one_row
from sentinel.store.sql_template import SqlTemplate

RETAIL = "retail"
"""The channel in which an analyst's refund is filed."""


@dataclass(frozen=True, slots=True)
class OrderBudget:
    """What was paid for an order and where that stands; minor units, `paid_minor` and `left_minor` None where not known."""

    currency: str
    paid_minor: int | None
    reserved_minor: int
    executed_minor: int
    handled_minor: int
    in_doubt_minor: int
    beyond_minor: int
    uncounted_entries: int
    left_minor: int | None


_COLUMNS = """b.currency, b.paid_minor, b.reserved_minor, b.executed_minor, b.handled_minor, b.in_doubt_minor, b.beyond_minor,
  b.uncounted_entries,
  case when b.paid_minor is not null then
    greatest(0, b.paid_minor - b.reserved_minor - b.executed_minor - b.handled_minor - b.in_doubt_minor) end as left_minor"""
OF_ENTRY = SqlTemplate("""
select {columns} from refunds.ledger_entries e
join refunds.order_budgets b on (b.tenant_id, b.channel, b.source, b.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = %(ledger_entry_id)s
""").fill(columns=_COLUMNS)
OF_ORDER = SqlTemplate("""
select {columns} from refunds.order_budgets b
where b.tenant_id = %(tenant_id)s and b.channel = %(channel)s and b.source = %(source)s and b.order_ref = %(order_ref)s
""").fill(columns=_COLUMNS)


def budget_of_entry(ledger: Pool, tenant_id: uuid.UUID, ledger_entry_id: str) -> OrderBudget | None:
    """The budget of the order that a ledger entry names; None where it names none."""
    return one_row(ledger, OrderBudget, OF_ENTRY, {"tenant_id": tenant_id, "ledger_entry_id": ledger_entry_id})


def budget_of_order(ledger: Pool, tenant_id: uuid.UUID, source: str, order_ref: str) -> OrderBudget | None:
    """The budget of a source's order; None while no refund of it was asked for."""
    fields = {"tenant_id": tenant_id, "channel": RETAIL, "source": source, "order_ref": order_ref}
    return one_row(ledger, OrderBudget, OF_ORDER, fields)
