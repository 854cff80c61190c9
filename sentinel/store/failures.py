"""What a driver's error means for the caller: wait and ask again, or no answer can be given now.

Every function of the schema is one transaction and idempotent by key, so one retry on a fresh connection is safe even
when the lost reply was the one to COMMIT: the second call finds what the first recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import DatabaseUnreachable, Patience, Pool, first_line

Answer = TypeVar("Answer")

_TRIES = 4


def in_one_call(pool: Pool, call: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
    """Run `call` on a pooled connection; retry a lost connection once, a deadlock up to three times.

    Raises `StillDeciding` when somebody else holds a needed lock longer than the lock timeout, and
    `EngineUnavailable` for every other failure of the database.
    """
    lost = False
    patience: Patience | None = None
    for attempt in range(_TRIES):
        try:
            with pool.connection() as connection:
                patience = pool.watch(connection)
                try:
                    return call(connection)
                finally:
                    pool.unwatch(patience)
        except pg.LockNotAvailable as error:
            raise StillDeciding("this operation is still being decided; ask again") from error
        except (pg.DeadlockDetected, pg.SerializationFailure) as error:
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
