"""Search of orders under review for analysts: the queue by due time, lanes by count and age, pages by key.

Read models without customer data, as in `order_views.py`. Open orders are found by when they are due, finished ones by
when they were received; no page counts all orders ever received.
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
"""Final statuses: nothing more is due for an order in one of these."""


@dataclass(frozen=True, slots=True)
class OrdersByLane:
    """How many open orders are in a lane and status, and when the oldest was received; `lane` None: not decided yet."""

    lane: str | None
    status: str
    orders: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class Ended:
    """How many orders that were received in the last day ended in a lane and status."""

    lane: str
    status: str
    orders: int


_R, _A = REVIEWS.alias("r"), APPROVALS.alias("a")
_FROM = _R.outerjoin(_A, and_(_A.c.tenant_id == _R.c.tenant_id, _A.c.approval_id == _R.c.approval_id))
# By field; a prefix becomes a LIKE pattern, which an index in byte order can answer.
CONDITIONS = {
    "lane": _R.c.lane == value("lane", str),
    "status": _R.c.status == value("status", str),
    "prefix": _R.c.order_id.like(value("pattern", str)),
}
IS_OPEN = "r.next_attempt_at < 'infinity'"
# True of every order. It is the predicate of the partial index reviews_newest, which statements without it cannot use.
_NEWEST = "r.received_at > '-infinity'"
# True of every order in one of these statuses. It is the predicate of the partial index reviews_not_let_through.
NOT_LET_THROUGH = ("HELD", "REFUND_FILED")
_NOT_LET_THROUGH = "(r.lane <> 'low' or r.resolution is not null)"
_BEHIND = tuple_(_R.c.received_at, _R.c.review_id) < tuple_(value("before_at", datetime), value("before_id", uuid.UUID))
WAITING = "WAITING"
"""Used in place of a status: the orders that wait for a person, in the order of the queue."""
# Orders that came back are first, since they have no due time; then the soonest due.
_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_PLACE: ColumnElement[datetime] = literal_column(
    "case when r.status = 'QUEUED' then coalesce(a.expires_at, r.due_at, timestamptz '9999-01-01 00:00+00')"
    " else timestamptz '2000-01-01 00:00+00' end"
)
_BEHIND_PLACE = tuple_(_PLACE, _R.c.review_id) > tuple_(value("before_at", datetime), value("before_id", uuid.UUID))
# In the order of the index alerts_newest: times descending, ids ascending.
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
def page_sql(
    asked: tuple[str, ...], *, is_open: bool, behind: bool, waiting: bool = False, not_let_through: bool = False
) -> str:
    """The SQL of a page of orders with the `asked` ones of `CONDITIONS`; with `behind`, a page after a cursor.

    `waiting` gives the queue, in its order, instead of the newest orders. `not_let_through`: the status is one of
    `NOT_LET_THROUGH`.
    """
    page = select(text(COLUMNS)).select_from(_FROM).where(_R.c.tenant_id == value("tenant_id", uuid.UUID))
    page = page.where(*(CONDITIONS[name] for name in asked), *([text(IS_OPEN)] if is_open else []))
    if waiting:
        page = page.where(text(WAITS_FOR_PERSON), *([_BEHIND_PLACE] if behind else []))
        return sql_text(page.order_by(_PLACE, _R.c.review_id).limit(LIMIT))
    page = page.where(text(_NOT_LET_THROUGH if not_let_through else _NEWEST), *([_BEHIND] if behind else []))
    return sql_text(page.order_by(_R.c.received_at.desc(), _R.c.review_id.desc()).limit(LIMIT))


def search_orders(
    pool: Pool, tenant_id: uuid.UUID, *, lane: str | None = None, status: str | None = None, prefix: str | None = None,
    before: tuple[datetime, uuid.UUID] | None = None, limit: int,
) -> list[OrderRow]:  # fmt: skip
    """Matching orders, newest first, or in the order of the queue for the status `WAITING`.

    `before` is the cursor: `place_of` the last order of the page before.
    """
    waiting = status == WAITING
    given = (("lane", lane), ("status", None if waiting else status), ("prefix", prefix))
    asked = {name: text for name, text in given if text is not None}
    before_at, before_id = before or (None, None)
    is_open = "status" in asked and status not in OVER
    statement = page_sql(
        tuple(asked),
        is_open=is_open,
        behind=before is not None,
        waiting=waiting,
        not_let_through=status in NOT_LET_THROUGH,
    )
    return all_rows(pool, OrderRow, statement, {
        **asked, "tenant_id": tenant_id, "limit": limit, "pattern": beginning(prefix or ""), "before_at": before_at,
        "before_id": before_id,
    }, plan_anew=True)  # fmt: skip


def place_of(row: OrderRow, status: str | None) -> tuple[datetime, uuid.UUID]:
    """The cursor after `row` in a list of orders of this status."""
    due = row.due_at or (_LAST if row.status == "QUEUED" else _FIRST)
    return due if status == WAITING else row.received_at, row.review_id


@cache
def alerts_sql(*, waiting_only: bool, behind: bool) -> str:
    """The SQL of a page of alerts: all, or with `waiting_only` the undelivered ones; with `behind`, a page after a cursor."""
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
    """Alerts, newest first, after the cursor `before` = (created_at, alert_id)."""
    before_at, before_id = before or (None, None)
    statement = alerts_sql(waiting_only=waiting_only, behind=before is not None)
    return all_rows(pool, AlertRow, statement, {
        "tenant_id": tenant_id, "limit": limit, "before_at": before_at, "before_id": before_id,
    })  # fmt: skip


def queue(pool: Pool, tenant_id: uuid.UUID, *, limit: int) -> list[OrderRow]:
    """Orders that wait for an analyst: those that came back from the shop or the refund worker, then the soonest due."""
    return search_orders(pool, tenant_id, status=WAITING, limit=limit)


def lane_states(pool: Pool, tenant_id: uuid.UUID) -> list[OrdersByLane]:
    """The number of open orders by lane and status."""
    return all_rows(pool, OrdersByLane, LANE_STATES, {"tenant_id": tenant_id})


def ended_today(pool: Pool, tenant_id: uuid.UUID) -> list[Ended]:
    """The number of orders by lane and final status, of those received in the last 24 hours."""
    return all_rows(pool, Ended, ENDED, {"tenant_id": tenant_id})
