"""PostgreSQL sessions of a test process that stay open from test to test, together with their kept database.

A new session reads the catalogs, compiles each function and plans each statement anew, which takes PostgreSQL longer than what most
tests ask. So what a pool or an event loop closes here is put aside, where nothing is left to be undone in it, and serves whoever
opens one of the same address in a later test: with its settings as at its start, with nothing but prepared statements kept.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from sentinel.store import loop_connections
from sentinel.store.database import Pool, PooledConnection, behind_pooler, was_ended
from sentinel.store.loop_connections import LoopConnection

MOST_OF_ONE = 24
MOST_OF_ALL = 96
"""So many sessions are kept of one database, and of all together: a server of tests lets 216 in."""
AS_AT_THE_START = b"reset all; reset role; unlisten *; close all; discard sequences; select pg_stat_force_next_flush()"
"""The last for `kept_databases`: what a session wrote is counted there at once."""


OWN, POOLED, OF_LOOP, EMPTYING = "own", "pooled", "of a loop", "emptying"
"""Whose session it is: each prepares other statements, under names of its own."""
WITHOUT_TRIGGERS = "-c session_replication_role=replica"


@dataclass(slots=True, eq=False)
class _Session:
    whose: str
    address: str
    pgconn: Any
    prepared: Any
    """What the client knows of its prepared statements."""


class KeptSessions:
    """Sessions by their address. What is given back is handed out again only after `make_ready`."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._given: defaultdict[str, list[_Session]] = defaultdict(list)
        self._ready: defaultdict[str, list[_Session]] = defaultdict(list)
        self._kept: set[str] = set()

    def keep(self, database: str) -> None:
        """Keep the sessions of this database from now on."""
        self._kept.add(database)

    def give(self, whose: str, address: str, pgconn: Any, prepared: Any) -> bool:
        """Whether it is kept; False where the session is to be closed."""
        database = _database(address)
        if database not in self._kept or not _is_idle(pgconn):
            return False
        with self._changing:
            if self._count(database) >= MOST_OF_ONE or sum(map(self._count, self._kept)) >= MOST_OF_ALL:
                if not (ready := self._ready.get(database)):
                    return False
                # What nobody took for the longest: sessions with a test's own limits would keep all others out.
                ready.pop(0).pgconn.finish()
            self._given[database].append(_Session(whose, address, pgconn, prepared))
        return True

    def take(self, whose: str, address: str) -> _Session | None:
        """The newest of this address that is ready."""
        with self._changing:
            ready = self._ready.get(_database(address), [])
            for session in ready[::-1]:
                if (session.whose, session.address) == (whose, address):
                    ready.remove(session)
                    if not was_ended(session.pgconn.socket):
                        return session
                    session.pgconn.finish()
        return None

    def make_ready(self, database: str) -> tuple[list[int], list[int]]:
        """Set all that were given back as at their start.

        Returns the numbers of the processes of all that may be handed out, and of those that were closed instead.
        """
        with self._changing:
            given, ready, closed = self._given.pop(database, []), self._ready[database], []
            for session in given:
                if _is_reset(session.pgconn):
                    ready.append(session)
                else:
                    closed.append(session.pgconn.backend_pid)
                    session.pgconn.finish()
            return [session.pgconn.backend_pid for session in ready], closed

    def _count(self, database: str) -> int:
        return len(self._given.get(database, ())) + len(self._ready.get(database, ()))

    def forget(self, database: str) -> None:
        """Close them, and keep none of it any more: for a test that changes what new sessions begin with."""
        with self._changing:
            self._kept.discard(database)
            for session in self._given.pop(database, []) + self._ready.pop(database, []):
                session.pgconn.finish()

    @contextmanager
    def emptying(self, address: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection that prepares everything and that no trigger of ours sees, for a block that leaves the session as it was or raises.

        Its sessions serve nothing else: PostgreSQL forgets each plan of one in which the triggers are turned off or on.
        """
        session = self.take(EMPTYING, address)
        connection = (
            psycopg.connect(address, autocommit=True, options=WITHOUT_TRIGGERS)
            if session is None
            else _resumed(psycopg.Connection, session)
        )
        connection.prepare_threshold = 0
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._changing:
            self._ready[_database(address)].append(_Session(EMPTYING, address, *_taken_from(connection)))


class _Kept(psycopg.Connection[Any]):
    """A connection of a test's own."""

    def close(self) -> None:
        """Put its session aside, where it can be."""
        _put_aside(OWN, self)
        super().close()


def connect(address: str) -> psycopg.Connection[Any]:
    """A test's own autocommit connection, which prepares only what it is told to."""
    session = SESSIONS.take(OWN, address)
    connection = _Kept.connect(address, autocommit=True) if session is None else _resumed(_Kept, session)
    connection.address, connection.prepare_threshold = address, NEVER_BY_ITSELF
    return connection


NEVER_BY_ITSELF = 1 << 30
SESSIONS = KeptSessions()
_CLOSED = pq.PGconn.connect_start(b"host=/nowhere")
_CLOSED.finish()


def keep_sessions() -> None:
    """Change this process so; before it connects."""
    Pool._open = _open_pooled  # type: ignore[method-assign]
    PooledConnection.close = _close_pooled  # type: ignore[method-assign]
    loop_connections._OfLoop._open = _open_of_loop  # type: ignore[method-assign]
    LoopConnection.close = _close_of_loop  # type: ignore[method-assign]


@functools.lru_cache(4096)
def _database(address: str) -> str:
    return str(conninfo_to_dict(address).get("dbname", ""))


def _is_idle(pgconn: Any) -> bool:
    return bool(pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status == pq.TransactionStatus.IDLE)


def _is_reset(pgconn: Any) -> bool:
    """Set a session as at its start; False where that failed, or it began while a test had its database read-only."""
    try:
        is_reset = bool(pgconn.exec_(AS_AT_THE_START).status == pq.ExecStatus.TUPLES_OK)
    except psycopg.Error:
        return False
    return is_reset and pgconn.parameter_status(b"default_transaction_read_only") != b"on"


def _taken_from(connection: psycopg.BaseConnection[Any]) -> tuple[Any, Any]:
    """Its session and what it prepared; the connection is closed afterwards."""
    taken = connection.pgconn, connection._prepared
    connection.pgconn, connection._closed = _CLOSED, True
    return taken


def _put_aside(whose: str, connection: Any) -> None:
    """Take its session from a connection that is to be closed, where that is kept. One without an address stands behind a pooler."""
    address = getattr(connection, "address", "")
    if address and SESSIONS.give(whose, address, connection.pgconn, connection._prepared):
        _taken_from(connection)


def _resumed(kind: type[Any], session: _Session) -> Any:
    connection = kind(session.pgconn)
    connection._autocommit, connection._prepared = True, session.prepared
    return connection


_pool_open, _pooled_close = Pool._open, PooledConnection.close
_loop_open, _loop_close = loop_connections._OfLoop._open, LoopConnection.close


def _open_pooled(pool: Pool, conninfo: str, **how: Any) -> PooledConnection:
    if behind_pooler():
        return _pool_open(pool, conninfo, **how)
    session = SESSIONS.take(POOLED, conninfo)
    if session is None:
        opened = _pool_open(pool, conninfo, **how)
    else:
        opened = _resumed(PooledConnection, session)
        opened.watch, opened.prepare_threshold = pool.watch, how["prepare_threshold"]
    opened.address = conninfo  # type: ignore[attr-defined]
    return opened


def _close_pooled(connection: PooledConnection) -> None:
    _put_aside(POOLED, connection)
    _pooled_close(connection)


async def _open_of_loop(self: Any) -> LoopConnection:
    if behind_pooler():
        return await _loop_open(self)
    session = SESSIONS.take(OF_LOOP, self._conninfo)
    if session is None:
        made = await _loop_open(self)
    else:
        made = LoopConnection(psycopg.AsyncConnection(session.pgconn), self._forget)
        made._types = session.prepared
        self._all.add(made)
    made.address = self._conninfo  # type: ignore[attr-defined]
    return made


def _close_of_loop(connection: LoopConnection, error: psycopg.Error | None = None) -> None:
    address, pgconn = getattr(connection, "address", ""), connection._pg
    if address and connection.is_open and error is None and _leaves_pipeline(connection):
        if SESSIONS.give(OF_LOOP, address, pgconn, connection._types):
            connection._pg = connection._connection.pgconn = _CLOSED
            connection._connection._closed = True
    _loop_close(connection, error)


def _leaves_pipeline(connection: LoopConnection) -> bool:
    """Whether it could be taken out of pipeline mode: nobody waits for an answer, and none is to come."""
    if connection._sent or connection._is_preparing:
        return False
    if not connection._loop.is_closed():
        connection._loop.remove_reader(connection._socket)
    try:
        connection._pg.exit_pipeline_mode()
    except psycopg.Error:
        return False
    connection._pg.nonblocking = 0
    return True
