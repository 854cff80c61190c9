"""A database whose disk is full says so: what a person asked for is not recorded, and nobody has to look whether it is."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any, cast

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.core.errors import MayBeRecorded
from worker.refunds.ledger import Ledger, LedgerUnavailable


def act(error: psycopg.Error) -> None:
    """What a person asks for, where the server answers with this error."""

    def refused(_: psycopg.Connection[Any]) -> None:
        raise error

    ledger = Ledger(cast(Any, None), uuid.uuid4(), worker_id="a person")
    ledger._attempted(refused, is_repeatable=False, lend=lambda: contextlib.nullcontext(cast(Any, None)))


@pytest.mark.parametrize(
    "error", [pg.DiskFull("no space left"), pg.OutOfMemory("no memory"), pg.IoError("not written")]
)
def test_a_refusal_for_want_of_room_is_told_by_its_cause(error: psycopg.Error) -> None:
    """The finding: a lost connection was told, after which a change may be recorded."""
    with pytest.raises(LedgerUnavailable, match=f"^{error}$"):
        act(error)


def test_a_lost_connection_is_still_told_as_one() -> None:
    with pytest.raises(MayBeRecorded):
        act(psycopg.OperationalError("the connection is lost"))
