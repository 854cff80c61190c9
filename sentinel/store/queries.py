"""Maps database driver errors to retries, `StillDeciding` and `EngineUnavailable`.

Every function of the schema is one transaction that is done once, so one retry on a fresh connection is safe even when the
lost reply was the one to COMMIT. Where it is idempotent by key the second call finds what the first recorded. What people
decide is not: there the second call is refused for what the first did, and `act_once` does not tell that refusal.
`DatabaseClock` is the database's time without a query per decision: refreshed each second, extrapolated by the monotonic
clock, whatever the process's wall clock says.
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

from sentinel.core.errors import EngineUnavailable, MayBeRecorded, SentinelError, StillDeciding
from sentinel.store.database import DatabaseUnreachable, Pool, first_line

Result = TypeVar("Result")

LOCK_WAIT_SECONDS = 2.0
"""How long a caller waits for locks over all attempts; then it must retry (docs/CONTRACT.md §2)."""

_TRIES = 4
_STILL = "this operation is still being decided; ask again"


def call_with_retry(pool: Pool, call: Callable[[psycopg.Connection[Any]], Result]) -> Result:
    """Run `call` on a pooled connection; retry a lost connection once, a deadlock up to three times.

    Raises `StillDeciding` when somebody else holds a needed lock longer than the lock timeout, and
    `EngineUnavailable` for every other failure of the database, and where a lost attempt may be who holds it.
    """
    return call_with_retry_within(pool, lambda connection, _: call(connection), LOCK_WAIT_SECONDS)


def call_with_retry_within(
    pool: Pool, call: Callable[[psycopg.Connection[Any], float], Result], wait_seconds: float
) -> Result:
    """`call_with_retry` whose call gets the remaining seconds to wait for locks: `wait_seconds` less earlier attempts."""
    return _attempted(pool.connection, call, RetriedTransaction(wait_seconds))


def call_at_length(pool: Pool, call: Callable[[psycopg.Connection[Any]], Result]) -> Result:
    """`call_with_retry` for what looks at everything that was ever recorded: each statement has minutes (`Pool.long_transaction`)."""
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
            attempts.failed(error)


class RetriedTransaction:
    """The attempts at one transaction: what a failure means, and whether it is tried once more."""

    def __init__(self, wait_seconds: float) -> None:
        self._until = time.monotonic() + wait_seconds
        self._made = 0
        self.was_lost = False
        """Whether the connection of an attempt was lost: what was sent on it may be committed."""

    @property
    def left_seconds(self) -> float:
        """Seconds that the next attempt may wait for locks."""
        return max(0.0, self._until - time.monotonic())

    def failed(self, error: psycopg.Error, *, is_silent: bool = False) -> None:
        """Return where it is to be tried again: a lost connection once, a deadlock up to three times.

        Raises `StillDeciding` and `EngineUnavailable` as `call_with_retry` says; `is_silent`: our deadline ended the
        wait on a connection that is no pool's.
        """
        self._made += 1
        if isinstance(error, pg.LockNotAvailable):
            raise self._put_off() from error
        if isinstance(error, (pg.DeadlockDetected, pg.SerializationFailure)):
            if time.monotonic() > self._until:
                raise self._put_off() from error
            if self._made >= _TRIES:
                raise EngineUnavailable("the database could not order this transaction") from error
        elif isinstance(error, pg.QueryCanceled):
            raise EngineUnavailable("the database took too long") from error
        elif not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            raise EngineUnavailable(f"the database refused: {first_line(error)}") from error
        elif is_silent:
            raise DatabaseUnreachable("the database fell silent") from error
        elif self.was_lost:
            raise EngineUnavailable(f"the database cannot be reached: {first_line(error)}") from error
        else:
            self.was_lost = True

    def _put_off(self) -> SentinelError:
        """What a lock in the way means: nothing was done, unless it is a lost attempt that is still being committed."""
        if self.was_lost:
            return EngineUnavailable("the connection was lost, and what was sent on it may be committed yet")
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
    """Every row of one statement as `shape`, a dataclass named like the columns. Raises `EngineUnavailable`.

    `plan_anew`: not prepared, so that the plan fits the values: for searches whose best index depends on what is looked for.
    """

    def call(connection: Any) -> list[Row]:
        with connection.cursor(row_factory=class_row(shape)) as cursor:
            return list(cursor.execute(statement, fields, prepare=False if plan_anew else None).fetchall())

    return call_with_retry(pool, call)


def one_row(pool: Pool, shape: type[Row], statement: str, fields: Mapping[str, Any] | None = None) -> Row | None:
    """The only row of one statement as `shape`, or None."""
    found = all_rows(pool, shape, statement, fields)
    return found[0] if found else None


def act_once(
    pool: Pool, shape: type[Row], statement: str, fields: Mapping[str, Any], *, is_taken: Callable[[Row], bool]
) -> Row:
    """The one row that answers an act which is refused when it comes again, such as a person's vote.

    `is_taken`: whether the row says that it was done by this call. Raises `MayBeRecorded` where it does not and a first try was
    lost, else as `call_with_retry`.
    """
    attempts = RetriedTransaction(LOCK_WAIT_SECONDS)

    def call(connection: Any, _: float) -> Row | None:
        with connection.cursor(row_factory=class_row(shape)) as cursor:
            row: Row | None = cursor.execute(statement, fields).fetchone()
            return row

    found = _attempted(pool.connection, call, attempts)
    assert found is not None
    if attempts.was_lost and not is_taken(found):
        raise MayBeRecorded
    return found


def changed(pool: Pool, statement: str, fields: Mapping[str, Any]) -> int:
    """How many rows one changing statement touched."""
    count: int = call_with_retry(pool, lambda connection: connection.execute(statement, fields).rowcount)
    return count


def scalar(pool: Pool, statement: str, fields: Mapping[str, Any] | None = None) -> Any:
    """The first column of the first row, or None."""
    row = call_with_retry(pool, lambda connection: connection.execute(statement, fields).fetchone())
    return row[0] if row else None


NOW = "select clock_timestamp()"


class DatabaseClock:
    """The database's time, accurate to half a round trip."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._heard: tuple[datetime, float] | None = None
        """Its time, and the monotonic second at which that was so."""

    def refresh(self) -> None:
        """Query the database's time. Raises `EngineUnavailable`."""
        sent = time.monotonic()
        found = call_with_retry(self._pool, lambda connection: connection.execute(NOW).fetchone())
        assert found is not None
        self._heard = (found[0], (sent + time.monotonic()) / 2)

    def __call__(self) -> datetime:
        """The database's time now. Queries only in a process that never did; raises `EngineUnavailable` then."""
        if self._heard is None:
            self.refresh()
        assert self._heard is not None
        at, second = self._heard
        return at + timedelta(seconds=time.monotonic() - second)
