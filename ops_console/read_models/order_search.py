"""Orders under review as analysts look for them: the queue by due time, lanes by count and age, search, pages by key.

Read models without customers, as in `order_views.py`. What is not over is found by when it is due, what is over by when it
came; no page counts every order there ever was.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from ops_console.read_models.ledger_search import beginning
from ops_console.read_models.order_views import COLUMNS, FROM, OrderRow
from sentinel.store.database import Pool
from sentinel.store.rows import all_rows

OVER = ("FULFILLED", "HELD", "REFUND_FILED")
"""Nothing happens to an order in one of these; every other status is due at some time."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How many orders that are not over stand somewhere, and since when the oldest one; `lane` None: not decided yet."""

    lane: str | None
    status: str
    orders: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class Ended:
    """How many orders of the last day ended in a lane and status."""

    lane: str
    status: str
    orders: int


# By field; a prefix is a pattern, so that an index in byte order answers it.
CONDITIONS = {
    "lane": "r.lane = %(lane)s",
    "status": "r.status = %(status)s",
    "prefix": "r.order_id like %(pattern)s",
}
IS_OPEN = "r.next_attempt_at < 'infinity'"
BEHIND = "(r.received_at, r.review_id) < (%(before_at)s, %(before_id)s)"
# What came back first, then soonest due first; one that somebody has spoken on waits for the intake, not for a person.
QUEUE = f"""
select {COLUMNS} {FROM}
where r.tenant_id = %(tenant_id)s and {IS_OPEN}
  and (r.status = 'QUEUED' and r.resolution is null or r.status in ('SHOP_REFUSED', 'REFUND_REFUSED'))
order by r.status <> 'QUEUED' desc, coalesce(a.expires_at, r.due_at), r.review_id limit %(limit)s
"""
STANDINGS = f"""
select lane, status, count(*)::integer as orders, min(received_at) as oldest_at from orders.reviews r
where tenant_id = %(tenant_id)s and {IS_OPEN} group by lane, status
"""
ENDED = """
select lane, status, count(*)::integer as orders from orders.reviews
where tenant_id = %(tenant_id)s and received_at >= statement_timestamp() - interval '1 day'
  and status in ('FULFILLED', 'HELD', 'REFUND_FILED')
group by lane, status
"""


def search_orders(
    pool: Pool, tenant_id: uuid.UUID, *, lane: str | None = None, status: str | None = None, prefix: str | None = None,
    before: tuple[datetime, uuid.UUID] | None = None, limit: int,
) -> list[OrderRow]:  # fmt: skip
    """Orders that fit, newest first, from behind `before` = (received_at, review_id)."""
    asked = {name: text for name, text in (("lane", lane), ("status", status), ("prefix", prefix)) if text is not None}
    conditions = ["r.tenant_id = %(tenant_id)s", *(CONDITIONS[name] for name in asked)]
    if status is not None and status not in OVER:
        conditions.append(IS_OPEN)
    fields = {**asked, "tenant_id": tenant_id, "limit": limit, "pattern": beginning(prefix or "")}
    if before is not None:
        conditions.append(BEHIND)
        fields.update(before_at=before[0], before_id=before[1])
    statement = (
        f"select {COLUMNS} {FROM} where {' and '.join(conditions)}"
        " order by r.received_at desc, r.review_id desc limit %(limit)s"
    )
    return all_rows(pool, OrderRow, statement, fields, plan_anew=True)


def queue(pool: Pool, tenant_id: uuid.UUID, *, limit: int) -> list[OrderRow]:
    """What waits for an analyst: what came back from the shop or the refund worker, then the queue, soonest due first."""
    return all_rows(pool, OrderRow, QUEUE, {"tenant_id": tenant_id, "limit": limit})


def standings(pool: Pool, tenant_id: uuid.UUID) -> list[Standing]:
    """Where the orders stand that are not over."""
    return all_rows(pool, Standing, STANDINGS, {"tenant_id": tenant_id})


def ended_today(pool: Pool, tenant_id: uuid.UUID) -> list[Ended]:
    """What came of the orders of the last 24 hours."""
    return all_rows(pool, Ended, ENDED, {"tenant_id": tenant_id})
