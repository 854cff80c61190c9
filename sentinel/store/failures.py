"""What a driver's error means for the caller: wait and ask again, or no answer can be given now.

Every function of the schema is one transaction and idempotent by key, so one retry on a fresh connection is safe even
when the lost reply was the one to COMMIT: the second call finds what the first recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import DatabaseUnreachable, Patience, Pool, first_line

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 2.0
"""How long a caller waits for what others hold, over every try together; then it is told to ask again (CONTRACT.md, 2)."""

_TRIES = 4


def in_one_call(pool: Pool, call: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
    """Run `call` on a pooled connection; retry a lost connection once, a deadlock up to three times.

    Raises `StillDeciding` when somebody else holds a needed lock longer than the lock timeout, and
    `EngineUnavailable` for every other failure of the database.
    """
    return in_one_call_within(pool, lambda connection, _: call(connection), PATIENCE_SECONDS)


def in_one_call_within(
    pool: Pool, call: Callable[[psycopg.Connection[Any], float], Answer], wait_seconds: float
) -> Answer:
    """`in_one_call` for what is told how long it may still wait for locks: `wait_seconds` less what earlier tries took."""
    lost = False
    until = time.monotonic() + wait_seconds
    patience: Patience | None = None
    for attempt in range(_TRIES):
        try:
            with pool.connection() as connection:
                patience = pool.watch(connection)
                try:
                    return call(connection, max(0.0, until - time.monotonic()))
                finally:
                    pool.unwatch(patience)
        except pg.LockNotAvailable as error:
            raise StillDeciding("this operation is still being decided; ask again") from error
        except (pg.DeadlockDetected, pg.SerializationFailure) as error:
            if time.monotonic() > until:
                raise StillDeciding("this operation is still being decided; ask again") from error
            if attempt == _TRIES - 1:
                raise EngineUnavailable("the database could not order this transaction") from error
        except pg.QueryCanceled as error:
            raise EngineUnavailable("the database took too long") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if patience is not None and patience.over:
                raise DatabaseUnreachable("the database fell silent") from error
            if lost:
                raise EngineUnavailable(f"the database cannot be reached: {first_line(error)}") from error
            lost = True
        except psycopg.Error as error:
            raise EngineUnavailable(f"the database refused: {first_line(error)}") from error
    raise EngineUnavailable("the database cannot be reached")
