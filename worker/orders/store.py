"""The orders schema as typed calls of one tenant.

A step of many orders is one statement and one commit; the steps themselves are functions of the schema
(`schema/orders/`). Every step names the epoch it expects. Steps of sets return one result per order: True when it was
recorded, False when its claim was lost to another process, or the exception that this order alone caused; the others
are recorded without it. All calls raise, or return, `EngineUnavailable` (`StillDeciding` where a lock was not free)
when nothing is known to be written.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson
import psycopg
from psycopg.rows import class_row, scalar_row, tuple_row
from psycopg.types.json import Jsonb

from sentinel.core.money import Money
from sentinel.store.batch_commit import commit_all
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import call_with_retry
from worker.orders.order import ClaimedOrder, KnownAccount, Order, facts_of

# The statements; the steps themselves are functions of the schema (`schema/orders/`).

# %b: the batch travels as binary jsonb; the answer comes back the same way.
TAKE_DELIVERIES = """
select seq, outcome, response_status, response_body, is_final, velocity_24h, amount_24h, (work).*
from orders.take_deliveries(%b)
"""
SCORE_REVIEWS = "select orders.score_reviews(%b)"
DECIDE_REVIEWS = "select orders.decide_reviews(%b)"
REFUSE_STARTS = "select orders.refuse_starts(%b)"
PUT_OFF_REVIEWS = "select orders.put_off_reviews(%b)"
SETTLE_FULFILMENTS = "select orders.settle_fulfilments(%b)"
SHIP_SCORED = "select orders.ship_scored(%b)"
ACCOUNT_VELOCITIES = "select * from orders.account_velocities(%b)"
LOOK_AT_DELIVERIES = "select * from orders.delivery_states(%b)"
TAKE_SCORED = "select * from orders.take_scored(%b)"
SETTLE_HOLDS = "select orders.settle_holds(%b)"
RECORD_DELIVERIES = "select orders.record_deliveries(%b)"
RAISE_ALERTS = "select orders.raise_alerts(%b)"

CLAIM_REVIEWS = "select * from orders.claim_reviews(%(tenant_id)s, %(limit)s, %(token)s, %(lease_seconds)s)"
CLAIM_HOLDS = "select tries, seconds_ago, (work).* from orders.claim_holds(%(tenant_id)s, %(limit)s, %(lease_seconds)s)"
# Unfinished reviews have a finite next_attempt_at, by which the index finds them without reading the rest of the table.
# Start 60 seconds before the cursor: a decision is dated before its commit, and may become visible up to ten seconds
# after a later one.
# A cursor that is ahead of the clock counts as none: the clock was set back since, and decisions of now are before it.
APPROVALS_WANTED_SINCE = """
select least(coalesce((select c.since from orders.approval_cursors c where c.tenant_id = %(tenant_id)s and c.since <= clock_timestamp()),
                      min(r.received_at)), clock_timestamp()) - interval '60 seconds'
from orders.reviews r where r.tenant_id = %(tenant_id)s and r.status = 'QUEUED' and r.next_attempt_at < 'infinity'
having count(*) > 0
"""
FOLLOW_REFUNDS = "select orders.track_filed_refunds(%(tenant_id)s, %(limit)s, %(events)s::uuid[])"
WAKE_REVIEWS = "select orders.make_reviews_due(%(tenant_id)s, %(approval_ids)s::uuid[])"
MOVE_CURSOR = """
insert into orders.approval_cursors as c (tenant_id, since) values (%(tenant_id)s, least(%(since)s, clock_timestamp()))
on conflict (tenant_id) do update set
  since = case when c.since > clock_timestamp() then excluded.since else greatest(c.since, excluded.since) end
"""
# Delete by ctid: a join that was planned while the table was small would compare every row with every other of a
# backlog. Of every tenant: one whose intake runs no more would keep its rows, and each delete would read them first.
FORGET_DELIVERIES = """
with gone as (
  delete from orders.deliveries where ctid = any (array(
    select ctid from orders.deliveries
    where expires_at < statement_timestamp() limit %(most)s)) returning 1)
select count(*) from gone
"""
FORGOTTEN_AT_ONCE = 5000
# `waits_for_person` is the condition of the console's queue (`ops_console/read_models/order_views.py`); all other open
# reviews are under way.
FIGURES = """
with open as (
  select coalesce(r.decided_at, r.received_at) as since, r.status = 'QUEUED' and r.resolution is null
      and (r.approval_id in (select orders.decided_approvals(%(tenant_id)s))) is not true
    or r.status in ('SHOP_REFUSED', 'REFUND_REFUSED')
    or r.status = 'SCORED' and exists (select from orders.alerts n where n.order_id = r.order_id and n.source = r.source
      and n.kind = 'question_refused' and n.tenant_id = r.tenant_id) as waits_for_person
  from orders.reviews r where r.tenant_id = %(tenant_id)s and r.next_attempt_at < 'infinity')
select
  (select count(*) from open where waits_for_person) as queued,
  (select coalesce(extract(epoch from clock_timestamp() - min(since)), 0)::float8 from open where waits_for_person) as oldest_queued_seconds,
  (select count(*) from open where not waits_for_person) as under_way,
  (select count(*) from orders.effects where tenant_id = %(tenant_id)s and kind = 'hold' and state = 'intended') as holds_open,
  (select count(*) from orders.effects where tenant_id = %(tenant_id)s and report_due_at is not null and reported_at is null)
    as reports_open,
  (select count(*) from orders.effects where tenant_id = %(tenant_id)s and report_due_at = 'infinity' and reported_at is null)
    as reports_parked,
  (select count(*) from orders.alerts where tenant_id = %(tenant_id)s and delivered_at is null) as alerts_open
"""
DEFAULT_TENANT = "select tenant_id from refunds.defaults"

# Calls.

_WORK_COLUMNS = len(ClaimedOrder.__struct_fields__)
Row = Mapping[str, Any]
Step = tuple[ClaimedOrder, Row]
"""A claimed order, and the row that a step records for it."""


class TakeOutcome(StrEnum):
    """What a delivery finds: the order is now this caller's, answered before, waiting or ended without a recorded
    answer, in flight elsewhere, or known with another body."""

    TAKEN = "taken"
    RECORDED = "recorded"
    STANDING = "standing"
    IN_FLIGHT = "in_flight"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class TakeResult:
    """The result of one delivery. `work` is the claimed order when TAKEN, else its present state without a claim."""

    outcome: TakeOutcome
    response_status: int | None
    response_body: str | None
    is_final: bool | None
    known: KnownAccount
    work: ClaimedOrder | None


@dataclass(frozen=True, slots=True)
class DueHold:
    """A hold that is due for an attempt, the number of earlier attempts, and the seconds since the last one."""

    work: ClaimedOrder
    tries: int
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class OrderFigures:
    """Counts and ages of open work, for the metrics."""

    queued: int
    oldest_queued_seconds: float
    under_way: int
    holds_open: int
    reports_open: int
    reports_parked: int
    alerts_open: int


@dataclass(frozen=True, slots=True)
class DeliveredOrder:
    """A delivered order, the SHA-256 digest of its body in hex, and the id that its review gets if the order is new."""

    order: Order
    body_sha256: str
    review_id: uuid.UUID = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class DeliveryLook:
    """The state of a delivery before anything is written.

    New, with the account's orders as counted at `seen_at`; or answered, with the recorded final response; or neither,
    which `OrderStore.take` resolves.
    """

    is_new: bool
    known: KnownAccount
    seen_at: datetime
    response_status: int | None
    response_body: str | None


class OrderStore:
    """Reviews, deliveries and effects of one tenant. Thread-safe."""

    def __init__(self, pool: Pool, tenant_id: uuid.UUID, *, lease_seconds: float) -> None:
        self.pool, self.tenant_id, self.lease_seconds = pool, tenant_id, float(lease_seconds)

    # The steps of a set of orders

    def look(self, deliveries: Sequence[DeliveredOrder]) -> list[DeliveryLook]:
        """Read the state of these deliveries' orders; nothing is written."""
        rows = [
            {
                "seq": place, "tenant_id": self.tenant_id, "source": one.order.source, "order_id": one.order.order_id,
                "body_sha256": one.body_sha256, "account_ref": one.order.account_ref, "currency": one.order.amount.currency,
            }
            for place, one in enumerate(deliveries)
        ]  # fmt: skip
        found = sorted(_fetch(self.pool, LOOK_AT_DELIVERIES, rows))
        return [_look(row, one.order) for row, one in zip(found, deliveries, strict=True)]

    def take_scored(self, scored: Sequence[tuple[DeliveredOrder, KnownAccount, Row]]) -> list[ClaimedOrder | None]:
        """Take new orders with their score, {band, signals, model, score_ms, guard_params}.

        None: another delivery has taken the order, or its account has more orders by now than `look` counted.
        """
        rows = [
            {**self._received(one), "review_id": one.review_id, **_counted(known), **score}
            for one, known, score in scored
        ]
        taken = dict(_fetch(self.pool, TAKE_SCORED, rows))
        return [
            _scored_work(one.order, row, taken[row["review_id"]]) if row["review_id"] in taken else None
            for (one, _, _), row in zip(scored, rows, strict=True)
        ]

    def take(self, deliveries: Sequence[DeliveredOrder]) -> list[TakeResult | Exception]:
        """Take delivered orders, new or abandoned by their holder, or read the state of those that cannot be taken."""
        rows = [{**self._received(one), "token": one.review_id} for one in deliveries]
        return commit_all(lambda some, _: _take(self.pool, some), rows)

    def known_accounts(self, works: Sequence[ClaimedOrder]) -> list[KnownAccount]:
        """Count the orders of the account of each taken order that has no score yet."""
        rows = _fetch(self.pool, ACCOUNT_VELOCITIES, [self._whose(work) for work in works])
        found = {review_id: (orders, minor) for review_id, orders, minor in rows}
        return [_known(found[one.review_id][0], found[one.review_id][1], one.currency) for one in works]

    def score(self, steps: Sequence[Step]) -> list[bool | Exception]:
        """Store band, signals and the question: {band, signals, model, score_ms, guard_params}."""
        return self._record(SCORE_REVIEWS, steps)

    def decide(self, steps: Sequence[Step]) -> list[bool | Exception]:
        """Store the authority's answers and the resulting status: {event, …} as `orders.decide_reviews` lists it."""
        return self._record(DECIDE_REVIEWS, steps)

    def settle(self, steps: Sequence[Step]) -> list[bool | Exception]:
        """Store the shop's final answers: {done, reference, error, answered?, alert?}."""
        return self._record(SETTLE_FULFILMENTS, steps)

    def put_off(self, steps: Sequence[Step]) -> list[bool | Exception]:
        """Put orders off: {error, pause_seconds, due_at?, tried?, answered?, alert?}; a `due_at` is used instead of the pause."""
        return self._record(PUT_OFF_REVIEWS, steps)

    def ship(self, steps: Sequence[Step]) -> list[bool | Exception]:
        """Record permission and fulfilment by the simulated shop in one commit, for SCORED orders; see `shipped_row`.

        False: the claim was lost or its lease expired, or the shop has another row for the order; nothing is recorded.
        """
        return self._record(SHIP_SCORED, steps)

    def refuse_start(self, work: ClaimedOrder, error: str) -> bool:
        """Put an order whose start was refused back to DECIDED or QUEUED, from where the authority is asked again.

        False: the claim was lost.
        """
        return _step(self.pool, REFUSE_STARTS, [{**self._whose(work), "error": error[:500]}])[0]

    def settle_hold(self, work: ClaimedOrder, row: Row) -> None:
        """Store the result of an attempt of a hold: {state, reference, error, pause_seconds, tried, alert?}."""
        self._call(SETTLE_HOLDS, [{**self._whose(work), **row}])

    def record_answer(self, work: ClaimedOrder, answered: Row) -> None:
        """Store the response that was given to a delivery, to be repeated to later ones."""
        self._call(RECORD_DELIVERIES, [{**self._whose(work), "answered": answered}])

    def raise_alert(self, source: str, order_id: str, alert: Row) -> None:
        """Raise an alert: {kind, summary, occasion?, each_time?, details?}; raising the same one again changes nothing."""
        row = {"tenant_id": self.tenant_id, "source": source, "order_id": order_id, "alert": alert}
        self._call(RAISE_ALERTS, [row])

    # Unfinished orders, and periodic work

    def claim(self, limit: int) -> list[ClaimedOrder]:
        """Claim up to `limit` orders that are due, for one lease."""
        return self.rows(
            CLAIM_REVIEWS,
            class_row(ClaimedOrder),
            limit=limit,
            token=uuid.uuid4(),
            lease_seconds=self.lease_seconds,
        )

    def claim_holds(self, limit: int) -> list[DueHold]:
        """Claim up to `limit` holds that are due, for one attempt each."""
        rows = self.rows(CLAIM_HOLDS, tuple_row, limit=limit, lease_seconds=self.lease_seconds)
        return [DueHold(ClaimedOrder(*row[2:]), row[0], float(row[1])) for row in rows]

    def approvals_wanted_since(self) -> datetime | None:
        """The time since which decided approvals must be read; None when no order waits for one."""
        found = self.rows(APPROVALS_WANTED_SINCE, scalar_row)
        return found[0] if found else None

    def wake(self, approval_ids: Sequence[str]) -> int:
        """Make the queued orders of these approvals due; return how many there were."""
        return int(self.rows(WAKE_REVIEWS, scalar_row, approval_ids=list(approval_ids))[0])

    def move_cursor(self, since: datetime) -> None:
        """Record that decisions up to `since` have been read."""
        self.rows(MOVE_CURSOR, scalar_row, since=since)

    def track_filed_refunds(self, limit: int) -> int:
        """Track the refunds that analysts filed, and give their approvals the analysts' vote; return how many changed.

        An order whose refund was denied or failed goes back to a person.
        """
        events = [str(one) for one in sorted(new_id() for _ in range(2 * limit))]
        return int(self.rows(FOLLOW_REFUNDS, scalar_row, limit=limit, events=events)[0])

    def forget_deliveries(self) -> bool:
        """Delete up to `FORGOTTEN_AT_ONCE` expired responses, whatever tenant's; return whether none is left."""
        return int(self.rows(FORGET_DELIVERIES, scalar_row, most=FORGOTTEN_AT_ONCE)[0]) < FORGOTTEN_AT_ONCE

    def figures(self) -> OrderFigures:
        """Read counts and ages of open work, for the metrics."""
        found: OrderFigures = self.rows(FIGURES, class_row(OrderFigures))[0]
        return found

    # Running

    def _received(self, delivery: DeliveredOrder) -> dict[str, Any]:
        order = delivery.order
        return {
            "tenant_id": self.tenant_id, "source": order.source, "order_id": order.order_id,
            "body_sha256": delivery.body_sha256, "amount_minor": order.amount.amount_minor, "currency": order.amount.currency,
            "account_ref": order.account_ref, "order_facts": facts_of(order), "lease_seconds": self.lease_seconds,
        }  # fmt: skip

    def _whose(self, work: ClaimedOrder) -> dict[str, Any]:
        return {
            "tenant_id": self.tenant_id, "review_id": work.review_id, "epoch": work.epoch, "source": work.source,
            "order_id": work.order_id,
        }  # fmt: skip

    def _record(self, statement: str, steps: Sequence[Step]) -> list[bool | Exception]:
        rows = [{**self._whose(work), **row} for work, row in steps]
        return commit_all(lambda some, _: _step(self.pool, statement, some), rows)

    def _call(self, statement: str, batch: Sequence[Row]) -> None:
        call_with_retry(self.pool, lambda connection: connection.execute(statement, [_json(batch)], binary=True))

    def rows(self, statement: str, row_factory: Any, **more: Any) -> list[Any]:
        """Run one statement for this tenant and return its rows."""

        def call(connection: psycopg.Connection[Any]) -> list[Any]:
            with connection.cursor(row_factory=row_factory) as cursor:
                cursor.execute(statement.encode(), {"tenant_id": self.tenant_id, **more})
                return cursor.fetchall() if cursor.description else []

        return call_with_retry(self.pool, call)


def _look(row: Sequence[Any], order: Order) -> DeliveryLook:
    _, outcome, status, body, orders, minor, seen_at = row
    return DeliveryLook(outcome == "new", _known(orders, minor, order.amount.currency), seen_at, status, body)


def _known(orders: Any, minor: Any, currency: str) -> KnownAccount:
    return KnownAccount(None if orders is None else int(orders), Money(minor, currency) if minor else None)


def _counted(known: KnownAccount) -> Row:
    return {
        "counted_orders": known.velocity_24h,
        "counted_minor": known.amount_24h.amount_minor if known.amount_24h else 0,
    }


def _scored_work(order: Order, row: Row, received_at: datetime) -> ClaimedOrder:
    """The review that `orders.take_scored` has just inserted."""
    return ClaimedOrder(
        review_id=row["review_id"], source=order.source, order_id=order.order_id, amount_minor=row["amount_minor"],
        currency=row["currency"], account_ref=order.account_ref, order_facts=row["order_facts"], status="SCORED", lane=None,
        epoch=1, attempts=0, band=row["band"], signals=row["signals"], model=row["model"], guard_params=row["guard_params"],
        operation_id=None, decision_event_id=None, decision=None, reason_code=None, approval_id=None, start_id=None,
        decided_at=None, due_at=None, resolution=None, last_error=None, tries=None, seconds_since_try=None,
        received_at=received_at,
    )  # fmt: skip


def _take(pool: Pool, asked: Sequence[Row]) -> list[TakeResult]:
    rows = [{**one, "seq": place} for place, one in enumerate(asked)]
    found = _fetch(pool, TAKE_DELIVERIES, rows)
    return [_taken(row) for row in sorted(found, key=lambda row: int(row[0]))]


def _taken(row: Sequence[Any]) -> TakeResult:
    work = ClaimedOrder(*row[7 : 7 + _WORK_COLUMNS]) if row[7] is not None else None
    known = _known(row[5], row[6], work.currency) if work is not None else KnownAccount()
    return TakeResult(TakeOutcome(row[1]), row[2], row[3], row[4], known, work)


def _step(pool: Pool, statement: str, rows: Sequence[Row]) -> list[bool]:
    moved = {row[0] for row in _fetch(pool, statement, rows)}
    return [row["review_id"] in moved for row in rows]


def _fetch(pool: Pool, statement: str, rows: Sequence[Row]) -> list[Any]:
    def call(connection: psycopg.Connection[Any]) -> list[Any]:
        with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            return cursor.execute(statement, [_json(rows)]).fetchall()

    return call_with_retry(pool, call)


def _json(value: Any) -> Jsonb:
    return Jsonb(value, dumps=orjson.dumps)


def body_digest(body: bytes) -> str:
    """SHA-256 of the body in hex: two deliveries of an order are the same only if every byte is."""
    return hashlib.sha256(body).hexdigest()
