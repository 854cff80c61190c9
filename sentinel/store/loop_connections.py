"""Connections that an event loop itself reads: a batch is sent and answered without a thread in between.

Opened by psycopg (TLS, SCRAM, several hosts), then used through libpq's non-blocking calls and its pipeline mode: each statement
is followed by its own sync, which commits it, and another may be sent while one that is executed waits for its commit. Prepared
once a connection, and not at all behind a transaction pooler.
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
        self._waiting = 0
        """How many wait for a place."""
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
        # Where somebody waits for a place, whoever came behind a commit would keep the connection from ever being given back.
        if behind and not self._waiting:
            for connection in self._all:
                if connection.users and connection.only_commits:
                    connection.users += 1
                    return connection
        if self._places.locked():
            await self._wait_for_place()
        else:  # without a time limit, which costs more than the rest of this
            await self._places.acquire()
        try:
            connection = self._free.pop() if self._free else await self._open()
        except BaseException:
            self._places.release()
            raise
        connection.users = 1
        return connection

    async def _wait_for_place(self) -> None:
        """Take a place in the order of asking. Raises `DatabaseUnreachable` after FREE_WAIT_SECONDS."""
        self._waiting += 1
        try:
            await asyncio.wait_for(self._places.acquire(), FREE_WAIT_SECONDS)
        except TimeoutError:
            raise DatabaseUnreachable("every database connection is busy") from None
        finally:
            self._waiting -= 1

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
        self._deadline: asyncio.TimerHandle | None = None
        """When the server is taken for gone: that of the first of those sent, where there is one."""
        self._types: dict[bytes, list[TypeNumbers]] = {}
        """Of each statement by its text: another of the same name is refused by the server, and never answered as the first."""
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
        self._types[statement.sql] = types
        return types

    async def _look_up_type(self, name: str) -> TypeNumbers:
        with self._closed_if_broken():
            self._pg.send_query_params(TYPE_NUMBERS, [name.encode()])
        return found_type(await self._committed())

    async def _committed(self, executed: Callable[[], None] | None = None) -> pq.abc.PGresult:
        """The answer to what was just handed over, once it is committed.

        Raises `psycopg.Error`; after SILENCE_SECONDS in which the server is at it the connection is closed.
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
            self.close()  # nobody is to be sent behind a statement that nobody waits for
            raise

    def _begin_deadline(self) -> None:
        self._deadline = self._loop.call_later(database.SILENCE_SECONDS, self._fell_silent)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

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
                    self._end_deadline()
                    if self._sent:
                        self._begin_deadline()  # only now is the server at what was sent behind it
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
