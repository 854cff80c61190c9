"""Orders under review as analysts look for them: the queue by due time, lanes by count and age, search, pages by key.

Read models without customers, as in `order_views.py`. What is not over is found by when it is due, what is over by when it
came; no page counts every order there ever was.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from sqlalchemy import ColumnElement, and_, literal_column, or_, select, text, tuple_

from ops_console.read_models.ledger_search import beginning
from ops_console.read_models.order_views import ALERT_COLUMNS, COLUMNS, WAITS_FOR_PERSON, AlertRow, OrderRow
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows
from sentinel.store.sql_template import SqlTemplate
from sentinel.store.tables import ALERTS, APPROVALS, LIMIT, REVIEWS, sql_text, value

OVER = ("FULFILLED", "HELD", "REFUND_FILED")
"""Nothing happens to an order in one of these; every other status is due at some time."""


@dataclass(frozen=True, slots=True)
class OrdersByLane:
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


_R, _A = REVIEWS.alias("r"), APPROVALS.alias("a")
_FROM = _R.outerjoin(_A, and_(_A.c.tenant_id == _R.c.tenant_id, _A.c.approval_id == _R.c.approval_id))
# By field; a prefix is a pattern, so that an index in byte order answers it.
CONDITIONS = {
    "lane": _R.c.lane == value("lane", str),
    "status": _R.c.status == value("status", str),
    "prefix": _R.c.order_id.like(value("pattern", str)),
}
IS_OPEN = "r.next_attempt_at < 'infinity'"
# Said of every order by the index reviews_newest, which opens with the tenant: no other statement can take it for its own.
_NEWEST = "r.received_at > '-infinity'"
_BEHIND = tuple_(_R.c.received_at, _R.c.review_id) < tuple_(value("before_at", datetime), value("before_id", uuid.UUID))
WAITING = "WAITING"
"""Asked for instead of a status: what waits for a person, in the order of the queue."""
# What came back first, which has no time to be answered by; then soonest due first.
_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_PLACE: ColumnElement[datetime] = literal_column(
    "case when r.status = 'QUEUED' then coalesce(a.expires_at, r.due_at, timestamptz '9999-01-01 00:00+00')"
    " else timestamptz '2000-01-01 00:00+00' end"
)
_BEHIND_PLACE = tuple_(_PLACE, _R.c.review_id) > tuple_(value("before_at", datetime), value("before_id", uuid.UUID))
# In the order of the index alerts_newest, whose ids go up where the times go down.
_BEHIND_ALERT = and_(
    ALERTS.c.created_at <= value("before_at", datetime),
    or_(ALERTS.c.created_at < value("before_at", datetime), ALERTS.c.alert_id > value("before_id", uuid.UUID)),
)
LANE_STATES = SqlTemplate("""
select lane, status, count(*)::integer as orders, min(received_at) as oldest_at from orders.reviews r
where tenant_id = %(tenant_id)s and {is_open} group by lane, status
""").fill(is_open=IS_OPEN)
ENDED = SqlTemplate("""
select lane, status, count(*)::integer as orders from orders.reviews r
where tenant_id = %(tenant_id)s and {newest} and received_at >= statement_timestamp() - interval '1 day'
  and status in ('FULFILLED', 'HELD', 'REFUND_FILED')
group by lane, status
""").fill(newest=_NEWEST)


@cache
def page_sql(asked: tuple[str, ...], *, is_open: bool, behind: bool, waiting: bool = False) -> str:
    """The SQL of a page of orders that `asked` for these of `CONDITIONS`, the first one or one behind a cursor."""
    page = select(text(COLUMNS)).select_from(_FROM).where(_R.c.tenant_id == value("tenant_id", uuid.UUID))
    page = page.where(*(CONDITIONS[name] for name in asked), *([text(IS_OPEN)] if is_open else []))
    if waiting:
        page = page.where(text(WAITS_FOR_PERSON), *([_BEHIND_PLACE] if behind else []))
        return sql_text(page.order_by(_PLACE, _R.c.review_id).limit(LIMIT))
    page = page.where(text(_NEWEST), *([_BEHIND] if behind else []))
    return sql_text(page.order_by(_R.c.received_at.desc(), _R.c.review_id.desc()).limit(LIMIT))


def search_orders(
    pool: Pool, tenant_id: uuid.UUID, *, lane: str | None = None, status: str | None = None, prefix: str | None = None,
    before: tuple[datetime, uuid.UUID] | None = None, limit: int,
) -> list[OrderRow]:  # fmt: skip
    """Orders that fit, newest first, from behind `before` = `place_of` the last one; WAITING: as the queue has them."""
    waiting = status == WAITING
    given = (("lane", lane), ("status", None if waiting else status), ("prefix", prefix))
    asked = {name: text for name, text in given if text is not None}
    before_at, before_id = before or (None, None)
    is_open = "status" in asked and status not in OVER
    statement = page_sql(tuple(asked), is_open=is_open, behind=before is not None, waiting=waiting)
    return all_rows(pool, OrderRow, statement, {
        **asked, "tenant_id": tenant_id, "limit": limit, "pattern": beginning(prefix or ""), "before_at": before_at,
        "before_id": before_id,
    }, plan_anew=True)  # fmt: skip


def place_of(row: OrderRow, status: str | None = None) -> tuple[datetime, uuid.UUID]:
    """Where a page of orders of this status goes on behind `row`."""
    due = row.due_at or (_LAST if row.status == "QUEUED" else _FIRST)
    return due if status == WAITING else row.received_at, row.review_id


@cache
def alerts_sql(*, waiting_only: bool, behind: bool = False) -> str:
    """The SQL of a page of alerts: all, or those that no channel took yet; the first one or one behind a cursor."""
    page = select(text(ALERT_COLUMNS)).select_from(ALERTS).where(ALERTS.c.tenant_id == value("tenant_id", uuid.UUID))
    if waiting_only:
        page = page.where(ALERTS.c.delivered_at.is_(None))
    if behind:
        page = page.where(_BEHIND_ALERT)
    return sql_text(page.order_by(ALERTS.c.created_at.desc(), ALERTS.c.alert_id).limit(LIMIT))


def alerts(
    pool: Pool,
    tenant_id: uuid.UUID,
    *,
    waiting_only: bool,
    limit: int,
    before: tuple[datetime, uuid.UUID] | None = None,
) -> list[AlertRow]:
    """Alerts, newest first, from behind `before` = (created_at, alert_id)."""
    before_at, before_id = before or (None, None)
    statement = alerts_sql(waiting_only=waiting_only, behind=before is not None)
    return all_rows(pool, AlertRow, statement, {
        "tenant_id": tenant_id, "limit": limit, "before_at": before_at, "before_id": before_id,
    })  # fmt: skip


def queue(pool: Pool, tenant_id: uuid.UUID, *, limit: int) -> list[OrderRow]:
    """What waits for an analyst: what came back from the shop or the refund worker, then the queue, soonest due first."""
    return search_orders(pool, tenant_id, status=WAITING, limit=limit)


def lane_states(pool: Pool, tenant_id: uuid.UUID) -> list[OrdersByLane]:
    """The number of open orders by lane and status."""
    return all_rows(pool, OrdersByLane, LANE_STATES, {"tenant_id": tenant_id})


def ended_today(pool: Pool, tenant_id: uuid.UUID) -> list[Ended]:
    """What came of the orders of the last 24 hours."""
    return all_rows(pool, Ended, ENDED, {"tenant_id": tenant_id})
