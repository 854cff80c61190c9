"""What tests of every kind share: one private PostgreSQL per test process, a migrated database per test, as new."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sentinel.authority.api import key_lookups
from sentinel.client import AsyncClient, Client
from sentinel.platform.outbound import client
from sentinel.store import batch_commit, database, loop_connections, queries
from sentinel.store.embedded import RunningServer, find_binaries, remove, running
from sentinel.store.embedded.logins import LOGINS
from sentinel.store.migrate import migrate
from tests.browser.chromium import NoChromium, running_chromium
from tests.support.busy import SYSTEM_READY_SECONDS
from tests.support.fixtures import Fixtures, Tenant, make_fixtures
from tests.support.harness import PATIENT_SECONDS
from tests.support.kept_databases import KeptDatabases, end_all_in
from tests.support.kept_sessions import keep_sessions
from tests.support.many_apps import compile_once
from tests.support.server_folders import new_folder, remove_left_behind

# Until everything is collected hardly anything becomes garbage.
gc.disable()
compile_once()
keep_sessions()
# On a machine that others keep busy too a key's look-up has taken more than the two seconds it may.
key_lookups.LOOK_UP_SECONDS = 30.0
# And a client's call more than the five that it may: what is said of a time limit names its own.
for kind in (Client, AsyncClient):
    cast(FunctionType, kind.__init__).__kwdefaults__["timeout_seconds"] = 30.0  # type: ignore[index]
# And a database that stands still with the test has not fallen silent.
database.SILENCE_SECONDS = 60.0
database.CONNECT_SECONDS = "60"
client.READY_WAIT_SECONDS = SYSTEM_READY_SECONDS
# As structlog's own, without a picture of every error's source, which takes longer than most tests.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
LOGS = structlog.get_config()
# How fast a machine is at a moment says nothing of the code: no generated case has a deadline, or a time to be made in.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

TEMPLATE = "template_sentinel"

SHARED = {"demo": "demo", "once": "demo", "victim": "victim", "chromium": "browser"}
"""The group of each fixture of a session that takes seconds to set up: its tests run in one process."""
CHROMIUM_SWITCHES = ("--renderer-process-limit=1",)
"""The pages of one person share a process, and none is started in reserve for a page that the person never opens."""
UNIT = Path(__file__).parent / "unit"
"""Its tests take milliseconds: handing them out one by one would take longer than some of them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of several processes each reads another share of the files first: what it compiles of them the others find in the cache."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    if workers == 1:
        return
    root = Path(__file__).parent
    here = [root.parent / one.partition("::")[0] for one in session.config.args]
    files = [file for file in sorted(root.rglob("test_*.py")) if any(file.is_relative_to(one) for one in here)]
    for file in files[int(worker.removeprefix("gw")) :: workers]:
        name = file.stem
        if (file.parent / "__init__.py").exists():
            name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        elif str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))  # as pytest does
        # What is wrong with one is said when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """For several processes: what shares a dear fixture and what is short stays together, and long work comes before short.

    The order is made last: pytest-randomly's, which is another in every run, stays within each rank.
    """
    for item in items:
        group = _group(item)
        if group and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    yield
    items.sort(key=_rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test that sets up this process's logs as a program's own changes what all tests after it print."""
    yield
    if structlog.get_config() != LOGS:
        structlog.configure(**LOGS)
        pytest.fail(f"{item.nodeid} left the logs of this process set up otherwise")


def pytest_collection_finish() -> None:
    """What was collected stays until the end, and is much: the garbage collector need not walk through it in every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


def _rank(item: pytest.Item) -> tuple[bool, bool]:
    """Slow tests before others, and of both the groups before what may run anywhere, which fills the gaps at the end."""
    return item.get_closest_marker("slow") is None, item.get_closest_marker("xdist_group") is None


def _group(item: pytest.Item) -> str:
    """The group of a test that uses a fixture of `SHARED`, one of its module, or nothing dear at all; "" for one that may run anywhere."""
    fixtures = {name: found[-1].scope for name, found in item._fixtureinfo.name2fixturedefs.items()}  # type: ignore[attr-defined]
    for name, group in SHARED.items():
        if fixtures.get(name) == "session":
            return group
    alone = "module" not in fixtures.values() and UNIT not in item.path.parents
    return "" if alone else item.nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def pg_server() -> Iterator[RunningServer]:
    """The PostgreSQL of this test process, from the same supervisor that the product uses."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        remove_left_behind()
    base = new_folder()
    try:
        with running(base, own=True, settings=_settings()) as server:
            _cheapen_logins(server)
            yield server
    finally:
        remove(base)
        shutil.rmtree(base, ignore_errors=True)


def _settings() -> dict[str, str]:
    """One round of hashing at each login instead of 4096, for the logins that tests make too; 15 has no such setting.

    Each test's own database makes the server write whole pages of it, which nobody reads again: they are not compressed.
    Making one and dropping it walks all buffers several times: an eighth of the product's hold a test's database twice.
    What is kept of the log is kept in memory. Nothing is analysed but what a test has analysed: each time the sessions of that database
    plan everything anew.
    """
    hashing = {"scram_iterations": "1"} if find_binaries().major >= 16 else {}
    return {"autovacuum": "off", "wal_compression": "off", "shared_buffers": "32MB", "min_wal_size": "80MB", **hashing}


def _cheapen_logins(server: RunningServer) -> None:
    """Set the programs' passwords again, so that connecting costs them one round too."""
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        for login in LOGINS:
            password = conninfo_to_dict(server.url(user=login))["password"]
            connection.execute(
                sql.SQL("alter role {} password {}").format(sql.Identifier(login), sql.Literal(password))
            )


@pytest.fixture(scope="session")
def migrated_template(pg_server: RunningServer) -> str:
    """A migrated, empty database that every test's own is copied from."""
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}".encode())
    migrate(at(pg_server.admin_url, TEMPLATE))
    return TEMPLATE


@pytest.fixture(scope="session")
def furnished_template(pg_server: RunningServer, migrated_template: str) -> tuple[str, Tenant]:
    """A copy of it in which fixtures were made: its name, and the tenant in it."""
    name = f"{migrated_template}_furnished"
    _create(pg_server, name, migrated_template)
    made = make_fixtures(at(pg_server.admin_url, name))
    made.close()
    return name, (made.tenant_id, made.key, made.operators)


def _create(server: RunningServer, name: str, template: str) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        end_all_in(connection, template)
        connection.execute(f"create database {name} template {template} strategy file_copy".encode())


@pytest.fixture(scope="session")
def kept_databases(pg_server: RunningServer) -> Iterator[KeptDatabases]:
    """The databases of this test process that are emptied between tests."""
    kept = KeptDatabases(pg_server.admin_url)
    yield kept
    kept.close()


def _database_of(request: pytest.FixtureRequest, kept: KeptDatabases, template: str) -> AbstractContextManager[str]:
    """A database as the template; of a test marked `fresh_database`, or of such a module, a copy of its own."""
    is_fresh = request.node.get_closest_marker("fresh_database") is not None
    return kept.copy_of(template) if is_fresh else kept.one_of(template)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built from now on gives up no lock and no statement before one of the server's processes that stands still goes on.

    For races and waits whose claim is not how long anybody waits (`authority/test_lock_order.py` has that). By
    `pytest.mark.usefixtures("patient")`, which comes before what a test names among its arguments.
    """
    for name in ("STATEMENT_TIMEOUT_MS", "LOCK_TIMEOUT_MS"):
        monkeypatch.setattr(database, name, int(1000 * PATIENT_SECONDS))
    for module in (queries, batch_commit):
        monkeypatch.setattr(module, "LOCK_WAIT_SECONDS", PATIENT_SECONDS)
    monkeypatch.setattr(batch_commit, "WAIT_SECONDS", PATIENT_SECONDS + 10)
    monkeypatch.setattr(loop_connections, "FREE_WAIT_SECONDS", PATIENT_SECONDS)
    monkeypatch.setitem(cast(Any, database.Pool.__init__).__kwdefaults__, "wait_seconds", PATIENT_SECONDS)


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest, kept_databases: KeptDatabases, migrated_template: str
) -> Iterator[str]:
    """An administrator's address of a migrated database without rows; nobody else uses it during the test."""
    with _database_of(request, kept_databases, migrated_template) as url:
        yield url


@pytest.fixture
def fixtures(
    request: pytest.FixtureRequest, kept_databases: KeptDatabases, furnished_template: tuple[str, Tenant]
) -> Iterator[Fixtures]:
    """A tenant, its people, an agent key and an authority in this process, on a database without other rows."""
    template, tenant = furnished_template
    with _database_of(request, kept_databases, template) as url:
        made = make_fixtures(url, tenant=tenant)
        yield made
        made.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The one browser of this test process: playwright can only be started once in it."""
    try:
        with running_chromium(*CHROMIUM_SWITCHES) as browser:
            yield browser
    except NoChromium as error:
        pytest.skip(str(error))


def at(url: str, database: str) -> str:
    """The same server's address of another database."""
    return make_conninfo(**{**conninfo_to_dict(url), "dbname": database})
