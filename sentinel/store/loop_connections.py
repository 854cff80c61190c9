"""Connections that an event loop itself reads: a batch is sent and answered without a thread in between.

Opened by psycopg (TLS, SCRAM, several hosts), then used through libpq's non-blocking calls and its pipeline mode: each statement
is followed by its own sync, which commits it, and another may be sent while one that is executed waits for its commit. Prepared
once a connection, and not at all behind a transaction pooler. A statement commits a batch of rows in one round trip: its text,
its binary parameters and its binary answer; callers without a loop run the same one through the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import adapters, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from sentinel.store import database
from sentinel.store.database import (
    SERVER_PROCESS,
    DatabaseUnreachable,
    Pool,
    behind_pooler,
    first_line,
    pooler_noticed,
    refuse_pooler,
)
from sentinel.store.queries import RetriedTransaction, call_with_retry_within

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

    `name` is the prepared statement's, `sql` has $1, $2, …; `types` names the parameters' types ("jsonb", "int4", "sentinel.guard_row[]"),
    which each connection resolves. `encode` takes rows and the milliseconds that locks may be waited for, and gives binary
    parameters, arrays with 0 for their element's type; `decode` takes the answer in binary and gives results in the order of the rows,
    which it may read later. Where it ends with the SQLSTATE of `alone_after`, `alone` is executed instead, in a transaction of its own.
    """

    name: str
    sql: bytes
    types: tuple[str, ...]
    encode: Callable[[Sequence[Row], int], list[bytes | None]]
    decode: Callable[[pq.abc.PGresult], Sequence[Result]]
    alone: BatchStatement[Row, Result] | None = None
    alone_after: str = ""

    def following(self, error: psycopg.Error) -> BatchStatement[Row, Result] | None:
        """What is to be executed after this error, if anything."""
        return self.alone if error.diag.sqlstate == self.alone_after else None


def milliseconds_of(wait_seconds: float) -> int:
    """The parameter that says for how long locks may be waited for; 0 would mean for ever."""
    return max(1, int(wait_seconds * 1000))


TypeNumbers = tuple[int, bytes]
"""A type's number in one database, and that of its elements as an array's header has it; empty where it is no array."""


def known_type(name: str) -> TypeNumbers | None:
    """The numbers of a type that every database has, else None; of arrays the database is asked."""
    found = adapters.types.get(name)
    return None if found is None or name.endswith("[]") else (found.oid, b"")


def found_type(result: pq.abc.PGresult) -> TypeNumbers:
    """The answer to TYPE_NUMBERS, in text."""
    number, element = (int(result.get_value(0, column) or b"0") for column in (0, 1))
    return number, _UINT4.pack(element) if element else b""


def with_element_types(parameters: list[bytes | None], types: Sequence[TypeNumbers]) -> list[bytes | None]:
    """Encoded parameters with their arrays' element types, which differ from database to database."""
    return [
        value[:8] + element + value[12:] if element and value is not None else value
        for value, (_, element) in zip(parameters, types, strict=True)
    ]


def raise_if_failed(result: pq.abc.PGresult) -> pq.abc.PGresult:
    """The result of a statement that succeeded. Raises the `psycopg.Error` of its SQLSTATE."""
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise error_from_result(result)
    return result


def shaped_rows(result: pq.abc.PGresult, shape: type[Shape]) -> list[Shape]:
    """Rows of a binary answer as `shape`, whose fields are named like the columns and stand in their order."""
    transformer = Transformer()
    transformer.set_pgresult(result)
    names = tuple((result.fname(place) or b"").decode() for place in range(result.nfields))
    if names != shape.__struct_fields__:
        raise TypeError(f"{shape.__name__} has the fields {shape.__struct_fields__}, the answer {names}")
    return transformer.load_rows(0, result.ntuples, lambda values: shape(*values))


class LateRows(Sequence[Shape]):
    """Rows of an answer as `shape` by their `seq`, read when the first is asked for: by then the next statement is under way."""

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


def commit_rows(
    pool: Pool, statement: BatchStatement[Row, Result], rows: Sequence[Row], wait_seconds: float
) -> Sequence[Result]:
    """Commit `rows` together, for callers without an event loop. Raises as `call_with_retry_within`."""

    def call(connection: Any, left_seconds: float) -> Sequence[Result]:
        try:
            return run_statement(connection, statement, rows, milliseconds_of(left_seconds))
        except psycopg.Error as error:
            if (following := statement.following(error)) is None:
                raise
            return run_statement(connection, following, rows, milliseconds_of(left_seconds))

    return call_with_retry_within(pool, call, wait_seconds)


def run_statement(
    connection: Any, statement: BatchStatement[Row, Result], rows: Sequence[Row], milliseconds: int
) -> Sequence[Result]:
    """One execution on a connection, within its transaction. Raises `psycopg.Error`."""
    ask = connection.pgconn.exec_params
    types = [
        known_type(name) or found_type(raise_if_failed(ask(TYPE_NUMBERS, [name.encode()]))) for name in statement.types
    ]
    parameters = with_element_types(statement.encode(rows, milliseconds), types)
    oids = [oid for oid, _ in types]
    result = ask(statement.sql, parameters, oids, [BINARY] * len(oids), BINARY)
    if connection.pgconn.status == pq.ConnStatus.BAD:  # what died under it has no SQLSTATE to tell it by
        raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
    return statement.decode(raise_if_failed(result))


def jsonb(text: bytes) -> bytes:
    """A jsonb parameter in binary: its version, then its text."""
    return b"\x01" + text


FREE_WAIT_SECONDS = 2.0
"""How long a batch waits for a connection while all are taken."""
_CLOSE_SECONDS = 5.0


class LoopConnections:
    """At most `size` connections for each event loop that asks; one in use as long as no commit is slow.

    Each is opened when it is first needed, so the object may be made before a process forks. What breaks is closed, and
    the next batch opens another.
    """

    def __init__(self, conninfo: str, *, size: int) -> None:
        self.size = size
        self._conninfo = conninfo
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    @property
    def in_use(self) -> int:
        """Connections with a statement under way."""
        return sum(one.in_use for one in list(self._of_loop.values()))

    async def commit(
        self,
        statement: BatchStatement[Row, Result],
        rows: Sequence[Row],
        wait_seconds: float,
        executed: Callable[[], None] | None = None,
    ) -> Sequence[Result]:
        """Commit `rows` together. Retries and raises as `queries.call_with_retry_within`, and waits for locks as long.

        `executed` is called where only the commit is still awaited, on the loop: whose caller has one, its statements are sent behind
        one another on one connection.
        """
        mine, attempts = self._mine(), RetriedTransaction(wait_seconds)
        while True:
            connection = await mine.take(behind=executed is not None)
            try:
                return await connection.run(statement, rows, milliseconds_of(attempts.left_seconds), executed)
            except psycopg.Error as error:
                if (following := statement.following(error)) is None:
                    attempts.failed(error, is_silent=connection.is_silent)
                else:
                    statement = following
            finally:
                mine.give_back(connection)

    def _mine(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        found = self._of_loop.get(loop)
        if found is None:
            found = self._of_loop[loop] = _OfLoop(self._conninfo, self.size)
        return found

    def close(self) -> None:
        """Close every connection. Call it from no loop of these; one that still runs is asked to."""
        for loop, mine in list(self._of_loop.items()):
            if not loop.is_running():
                mine.close()
                continue
            closed = threading.Event()
            with contextlib.suppress(RuntimeError):  # it ended just now
                loop.call_soon_threadsafe(_close_and_notify, mine, closed)
                closed.wait(_CLOSE_SECONDS)


def _close_and_notify(mine: _OfLoop, closed: threading.Event) -> None:
    mine.close()
    closed.set()


class _OfLoop:
    """One event loop's connections."""

    def __init__(self, conninfo: str, size: int) -> None:
        self._conninfo = conninfo
        self._places = asyncio.Semaphore(size)
        self._all: set[LoopConnection] = set()
        self._free: list[LoopConnection] = []

    @property
    def in_use(self) -> int:
        """Connections with a statement under way."""
        return len(self._all) - len(self._free)

    async def take(self, *, behind: bool) -> LoopConnection:
        """An open connection, to be given back: with `behind` one that only waits for a commit, where there is one.

        Raises `DatabaseUnreachable` where there is none.
        """
        if behind:
            for connection in self._all:
                if connection.users and connection.only_commits:
                    connection.users += 1
                    return connection
        try:
            # Without a time limit where nobody waits: it costs more than the rest of this.
            await (
                asyncio.wait_for(self._places.acquire(), FREE_WAIT_SECONDS)
                if self._places.locked()
                else self._places.acquire()
            )
        except TimeoutError:
            raise DatabaseUnreachable("every database connection is busy") from None
        try:
            connection = self._free.pop() if self._free else await self._open()
        except BaseException:
            self._places.release()
            raise
        connection.users = 1
        return connection

    def give_back(self, connection: LoopConnection) -> None:
        """One of its users is done; behind the last it is free again, or closed."""
        connection.users -= 1
        if connection.users:
            return
        if connection.is_open:
            self._free.append(connection)
        self._places.release()

    async def _open(self) -> LoopConnection:
        made: LoopConnection | None = None
        try:
            with pooler_noticed():
                opened = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
            made = LoopConnection(opened, self._forget)
            self._all.add(made)
            await made.refuse_pooler()
        except BaseException as error:
            if made is not None:
                made.close()
            if isinstance(error, psycopg.Error):
                raise DatabaseUnreachable(f"the database cannot be reached: {first_line(error)}") from error
            raise
        return made

    def _forget(self, connection: LoopConnection) -> None:
        self._all.discard(connection)
        if connection in self._free:
            self._free.remove(connection)

    def close(self) -> None:
        """Close them all."""
        for connection in list(self._all):
            connection.close()


class _Sent:
    """A statement that was sent, and who waits for it."""

    __slots__ = ("committed", "executed", "result")

    def __init__(self, committed: asyncio.Future[pq.abc.PGresult], executed: Callable[[], None] | None) -> None:
        self.committed, self.executed = committed, executed
        self.result: pq.abc.PGresult | None = None
        """What it answered, which holds once it is committed."""

    def answered(self, result: pq.abc.PGresult) -> None:
        """Keep what the server says of it: an answer, or what failed, its commit too."""
        self.result = result
        executed, self.executed = self.executed, None
        if executed is not None and result.status == pq.ExecStatus.TUPLES_OK:
            executed()

    def ended(self) -> None:
        """Its transaction is over; an answer that was no error is committed."""
        if not self.committed.done():
            assert self.result is not None
            self.committed.set_result(self.result)


class LoopConnection:
    """One connection, read by the running loop. `on_close(self)` is called once, when it is closed or found broken."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], on_close: Callable[[LoopConnection], None]) -> None:
        self.is_open = True
        self.users = 0
        """How many have taken it: two where one waits for its commit and the next is sent behind it."""
        self.is_silent = False
        """The server did not answer within its deadline."""
        self._connection, self._pg, self._on_close = connection, connection.pgconn, on_close
        self._loop = asyncio.get_running_loop()
        # A number of its own for the same socket: libpq closes its one by itself, and another connection may get that number.
        self._socket = os.dup(self._pg.socket)
        self._sent: deque[_Sent] = deque()
        self._types: dict[str, list[TypeNumbers]] = {}
        self._prepares, self._is_preparing = not behind_pooler(), False
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._loop.add_reader(self._socket, self._readable)

    @property
    def only_commits(self) -> bool:
        """Whether another statement would begin at once, or behind one commit."""
        if not self.is_open or self._is_preparing:
            return False
        return not self._sent or (len(self._sent) == 1 and self._sent[0].result is not None)

    async def run(
        self,
        statement: BatchStatement[Row, Result],
        rows: Sequence[Row],
        milliseconds: int,
        executed: Callable[[], None] | None = None,
    ) -> Sequence[Result]:
        """The committed results of one execution. Raises `psycopg.Error`.

        `executed` is called once it has its results; of one row alone, or behind a pooler, as late as its commit.
        """
        types = self._types.get(statement.name)
        if types is None:
            self._is_preparing = True
            try:
                types = await self._introduce(statement)
            finally:
                self._is_preparing = False
        parameters = with_element_types(statement.encode(rows, milliseconds), types)
        formats = [BINARY] * len(parameters)
        with self._closed_if_broken():
            if self._prepares:
                self._pg.send_query_prepared(statement.name.encode(), parameters, formats, BINARY)
            else:
                self._pg.send_query_params(statement.sql, parameters, [oid for oid, _ in types], formats, BINARY)
            if self._prepares and executed is not None and len(rows) > 1:
                self._pg.send_flush_request()  # its answer comes before its commit; else both come together
        return statement.decode(await self._committed(executed))

    async def refuse_pooler(self) -> None:
        """Raise `UndeclaredPooler` where a pooler answers and none is declared, `psycopg.Error` where nobody does."""
        if behind_pooler():
            return
        with self._closed_if_broken():
            self._pg.send_query_params(SERVER_PROCESS.encode(), None)
        told = (await self._committed()).get_value(0, 0) or b""
        refuse_pooler(self._connection, (int(told),) if told.isdigit() else None)

    @contextlib.contextmanager
    def _closed_if_broken(self) -> Iterator[None]:
        """Closes it where libpq cannot send: nothing would be read from it any more that could tell."""
        try:
            yield
        except psycopg.Error as error:
            self.close(error)
            raise

    async def _introduce(self, statement: BatchStatement[Any, Any]) -> list[TypeNumbers]:
        """Resolve the types of a statement that is new to this connection, and prepare it where that is done."""
        types = [known_type(name) or await self._look_up_type(name) for name in statement.types]
        if self._prepares:
            with self._closed_if_broken():
                self._pg.send_prepare(statement.name.encode(), statement.sql, [oid for oid, _ in types])
            await self._committed()
        self._types[statement.name] = types
        return types

    async def _look_up_type(self, name: str) -> TypeNumbers:
        with self._closed_if_broken():
            self._pg.send_query_params(TYPE_NUMBERS, [name.encode()])
        return found_type(await self._committed())

    async def _committed(self, executed: Callable[[], None] | None = None) -> pq.abc.PGresult:
        """The answer to what was just handed over, once it is committed.

        Raises `psycopg.Error`; after SILENCE_SECONDS the connection is closed.
        """
        with self._closed_if_broken():
            self._pg.pipeline_sync()
        sent = _Sent(self._loop.create_future(), executed)
        self._sent.append(sent)
        deadline = self._loop.call_later(database.SILENCE_SECONDS, self._fell_silent)
        self._flush()
        try:
            return raise_if_failed(await sent.committed)
        except asyncio.CancelledError:
            self.close()  # nobody is to be sent behind a statement that nobody waits for
            raise
        finally:
            deadline.cancel()

    def _flush(self) -> None:
        """Send what the socket takes, and the rest when it takes more."""
        try:
            if self._pg.flush():
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self.close(error)

    def _readable(self) -> None:
        """Take what arrived: answers, and the ends of transactions, which wake who waits for them."""
        try:
            self._pg.consume_input()
            was_nothing = False  # once behind each statement; twice where the connection is lost
            while self._sent and not self._pg.is_busy():
                result = self._pg.get_result()
                if result is None:
                    if was_nothing:
                        break
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._sent.popleft().ended()
                else:
                    self._sent[0].answered(result)
                was_nothing = result is None
        except psycopg.Error as error:
            self.close(error)
            return
        if self._pg.status != pq.ConnStatus.OK:
            self.close()

    def _fell_silent(self) -> None:
        self.is_silent = True
        self.close()

    def close(self, error: psycopg.Error | None = None) -> None:
        """End it now; who waits for an answer is told so."""
        if not self.is_open:
            return
        self.is_open = False
        self._on_close(self)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        os.close(self._socket)
        self._pg.finish()
        while self._sent:
            waiting = self._sent.popleft().committed
            if not waiting.done():
                waiting.set_exception(error or psycopg.OperationalError("the connection was lost"))
