"""A folder that an unreleased version made is left as it is, and its owner is told in one line how to keep its data."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sentinel.store.embedded import remove, running
from sentinel.store.migrate import migrate
from tests.support.catalog import catalog
from tests.support.harness import dump
from tests.support.ports import free_port
from tests.support.served_programs import run_warm_command

TOLD = (
    "Error: the database was made by an unreleased version (revision 0014). To keep its data, check out commit c64cce8,"
    " run `sentinel migrate` there on this database, and return to this version; for a demo, `make clean` deletes the data instead"
)


def found(folder: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Everything in the folder's database."""
    with running(folder) as server, psycopg.connect(server.admin_url) as admin:
        return catalog(admin), dump(admin)


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Path, Any]]:
    """A data folder whose database says that it is at revision 0014, and everything in it."""
    base = Path(tempfile.gettempdir()) / f"unreleased-{uuid.uuid4().hex[:8]}"
    try:
        with running(base) as server:
            migrate(server.admin_url)
            with psycopg.connect(server.admin_url) as admin:
                admin.execute("update public.schema_version set version_num = '0014'")
        yield base, found(base)
    finally:
        remove(base)
        shutil.rmtree(base, ignore_errors=True)


@pytest.mark.parametrize("command", ["migrate", "serve", "demo", "doctor"])
def test_it_is_told_in_one_line_and_nothing_changes(made: tuple[Path, Any], command: str) -> None:
    folder, before = made
    ports = {f"SENTINEL_{name}PORT": str(free_port()) for name in ("", "CONSOLE_", "ORDERS_", "BOARD_")}
    ran = run_warm_command(command, SENTINEL_DATA_DIR=str(folder), **ports)
    if command == "doctor":
        assert (ran.returncode, ran.stderr.splitlines()[0]) == (1, f"BAD  schema: {TOLD.removeprefix('Error: ')}")
    else:
        assert ran.returncode == 2, ran
        assert [line for line in ran.stderr.splitlines() if line != "Starting PostgreSQL …"] == [TOLD]
        assert ran.stdout == ""
    assert found(folder) == before
