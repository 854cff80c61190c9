"""Search of ledger entries for operators: filtered, found by id, paged by key, and counted by status.

Read models without customer data, as in `refund_views.py`. A statement has only the conditions that are asked for, so
that the planner sees which index answers it; the cursor is (created_at, ledger_entry_id), never an offset. Of a search
that no index answers, one page scans a bounded number of entries and says how far it came.
"""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from psycopg.sql import Literal
from sqlalchemy import Integer, Select, TextClause, any_, bindparam, or_, select, text, tuple_

from ops_console.read_models.refund_views import STATUSES, LedgerEntryRow
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, one_row
from sentinel.store.sql_template import SqlTemplate
from sentinel.store.tables import LEDGER_ENTRIES, LIMIT, sql_text, value

MOST_COUNTED, MOST_EXECUTED_COUNTED = 10_000, 100_000
LOOKED_AT = 50_000
"""How many entries one page scans for those that match a filter without an index."""
MOST_OPERATIONS = 100
"""For a search by the beginning of an operation's id: of how many operations the ledger entries are searched."""


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """The conditions on entries; None is no condition. Amounts in minor units, both bounds inclusive; created in
    [since, until).

    `prefix` is the beginning of the entry's or the refund's id; with it, entries of `named` are found too. `exact` is
    one of these two ids.
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
    exact: str | None = None


Place = tuple[datetime, str]
"""Where a page ends: (created_at, ledger_entry_id) of the last entry that it shows or has searched."""


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Matching entries, newest first. `looked_to` is where the search ended, if it ended before the ledger does."""

    entries: list[LedgerEntryRow]
    looked_to: Place | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """How many entries are in a status; `is_all` is False if there are more than were counted."""

    status: str
    entries: int
    is_all: bool


@dataclass(frozen=True, slots=True)
class _PartEnd:
    created_at: datetime
    ledger_entry_id: str


@dataclass(frozen=True, slots=True)
class _Key:
    idempotency_key: str


_COLUMNS = ", ".join(f"e.{field.name}" for field in dataclasses.fields(LedgerEntryRow))
_E = LEDGER_ENTRIES.alias("e")
# By field of the filter. A prefix becomes a LIKE pattern, which an index in byte order can answer.
CONDITIONS = {
    "status": _E.c.status == value("status", str),
    "channel": _E.c.channel == value("channel", str),
    "scenario": _E.c.scenario == value("scenario", str),
    "currency": _E.c.currency == value("currency", str),
    "decision": _E.c.decision == value("decision", str),
    "reason_code": _E.c.reason_code == value("reason_code", str),
    "least_minor": _E.c.amount_minor >= value("least_minor", int),
    "most_minor": _E.c.amount_minor <= value("most_minor", int),
    "since": _E.c.created_at >= value("since", datetime),
    "until": _E.c.created_at < value("until", datetime),
    "prefix": or_(
        _E.c.ledger_entry_id.like(value("pattern", str)),
        _E.c.refund_id.like(value("pattern", str)),
        _E.c.ledger_entry_id == any_(value("named", list)),
    ),
    "exact": or_(_E.c.ledger_entry_id == value("exact", str), _E.c.refund_id == value("exact", str)),
}
# Without an index. The rows that a prefix finds, and those in a status that is rare, are few enough to look at all of them.
_SCANNED = ("channel", "scenario", "currency", "decision", "reason_code", "least_minor", "most_minor")
_COMMON = (None, "EXECUTED", "DENIED")
_RANGE = ("since", "until")
# True of every row. It is the predicate of the partial index ledger_newest, which statements without it cannot use.
_NEWEST = text("e.created_at > '-infinity'")
_BEHIND = tuple_(_E.c.created_at, _E.c.ledger_entry_id) < tuple_(value("before_at", datetime), value("before_id", str))
_UP_TO = tuple_(_E.c.created_at, _E.c.ledger_entry_id) >= tuple_(value("last_at", datetime), value("last_id", str))
FIND_ENTRY = SqlTemplate("""
select {columns} from refunds.ledger_entries e where e.tenant_id = %(tenant_id)s and e.ledger_entry_id = %(ledger_entry_id)s
""").fill(columns=_COLUMNS)
# Counting stops at a bound for each status, which has an index of its own or is so common that a scan soon reaches the
# bound. Executed entries are counted by their executions, one each.
_COUNT = SqlTemplate("""
select {status} as status, count(*)::integer as entries, count(*) <= %(most)s as is_all from
  (select from refunds.ledger_entries where tenant_id = %(tenant_id)s and status = {status} limit %(most)s + 1) found
""")
_COUNT_EXECUTED = """
select 'EXECUTED' as status, count(*)::integer as entries, count(*) <= %(most_executed)s as is_all from
  (select from refunds.executions where tenant_id = %(tenant_id)s limit %(most_executed)s + 1) found
"""
COUNTS = " union all ".join(
    _COUNT_EXECUTED if status == "EXECUTED" else _COUNT.fill(status=Literal(status)) for status in STATUSES
)
# The idempotency keys of the operations in a range of ids.
KEYS_OF_OPERATIONS = """
select idempotency_key from sentinel.operations
where tenant_id = %(tenant_id)s and operation_id between %(first)s and %(last)s order by operation_id limit %(limit)s
"""


@cache
def page_sql(asked: tuple[str, ...], *, behind: bool, up_to: bool = False) -> str:
    """The SQL of a page with conditions on the `asked` fields of the filter; with `behind`, a page after a cursor. `up_to`:
    ends at a given place.
    """
    page = _entries(text(_COLUMNS), asked, behind=behind).where(*([_UP_TO] if up_to else []))
    return sql_text(page.limit(LIMIT))


@cache
def part_end_sql(asked: tuple[str, ...], *, behind: bool) -> str:
    """The SQL of the place of the last entry that a page scans; no row if the ledger ends before."""
    ends = _entries(text("e.created_at, e.ledger_entry_id"), asked, behind=behind)
    return sql_text(ends.offset(bindparam("offset", type_=Integer())).limit(LIMIT))


def _entries(columns: TextClause, asked: tuple[str, ...], *, behind: bool) -> Select[Any]:
    page = select(columns).select_from(_E).where(_E.c.tenant_id == value("tenant_id", uuid.UUID), _NEWEST)
    page = page.where(*(CONDITIONS[name] for name in asked), *([_BEHIND] if behind else []))
    return page.order_by(_E.c.created_at.desc(), _E.c.ledger_entry_id.desc())


def search_ledger(
    pool: Pool, tenant_id: uuid.UUID, wanted: LedgerFilter, *, before: Place | None, limit: int, up_to: Place | None = None
) -> list[LedgerEntryRow]:  # fmt: skip
    """Matching entries, newest first, after the cursor `before` and not after the place `up_to`."""
    asked = _asked(wanted)
    before_at, before_id = before or (None, None)
    last_at, last_id = up_to or (None, None)
    statement = page_sql(tuple(asked), behind=before is not None, up_to=up_to is not None)
    return all_rows(pool, LedgerEntryRow, statement, {
        **asked, "tenant_id": tenant_id, "limit": limit, "named": list(wanted.named),
        "pattern": beginning(wanted.prefix or ""), "before_at": before_at, "before_id": before_id, "last_at": last_at,
        "last_id": last_id,
    }, plan_anew=True)  # fmt: skip


def search_part(
    pool: Pool, tenant_id: uuid.UUID, wanted: LedgerFilter, *, before: Place | None, limit: int
) -> LedgerPart:
    """Matching entries, newest first, after the cursor `before`; where no index answers, those of the next `LOOKED_AT` entries."""
    asked = _asked(wanted)
    is_found = "prefix" in asked or "exact" in asked or wanted.status not in _COMMON
    end = None if is_found or asked.keys().isdisjoint(_SCANNED) else _part_end(pool, tenant_id, asked, before)
    return LedgerPart(search_ledger(pool, tenant_id, wanted, before=before, limit=limit, up_to=end), end)


def _part_end(pool: Pool, tenant_id: uuid.UUID, asked: dict[str, Any], before: Place | None) -> Place | None:
    within = {name: asked[name] for name in _RANGE if name in asked}
    before_at, before_id = before or (None, None)
    found = one_row(pool, _PartEnd, part_end_sql(tuple(within), behind=before is not None), {
        **within, "tenant_id": tenant_id, "before_at": before_at, "before_id": before_id, "offset": LOOKED_AT - 1, "limit": 1,
    })  # fmt: skip
    return None if found is None else (found.created_at, found.ledger_entry_id)


def _asked(wanted: LedgerFilter) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in CONDITIONS if getattr(wanted, name) is not None}


def find_entry(pool: Pool, tenant_id: uuid.UUID, ledger_entry_id: str) -> LedgerEntryRow | None:
    """One entry, or None."""
    return one_row(pool, LedgerEntryRow, FIND_ENTRY, {"tenant_id": tenant_id, "ledger_entry_id": ledger_entry_id})


def counted(pool: Pool, tenant_id: uuid.UUID) -> dict[str, Counted]:
    """The number of entries in each status, counted up to a bound."""
    fields = {"tenant_id": tenant_id, "most": MOST_COUNTED, "most_executed": MOST_EXECUTED_COUNTED}
    found = {one.status: one for one in all_rows(pool, Counted, COUNTS, fields, plan_anew=True)}
    return {status: _bounded(found[status]) for status in STATUSES}


def _bounded(one: Counted) -> Counted:
    return one if one.is_all else dataclasses.replace(one, entries=one.entries - 1)


def entries_of_operations(pool: Pool, tenant_id: uuid.UUID, text: str) -> tuple[tuple[str, ...], bool]:
    """Return (ids of entries whose operation's id is or begins with `text`, whether these are all). `text` needs 8 hex
    digits or more; at most `MOST_OPERATIONS` operations are looked at. `pool` is the authority's.
    """
    ends = _range(text)
    if ends is None:
        return (), True
    fields = {"tenant_id": tenant_id, "first": ends[0], "last": ends[1], "limit": MOST_OPERATIONS + 1}
    keys = [one.idempotency_key for one in all_rows(pool, _Key, KEYS_OF_OPERATIONS, fields)]
    looked_at = keys[:MOST_OPERATIONS]
    entries = tuple(key.removeprefix("refund:") for key in looked_at if key.startswith("refund:"))
    return entries, len(keys) == len(looked_at)


def _range(text: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    digits = text.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return uuid.UUID(hex=digits.ljust(32, "0")), uuid.UUID(hex=digits.ljust(32, "f"))


def beginning(prefix: str) -> str:
    """The LIKE pattern of text that begins with `prefix`, taken literally."""
    return prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
