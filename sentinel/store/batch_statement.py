"""One statement that commits a batch of rows in one round trip: its text, its binary parameters and its binary answer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from psycopg import adapters, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry_within

Row = TypeVar("Row")
Result = TypeVar("Result")
Shape = TypeVar("Shape")

BINARY = 1
OID_OF_TYPE = b"select $1::regtype::oid"

pack_int4 = struct.Struct("!i").pack


@dataclass(frozen=True, slots=True)
class BatchStatement(Generic[Row, Result]):
    """A statement over many rows; autocommit makes it one transaction.

    `name` is the prepared statement's, `sql` has $1, $2, …; `types` names the parameters' types ("jsonb", "int4", "sentinel.guard_row[]"),
    which each connection resolves. `encode` takes rows and the milliseconds that locks may be waited for, and gives binary
    parameters; `decode` takes the answer in binary and gives results in the order of the rows.
    """

    name: str
    sql: bytes
    types: tuple[str, ...]
    encode: Callable[[Sequence[Row], int], list[bytes | None]]
    decode: Callable[[pq.abc.PGresult], list[Result]]


def milliseconds_of(wait_seconds: float) -> int:
    """The parameter that says for how long locks may be waited for; 0 would mean for ever."""
    return max(1, int(wait_seconds * 1000))


def builtin_oid(name: str) -> int | None:
    """The number of a type that every database has, else None."""
    found = adapters.types.get(name)
    return None if found is None else found.oid


def raise_if_failed(result: pq.abc.PGresult) -> pq.abc.PGresult:
    """The result of a statement that succeeded. Raises the `psycopg.Error` of its SQLSTATE."""
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise error_from_result(result)
    return result


def shaped_rows(result: pq.abc.PGresult, shape: Callable[..., Shape]) -> list[Shape]:
    """Rows of a binary answer as `shape`, whose parameters are named like the columns."""
    transformer = Transformer()
    transformer.set_pgresult(result)
    names = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
    return transformer.load_rows(0, result.ntuples, lambda values: shape(**dict(zip(names, values, strict=True))))


def commit_rows(
    pool: Pool, statement: BatchStatement[Row, Result], rows: Sequence[Row], wait_seconds: float
) -> list[Result]:
    """Commit `rows` together, for callers without an event loop. Raises as `call_with_retry_within`."""

    def call(connection: Any, left_seconds: float) -> list[Result]:
        def oid(name: str) -> int:
            found = builtin_oid(name)
            return connection.execute("select %s::regtype::oid", [name]).fetchone()[0] if found is None else found

        parameters = statement.encode(rows, milliseconds_of(left_seconds))
        types = [oid(name) for name in statement.types]
        result = connection.pgconn.exec_params(statement.sql, parameters, types, [BINARY] * len(types), BINARY)
        return statement.decode(raise_if_failed(result))

    return call_with_retry_within(pool, call, wait_seconds)


def jsonb(text: bytes) -> bytes:
    """A jsonb parameter in binary: its version, then its text."""
    return b"\x01" + text
