"""A server on which no scratch database can be made or dropped: how the run ended is told, in our words."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.cli.scratch import scratch_environment
from sentinel.cli.scratch_databases import SERVER
from sentinel.core.errors import EngineUnavailable


class Refusing:
    """A connection to a server that refuses each statement with `error`."""

    def __init__(self, error: psycopg.Error) -> None:
        self._error = error

    def execute(self, statement: bytes) -> None:
        raise self._error

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "error",
    [pg.ReadOnlySqlTransaction("it only reads"), pg.DiskFull("no space left"), psycopg.OperationalError("it has gone")],
)
def test_a_server_that_cannot_make_one_is_told_as_a_database_that_cannot_be_used(
    error: psycopg.Error, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding: on a replica `sentinel gates run` ended in Python's words, and with 1."""
    monkeypatch.delenv(SERVER, raising=False)
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: Refusing(error))
    with (
        pytest.raises(EngineUnavailable, match=f"^cannot create a database at db.example/shop: {error}$"),
        scratch_environment("postgresql://admin@db.example/shop", cast(Any, None)),
    ):
        pytest.fail("there is none")
    assert f"was not dropped: {error}" in capsys.readouterr().err
