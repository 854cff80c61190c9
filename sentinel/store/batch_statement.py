"""A statement over a batch of rows: binary parameters, one round trip, a binary answer.

An event loop's connections execute it (`loop_connections.py`); a caller without a loop runs it on a connection of its own
(`run_statement`).
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import psycopg
from psycopg import adapters, generators, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

Row = TypeVar("Row")
Result = TypeVar("Result")
Shape = TypeVar("Shape", bound=msgspec.Struct)

BINARY = 1
TYPE_NUMBERS = b"select oid, typelem from pg_type where oid = $1::regtype"

_UINT4 = struct.Struct("!I")
pack_int4 = struct.Struct("!i").pack


@dataclass(frozen=True, slots=True)
class BatchStatement(Generic[Row, Result]):
    """A statement over many rows; autocommit makes it one transaction.

    `name` is the prepared statement's name. `sql` has the parameters $1, $2, …, whose types are named in `types`
    ("jsonb", "int4", "sentinel.guard_row[]") and resolved by each connection. `encode` takes rows and the milliseconds
    to wait for locks, and returns binary parameters, with 0 as the element type of arrays. `decode` takes the binary
    answer and returns results in the order of the rows, which may be decoded lazily. When the statement fails with the
    SQLSTATE `alone_after`, `alone` is executed instead, in a transaction of its own.
    """

    name: str
    sql: bytes
    types: tuple[str, ...]
    encode: Callable[[Sequence[Row], int], list[bytes | None]]
    decode: Callable[[pq.abc.PGresult], Sequence[Result]]
    alone: BatchStatement[Row, Result] | None = None
    alone_after: str = ""

    def following(self, error: psycopg.Error) -> BatchStatement[Row, Result] | None:
        """The statement to execute after this error, or None."""
        return self.alone if error.diag.sqlstate == self.alone_after else None


def milliseconds_of(wait_seconds: float) -> int:
    """The lock wait as a parameter, in milliseconds; at least 1, because 0 would mean no limit."""
    return max(1, int(wait_seconds * 1000))


TypeNumbers = tuple[int, bytes]
"""A type's OID in one database, and its element type's OID packed as in an array's header; empty if it is no array."""


def known_type(name: str) -> TypeNumbers | None:
    """The OID of a built-in type that is no array; None for other types, which must be looked up in the database."""
    found = adapters.types.get(name)
    return None if found is None or name.endswith("[]") else (found.oid, b"")


def found_type(result: pq.abc.PGresult) -> TypeNumbers:
    """Read the answer to TYPE_NUMBERS, which is in text format."""
    number, element = (int(result.get_value(0, column) or b"0") for column in (0, 1))
    return number, _UINT4.pack(element) if element else b""


def with_element_types(parameters: list[bytes | None], types: Sequence[TypeNumbers]) -> list[bytes | None]:
    """Fill the arrays' element types into encoded parameters; their OIDs differ from database to database."""
    return [
        value[:8] + element + value[12:] if element and value is not None else value
        for value, (_, element) in zip(parameters, types, strict=True)
    ]


def raise_if_failed(result: pq.abc.PGresult) -> pq.abc.PGresult:
    """Return the result of a statement that succeeded; for any other raise the `psycopg.Error` of its SQLSTATE."""
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise error_from_result(result)
    return result


def shaped_rows(result: pq.abc.PGresult, shape: type[Shape]) -> list[Shape]:
    """The rows of a binary answer as `shape`. Raises `TypeError` unless its fields have the columns' names and order."""
    transformer = Transformer()
    transformer.set_pgresult(result)
    names = tuple((result.fname(place) or b"").decode() for place in range(result.nfields))
    if names != shape.__struct_fields__:
        raise TypeError(f"{shape.__name__} has the fields {shape.__struct_fields__}, the answer {names}")
    return transformer.load_rows(0, result.ntuples, lambda values: shape(*values))


class LateRows(Sequence[Shape]):
    """Rows of an answer as `shape`, ordered by `seq`; decoded at the first access, when the next statement is in flight already."""

    def __init__(self, result: pq.abc.PGresult, shape: type[Shape]) -> None:
        self._result, self._shape = result, shape

    def __len__(self) -> int:
        return self._result.ntuples

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]

    @functools.cached_property
    def _rows(self) -> list[Any]:
        return sorted(shaped_rows(self._result, self._shape), key=_seq)


_seq = operator.attrgetter("seq")


def run_statement(
    connection: psycopg.Connection[Any], statement: BatchStatement[Row, Result], rows: Sequence[Row], milliseconds: int
) -> Sequence[Result]:
    """Execute the statement once, within the connection's current transaction. Raises `psycopg.Error`."""
    types = [
        known_type(name) or found_type(_answered(connection, TYPE_NUMBERS, [name.encode()])) for name in statement.types
    ]
    parameters = with_element_types(statement.encode(rows, milliseconds), types)
    oids = [oid for oid, _ in types]
    return statement.decode(_answered(connection, statement.sql, parameters, oids, [BINARY] * len(oids), BINARY))


def _answered(connection: Any, *asked: Any) -> pq.abc.PGresult:
    """Send a statement and return its result. The wait is the connection's own, so that its deadline applies here too."""
    connection.pgconn.send_query_params(*asked)
    result: pq.abc.PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
    if connection.pgconn.status == pq.ConnStatus.BAD:  # the result of a lost connection has no SQLSTATE
        raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
    return raise_if_failed(result)


def jsonb(text: bytes) -> bytes:
    """A jsonb parameter in binary format: the version byte 1, then the JSON text."""
    return b"\x01" + text
