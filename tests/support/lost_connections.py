"""A pool that loses a connection, as in a failover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg


class LosesConnection:
    """A pool whose connection is lost once: after what was asked on it is committed, or before anything is asked."""

    def __init__(self, pool: Any, *, is_committed: bool) -> None:
        self._pool, self._is_committed, self._was_lost = pool, is_committed, False
        self.size, self.close = pool.size, pool.close

    def connection(self) -> AbstractContextManager[Any]:
        """As the pool's."""
        return self._lent(self._pool.connection)

    def long_transaction(self) -> AbstractContextManager[Any]:
        """As the pool's."""
        return self._lent(self._pool.long_transaction)

    @contextmanager
    def _lent(self, lend: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
        is_lost, self._was_lost = not self._was_lost, True
        if is_lost and not self._is_committed:
            raise psycopg.OperationalError("the connection was lost")
        with lend() as connection:
            yield connection
        if is_lost:
            raise psycopg.OperationalError("the connection was lost")
