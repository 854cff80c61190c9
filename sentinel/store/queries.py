"""Maps database driver errors to retries, `StillDeciding` and `EngineUnavailable`.

Every function of the schema is one transaction that takes effect once, so one retry on a fresh connection is safe even
when the lost reply was the one to COMMIT. A function that is idempotent by key returns what the first call recorded.
Decisions of people are not idempotent: the retry is refused because of what the first call did, and `act_once` raises
`MayBeRecorded` in place of that refusal. `DatabaseClock` gives the database's time without a query per decision: it is
refreshed each second and extrapolated by the monotonic clock, whatever the process's wall clock says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.rows import class_row

from sentinel.core.errors import EngineUnavailable, InvalidInput, MayBeRecorded, SentinelError, StillDeciding
from sentinel.store.database import READ_ONLY, DatabaseUnreachable, Pool, first_line

Result = TypeVar("Result")

LOCK_WAIT_SECONDS = 2.0
"""How long a caller waits for locks over all attempts; then it must retry (docs/CONTRACT.md §2)."""

_TRIES = 4
_FIRST_PAUSE_SECONDS = 0.01
"""How long to wait before a transaction is retried that another one was in the way of; each further time four times as long.

The other one needs a moment to end: without a pause all attempts meet it again.
"""
_NO_ROOM = ("53", "58")
"""Classes of SQLSTATE for a full disk, used up memory and failed reads and writes: the server says so, and has undone the transaction."""
_STILL = "this operation is still being decided; ask again"


def call_with_retry(pool: Pool, call: Callable[[psycopg.Connection[Any]], Result]) -> Result:
    """Run `call` on a pooled connection; retry a lost connection once, a deadlock up to three times.

    Raises `StillDeciding` when another transaction holds a needed lock longer than the lock timeout, and
    `EngineUnavailable` for every other failure of the database, or when our own lost attempt may hold that lock.
    """
    return call_with_retry_within(pool, lambda connection, _: call(connection), LOCK_WAIT_SECONDS)


def call_with_retry_within(
    pool: Pool, call: Callable[[psycopg.Connection[Any], float], Result], wait_seconds: float
) -> Result:
    """`call_with_retry` with a `call` that also gets the seconds left to wait for locks: `wait_seconds` less earlier attempts."""
    return _attempted(pool.connection, call, RetriedTransaction(wait_seconds))


def call_at_length(pool: Pool, call: Callable[[psycopg.Connection[Any]], Result]) -> Result:
    """`call_with_retry` for a `call` that scans everything ever recorded: each statement may take minutes (`Pool.long_transaction`)."""
    return _attempted(
        pool.long_transaction, lambda connection, _: call(connection), RetriedTransaction(LOCK_WAIT_SECONDS)
    )


def _attempted(
    lend: Callable[[], AbstractContextManager[psycopg.Connection[Any]]],
    call: Callable[[psycopg.Connection[Any], float], Result],
    attempts: RetriedTransaction,
) -> Result:
    while True:
        try:
            with lend() as connection:
                return call(connection, attempts.left_seconds)
        except psycopg.Error as error:
            time.sleep(attempts.failed(error))
        except UnicodeEncodeError:
            # Half of a pair of surrogates: what Python makes of a word of a command line that is not UTF-8.
            raise InvalidInput("a text among the arguments is not UTF-8") from None


class RetriedTransaction:
    """The attempts at one transaction: says what a failure means, and whether the transaction is retried."""

    def __init__(self, wait_seconds: float) -> None:
        self._until = time.monotonic() + wait_seconds
        self._made = 0
        self.was_lost = False
        """Whether the connection of an attempt was lost: the statements sent on it may have been committed."""

    @property
    def left_seconds(self) -> float:
        """Seconds that the next attempt may wait for locks."""
        return max(0.0, self._until - time.monotonic())

    def failed(self, error: psycopg.Error, *, is_silent: bool = False) -> float:
        """Return the seconds to wait, without a connection, before the transaction is retried: after a lost connection
        once, after a deadlock up to three times.

        Otherwise raises `StillDeciding` or `EngineUnavailable` as `call_with_retry` says. `is_silent`: our own deadline
        ended the wait, on a connection outside the pool.
        """
        self._made += 1
        if isinstance(error, pg.LockNotAvailable):
            raise self._put_off() from error
        if isinstance(error, (pg.DeadlockDetected, pg.SerializationFailure)):
            if time.monotonic() > self._until:
                raise self._put_off() from error
            if self._made >= _TRIES:
                raise EngineUnavailable("the database could not serialize this transaction") from error
            return min(_FIRST_PAUSE_SECONDS * 4.0 ** (self._made - 1), self.left_seconds)
        if isinstance(error, pg.QueryCanceled):
            raise EngineUnavailable("the database took too long") from error
        if isinstance(error, READ_ONLY):
            raise DatabaseUnreachable(f"the database is read-only: {first_line(error)}") from error
        is_trouble = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        if not is_trouble or (error.sqlstate or "")[:2] in _NO_ROOM:
            raise EngineUnavailable(f"the database refused: {first_line(error)}") from error
        if is_silent:
            raise DatabaseUnreachable("the database stopped answering") from error
        if self.was_lost:
            raise EngineUnavailable(f"the database cannot be reached: {first_line(error)}") from error
        self.was_lost = True
        return 0.0

    def _put_off(self) -> SentinelError:
        """The error for a blocked lock: nothing was done, unless a lost attempt holds the lock and may still be committed."""
        if self.was_lost:
            return EngineUnavailable("the connection was lost, and what was sent on it may still be committed")
        return StillDeciding(_STILL)


Row = TypeVar("Row")


def all_rows(
    pool: Pool,
    shape: type[Row],
    statement: str,
    fields: Mapping[str, Any] | None = None,
    *,
    plan_anew: bool = False,
) -> list[Row]:
    """Every row of one statement as `shape`, a dataclass with the columns' names as fields. Raises `EngineUnavailable`.

    `plan_anew`: the statement is not prepared, so that it is planned for the actual values: for searches whose best
    index depends on the value that is looked for.
    """

    def call(connection: psycopg.Connection[Any]) -> list[Row]:
        with connection.cursor(row_factory=class_row(shape)) as cursor:
            return cursor.execute(statement, fields, prepare=False if plan_anew else None).fetchall()

    return call_with_retry(pool, call)


def one_row(pool: Pool, shape: type[Row], statement: str, fields: Mapping[str, Any] | None = None) -> Row | None:
    """The only row of one statement as `shape`, or None."""
    found = all_rows(pool, shape, statement, fields)
    return found[0] if found else None


def act_once(
    pool: Pool, shape: type[Row], statement: str, fields: Mapping[str, Any], *, is_taken: Callable[[Row], bool]
) -> Row:
    """Run a statement that is refused when it is repeated, such as a person's vote, and return its one row.

    `is_taken` says whether the row shows that this call did it. Raises `MayBeRecorded` when the row does not and the
    first attempt was lost, else as `call_with_retry`.
    """
    attempts = RetriedTransaction(LOCK_WAIT_SECONDS)

    def call(connection: psycopg.Connection[Any], _: float) -> Row | None:
        with connection.cursor(row_factory=class_row(shape)) as cursor:
            return cursor.execute(statement, fields).fetchone()

    found = _attempted(pool.connection, call, attempts)
    assert found is not None
    if attempts.was_lost and not is_taken(found):
        raise MayBeRecorded
    return found


def changed(pool: Pool, statement: str, fields: Mapping[str, Any]) -> int:
    """Run one changing statement and return how many rows it changed."""
    return call_with_retry(pool, lambda connection: connection.execute(statement, fields).rowcount)


def scalar(pool: Pool, statement: str, fields: Mapping[str, Any] | None = None) -> Any:
    """The first column of a statement's first row, or None when there is no row."""
    row = call_with_retry(pool, lambda connection: connection.execute(statement, fields).fetchone())
    return row[0] if row else None


NOW = "select clock_timestamp()"


def database_time(pool: Pool) -> datetime:
    """The database's time, which decides what is overdue and what has expired."""
    found: datetime = scalar(pool, NOW)
    return found


class DatabaseClock:
    """The database's time, accurate to half a round trip."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._heard: tuple[datetime, float] | None = None
        """The database's time, and the second of the monotonic clock at which it was read."""

    def refresh(self) -> None:
        """Query the database's time. Raises `EngineUnavailable`."""
        sent = time.monotonic()
        found = call_with_retry(self._pool, lambda connection: connection.execute(NOW).fetchone())
        assert found is not None
        self._heard = (found[0], (sent + time.monotonic()) / 2)

    def __call__(self) -> datetime:
        """The database's time now. Queries only if this process has not done so yet, and may raise `EngineUnavailable` then."""
        if self._heard is None:
            self.refresh()
        assert self._heard is not None
        at, second = self._heard
        return at + timedelta(seconds=time.monotonic() - second)
