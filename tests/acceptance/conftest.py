"""Fixtures of the outside tests: a demo for the session, an authority for each module that asks for one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sentinel.store.embedded import RunningServer
from tests.acceptance.demos import Demo, OnceRun, demo_folder, run_demo_once, running_demo
from tests.conftest import at
from tests.support.fixtures import add_tenant, unique
from tests.support.kept_databases import drop_database
from tests.support.served_programs import Served, served_on

NewDatabase = Callable[[], str]


@pytest.fixture(scope="module")
def new_database(pg_server: RunningServer, migrated_template: str) -> Iterator[NewDatabase]:
    """Makes migrated databases that last for the module."""
    made: list[str] = []

    def make() -> str:
        name = f"outside_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
            connection.execute(f"create database {name} template {migrated_template} strategy file_copy".encode())
        made.append(name)
        return at(pg_server.admin_url, name)

    yield make
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        for name in made:
            drop_database(connection, name)


@pytest.fixture(scope="module")
def served_from_nothing() -> bool:
    """Whether a module's authority begins as anybody's does; else with everything imported, and its counters are each process's own."""
    return False


@pytest.fixture(scope="module")
def served(
    new_database: NewDatabase, tmp_path_factory: pytest.TempPathFactory, served_from_nothing: bool
) -> Iterator[Served]:
    """`sentinel serve` with two processes on a fresh database with one tenant."""
    url = new_database()
    tenant_id, key, _ = add_tenant(url, unique("outside").replace("_", "-"))
    folder: Path = tmp_path_factory.mktemp("serve")
    with served_on(url, folder, tenant_id=str(tenant_id), key=key, from_nothing=served_from_nothing) as found:
        yield found


@pytest.fixture(scope="session")
def demo() -> Iterator[Demo]:
    """One demo for everything that only looks at it, in a folder whose path has a space."""
    with demo_folder("demo with a space") as folder, running_demo(folder) as found:
        yield found


@pytest.fixture(scope="session")
def once() -> Iterator[OnceRun]:
    """A demo that ran once: the folder it leaves is copied by tests for which a first start would only take longer."""
    with demo_folder("once") as folder:
        yield run_demo_once(folder)
