"""Recording decisions, starts and outcomes: the hot path's statements, each one call of a database function.

The functions are in `schema/authority/decisions.sql`; this module has their typed statements and answers.
`RECORD_DECISIONS` takes one or many decided operations and commits them in one transaction.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import orjson
import psycopg
from psycopg import pq
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.authority.batch_packing import TYPES, pack_batch
from sentinel.authority.guard_rows import GuardRow
from sentinel.store.batch_statement import BatchStatement, LateRows, jsonb, pack_int4, run_statement
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.loop_connections import LoopConnections
from sentinel.store.queries import call_with_retry

RECORD_CONTRADICTION = """
select %(seq)s::integer as seq, r.* from sentinel.record_contradiction(
  jsonb_populate_record(null::sentinel.report_input, %(ask)s), %(halt_id)s, %(halt_event_id)s) r
"""
# For a decision that is rolled back: bounds every wait in the transaction, and takes one budget lock to try that too.
TRY_TERMS = """
select set_config('lock_timeout', %(ms)s, true), set_config('statement_timeout', %(ms)s, true),
  sentinel.take_locks(array[sentinel.budget_lock(%(tenant_id)s, 'readiness')], clock_timestamp() + %(ms)s::integer * interval '1 ms')
"""
# A report of a checked action: the first one is stored, an equal repeat gets its receipt, a different one is refused.
RECORD_CHECK_REPORT = """
select 0 as seq, * from sentinel.record_check_report(%(tenant_id)s, %(request_id)s, %(digest)s, %(event_id)s, %(agent_id)s,
  %(action)s, %(status)s)
"""


class Recorded(msgspec.Struct, frozen=True):
    """The state of an operation after the commit (`sentinel.guard_output`); times are timezone-aware UTC."""

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

    @property
    def may_act_on_start(self) -> bool:
        """Whether a caller that asked with a start id may act now: that start is recorded, and no success after it."""
        return self.start_event_id is not None and self.outcome != "success"


class Receipt(msgspec.Struct, frozen=True):
    """The answer to a start or a report (`sentinel.receipt`).

    `result` names the case; `field` is the bound field that differs, or the operation's status, where it was refused.
    """

    seq: int
    result: str
    field: str | None
    event_id: uuid.UUID | None
    hash: str | None
    operation_id: uuid.UUID | None


class Peeked(msgspec.Struct, frozen=True):
    """What the decision would be now, without recording it."""

    seq: int
    decision: str
    reason_code: str


Answer = TypeVar("Answer", Recorded, Receipt, Peeked)
Row = Mapping[str, Any]


def _numbered(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{**row, "seq": place} for place, row in enumerate(rows)]


def batch_of(rows: Sequence[GuardRow]) -> dict[str, Any]:
    """Return a batch as JSON for `sentinel.peek_decisions`: the rows, and the totals and breakers that rows share.

    A row's "shared" is the position of its totals and breakers in the batch's "shared".
    """
    places: dict[bytes, int] = {}
    numbered = _numbered([row.as_input() for row in rows])
    for row in numbered:
        shared = row.pop("shared")
        if shared is not None:
            row["shared"] = places.setdefault(shared, len(places))
    return {"rows": numbered, "shared": [orjson.Fragment(text) for text in places]}


def _parameters(batch: Callable[[Sequence[Row]], Any]) -> Callable[[Sequence[Row], int], list[bytes | None]]:
    # One jsonb value for all rows: arrays of text would have to be escaped in Python.
    return lambda rows, milliseconds: [jsonb(orjson.dumps(batch(rows))), pack_int4(milliseconds)]


def _in_order(shape: type[Answer]) -> Callable[[pq.abc.PGresult], Sequence[Answer]]:
    return lambda result: LateRows(result, shape)


# Each statement does all work of a batch in one round trip.
_RECORDS = (*(f"{name}[]" for name in TYPES), "int4"), pack_batch, _in_order(Recorded)
RECORD_DECISIONS: BatchStatement[GuardRow, Recorded] = BatchStatement(
    "record_decisions", b"select * from sentinel.record_decisions($1, $2, $3, $4, $5, $6)", *_RECORDS,
    alone=BatchStatement("record_decisions_alone", b"select * from sentinel.record_decisions_alone($1, $2, $3, $4, $5, $6)", *_RECORDS),
    alone_after="SNTRP",
)  # fmt: skip
PEEK_DECISIONS: BatchStatement[GuardRow, Peeked] = BatchStatement(
    "peek_decisions", b"select seq, decision, reason_code from sentinel.peek_decisions($1)", ("jsonb",),
    lambda rows, _: [jsonb(orjson.dumps(batch_of(rows)))], _in_order(Peeked),
)  # fmt: skip
START_OPERATIONS: BatchStatement[Row, Receipt] = BatchStatement(
    "start_operations", b"select seq, (receipt).* from sentinel.start_operations($1, $2)", ("jsonb", "int4"),
    _parameters(_numbered), _in_order(Receipt),
)  # fmt: skip
REPORT_OUTCOMES: BatchStatement[Row, Receipt] = BatchStatement(
    "report_outcomes", b"select seq, (receipt).* from sentinel.report_outcomes($1, $2)", ("jsonb", "int4"),
    _parameters(_numbered), _in_order(Receipt),
)  # fmt: skip


def try_decision(pool: Pool, row: GuardRow, within_seconds: float) -> bool:
    """Return whether a decision can be recorded now, each statement within `within_seconds`, and roll it back.

    Raises `StillDeciding` when it waited too long for other transactions' locks, and `EngineUnavailable` for other
    failures of the database.
    """
    milliseconds = max(1, int(within_seconds * 1000))

    def call(connection: psycopg.Connection[Any]) -> bool:
        with connection.transaction(force_rollback=True), connection.cursor(binary=True) as cursor:
            cursor.execute(TRY_TERMS, {"ms": str(milliseconds), "tenant_id": row.terms.tenant_id})
            return len(run_statement(connection, RECORD_DECISIONS, [row], milliseconds)) == 1

    return call_with_retry(pool, call)


async def commit_reports(
    connections: LoopConnections,
    pool: Pool,
    rows: Sequence[Row],
    wait_seconds: float,
    executed: Callable[[], None] | None = None,
) -> list[Receipt | Exception]:
    """Record outcomes (rows of `sentinel.report_input`) together and return the receipts in the order of `rows`.

    A success after a person's "not executed" (a contradiction) needs the halt lock, for which no ordinary report should
    wait: it is recorded after the others, in a thread and a transaction of its own. One that could not be recorded is
    the error in its place, because the other reports are committed by then. `executed` is called as by
    `LoopConnections.commit`.
    """
    receipts = await connections.commit(REPORT_OUTCOMES, rows, wait_seconds, executed)
    return [
        await asyncio.to_thread(_contradiction_or_error, pool, row, receipt.seq)
        if receipt.result == "resolved_not_executed"
        else receipt
        for row, receipt in zip(rows, receipts, strict=True)
    ]


def _contradiction_or_error(pool: Pool, row: Row, seq: int) -> Receipt | Exception:
    try:
        fields = {"seq": seq, "ask": Jsonb(row, dumps=orjson.dumps), "halt_id": new_id(), "halt_event_id": new_id()}
        return _receipt(pool, RECORD_CONTRADICTION, fields)
    except Exception as error:
        return error


def record_check_report(pool: Pool, **fields: Any) -> Receipt:
    """Record the report of a checked action. `fields` are RECORD_CHECK_REPORT's parameters."""
    return _receipt(pool, RECORD_CHECK_REPORT, fields)


def _receipt(pool: Pool, statement: str, fields: Mapping[str, Any]) -> Receipt:
    """Run one statement that returns a receipt, which is read in binary as those of a batch are."""

    def call(connection: psycopg.Connection[Any]) -> Receipt | None:
        with connection.cursor(binary=True, row_factory=class_row(Receipt)) as cursor:
            return cursor.execute(statement, fields).fetchone()

    found = call_with_retry(pool, call)
    assert found is not None
    return found
