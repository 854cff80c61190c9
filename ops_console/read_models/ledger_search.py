"""Ledger rows as operators look for them: narrowed, searched by name, paged by key, and counted by status.

Read models without customers, as in `refund_views.py`. Every condition that is asked for is in the statement and no other,
so that the planner sees which index answers it; the cursor is (created_at, ledger_entry_id), never an offset.
"""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass
from datetime import datetime

from ops_console.read_models.refund_views import STATUSES, LedgerRow
from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, one_row

MOST_COUNTED, MOST_EXECUTED_COUNTED = 10_000, 100_000
_MOST_OPERATIONS = 100


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """What rows must have; None asks for nothing. Amounts in minor units, both ends included; entered in [since, until).

    `prefix` begins the entry's or the refund's id; a row of `named` is found too.
    """

    status: str | None = None
    channel: str | None = None
    scenario: str | None = None
    currency: str | None = None
    decision: str | None = None
    reason_code: str | None = None
    least_minor: int | None = None
    most_minor: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    prefix: str | None = None
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rows are in a status; `is_all` is False where there are more than were counted."""

    status: str
    entries: int
    is_all: bool


@dataclass(frozen=True, slots=True)
class _Key:
    idempotency_key: str


_COLUMNS = ", ".join(f"e.{field.name}" for field in dataclasses.fields(LedgerRow))
# By field of the filter. A prefix is a pattern, so that an index in byte order answers it.
CONDITIONS = {
    "status": "e.status = %(status)s",
    "channel": "e.channel = %(channel)s",
    "scenario": "e.scenario = %(scenario)s",
    "currency": "e.currency = %(currency)s",
    "decision": "e.decision = %(decision)s",
    "reason_code": "e.reason_code = %(reason_code)s",
    "least_minor": "e.amount_minor >= %(least_minor)s",
    "most_minor": "e.amount_minor <= %(most_minor)s",
    "since": "e.created_at >= %(since)s",
    "until": "e.created_at < %(until)s",
    "prefix": "(e.ledger_entry_id like %(pattern)s or e.refund_id like %(pattern)s or e.ledger_entry_id = any(%(named)s))",
}
BEHIND = "(e.created_at, e.ledger_entry_id) < (%(before_at)s, %(before_id)s)"
FIND_ENTRY = f"""
select {_COLUMNS} from refunds.ledger_entries e where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = %(ledger_entry_id)s
"""
# Each status stops counting at its bound, and has an index of its own or is common. What is executed has one execution.
COUNTS = " union all ".join(
    f"select '{status}' as status, count(*)::integer as entries, count(*) <= %(most)s as is_all from"
    f" (select from refunds.ledger_entries where tenant_id = %(tenant_id)s and status = '{status}' limit %(most)s + 1) found"
    for status in STATUSES
    if status != "EXECUTED"
) + (
    " union all select 'EXECUTED', count(*)::integer, count(*) <= %(most_executed)s from"
    " (select from refunds.executions where tenant_id = %(tenant_id)s limit %(most_executed)s + 1) found"
)
# Operations by the beginning of their id, as the names they were asked under.
KEYS_OF_OPERATIONS = """
select idempotency_key from sentinel.operations
where tenant_id = %(tenant_id)s and operation_id between %(first)s and %(last)s order by operation_id limit %(limit)s
"""


def search_ledger(
    pool: Pool, tenant_id: uuid.UUID, wanted: LedgerFilter, *, before: tuple[datetime, str] | None, limit: int
) -> list[LedgerRow]:
    """Rows that fit, newest first, from behind `before` = (created_at, ledger_entry_id)."""
    fields = {name: getattr(wanted, name) for name in CONDITIONS if getattr(wanted, name) is not None}
    conditions = ["e.tenant_id = %(tenant_id)s", *(CONDITIONS[name] for name in fields)]
    fields.update(tenant_id=tenant_id, limit=limit, named=list(wanted.named), pattern=beginning(wanted.prefix or ""))
    if before is not None:
        conditions.append(BEHIND)
        fields.update(before_at=before[0], before_id=before[1])
    statement = (
        f"select {_COLUMNS} from refunds.ledger_entries e where {' and '.join(conditions)}"
        " order by e.created_at desc, e.ledger_entry_id desc limit %(limit)s"
    )
    return all_rows(pool, LedgerRow, statement, fields, plan_anew=True)


def find_entry(pool: Pool, tenant_id: uuid.UUID, ledger_entry_id: str) -> LedgerRow | None:
    """One row, or None."""
    return one_row(pool, LedgerRow, FIND_ENTRY, {"tenant_id": tenant_id, "ledger_entry_id": ledger_entry_id})


def counted(pool: Pool, tenant_id: uuid.UUID) -> dict[str, Counted]:
    """Rows by status, each counted up to its bound."""
    fields = {"tenant_id": tenant_id, "most": MOST_COUNTED, "most_executed": MOST_EXECUTED_COUNTED}
    found = {one.status: one for one in all_rows(pool, Counted, COUNTS, fields, plan_anew=True)}
    return {status: _bounded(found[status]) for status in STATUSES}


def _bounded(one: Counted) -> Counted:
    return one if one.is_all else dataclasses.replace(one, entries=one.entries - 1)


def entries_of_operations(pool: Pool, tenant_id: uuid.UUID, text: str) -> tuple[str, ...]:
    """Ledger entries whose operation's id is `text` or begins with it (8 digits or more); `pool` is the authority's."""
    ends = _range(text)
    if ends is None:
        return ()
    fields = {"tenant_id": tenant_id, "first": ends[0], "last": ends[1], "limit": _MOST_OPERATIONS}
    keys = all_rows(pool, _Key, KEYS_OF_OPERATIONS, fields)
    return tuple(
        one.idempotency_key.removeprefix("refund:") for one in keys if one.idempotency_key.startswith("refund:")
    )


def _range(text: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    digits = text.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return uuid.UUID(hex=digits.ljust(32, "0")), uuid.UUID(hex=digits.ljust(32, "f"))


def beginning(prefix: str) -> str:
    """The pattern of everything that begins with `prefix`, taken literally."""
    return prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
