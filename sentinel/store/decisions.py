"""Recording decisions, starts and outcomes: the hot path's SQL, one function call each.

The functions are in `migrations/sql/0001_authority_functions.sql`; here are their typed ends. `record_decisions` takes
one or many decided operations and commits them in one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call

# The whole decision in one round trip; the batch is one jsonb value because arrays of text would be escaped in Python.
RECORD_DECISIONS = "select * from sentinel.record_decisions(%b)"
PEEK_DECISION = "select decision, reason_code from sentinel.peek_decision(%b)"
START_OPERATION = """
select * from sentinel.start_operation(%(tenant_id)s, %(idempotency_key)s, %(action)s, %(agent_id)s, %(resource)s,
  %(risk_class)s, %(permit_id)s, %(digest)s, %(start_id)s, %(event_id)s)
"""
REPORT_OUTCOME = """
select * from sentinel.report_outcome(%(tenant_id)s, %(idempotency_key)s, %(action)s, %(agent_id)s, %(resource)s,
  %(risk_class)s, %(permit_id)s, %(outcome)s, %(content_digest)s, %(report_id)s, %(event_id)s)
"""
# A report of a checked action: the first one is kept, an equal repeat finds it, a different one finds its digest.
RECORD_CHECK_REPORT = """
select * from sentinel.record_check_report(%(tenant_id)s, %(request_id)s, %(digest)s, %(event_id)s, %(agent_id)s,
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


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a start or a report left behind (`sentinel.receipt`); `result` names the case."""

    result: str
    field: str | None
    event_id: uuid.UUID | None
    hash: str | None
    operation_id: uuid.UUID | None


def _json(value: Any) -> Jsonb:
    return Jsonb(value, dumps=orjson.dumps)


def record_decisions(pool: Pool, rows: Sequence[Mapping[str, Any]]) -> list[Recorded]:
    """Commit decided operations (rows of `sentinel.guard_input`) together; answers in the order of `rows`."""
    rows = [{**row, "seq": place} for place, row in enumerate(rows)]
    locks = [lock for row in rows for lock in locks_of(row)]

    def call(connection: Any) -> list[Recorded]:
        with connection.cursor(binary=True, row_factory=class_row(Recorded)) as cursor:
            return list(cursor.execute(RECORD_DECISIONS, [_json({"locks": locks, "rows": rows})]).fetchall())

    return sorted(in_one_call(pool, call), key=lambda recorded: recorded.seq)


def locks_of(row: Mapping[str, Any]) -> Iterator[str]:
    """What this row's decision reads before it writes: its budgets' owners and what it may do only once."""
    tenant = row["tenant_id"]
    for subject in {limit["subject"] for limit in row["limits"]}:
        yield f"budget/{tenant}/{subject}"
    if row["once_key"] is not None and row["verdict"] != "DENY":
        yield f"once/{tenant}/{row['once_key']}"


def peek_decision(pool: Pool, row: Mapping[str, Any]) -> tuple[str, str]:
    """(decision, reason code) that `record_decisions` would give now, writing nothing."""
    answer: tuple[str, str] = in_one_call(pool, lambda c: c.execute(PEEK_DECISION, [_json(row)]).fetchone())
    return answer


def start_operation(pool: Pool, **fields: Any) -> Receipt:
    """Redeem a permit. `fields` are START_OPERATION's parameters."""
    return _receipt(pool, START_OPERATION, fields)


def report_outcome(pool: Pool, **fields: Any) -> Receipt:
    """Record an outcome. `fields` are REPORT_OUTCOME's parameters."""
    return _receipt(pool, REPORT_OUTCOME, fields)


def record_check_report(pool: Pool, **fields: Any) -> Receipt:
    """Record what came of a checked action. `fields` are RECORD_CHECK_REPORT's parameters."""
    return _receipt(pool, RECORD_CHECK_REPORT, fields)


def _receipt(pool: Pool, statement: str, fields: Mapping[str, Any]) -> Receipt:
    def call(connection: Any) -> Receipt:
        with connection.cursor(binary=True, row_factory=class_row(Receipt)) as cursor:
            found: Receipt = cursor.execute(statement, fields).fetchone()
            return found

    return in_one_call(pool, call)
