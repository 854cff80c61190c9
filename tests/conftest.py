"""What tests of every kind share: one private PostgreSQL per test process, a fresh migrated database per test."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sentinel.store.embedded import RunningServer, remove, running
from sentinel.store.migrate import migrate
from tests.browser.chromium import NoChromium, running_chromium
from tests.support.world import World, make_world

TEMPLATE = "template_sentinel"
_ROOM_BYTES = 6 * 1024**3


def _base() -> Path:
    """A folder for the server: in memory where there is room, for on a disk dropping a test's database takes 0.6 s.

    Not pytest's own folder: as root the server runs as another account, which could not enter it.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES
    parent = memory if roomy else Path(tempfile.gettempdir())
    return parent / f"sentinel-tests-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="session")
def pg_server() -> Iterator[RunningServer]:
    """The PostgreSQL of this test process, from the same supervisor that the product uses."""
    base = _base()
    try:
        with running(base, own=True) as server:
            yield server
    finally:
        remove(base)
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_template(pg_server: RunningServer) -> str:
    """A migrated, empty database that every test's own is copied from."""
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}".encode())
    migrate(at(pg_server.admin_url, TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database_url(pg_server: RunningServer, migrated_template: str) -> Iterator[str]:
    """An administrator's address of a fresh migrated database, gone after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {name} template {migrated_template} strategy file_copy".encode())
    yield at(pg_server.admin_url, name)
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A tenant, its people, an agent key and an authority in this process, on a fresh database."""
    made = make_world(database_url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The one browser of this test process: playwright can only be started once in it."""
    try:
        with running_chromium() as browser:
            yield browser
    except NoChromium as error:
        pytest.skip(str(error))


def at(url: str, database: str) -> str:
    """The same server's address of another database."""
    return make_conninfo(**{**conninfo_to_dict(url), "dbname": database})
