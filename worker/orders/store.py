"""The orders schema as typed calls of one tenant. Steps of many orders share a transaction (group commit).

Every step names the epoch it expects; False means that the claim was lost to another process. All calls raise
`EngineUnavailable` (or `StillDeciding` behind a lock) when nothing is known to be written.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any

import orjson
import psycopg
from psycopg.rows import class_row, scalar_row, tuple_row
from psycopg.types.json import Jsonb

from sentinel.core.money import Money
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import call_with_retry
from worker.orders import sql
from worker.orders.claims import ClaimedOrder, DueHold, DueReport, OrderFigures, TakeOutcome, TakeResult
from worker.orders.facts import facts_of
from worker.orders.group_commit import BatchingCommit, InFlight
from worker.orders.order import KnownAccount, Order

_WORK_COLUMNS = len(fields(ClaimedOrder))
Row = Mapping[str, Any]
ScoreNow = Callable[[ClaimedOrder, KnownAccount], tuple[ClaimedOrder, Row]]
"""A score without outside calls: the order as it is then, and what `score` stores of it."""


class Shipped(Enum):
    """What became of an order whose decision and fulfilment were to be one commit."""

    NOT_MINE = auto()
    DECIDED = auto()
    """The order stands otherwise in the shop: it is started, and not settled."""
    SETTLED = auto()


class OrderStore:
    """Reviews, deliveries and effects of one tenant. Thread-safe."""

    def __init__(
        self, pool: Pool, tenant_id: uuid.UUID, *, lease_seconds: float, in_flight: InFlight | None = None
    ) -> None:
        self.pool, self.tenant_id, self.lease_seconds = pool, tenant_id, float(lease_seconds)
        self._in_flight = in_flight or InFlight()
        self._takes = BatchingCommit(partial(_take, pool), self._in_flight)
        self._scores = self._steps(sql.SCORE_REVIEWS)
        self._decisions = self._steps(sql.DECIDE_REVIEWS)
        self._settled = self._steps(sql.SETTLE_FULFILMENTS)
        self._shipments = BatchingCommit(partial(_ship, pool), self._in_flight)
        self._put_off = self._steps(sql.PUT_OFF_REVIEWS)

    def _steps(self, statement: str) -> BatchingCommit[bool]:
        return BatchingCommit(partial(_step, self.pool, statement), self._in_flight)

    # One order's way

    def take(self, order: Order, body_sha256: str, score: ScoreNow | None = None) -> TakeResult:
        """Take an order that was delivered, or learn how it stands. With `score` a new one is scored in the same commit."""
        row = {
            "tenant_id": self.tenant_id, "token": uuid.uuid4(), "source": order.source, "order_id": order.order_id,
             "body_sha256": body_sha256, "amount_minor": order.amount.amount_minor, "currency": order.amount.currency,
             "account_ref": order.account_ref, "order_facts": facts_of(order), "lease_seconds": self.lease_seconds,
        }  # fmt: skip
        return self._takes.record({"row": row, "score": score})

    def score(self, work: ClaimedOrder, row: Row) -> bool:
        """Store band, signals and the question: {band, signals, model, score_ms, guard_params}."""
        return self._scores.record({**self._whose(work), **row})

    def decide(self, work: ClaimedOrder, row: Row) -> bool:
        """Store the authority's answer and what follows at once: {event, …} as `orders.decide_reviews` lists it."""
        return self._decisions.record({**self._whose(work), **row})

    def settle(self, work: ClaimedOrder, row: Row) -> bool:
        """The shop's final answer: {done, reference, error, answered?, alert?}."""
        return self._settled.record({**self._whose(work), **row})

    def ship(self, work: ClaimedOrder, decision: Row, settlement: Row) -> Shipped:
        """`decide` and `settle` in one commit, with the simulated shop's row: the settlement's `told` is the shop's payload."""
        whose = self._whose(work)
        return self._shipments.record({"decision": {**whose, **decision}, "settlement": {**whose, **settlement}})

    def put_off(self, work: ClaimedOrder, row: Row) -> bool:
        """Let go until later: {error, pause_seconds, tried?, answered?, alert?}."""
        return self._put_off.record({**self._whose(work), **row})

    def refuse_start(self, work: ClaimedOrder, error: str) -> bool:
        """The start was surely not taken: back to asking."""
        return _step(self.pool, sql.REFUSE_STARTS, [{**self._whose(work), "error": error[:500]}])[0]

    def settle_hold(self, work: ClaimedOrder, row: Row) -> None:
        """A try of a hold: {state, reference, error, pause_seconds, alert?}."""
        self._call(sql.SETTLE_HOLDS, [{**self._whose(work), **row}])

    def record_answer(self, work: ClaimedOrder, answered: Row) -> None:
        """What a delivery of a finished order was answered."""
        self._call(sql.RECORD_DELIVERIES, [{**self._whose(work), "answered": answered}])

    def raise_alert(self, source: str, order_id: str, alert: Row) -> None:
        """{kind, summary, occasion?, details?}; the same again changes nothing."""
        row = {"tenant_id": self.tenant_id, "source": source, "order_id": order_id, "alert": alert}
        self._call(sql.RAISE_ALERTS, [row])

    # What was left behind, and what time brings

    def claim(self, limit: int) -> list[ClaimedOrder]:
        """Orders that are due, for one lease."""
        return self._all(
            sql.CLAIM_REVIEWS,
            class_row(ClaimedOrder),
            limit=limit,
            token=uuid.uuid4(),
            lease_seconds=self.lease_seconds,
        )

    def claim_holds(self, limit: int) -> list[DueHold]:
        """Holds that are due, for one try."""
        rows = self._all(sql.CLAIM_HOLDS, tuple_row, limit=limit, lease_seconds=self.lease_seconds)
        return [DueHold(ClaimedOrder(*row[2:]), row[0], float(row[1])) for row in rows]

    def take_reports(self, limit: int, *, retry_seconds: float) -> list[DueReport]:
        """Reports that are due, for one try."""
        return self._all(sql.TAKE_REPORTS, class_row(DueReport), limit=limit, retry_seconds=retry_seconds)

    def acknowledge(self, ids: Sequence[uuid.UUID]) -> None:
        """The authority has these reports."""
        if ids:
            self._all(sql.ACKNOWLEDGE_REPORTS, scalar_row, ids=list(ids))

    def postpone_report(self, review_id: uuid.UUID, error: str, pause_seconds: float | None) -> None:
        """Not received; None: another try would be refused too."""
        self._all(sql.POSTPONE_REPORT, scalar_row, review_id=review_id, error=error[:500], pause_seconds=pause_seconds)

    def approvals_wanted_since(self) -> datetime | None:
        """From when on decided approvals matter; None when nothing waits."""
        found = self._all(sql.APPROVALS_WANTED_SINCE, scalar_row)
        return found[0] if found else None

    def wake(self, approval_ids: Sequence[str]) -> int:
        """Make the orders of these approvals due."""
        return int(self._all(sql.WAKE_REVIEWS, scalar_row, approval_ids=list(approval_ids))[0])

    def move_cursor(self, since: datetime) -> None:
        """Remember that decisions up to `since` have been learnt."""
        self._all(sql.MOVE_CURSOR, scalar_row, since=since)

    def follow_refunds(self, limit: int) -> int:
        """Pass people's decisions to the refunds they filed, and bring back the orders whose refund was not paid."""
        events = [str(one) for one in sorted(new_id() for _ in range(2 * limit))]
        return int(self._all(sql.FOLLOW_REFUNDS, scalar_row, limit=limit, events=events)[0])

    def forget_deliveries(self) -> None:
        """Throw away answers whose time is over."""
        self._all(sql.FORGET_DELIVERIES, scalar_row)

    def figures(self) -> OrderFigures:
        """What is open."""
        found: OrderFigures = self._all(sql.FIGURES, class_row(OrderFigures))[0]
        return found

    # Running

    def _whose(self, work: ClaimedOrder) -> dict[str, Any]:
        return whose(self.tenant_id, work)

    def _call(self, statement: str, batch: Sequence[Row]) -> None:
        call_with_retry(self.pool, lambda connection: connection.execute(statement, [_json(batch)], binary=True))

    def _all(self, statement: str, row_factory: Any, **more: Any) -> list[Any]:
        def call(connection: psycopg.Connection[Any]) -> list[Any]:
            with connection.cursor(row_factory=row_factory) as cursor:
                cursor.execute(statement.encode(), {"tenant_id": self.tenant_id, **more})
                return cursor.fetchall() if cursor.description else []

        return call_with_retry(self.pool, call)


def default_tenant(pool: Pool) -> uuid.UUID | None:
    """The tenant that orders belong to when nothing says otherwise. Raises `EngineUnavailable`."""

    def call(connection: psycopg.Connection[Any]) -> uuid.UUID | None:
        row = connection.execute(sql.DEFAULT_TENANT).fetchone()
        return row[0] if row else None

    return call_with_retry(pool, call)


def whose(tenant_id: uuid.UUID, work: ClaimedOrder) -> dict[str, Any]:
    """What every step says of its order."""
    return {
        "tenant_id": tenant_id, "review_id": work.review_id, "epoch": work.epoch, "source": work.source,
        "order_id": work.order_id,
    }  # fmt: skip


def _take(pool: Pool, asked: Sequence[Row]) -> list[TakeResult]:
    rows = [{**one["row"], "seq": place} for place, one in enumerate(asked)]

    def call(connection: psycopg.Connection[Any]) -> list[TakeResult]:
        with connection.transaction():
            found = _rows(connection, sql.TAKE_DELIVERIES, rows)
            taken = [_taken(row, rows[row[0]]) for row in sorted(found, key=lambda row: int(row[0]))]
            return _scored(connection, asked, taken)

    if any(one["score"] for one in asked):
        return call_with_retry(pool, call)
    found = _fetch(pool, sql.TAKE_DELIVERIES, rows)
    return [_taken(row, rows[row[0]]) for row in sorted(found, key=lambda row: int(row[0]))]


def _scored(connection: psycopg.Connection[Any], asked: Sequence[Row], taken: list[TakeResult]) -> list[TakeResult]:
    """Those that were just taken, with the score that their caller makes on the spot."""
    steps: list[Row] = []
    for place, (one, found) in enumerate(zip(asked, taken, strict=True)):
        work = found.work
        if one["score"] is None or found.outcome is not TakeOutcome.TAKEN or work is None or work.status != "RECEIVED":
            continue
        after, row = one["score"](work, found.known)
        steps.append({**whose(one["row"]["tenant_id"], work), **row})
        taken[place] = replace(found, work=after)
    if steps:
        _rows(connection, sql.SCORE_REVIEWS, steps)
    return taken


def _taken(row: Sequence[Any], asked: Row) -> TakeResult:
    velocity, minor = row[5], row[6]
    amount = Money(minor, asked["currency"]) if minor else None
    known = KnownAccount(None if velocity is None else int(velocity), amount)
    work = ClaimedOrder(*row[7 : 7 + _WORK_COLUMNS]) if row[7] is not None else None
    return TakeResult(TakeOutcome(row[1]), row[2], row[3], row[4], known, work)


def _step(pool: Pool, statement: str, rows: Sequence[Row]) -> list[bool]:
    moved = {row[0] for row in _fetch(pool, statement, rows)}
    return [row["review_id"] in moved for row in rows]


def _ship(pool: Pool, rows: Sequence[Row]) -> list[Shipped]:
    batches = [_json([row[part] for row in rows]) for part in ("decision", "settlement")]

    def call(connection: psycopg.Connection[Any]) -> list[Any]:
        with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            return cursor.execute(sql.SHIP_REVIEWS, batches).fetchall()

    moved = {
        review_id: Shipped.SETTLED if settled else Shipped.DECIDED for review_id, settled in call_with_retry(pool, call)
    }
    return [moved.get(row["decision"]["review_id"], Shipped.NOT_MINE) for row in rows]


def _fetch(pool: Pool, statement: str, rows: Sequence[Row]) -> list[Any]:
    return call_with_retry(pool, lambda connection: _rows(connection, statement, rows))


def _rows(connection: psycopg.Connection[Any], statement: str, rows: Sequence[Row]) -> list[Any]:
    with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
        return cursor.execute(statement, [_json(rows)]).fetchall()


def _json(value: Any) -> Jsonb:
    return Jsonb(value, dumps=orjson.dumps)


__all__ = ["OrderStore", "Shipped", "default_tenant"]
