"""Database connections: the role and time limits that a program connects with, and a pool of such connections.

A program connects with the login of its URL and takes its own role at once (`SET ROLE` as a start-up option). Behind a
transaction pooler (`SENTINEL_DATABASE_POOLER`), which shares one server connection among many clients, no start-up
options are sent and no statement is prepared: role and limits are set on the login itself. `safety.py` checks that they
are in effect. Statements run at READ COMMITTED, because functions take their locks first and read afterwards
(`schema/authority/decisions.sql`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
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
    "`transaction` behind a pooler such as pgbouncer in transaction pooling mode: no statement is prepared, and the login itself"
    " must have the role and the time limits; else `none`."
)

STATEMENT_TIMEOUT_MS = 5000
LOCK_TIMEOUT_MS = 2000
IDLE_TIMEOUT_MS = 10000
"""Upper bounds in milliseconds; `deploy/roles.sql` sets the same values on the programs' roles."""
CONNECT_SECONDS = "3"
"""How long to wait for a connection, where the address does not say: psycopg's own default is more than two minutes."""
KEEPALIVES: Mapping[str, str] = MappingProxyType({
    "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "6", "tcp_user_timeout": "90000",
})  # fmt: skip
"""How the system finds a server that is gone while we wait without a deadline of our own, as a migration and the doctor do for
a statement of minutes, and keeps an idle connection known to a firewall. Its own time is two hours."""
SILENCE_SECONDS = 7.0
"""How long to wait for an answer; longer than the statement timeout, so a server silent for this long counts as gone."""
LONG_STATEMENT_SECONDS = 300
LONG_STATEMENT_TIMEOUT = f"set local statement_timeout = '{LONG_STATEMENT_SECONDS}s'"
"""Raises the statement timeout for one transaction, for statements that scan everything ever recorded."""


def with_role(url: str, role: str, *, application_name: str = "") -> str:
    """The connection string for a program: `url`'s server and login, the program's role and time limits.

    Behind a transaction pooler role and limits are left out, because they are set on the login. Raises `InvalidAddress`
    for a malformed URL, and `NoRootCertificate` when it verifies the server against a file that cannot be read.
    """
    given = parts_to_connect(url)
    merged: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, **KEEPALIVES, **given}
    if not behind_pooler():
        merged["options"] = f"{given.get('options') or ''} {_options(given.get('user'), role)}".strip()
    if application_name:
        merged["application_name"] = application_name
    return make_conninfo(**{k: v for k, v in merged.items() if v is not None})


class InvalidAddress(SentinelError):
    """A malformed database address: it must be corrected, a retry cannot help. The message contains no secret."""

    code = "invalid-database-address"

    def __init__(self, why: str = "") -> None:
        told = f": {why}" if why else ""
        super().__init__(f"not a PostgreSQL address, such as postgresql://login:secret@host:5432/database{told}")


def parts_of(url: str) -> dict[str, Any]:
    """The parts of an address, which is a URL or `name=value` pairs. Raises `InvalidAddress` when it is malformed."""
    try:
        given = dict(conninfo_to_dict(url.replace("postgresql+psycopg://", "postgresql://", 1)))
    except psycopg.ProgrammingError as error:
        # The driver's message may quote the address, with the password in it.
        why = str(error).strip()
        raise InvalidAddress(why if why.startswith("invalid URI query parameter") else "") from None
    for port in map(str.strip, str(given.get("port") or "").split(",")):
        # libpq checks the port only when it connects, and a bad one then looks like an unreachable server.
        if port and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
            # The value is not quoted: in a URL without an @ the password is parsed as the port.
            raise InvalidAddress("its port must be a number from 1 to 65535")
    for host in str(given.get("host") or "").split(","):
        # The driver looks a name up before it connects, and a name that cannot be encoded is then no error of the driver's.
        if not host.startswith("/") and not given.get("hostaddr"):
            try:
                host.encode("idna")
            except UnicodeError:
                raise InvalidAddress("its host has an empty or too long part between two dots") from None
    return given


class NoRootCertificate(InvalidAddress):
    """The address verifies the server's certificate against a file that this account cannot read: no connection is possible."""

    def __init__(self, mode: str, file: str) -> None:
        SentinelError.__init__(
            self,
            f"the database's address has sslmode={mode}, but this account cannot read {file}: add the file of the certificate"
            " authorities that you trust to the address, as &sslrootcert=/etc/ssl/certs/ca-certificates.crt (the system's) or"
            " your own",
        )


def parts_to_connect(url: str) -> dict[str, Any]:
    """Return `parts_of` an address that is about to be used. Raises `InvalidAddress`, and its subclass `NoRootCertificate`."""
    given = parts_of(url)
    # libpq fills in what the address leaves out from its own environment variables and from a service file.
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
    """Whether the environment declares a transaction pooler in front of the database; the same for every program."""
    return os.environ.get(POOLER) == "transaction"


class DatabaseUnreachable(EngineUnavailable):
    """There is no connection, or the server does not answer on it, or only reads: any other statement would fail the same way."""


class UndeclaredPooler(DatabaseUnreachable):
    """A pooler answers in PostgreSQL's place without being declared: it drops start-up options and mixes up prepared statements."""

    def __init__(self) -> None:
        super().__init__(f"a connection pooler is in front of PostgreSQL: set {POOLER}=transaction")


READ_ONLY = psycopg.errors.ReadOnlySqlTransaction
"""What a write raises on a read-only connection. Another connection may write: this one began while the database was read-only, or
leads to a replica. So it is closed, and the next use opens another."""

SERVER_PROCESS = "select pg_backend_pid()"
"""Run on each new connection to detect a pooler, which announces another backend pid at start-up than the one that answers."""


def open_connection(
    conninfo: str,
    *,
    prepare: int | None = 5,
    connect: Callable[..., psycopg.Connection[Any]] = psycopg.connect,
) -> psycopg.Connection[Any]:
    """An autocommit connection that prepares a statement after `prepare` uses, and never behind a transaction pooler.

    0 prepares at the first use, None never. Raises `UndeclaredPooler` before any statement runs that a pooler would
    break. `connect` takes the arguments of `psycopg.connect`.
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
    """Raise `UndeclaredPooler` when connecting in the block fails on our start-up options, which PostgreSQL itself accepts."""
    try:
        yield
    except psycopg.OperationalError as error:
        if not behind_pooler() and "unsupported startup parameter" in str(error):
            raise UndeclaredPooler from error
        raise


def refuse_pooler(connection: psycopg.BaseConnection[Any], answered: tuple[Any, ...] | None) -> None:
    """Raise `UndeclaredPooler` unless `answered`, the row for `SERVER_PROCESS`, has the backend pid the connection began with."""
    if answered != (connection.info.backend_pid,):
        raise UndeclaredPooler


def describe(url: str) -> str:
    """Where an address points, without login and password: for messages."""
    try:
        given = parts_of(url)
    except InvalidAddress:
        return "an invalid address"
    host = given.get("host") or given.get("hostaddr") or "a local socket"
    port = f":{given['port']}" if given.get("port") and not str(host).startswith("/") else ""
    return f"{host}{port}/{given.get('dbname') or ''}"


def same_database(one: str, other: str) -> bool:
    """Whether two addresses name one database, whatever their logins; a host under two names counts as two.

    True for a malformed address too, so that the error is raised where it is connected to.
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
    """The deadline of one wait for the server: `until` by the monotonic clock; `over` once we have cut the connection."""

    connection: psycopg.Connection[Any]
    until: float
    over: bool = False


Answer = TypeVar("Answer")


class PooledConnection(psycopg.Connection[Any]):
    """A connection that enforces a deadline on every answer of the server; its users need no timeout of their own.

    A statement that is not answered in time raises `DatabaseUnreachable` and breaks the connection.
    """

    watch: Callable[[psycopg.Connection[Any], float], AbstractContextManager[QueryDeadline]]
    """`Pool.watch` of the pool that opened it."""
    patient_seconds = 0.0
    """Seconds beyond SILENCE_SECONDS that it waits for an answer."""

    def wait(self, gen: PQGen[Answer], *limits: Any, **named: Any) -> Answer:
        """Wait under the deadline; psycopg calls this for statements, fetching, and beginning and ending transactions."""
        with self.watch(self, SILENCE_SECONDS + self.patient_seconds) as deadline:
            try:
                return super().wait(gen, *limits, **named)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if deadline.over:
                    raise DatabaseUnreachable("the database stopped answering") from error
                raise


class Pool:
    """A small pool of autocommit connections. A call of a schema function is one transaction, so the pool begins none.

    `connection()` waits at most `wait_seconds` for a free one and raises `EngineUnavailable` when there is
    none or the server cannot be reached. A statement on it is answered within SILENCE_SECONDS (longer in a
    `long_transaction`) or raises `DatabaseUnreachable`. A broken connection is discarded and replaced at the next use,
    and so is one that refused a write because it is read-only.
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
        """Callbacks that `close` runs, to close the program's other connections together with the pool."""
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
                held.close()  # before a statement is sent on it: afterwards nobody could tell whether it was executed
            if held is None or held.closed:
                held = self._connect()
            yield held
        except psycopg.OperationalError:
            held = self._discard_if_broken(held)
            raise
        except READ_ONLY:
            if held is not None:
                held.close()
            raise
        finally:
            if held is not None and (held.closed or self._closed.is_set()):
                held.close()
                held = None
            self._free.put(held)

    @contextlib.contextmanager
    def long_transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction for the block, whose statements may take LONG_STATEMENT_SECONDS: for commands that scan whole tables."""
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
        """Cut `connection` unless the block ends within `seconds`.

        The server's own timeouts have no effect when the server or the network is gone: without this deadline the wait
        would never end.
        """
        deadline = QueryDeadline(connection, time.monotonic() + seconds)
        with self._watching:
            if self._watcher is None:
                watcher = threading.Thread(target=self._end_silence, name="database-watch", daemon=True)
                watcher.start()  # raises when no thread can start: nothing is sent then, and the next call tries again
                self._watcher = watcher
            self._waiting.add(deadline)
        try:
            yield deadline
        finally:
            with self._watching:
                self._waiting.discard(deadline)

    def _end_silence(self) -> None:
        while not self._closed.wait(0.5):
            now = time.monotonic()
            with self._watching:
                for deadline in [one for one in self._waiting if one.until < now]:
                    deadline.over = True
                    self._waiting.discard(deadline)
                    # Only the waiting thread may close the connection; shutting down the socket wakes it.
                    with contextlib.suppress(OSError, psycopg.Error):
                        with socket.socket(fileno=os.dup(deadline.connection.fileno())) as line:
                            line.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _discard_if_broken(held: psycopg.Connection[Any] | None) -> psycopg.Connection[Any] | None:
        if held is not None and held.broken:
            held.close()
            return None
        return held

    def close(self) -> None:
        """Close idle connections now, and the others as they are given back."""
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
        # The slots go back only after draining: the queue is last in, first out, and would return them before the rest.
        for _ in range(taken):
            self._free.put(None)


def was_ended(socket_number: int) -> bool:
    """Whether the server has sent something on an idle connection, which almost always means that it has closed it."""
    poll = select.poll()
    poll.register(socket_number, select.POLLIN)
    return bool(poll.poll(0))


def first_line(error: BaseException) -> str:
    """The first line of a driver's error message; later lines may quote the statement."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
