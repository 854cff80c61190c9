"""Connecting: which role a program takes, with which limits, and a pool of such connections.

A program connects with the login of its URL and takes its own role at once (`SET ROLE` as a start-up
option). Behind a pooler that hands one server connection to many clients (`SENTINEL_DATABASE_POOLER`) nothing is said at
the start and nothing is prepared: role and limits stand on the login. Whether they arrived is asked by `safety.py`.
Statements run at READ COMMITTED, because locks are taken first and read after (`schema/authority/decisions.sql`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sentinel.core.errors import EngineUnavailable, SentinelError

AUTHORITY, WORKER, CONSOLE, BOARD = "sentinel_authority", "sentinel_worker", "sentinel_console", "board_reader"
ORDERS, EXPORTER, PUBLIC = "sentinel_orders", "sentinel_exporter", "sentinel_public"
OWNER = "sentinel_owner"

POOLER = "SENTINEL_DATABASE_POOLER"
POOLERS = ("none", "transaction")
POOLER_HELP = (
    "`transaction` behind pgbouncer or the like in transaction pooling: nothing is prepared, and role and time limits are the"
    " login's own; else `none`."
)

STATEMENT_TIMEOUT_MS = 5000
LOCK_TIMEOUT_MS = 2000
IDLE_TIMEOUT_MS = 10000
"""The longest that each may be; `deploy/roles.sql` sets the same on the programs' roles."""
SILENCE_SECONDS = 7.0
"""After this a server that should have answered or given up by itself (statement timeout) is taken for gone."""
LONG_STATEMENT_SECONDS = 300
LONG_STATEMENT_TIMEOUT = f"set local statement_timeout = '{LONG_STATEMENT_SECONDS}s'"
"""Looking at everything that was ever recorded takes longer than a program's statement may; within one transaction."""


def with_role(url: str, role: str, *, application_name: str = "") -> str:
    """The connection string for a program: `url`'s server and login, the program's role and time limits.

    Behind a transaction pooler without role and limits: those are the login's own. Raises `InvalidAddress` when the URL is not one PostgreSQL understands,
    or checks the server against a file that is not there.
    """
    given = parts_to_connect(url)
    merged: dict[str, Any] = {"connect_timeout": "3", **given}
    if not behind_pooler():
        merged["options"] = f"{given.get('options') or ''} {_options(given.get('user'), role)}".strip()
    if application_name:
        merged["application_name"] = application_name
    return make_conninfo(**{k: v for k, v in merged.items() if v is not None})


class InvalidAddress(SentinelError):
    """A database address that is none: it is mended and not waited for. Its text tells no secret."""

    code = "invalid-database-address"

    def __init__(self, why: str = "") -> None:
        told = f": {why}" if why else ""
        super().__init__(f"not a PostgreSQL address, such as postgresql://login:secret@host:5432/database{told}")


def parts_of(url: str) -> dict[str, Any]:
    """The parts of an address, a URL or `name=value` pairs. Raises `InvalidAddress` where it is none."""
    try:
        given = dict(conninfo_to_dict(url.replace("postgresql+psycopg://", "postgresql://", 1)))
    except psycopg.ProgrammingError as error:
        # Its text may be the address itself.
        why = str(error).strip()
        raise InvalidAddress(why if why.startswith("invalid URI query parameter") else "") from None
    for port in map(str.strip, str(given.get("port") or "").split(",")):
        # The client's library looks at it only when it connects, and is then as silent as nobody there.
        if port and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
            # Not told: without an @ what stands here is the password.
            raise InvalidAddress("its port is no number from 1 to 65535")
    return given


class NoRootCertificate(InvalidAddress):
    """The address has the server's certificate checked against a file that this account cannot read: nobody can connect."""

    def __init__(self, mode: str, file: str) -> None:
        SentinelError.__init__(
            self,
            f"the database's address says sslmode={mode}, and there is no {file} that this account can read: add the file of"
            " the authorities that you trust, as &sslrootcert=/etc/ssl/certs/ca-certificates.crt (the system's) or your own"
            " authority's",
        )


def parts_to_connect(url: str) -> dict[str, Any]:
    """`parts_of` an address that is about to be connected to. Raises `NoRootCertificate`, too."""
    given = parts_of(url)
    # What the address leaves out libpq reads from its own environment variables, and from a service's file.
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in psycopg.pq.Conninfo.get_defaults()}
    asked = {
        name: str(given.get(name) or defaults.get(name) or "") for name in ("host", "sslmode", "sslrootcert", "service")
    }
    # Over a local socket there is no TLS.
    over_network = bool(given.get("hostaddr")) or not (asked["host"] or "/").startswith("/")
    if asked["sslmode"] in ("verify-ca", "verify-full") and over_network and not asked["service"]:
        file = asked["sslrootcert"] or os.path.expanduser("~/.postgresql/root.crt")  # noqa: PTH111 - a user without a home has none
        if file != "system" and not os.access(file, os.R_OK):
            raise NoRootCertificate(asked["sslmode"], file)
    return given


def _options(login: object, role: str) -> str:
    options = (
        f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS}"
        f" -c idle_in_transaction_session_timeout={IDLE_TIMEOUT_MS} -c default_transaction_isolation=read\\ committed"
        " -c timezone=UTC"
    )
    return options if login == role else f"{options} -c role={role}"


def behind_pooler() -> bool:
    """Whether a transaction pooler is declared to stand before the database; read from the environment by every program."""
    return os.environ.get(POOLER) == "transaction"


class DatabaseUnreachable(EngineUnavailable):
    """No connection, or one on which nobody answers: what it asks makes no difference."""


class UndeclaredPooler(DatabaseUnreachable):
    """A pooler answers in PostgreSQL's place and nobody said so: start-up options are lost, and a prepared statement is another's."""

    def __init__(self) -> None:
        super().__init__(f"a pooler stands before PostgreSQL: set {POOLER}=transaction")


SERVER_PROCESS = "select pg_backend_pid()"
"""Asked of each new connection: a pooler names another process at the start than the one that answers."""


def open_connection(
    conninfo: str,
    *,
    prepare: int | None = 5,
    connect: Callable[..., psycopg.Connection[Any]] = psycopg.connect,
) -> psycopg.Connection[Any]:
    """An autocommit connection that prepares a statement at its `prepare`-th use, and never behind a transaction pooler.

    Raises `UndeclaredPooler`, before anything is asked that a pooler would spoil. `connect` is called as `psycopg.connect` is.
    """
    prepare = None if behind_pooler() else prepare
    with pooler_noticed():
        opened = connect(conninfo, autocommit=True, prepare_threshold=prepare)
    try:
        if not behind_pooler():
            refuse_pooler(opened, opened.execute(SERVER_PROCESS, prepare=False).fetchone())
    except BaseException:
        opened.close()
        raise
    return opened


@contextlib.contextmanager
def pooler_noticed() -> Iterator[None]:
    """Connect in the block: where our start-up options are refused, raises `UndeclaredPooler`, as PostgreSQL itself takes them."""
    try:
        yield
    except psycopg.OperationalError as error:
        if not behind_pooler() and "unsupported startup parameter" in str(error):
            raise UndeclaredPooler from error
        raise


def refuse_pooler(connection: psycopg.BaseConnection[Any], answered: tuple[Any, ...] | None) -> None:
    """Raise `UndeclaredPooler` unless the process that answered `SERVER_PROCESS` is the one the connection began with."""
    if answered != (connection.info.backend_pid,):
        raise UndeclaredPooler


def describe(url: str) -> str:
    """Where an address points, without login and password: for messages."""
    try:
        given = parts_of(url)
    except InvalidAddress:
        return "an address that is none"
    host = given.get("host") or given.get("hostaddr") or "a local socket"
    port = f":{given['port']}" if given.get("port") and not str(host).startswith("/") else ""
    return f"{host}{port}/{given.get('dbname') or ''}"


def same_database(one: str, other: str) -> bool:
    """Whether two addresses name one database, whatever their logins; a host under two names counts as two.

    An address that PostgreSQL does not understand is nobody's: whoever connects to it says so.
    """
    try:
        return _place(one) == _place(other)
    except InvalidAddress:
        return True


def _place(url: str) -> tuple[str, str, str]:
    given = parts_of(url)
    host = str(given.get("host") or given.get("hostaddr") or "")
    name = given.get("dbname") or given.get("user") or ""
    return {"localhost": "127.0.0.1", "::1": "127.0.0.1"}.get(host, host), str(given.get("port") or "5432"), str(name)


@dataclass(slots=True, eq=False)
class QueryDeadline:
    """One wait for the server's answer; `over` once it was ended by us."""

    connection: psycopg.Connection[Any]
    until: float
    over: bool = False


Answer = TypeVar("Answer")


class PooledConnection(psycopg.Connection[Any]):
    """A connection on which every answer of the server has a deadline: whoever is handed one need not see to it.

    A statement that is not answered in time raises `DatabaseUnreachable`, and the connection is broken.
    """

    watch: Callable[[psycopg.Connection[Any], float], AbstractContextManager[QueryDeadline]]
    """`Pool.watch` of its pool."""
    patient_seconds = 0.0
    """How much longer than SILENCE_SECONDS it waits for an answer."""

    def wait(self, gen: PQGen[Answer], *limits: Any, **named: Any) -> Answer:
        """All that psycopg asks on an open connection waits here: statements, fetching, beginning and ending transactions."""
        with self.watch(self, SILENCE_SECONDS + self.patient_seconds) as patience:
            try:
                return super().wait(gen, *limits, **named)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if patience.over:
                    raise DatabaseUnreachable("the database fell silent") from error
                raise


class Pool:
    """A small pool of autocommit connections. One function call is one transaction, so nothing here begins one.

    `connection()` waits at most `wait_seconds` for a free one and raises `EngineUnavailable` when there is
    none or the server cannot be reached. What is asked on it is answered within SILENCE_SECONDS (longer in a `long_transaction`) or raises
    `DatabaseUnreachable`. A connection that broke is thrown away, so the pool heals by itself.
    Why it is not psycopg_pool: `docs/decisions/0047-own-connection-pool.md`.
    """

    def __init__(self, conninfo: str, *, size: int, wait_seconds: float = 2.0) -> None:
        self._conninfo = conninfo
        self._wait_seconds = wait_seconds
        self.size = size
        self._free: queue.LifoQueue[psycopg.Connection[Any] | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._closed = threading.Event()
        self.closes_with: list[Callable[[], None]] = []
        """Called by `close`: what else belongs to this program's connections."""
        self._waiting: set[QueryDeadline] = set()
        self._watcher: threading.Thread | None = None
        self._watching = threading.Lock()

    @property
    def in_use(self) -> int:
        """Connections handed out now."""
        return self.size - self._free.qsize()

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A healthy autocommit connection for the block."""
        try:
            held = self._free.get(timeout=self._wait_seconds)
        except queue.Empty:
            raise DatabaseUnreachable("every database connection is busy") from None
        try:
            if held is not None and not held.closed and was_ended(held.fileno()):
                held.close()  # before anything is sent on it: else it would not be known whether that was done
            if held is None or held.closed:
                held = self._connect()
            yield held
        except psycopg.OperationalError:
            held = self._discard_if_broken(held)
            raise
        finally:
            if held is not None and (held.closed or self._closed.is_set()):
                held.close()
                held = None
            self._free.put(held)

    @contextlib.contextmanager
    def long_transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction for the block, in which a statement may take LONG_STATEMENT_SECONDS: for commands that look at everything."""
        with self.connection() as connection:
            assert isinstance(connection, PooledConnection)
            connection.patient_seconds = LONG_STATEMENT_SECONDS
            try:
                with connection.transaction():
                    connection.execute(LONG_STATEMENT_TIMEOUT.encode())
                    yield connection
            finally:
                connection.patient_seconds = 0.0

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            # Functions are called thousands of times by the same text: prepare at the first call, not the fifth.
            return open_connection(self._conninfo, prepare=0, connect=self._open)
        except psycopg.Error as error:
            raise DatabaseUnreachable(f"the database cannot be reached: {first_line(error)}") from error

    def _open(self, conninfo: str, **how: Any) -> PooledConnection:
        opened = PooledConnection.connect(conninfo, **how)
        opened.watch = self.watch
        return opened

    @contextlib.contextmanager
    def watch(self, connection: psycopg.Connection[Any], seconds: float) -> Iterator[QueryDeadline]:
        """What the block asks on `connection` is answered within `seconds`, or else the connection is ended.

        The server's own time limits end with the server or the way to it; without this a silent one is waited for always.
        """
        patience = QueryDeadline(connection, time.monotonic() + seconds)
        with self._watching:
            if self._watcher is None:
                watcher = threading.Thread(target=self._end_silence, name="database-watch", daemon=True)
                watcher.start()  # raises where there is no room for a thread: then nothing is asked, and the next one tries again
                self._watcher = watcher
            self._waiting.add(patience)
        try:
            yield patience
        finally:
            with self._watching:
                self._waiting.discard(patience)

    def _end_silence(self) -> None:
        while not self._closed.wait(0.5):
            now = time.monotonic()
            with self._watching:
                for patience in [one for one in self._waiting if one.until < now]:
                    patience.over = True
                    self._waiting.discard(patience)
                    # Closing is the waiting thread's; a shut socket only wakes it up.
                    with contextlib.suppress(OSError, psycopg.Error):
                        with socket.socket(fileno=os.dup(patience.connection.fileno())) as line:
                            line.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _discard_if_broken(held: psycopg.Connection[Any] | None) -> psycopg.Connection[Any] | None:
        if held is not None and held.broken:
            held.close()
            return None
        return held

    def close(self) -> None:
        """Close what is idle now and the rest as it comes back."""
        self._closed.set()
        for close in self.closes_with:
            close()
        taken = 0
        with contextlib.suppress(queue.Empty):
            while True:
                idle = self._free.get_nowait()
                taken += 1
                if idle is not None:
                    idle.close()
        # Given back only now: what goes in first comes out last, so one put between would hide the rest.
        for _ in range(taken):
            self._free.put(None)


def was_ended(socket_number: int) -> bool:
    """Whether the server has sent something to a connection that asks for nothing: as good as always that it is over."""
    poll = select.poll()
    poll.register(socket_number, select.POLLIN)
    return bool(poll.poll(0))


def first_line(error: BaseException) -> str:
    """The first line of a driver's message: enough for a person, nothing of the statement."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
