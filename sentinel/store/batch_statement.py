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
_oid = struct.Struct("!I").pack


@dataclass(frozen=True, slots=True)
class BatchStatement(Generic[Row, Result]):
    """A statement over many rows; autocommit makes it one transaction.

    `name` is the prepared statement's, `sql` has $1, $2, …; `types` names the parameters' types ("jsonb", "int4", "sentinel.guard_row[]"),
    which each connection resolves. `encode` takes rows and the milliseconds that locks may be waited for, and gives binary
    parameters; `decode` takes the answer in binary and gives results in the order of the rows. `element_types` name those of the
    first parameters, where these are arrays of row types: their numbers differ from database to database, so `encode` leaves 0.
    """

    name: str
    sql: bytes
    types: tuple[str, ...]
    encode: Callable[[Sequence[Row], int], list[bytes | None]]
    decode: Callable[[pq.abc.PGresult], list[Result]]
    element_types: tuple[str, ...] = ()


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


def with_element_types(parameters: list[bytes | None], oids: Sequence[int]) -> list[bytes | None]:
    """Parameters in binary with the number of each array's element type put in its place."""
    for place, oid in enumerate(oids):
        value = parameters[place]
        if value is not None:
            parameters[place] = value[:8] + _oid(oid) + value[12:]
    return parameters


def commit_rows(
    pool: Pool, statement: BatchStatement[Row, Result], rows: Sequence[Row], wait_seconds: float
) -> list[Result]:
    """Commit `rows` together, for callers without an event loop. Raises as `call_with_retry_within`."""

    def call(connection: Any, left_seconds: float) -> list[Result]:
        return run_statement(connection, statement, rows, milliseconds_of(left_seconds))

    return call_with_retry_within(pool, call, wait_seconds)


def run_statement(
    connection: Any, statement: BatchStatement[Row, Result], rows: Sequence[Row], milliseconds: int
) -> list[Result]:
    """One execution on a connection, within its transaction. Raises `psycopg.Error`."""

    def oid(name: str) -> int:
        found = builtin_oid(name)
        return connection.execute("select %s::regtype::oid", [name]).fetchone()[0] if found is None else found

    types = [oid(name) for name in statement.types]
    elements = [oid(name) for name in statement.element_types]
    parameters = with_element_types(statement.encode(rows, milliseconds), elements)
    result = connection.pgconn.exec_params(statement.sql, parameters, types, [BINARY] * len(types), BINARY)
    return statement.decode(raise_if_failed(result))


def jsonb(text: bytes) -> bytes:
    """A jsonb parameter in binary: its version, then its text."""
    return b"\x01" + text
