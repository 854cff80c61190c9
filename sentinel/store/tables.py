"""Tables and columns for SQLAlchemy Core, from which lists with filters, order and pages are composed.

Only the columns that such lists use are here; the migrations create the tables. A test compares each column and its
type with the database's catalog. Meant for lists that people look at: SQL that never changes stays a constant text, and
the hot path does not import this module.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnClause,
    DateTime,
    Integer,
    Select,
    Text,
    Uuid,
    bindparam,
    column,
    table,
)
from sqlalchemy.dialects.postgresql import ARRAY, psycopg
from sqlalchemy.types import TypeEngine

_DIALECT = psycopg.dialect()  # type: ignore[no-untyped-call]
_ID, _TEXT, _NUMBER, _TIME = Uuid(), Text(), BigInteger(), DateTime(timezone=True)

LIMIT = bindparam("limit", type_=Integer())


def value(name: str, kind: type) -> BindParameter[Any]:
    """A parameter whose value is given with the call, of the Python type `kind`; `list` means a list of texts."""
    types: dict[type, TypeEngine[Any]] = {uuid.UUID: _ID, str: _TEXT, int: _NUMBER, datetime: _TIME, list: ARRAY(_TEXT)}
    return bindparam(name, type_=types[kind])


def sql_text(statement: Select[Any]) -> str:
    """The text of a statement, its `bindparam`s as `%(name)s`. Raises `ValueError` when a value is embedded in it.

    Composing takes about a millisecond: cache the text of each combination of filters (`functools.cache`).
    """
    compiled = statement.compile(dialect=_DIALECT)
    inside = sorted(name for name, given in compiled.params.items() if given is not None)
    if inside:
        raise ValueError(f"a value is given with the call, by a bindparam: {', '.join(inside)}")
    return compiled.string


def _columns(kind: TypeEngine[Any], names: str) -> list[ColumnClause[Any]]:
    return [column(name, kind) for name in names.split()]


APPROVALS = table(
    "approvals",
    *_columns(_ID, "tenant_id approval_id principal_id"),
    *_columns(_TEXT, "agent_id status handled_reference"),
    *_columns(_TIME, "expires_at decided_at"),
    schema="sentinel",
)
EVENTS = table(
    "events",
    *_columns(_ID, "tenant_id event_id operation_id"),
    *_columns(_TEXT, "kind agent_id body hash"),
    *_columns(_TIME, "occurred_at"),
    schema="sentinel",
)
FEED = table("feed", *_columns(_ID, "tenant_id event_id"), *_columns(_NUMBER, "position"), schema="sentinel")
OPERATIONS = table(
    "operations",
    *_columns(_ID, "tenant_id operation_id"),
    *_columns(_NUMBER, "amount_minor"),
    *_columns(_TEXT, "currency"),
    schema="sentinel",
)
STATES = table("operation_states", *_columns(_ID, "tenant_id operation_id decision_event_id"), schema="sentinel")
LEDGER_ENTRIES = table(
    "ledger_entries",
    *_columns(_ID, "tenant_id"),
    *_columns(_TEXT, "ledger_entry_id refund_id status channel scenario currency decision reason_code"),
    *_columns(_NUMBER, "amount_minor"),
    *_columns(_TIME, "created_at"),
    schema="refunds",
)
REVIEWS = table(
    "reviews",
    *_columns(_ID, "tenant_id review_id approval_id"),
    *_columns(_TEXT, "order_id lane status"),
    *_columns(_TIME, "received_at next_attempt_at"),
    schema="orders",
)
ALERTS = table(
    "alerts",
    *_columns(_ID, "tenant_id alert_id"),
    *_columns(_TIME, "created_at delivered_at"),
    schema="orders",
)
TABLES = (APPROVALS, EVENTS, FEED, OPERATIONS, STATES, LEDGER_ENTRIES, REVIEWS, ALERTS)
