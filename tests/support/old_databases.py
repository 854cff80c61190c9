"""Databases that `sentinel migrate` did not just make: empty ones, and those that migrations alone have led somewhere."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from sqlalchemy import create_engine

import sentinel.store.migrations as migrations
from sentinel.store.database import OWNER
from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import _ensure_owner, alembic_config
from tests.conftest import at

SCRIPTS = Path(migrations.__file__).parent


def run_migrations(url: str, revision: str = "head") -> None:
    """Lead an empty database to a revision by its migrations alone: no functions' bodies, no grants."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    try:
        with engine.begin() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)
            _ensure_owner(raw)
            raw.execute(f"set local role {OWNER}".encode())
            config = alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    finally:
        engine.dispose()


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
