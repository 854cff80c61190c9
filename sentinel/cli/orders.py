"""`sentinel orders`: list orders waiting for review, and decide one in an operator's name."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from datetime import datetime

import click

from ops_console.read_models.order_search import queue
from ops_console.read_models.order_views import STATUSES, OrderRow, find_order
from ops_console.resolve_order import DECISIONS, RETRY, resolve_order
from sentinel.authority.reasons import trouble_text
from sentinel.cli.common import (
    acting_as,
    as_option,
    json_option,
    open_pool,
    reason_option,
    show,
    show_rows,
    tenant_of,
    tenant_option,
)  # fmt: skip
from sentinel.core.money import Money
from sentinel.platform.command_line import OneLineErrors

COLUMNS = ("source", "order_id", "status", "lane", "amount", "why", "due_at")
MOST = 500
"""The most orders that one list has."""


@dataclass(frozen=True, slots=True)
class _TableRow:
    """An order as a person reads it."""

    review_id: uuid.UUID
    source: str
    order_id: str
    status: str
    lane: str | None
    amount: str
    why: str | None
    due_at: datetime | None


def _table_row(row: OrderRow) -> _TableRow:
    why = row.last_error and trouble_text(row.last_error) if row.status != "QUEUED" else row.reason_code
    amount = str(Money(row.amount_minor, row.currency))
    return _TableRow(row.review_id, row.source, row.order_id, row.status, row.lane, amount, why, row.due_at)


@click.group(cls=OneLineErrors)
def group() -> None:
    """List orders waiting for review, and decide them."""


@group.command("list")
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True)
@tenant_option
@json_option
def list_(limit: int, tenant: str | None, as_json: bool) -> None:
    """List the orders that wait: those that came back from the shop or the refund worker first, then the queue by due time."""
    with open_pool() as pool:
        rows = queue(pool, tenant_of(pool, tenant), limit=limit + 1)
    shown = [_table_row(row) for row in rows]
    show_rows(shown, COLUMNS, as_json=as_json, empty="No order waits for a person.", limit=limit, most=MOST)


@group.command()
@click.argument("source")
@click.argument("order_id", metavar="ORDER")
@click.argument("decision", type=click.Choice([*DECISIONS, RETRY]))
@as_option("E-mail of the operator who decides.", required=True)
@reason_option("Reason; recorded with the order.")
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    help="The order's status when you looked at it (`list`); refused if the order has another status now. Required for retry.",
)
@tenant_option
@json_option
def decide(
    source: str,
    order_id: str,
    decision: str,
    email: str,
    reason: str,
    status: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Decide an order, as a local administrator for the named operator; recorded as such.

    An order that is queued: fulfil, refund or hold. One that came back: retry, which asks the shop once more (--status
    SHOP_REFUSED) or has its refund tried again (--status REFUND_REFUSED); refund; hold. A held one whose hold the shop
    has not accepted: retry --status HELD. One about which the authority refuses to be asked: hold.
    """
    with open_pool() as pool:
        actor = acting_as(pool, tenant_of(pool, tenant), email)
        row = find_order(pool, actor.tenant_id, source, order_id)
        digest, approval_id = (row.digest, row.approval_id) if row is not None else (None, None)
        done = resolve_order(
            pool, actor, source, order_id, decision=decision, reason=reason, digest=digest, status=status, approval_id=approval_id
        )  # fmt: skip
    message = f"{done.result.capitalize()} as {actor.name}."
    if done.result == "recorded":
        message = f"Recorded as {actor.name}: {done.approvals_given} of {done.people_required} people have approved."
    show(asdict(done), as_json, message)
