"""Recording decisions, starts and outcomes: the hot path's SQL, one function call each.

The functions are in `schema/authority/decisions.sql`; here are their typed ends. `record_decisions` takes
one or many decided operations and commits them in one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import orjson
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.authority.guard_rows import GuardRow
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import LOCK_WAIT_SECONDS, call_with_retry, call_with_retry_within

# The whole decision in one round trip; the batch is one jsonb value because arrays of text would be escaped in Python.
RECORD_DECISIONS = "select * from sentinel.record_decisions(%b, %b)"
PEEK_DECISIONS = "select seq, decision, reason_code from sentinel.peek_decisions(%b)"
START_OPERATIONS = "select seq, (receipt).* from sentinel.start_operations(%b, %b)"
REPORT_OUTCOMES = "select seq, (receipt).* from sentinel.report_outcomes(%b, %b)"
RECORD_CONTRADICTION = """
select %(seq)s::integer as seq, r.* from sentinel.record_contradiction(
  jsonb_populate_record(null::sentinel.report_input, %(ask)s), %(halt_id)s, %(halt_event_id)s) r
"""
# A decision that is undone: no wait is longer than this transaction's deadline, and a lock of a budget is taken with it.
TRY_TERMS = """
select set_config('lock_timeout', %(ms)s, true), set_config('statement_timeout', %(ms)s, true),
  sentinel.take_locks(array[sentinel.budget_lock(%(tenant_id)s, 'readiness')], clock_timestamp() + %(ms)s::integer * interval '1 ms')
"""
# A report of a checked action: the first one is kept, an equal repeat finds it, a different one finds its digest.
RECORD_CHECK_REPORT = """
select 0 as seq, * from sentinel.record_check_report(%(tenant_id)s, %(request_id)s, %(digest)s, %(event_id)s, %(agent_id)s,
  %(action)s, %(status)s)
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An operation as it stands after the commit (`sentinel.guard_output`); times are timezone-aware UTC."""

    seq: int
    result: str
    operation_id: uuid.UUID
    decision_event_id: uuid.UUID
    decision: str
    reason_code: str
    status: str
    policy_id: str
    policy_version: str
    policy_label: str
    resource: str
    risk_class: str
    digest: str
    request: str | None
    permit_id: uuid.UUID | None
    permit_expires_at: datetime | None
    approval_id: uuid.UUID | None
    approval_expires_at: datetime | None
    approver: str | None
    approved_at: datetime | None
    outcome: str | None
    pack: str
    pack_hash: str
    decided_at: datetime
    start_event_id: uuid.UUID | None
    start_hash: str | None
    start_duplicate: bool | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a start or a report left behind (`sentinel.receipt`); `result` names the case."""

    seq: int
    result: str
    field: str | None
    event_id: uuid.UUID | None
    hash: str | None
    operation_id: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Peeked:
    """What a decision would be now."""

    seq: int
    decision: str
    reason_code: str


Answer = TypeVar("Answer", Recorded, Receipt, Peeked)


def _json(value: Any) -> Jsonb:
    return Jsonb(value, dumps=orjson.dumps)


def record_decisions(pool: Pool, rows: Sequence[GuardRow], wait_seconds: float = LOCK_WAIT_SECONDS) -> list[Recorded]:
    """Commit decided operations together; answers in the order of `rows`.

    Others' locks are waited for `wait_seconds` in all, here and in what follows; then `StillDeciding` is raised.
    """
    return _together(pool, RECORD_DECISIONS, batch_of(rows), Recorded, wait_seconds)


def try_decision(pool: Pool, row: GuardRow, within_seconds: float) -> bool:
    """Whether a decision could be recorded now, each statement within `within_seconds`; it is undone. Raises as `record_decisions`."""
    milliseconds = max(1, int(within_seconds * 1000))

    def call(connection: Any) -> bool:
        with connection.transaction(force_rollback=True), connection.cursor(binary=True) as cursor:
            cursor.execute(TRY_TERMS, {"ms": str(milliseconds), "tenant_id": row.terms.tenant_id})
            recorded = cursor.execute(RECORD_DECISIONS, [_json(batch_of([row])), milliseconds]).rowcount
            return bool(recorded == 1)

    return call_with_retry(pool, call)


def start_operations(
    pool: Pool, rows: Sequence[Mapping[str, Any]], wait_seconds: float = LOCK_WAIT_SECONDS
) -> list[Receipt]:
    """Redeem permits (rows of `sentinel.start_input`) together; receipts in the order of `rows`."""
    return _together(pool, START_OPERATIONS, _numbered(rows), Receipt, wait_seconds)


def report_outcomes(
    pool: Pool, rows: Sequence[Mapping[str, Any]], wait_seconds: float = LOCK_WAIT_SECONDS
) -> list[Receipt]:
    """Record outcomes (rows of `sentinel.report_input`) together; receipts in the order of `rows`.

    A success after a person's "not executed" needs the halt lock, which no ordinary report must wait for: it is recorded
    after the others, in a transaction of its own.
    """
    receipts = _together(pool, REPORT_OUTCOMES, _numbered(rows), Receipt, wait_seconds)
    return [
        _record_contradiction(pool, rows[receipt.seq], receipt.seq)
        if receipt.result == "resolved_not_executed"
        else receipt
        for receipt in receipts
    ]


def _record_contradiction(pool: Pool, row: Mapping[str, Any], seq: int) -> Receipt:
    fields = {"seq": seq, "ask": _json(row), "halt_id": new_id(), "halt_event_id": new_id()}

    def call(connection: Any) -> Receipt:
        with connection.cursor(binary=True, row_factory=class_row(Receipt)) as cursor:
            found: Receipt = cursor.execute(RECORD_CONTRADICTION, fields).fetchone()
            return found

    return call_with_retry(pool, call)


def _numbered(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "seq": place} for place, row in enumerate(rows)]


def batch_of(rows: Sequence[GuardRow]) -> dict[str, Any]:
    """The batch that `record_decisions` of the schema takes: the totals and breakers that rows have in common stand once, under their place."""
    places: dict[bytes, int] = {}
    numbered = _numbered([row.as_input() for row in rows])
    for row in numbered:
        shared = row.pop("shared")
        if shared is not None:
            row["shared"] = places.setdefault(shared, len(places))
    return {"rows": numbered, "shared": [orjson.Fragment(text) for text in places]}


def _together(pool: Pool, statement: str, batch: Any, shape: type[Answer], wait_seconds: float) -> list[Answer]:
    batch = _json(batch)

    def call(connection: Any, left_seconds: float) -> list[Answer]:
        with connection.cursor(binary=True, row_factory=class_row(shape)) as cursor:
            return list(cursor.execute(statement, [batch, max(1, int(left_seconds * 1000))]).fetchall())

    return sorted(call_with_retry_within(pool, call, wait_seconds), key=lambda answer: answer.seq)


def peek_decisions(pool: Pool, rows: Sequence[GuardRow], wait_seconds: float = LOCK_WAIT_SECONDS) -> list[Peeked]:
    """What `record_decisions` would decide on each of `rows` now; nothing is written, no lock is waited for."""
    batch = _json(batch_of(rows))

    def call(connection: Any) -> list[Peeked]:
        with connection.cursor(binary=True, row_factory=class_row(Peeked)) as cursor:
            return list(cursor.execute(PEEK_DECISIONS, [batch]).fetchall())

    return sorted(call_with_retry(pool, call), key=lambda answer: answer.seq)


def record_check_report(pool: Pool, **fields: Any) -> Receipt:
    """Record what came of a checked action. `fields` are RECORD_CHECK_REPORT's parameters."""

    def call(connection: Any) -> Receipt:
        with connection.cursor(binary=True, row_factory=class_row(Receipt)) as cursor:
            found: Receipt = cursor.execute(RECORD_CHECK_REPORT, fields).fetchone()
            return found

    return call_with_retry(pool, call)
