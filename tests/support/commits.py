"""Batches that are committed at once and in the calling thread, as an event loop's connections commit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from sentinel.authority.decisions import RECORD_DECISIONS, Recorded
from sentinel.authority.guard_rows import GuardRow
from sentinel.store.batch_statement import BatchStatement, Result, Row, milliseconds_of, run_statement
from sentinel.store.database import Pool
from sentinel.store.queries import LOCK_WAIT_SECONDS, call_with_retry_within


def commit_rows(
    pool: Pool, statement: BatchStatement[Row, Result], rows: Sequence[Row], wait_seconds: float
) -> Sequence[Result]:
    """Commit `rows` together through the pool. Raises as `call_with_retry_within`."""

    def call(connection: psycopg.Connection[Any], left_seconds: float) -> Sequence[Result]:
        try:
            return run_statement(connection, statement, rows, milliseconds_of(left_seconds))
        except psycopg.Error as error:
            if (following := statement.following(error)) is None:
                raise
            return run_statement(connection, following, rows, milliseconds_of(left_seconds))

    return call_with_retry_within(pool, call, wait_seconds)


def record_decisions(
    pool: Pool, rows: Sequence[GuardRow], wait_seconds: float = LOCK_WAIT_SECONDS
) -> Sequence[Recorded]:
    """Commit decided operations together; the answers are in the order of `rows`."""
    return commit_rows(pool, RECORD_DECISIONS, rows, wait_seconds)
