"""Database connections that an event loop reads directly: a batch is sent and answered without a thread in between.

Opened by psycopg (TLS, SCRAM, several hosts), then used through libpq's non-blocking calls and its pipeline mode: each
statement is followed by its own sync, which commits it, and the next may be sent while an executed one waits for its
commit. A statement is prepared once per connection, and not at all behind a transaction pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq

from sentinel.store import database
from sentinel.store.batch_statement import (
    BINARY,
    TYPE_NUMBERS,
    BatchStatement,
    TypeNumbers,
    found_type,
    known_type,
    milliseconds_of,
    raise_if_failed,
    with_element_types,
)
from sentinel.store.database import (
    READ_ONLY,
    SERVER_PROCESS,
    DatabaseUnreachable,
    behind_pooler,
    first_line,
    pooler_noticed,
    refuse_pooler,
)
from sentinel.store.queries import RetriedTransaction

Row = TypeVar("Row")
Result = TypeVar("Result")

FREE_WAIT_SECONDS = 2.0
"""How long a batch waits for a connection while all are taken."""
_CLOSE_SECONDS = 5.0


class LoopConnections:
    """At most `size` connections per event loop; only one of them is used as long as no commit is slow.

    Each is opened when it is first needed, so the object may be made before a process forks. A broken connection is
    closed, and the next batch opens another.
    """

    def __init__(self, conninfo: str, *, size: int) -> None:
        self.size = size
        self._conninfo = conninfo
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    @property
    def in_use(self) -> int:
        """Connections with a statement in flight."""
        return sum(one.in_use for one in list(self._of_loop.values()))

    async def commit(
        self,
        statement: BatchStatement[Row, Result],
        rows: Sequence[Row],
        wait_seconds: float,
        executed: Callable[[], None] | None = None,
    ) -> Sequence[Result]:
        """Commit `rows` together. Retries, raises and waits for locks as `queries.call_with_retry_within`.

        `executed` is called on the loop once only the commit is awaited. The statements of a caller that passes it may
        be sent behind one another on one connection.
        """
        mine, attempts = self._mine(), RetriedTransaction(wait_seconds)
        while True:
            pause_seconds = 0.0
            connection = await mine.take(behind=executed is not None)
            try:
                return await connection.run(statement, rows, milliseconds_of(attempts.left_seconds), executed)
            except psycopg.Error as error:
                if isinstance(error, READ_ONLY):
                    connection.close()
                if (following := statement.following(error)) is None:
                    pause_seconds = attempts.failed(error, is_silent=connection.is_silent)
                else:
                    statement = following
            finally:
                mine.give_back(connection)
            await asyncio.sleep(pause_seconds)

    def _mine(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        found = self._of_loop.get(loop)
        if found is None:
            found = self._of_loop[loop] = _OfLoop(self._conninfo, self.size)
        return found

    def close(self) -> None:
        """Close every connection; a loop that still runs closes its own. Must not be called from one of these loops."""
        for loop, mine in list(self._of_loop.items()):
            if not loop.is_running():
                mine.close()
                continue
            closed = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop was closed just now
                loop.call_soon_threadsafe(_close_and_notify, mine, closed)
                closed.wait(_CLOSE_SECONDS)


def _close_and_notify(mine: _OfLoop, closed: threading.Event) -> None:
    mine.close()
    closed.set()


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self, conninfo: str, size: int) -> None:
        self._conninfo = conninfo
        self._places = asyncio.Semaphore(size)
        self._waiting = 0
        """How many callers wait for a free connection."""
        self._all: set[LoopConnection] = set()
        self._free: list[LoopConnection] = []

    @property
    def in_use(self) -> int:
        """Connections with a statement in flight."""
        return len(self._all) - len(self._free)

    async def take(self, *, behind: bool) -> LoopConnection:
        """Take an open connection, to be given back; with `behind` preferably one that only waits for a commit.

        Raises `DatabaseUnreachable` when none becomes free in time or none can be opened.
        """
        # Not while others wait: callers that keep joining a connection in use would keep it from ever becoming free.
        if behind and not self._waiting:
            for connection in self._all:
                if connection.users and connection.only_commits:
                    connection.users += 1
                    return connection
        if self._places.locked():
            await self._wait_for_place()
        else:  # returns at once; a time limit would cost more than the rest of this method
            await self._places.acquire()
        try:
            connection = self._free.pop() if self._free else await self._open()
        except BaseException:
            self._places.release()
            raise
        connection.users = 1
        return connection

    async def _wait_for_place(self) -> None:
        """Wait for a free connection, first come first served. Raises `DatabaseUnreachable` after FREE_WAIT_SECONDS."""
        self._waiting += 1
        try:
            await asyncio.wait_for(self._places.acquire(), FREE_WAIT_SECONDS)
        except TimeoutError:
            raise DatabaseUnreachable("every database connection is busy") from None
        finally:
            self._waiting -= 1

    def give_back(self, connection: LoopConnection) -> None:
        """Return a connection for one of its users; after the last one it is free again, unless it was closed."""
        connection.users -= 1
        if connection.users:
            return
        if connection.is_open:
            self._free.append(connection)
        self._places.release()

    async def _open(self) -> LoopConnection:
        opened: psycopg.AsyncConnection[Any] | None = None
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
            elif opened is not None:
                opened.pgconn.finish()
            if isinstance(error, (psycopg.Error, OSError)):  # the latter where the process may open no more files
                raise DatabaseUnreachable(f"the database cannot be reached: {first_line(error)}") from error
            raise
        return made

    def _forget(self, connection: LoopConnection) -> None:
        self._all.discard(connection)
        if connection in self._free:
            self._free.remove(connection)

    def close(self) -> None:
        """Close all connections of the loop."""
        for connection in list(self._all):
            connection.close()


class _Sent:
    """A statement that was sent, and the future and callback of its caller."""

    __slots__ = ("committed", "executed", "result")

    def __init__(self, committed: asyncio.Future[pq.abc.PGresult], executed: Callable[[], None] | None) -> None:
        self.committed, self.executed = committed, executed
        self.result: pq.abc.PGresult | None = None
        """The server's answer, which is final only once the statement is committed."""

    def answered(self, result: pq.abc.PGresult) -> None:
        """Store the server's result: an answer, or an error of the statement or of its commit. Calls `executed` for an answer."""
        self.result = result
        executed, self.executed = self.executed, None
        if executed is not None and result.status == pq.ExecStatus.TUPLES_OK:
            executed()

    def ended(self) -> None:
        """Give the result to the caller: the transaction has ended, and a result that is no error is committed."""
        if not self.committed.done():
            assert self.result is not None
            self.committed.set_result(self.result)


class LoopConnection:
    """One connection, read by the running loop. `on_close(self)` is called once, when it is closed or found broken."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], on_close: Callable[[LoopConnection], None]) -> None:
        self.is_open = True
        self.users = 0
        """How many callers have taken it: two when one waits for its commit and the next is sent behind it."""
        self.is_silent = False
        """Whether the server missed its deadline."""
        self._connection, self._pg, self._on_close = connection, connection.pgconn, on_close
        self._loop = asyncio.get_running_loop()
        # A duplicate file descriptor: libpq closes its own by itself, and another connection may then get that number.
        self._socket = os.dup(self._pg.socket)
        self._sent: deque[_Sent] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        """The timer after which the server counts as gone; it is for the oldest statement in flight, None without one."""
        self._types: dict[bytes, list[TypeNumbers]] = {}
        """Parameter types by statement text: so another statement of the same name is refused by the server, not taken for the first."""
        self._prepares, self._is_preparing = not behind_pooler(), False
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._loop.add_reader(self._socket, self._readable)

    @property
    def only_commits(self) -> bool:
        """Whether a statement sent now would execute at once, or right after one pending commit."""
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
        """Execute the statement and return its committed results. Raises `psycopg.Error`.

        `executed` is called when the results arrive: before the commit, or with it for a single row or behind a pooler.
        """
        types = self._types.get(statement.sql)
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
                self._pg.send_flush_request()  # makes the answer arrive before the commit; else both arrive together
        return statement.decode(await self._committed(executed))

    async def refuse_pooler(self) -> None:
        """Raise `UndeclaredPooler` when an undeclared pooler answers, and `psycopg.Error` when no server answers."""
        if behind_pooler():
            return
        with self._closed_if_broken():
            self._pg.send_query_params(SERVER_PROCESS.encode(), None)
        told = (await self._committed()).get_value(0, 0) or b""
        refuse_pooler(self._connection, (int(told),) if told.isdigit() else None)

    @contextlib.contextmanager
    def _closed_if_broken(self) -> Iterator[None]:
        """Close the connection when libpq cannot send in the block: no later read would report the failure."""
        try:
            yield
        except psycopg.Error as error:
            self.close(error)
            raise

    async def _introduce(self, statement: BatchStatement[Any, Any]) -> list[TypeNumbers]:
        """Resolve the parameter types of a statement that is new to this connection, and prepare it unless behind a pooler."""
        types = [known_type(name) or await self._look_up_type(name) for name in statement.types]
        if self._prepares:
            with self._closed_if_broken():
                self._pg.send_prepare(statement.name.encode(), statement.sql, [oid for oid, _ in types])
            await self._committed()
        self._types[statement.sql] = types
        return types

    async def _look_up_type(self, name: str) -> TypeNumbers:
        with self._closed_if_broken():
            self._pg.send_query_params(TYPE_NUMBERS, [name.encode()])
        return found_type(await self._committed())

    async def _committed(self, executed: Callable[[], None] | None = None) -> pq.abc.PGresult:
        """Send a sync after the statement just sent, and return the statement's result once it is committed.

        Raises `psycopg.Error`. The connection is closed when the server works on it for SILENCE_SECONDS unanswered.
        """
        with self._closed_if_broken():
            self._pg.pipeline_sync()
        sent = _Sent(self._loop.create_future(), executed)
        self._sent.append(sent)
        if len(self._sent) == 1:
            self._begin_deadline()
        self._flush()
        try:
            return raise_if_failed(await sent.committed)
        except asyncio.CancelledError:
            self.close()  # no statement may be sent behind one whose caller is gone
            raise

    def _begin_deadline(self) -> None:
        self._deadline = self._loop.call_later(database.SILENCE_SECONDS, self._fell_silent)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _flush(self) -> None:
        """Send what the socket accepts now, and the rest when it becomes writable."""
        try:
            if self._pg.flush():
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self.close(error)

    def _readable(self) -> None:
        """Read what arrived: results, and the ends of transactions, which wake the callers that wait for them."""
        try:
            self._pg.consume_input()
            was_nothing = False  # None comes once after each statement, and twice in a row when the connection is lost
            while self._sent and not self._pg.is_busy():
                result = self._pg.get_result()
                if result is None:
                    if was_nothing:
                        break
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._sent.popleft().ended()
                    self._end_deadline()
                    if self._sent:
                        self._begin_deadline()  # only now the server begins with the statement sent behind it
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
        """Close the connection now; callers that wait for an answer get `error`, or else an `OperationalError`."""
        if not self.is_open:
            return
        self.is_open = False
        self._end_deadline()
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
