"""Rows become values at once: the two ways every cold query of the store is asked.

For what people look at and for administration; the hot path has its own typed calls (`decisions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from psycopg.rows import class_row

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call

Row = TypeVar("Row")


def all_rows(
    pool: Pool,
    shape: type[Row],
    statement: str,
    fields: Mapping[str, Any] | None = None,
    *,
    plan_anew: bool = False,
) -> list[Row]:
    """Every row of one statement as `shape`, a dataclass named like the columns. Raises `EngineUnavailable`.

    `plan_anew`: not prepared, so that the plan fits the values: for searches whose best index depends on what is looked for.
    """

    def call(connection: Any) -> list[Row]:
        with connection.cursor(row_factory=class_row(shape)) as cursor:
            return list(cursor.execute(statement, fields, prepare=False if plan_anew else None).fetchall())

    return in_one_call(pool, call)


def one_row(pool: Pool, shape: type[Row], statement: str, fields: Mapping[str, Any] | None = None) -> Row | None:
    """The only row of one statement as `shape`, or None."""
    found = all_rows(pool, shape, statement, fields)
    return found[0] if found else None


def changed(pool: Pool, statement: str, fields: Mapping[str, Any]) -> int:
    """How many rows one changing statement touched."""
    count: int = in_one_call(pool, lambda connection: connection.execute(statement, fields).rowcount)
    return count


def single(pool: Pool, statement: str, fields: Mapping[str, Any] | None = None) -> Any:
    """The first column of the first row, or None."""
    row = in_one_call(pool, lambda connection: connection.execute(statement, fields).fetchone())
    return row[0] if row else None
