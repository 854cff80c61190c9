"""A pool that loses a connection, as in a failover."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg


class LosesConnection:
    """A pool whose connection is lost once: after what was asked on it is committed, or before anything is asked."""

    def __init__(self, pool: Any, *, is_committed: bool) -> None:
        self._pool, self._is_committed, self._was_lost = pool, is_committed, False
        self.size, self.close = pool.size, pool.close

    @contextmanager
    def connection(self) -> Iterator[Any]:
        is_lost, self._was_lost = not self._was_lost, True
        if is_lost and not self._is_committed:
            raise psycopg.OperationalError("the connection was lost")
        with self._pool.connection() as connection:
            yield connection
        if is_lost:
            raise psycopg.OperationalError("the connection was lost")
