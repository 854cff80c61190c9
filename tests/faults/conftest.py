"""A server of these tests' own, which they may kill."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sentinel.store.embedded import Embedded, remove
from sentinel.store.migrate import migrate
from tests.conftest import at
from tests.support.fixtures import Fixtures, make_fixtures
from tests.support.kept_databases import drop_database, end_all_in
from tests.support.roomy import roomy_policies


@pytest.fixture(scope="session")
def victim() -> Iterator[Embedded]:
    """A running server that a test may kill or stop, and has to start again."""
    base = Path(tempfile.gettempdir()) / f"sentinel-victim-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    embedded = Embedded(base, own=True)
    try:
        embedded.start()
        yield embedded
    finally:
        embedded.stop()
        remove(base)
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def doomed_template(victim: Embedded) -> str:
    """A migrated, empty database on the victim, to be copied."""
    name = "template_doomed"
    admin_url = victim.start().admin_url
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    migrate(at(admin_url, name))
    return name


@pytest.fixture
def doomed_url(victim: Embedded, doomed_template: str) -> Iterator[str]:
    """A migrated database on the victim; the server runs when the test begins."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin_url = victim.start().admin_url
    with psycopg.connect(admin_url, autocommit=True) as connection:
        end_all_in(connection, doomed_template)
        connection.execute(f"create database {name} template {doomed_template} strategy file_copy".encode())
    yield at(admin_url, name)
    with psycopg.connect(victim.start().admin_url, autocommit=True) as connection:
        drop_database(connection, name)


@pytest.fixture
def doomed(doomed_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """A set of fixtures on a server that a test may kill, with room for what one agent asks at full speed."""
    fixtures = make_fixtures(doomed_url, policies=roomy_policies(tmp_path))
    yield fixtures
    fixtures.close()
