"""The demo's ledger rows after a start that was killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.demo import small_refunds
from sentinel.demo.access import DemoAccess
from sentinel.demo.command import _load_ledger
from sentinel.demo.processes import Processes
from sentinel.store.database import WORKER
from tests.support.fixtures import Fixtures
from tests.support.logins import program_url


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "log", threading.Event())
    yield made
    made.stop()


def entered(fixtures: Fixtures) -> int:
    found = fixtures.admin.execute(
        "select count(*)::integer from refunds.ledger_entries where tenant_id = %s", [fixtures.tenant_id]
    ).fetchone()
    assert found is not None
    return int(found[0])


def test_rows_that_a_killed_start_had_entered_are_in_the_way_of_no_later_one(
    fixtures: Fixtures, processes: Processes, tmp_path: Path
) -> None:
    """The finding: it was killed before it noted that they are entered, and each start after it failed."""
    access = DemoAccess(str(fixtures.tenant_id), "", [])
    env = {
        **os.environ,
        "WORKER_DATABASE_URL": program_url(fixtures.url, WORKER),
        "SENTINEL_TENANT_ID": access.tenant_id,
    }
    _load_ledger(processes, env, access, tmp_path)
    rows = entered(fixtures)
    (tmp_path / "demo_ledger_loaded").unlink()
    _load_ledger(processes, env, access, tmp_path)
    assert entered(fixtures) == rows > 0
    said: list[str] = []
    small = small_refunds.SmallRefunds(processes, env, {}, access, tmp_path, said.append)
    assert small._entered() and small._entered(), said
    assert entered(fixtures) > rows
