"""Databases as an older program left them, for tests of migrations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine

import sentinel.store.migrations as migrations
from sentinel.store.database import OWNER
from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import _apply_functions, _ensure_owner
from tests.conftest import at

SCRIPTS = Path(migrations.__file__).parent


def alembic_config() -> Config:
    """The product's migrations, for alembic's own commands."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    return config


def at_revision(url: str, revision: str) -> None:
    """Bring the schema to a revision. Functions stand as they do there up to 0014, and from 0015 on in their present text."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with engine.begin() as connection:
        _as_owner(connection)
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    if revision >= "0015":
        # In a transaction of its own: what this one replaces is told from what is left by its number.
        with engine.begin() as connection:
            _apply_functions(_as_owner(connection))
    engine.dispose()


def _as_owner(connection: Connection) -> psycopg.Connection[Any]:
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    _ensure_owner(raw)
    raw.execute(f"set local role {OWNER}".encode())
    return raw


@contextmanager
def empty_database(server: RunningServer) -> Iterator[str]:
    """An administrator's address of a database with nothing in it, gone after the block."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    try:
        yield at(server.admin_url, name)
    finally:
        with psycopg.connect(server.admin_url, autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)".encode())
