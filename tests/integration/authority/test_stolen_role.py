"""What somebody with a program's database login could do to the others: nothing that stops them."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors as pg
from werkzeug.test import TestResponse

from ops_console.accounts.sign_in_attempts import Throttle, begin_attempt
from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.settings import Settings
from sentinel.cli.main import main
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, EXPORTER, ORDERS, PUBLIC, WORKER
from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import migrate
from tests.conftest import at
from tests.support.fixtures import SECRET, Fixtures, guard_body, make_fixtures, served
from tests.support.logins import program_url

NO_AUTHORITY = (WORKER, ORDERS, CONSOLE, PUBLIC, BOARD)
LIMITS = {AUTHORITY: 96, CONSOLE: 24, WORKER: 24, ORDERS: 40, PUBLIC: 8, BOARD: 12}
OF_THE_SERVER = """
select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace
  and (p.proname like 'pg\\_advisory%%' or p.proname like 'pg\\_try\\_advisory%%' or p.proname like 'lo\\_%%' or p.proname in ('loread', 'lowrite'))
"""
HALT, SIGN_IN = 7305013942711301, 7305013942711304
ATTEMPTS = (
    f"select pg_advisory_lock({HALT})", f"select pg_advisory_xact_lock({SIGN_IN})", f"select pg_try_advisory_lock({HALT})",
    f"select pg_advisory_lock_shared({HALT})", f"select pg_try_advisory_xact_lock_shared({HALT})", "select pg_advisory_lock(1, 2)",
    "select lo_create(0)", "select lo_creat(-1)", "select lo_import('/etc/hostname')", "select lo_from_bytea(0, '\\x00')",
    "select lo_put(1, 0, '\\x00')", "select lo_unlink(1)", "select lo_export(1, '/tmp/x')", "select lowrite(0, '\\x00')",
    "create temporary table mine (a int)", "select 1 into temporary mine", "create temporary view mine as select 1",
    "create temporary sequence mine", "create table public.mine (a int)", "create schema mine",
    "create function public.mine() returns int language sql as 'select 1'",
)  # fmt: skip


@pytest.fixture(scope="module")
def fixtures(pg_server: RunningServer) -> Iterator[Fixtures]:
    """A database that was migrated itself: what a database gives to everybody is not copied from a template."""
    name = f"stolen_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    url = at(pg_server.admin_url, name)
    migrate(url)
    made = make_fixtures(url)
    yield made
    made.close()
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())


def ready(fixtures: Fixtures) -> TestResponse:
    """What an authority that has just started says at /readyz."""
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=2)
    with served(settings, fixtures.authority.policies) as (_, app):
        return app.test_client().get("/readyz")


@contextlib.contextmanager
def stolen(fixtures: Fixtures, role: str) -> Iterator[psycopg.Connection]:
    """A connection with a program's own login and none of its good manners."""
    with psycopg.connect(program_url(fixtures.url, role), autocommit=True) as connection:
        yield connection


def test_no_stolen_role_takes_a_lock_or_leaves_something_lying(fixtures: Fixtures) -> None:
    tried = [(role, statement) for role in NO_AUTHORITY for statement in ATTEMPTS]
    got_through = []
    for role, statement in tried:
        with stolen(fixtures, role) as connection:
            try:
                connection.execute(statement.encode())
                got_through.append((role, statement))
            except pg.InsufficientPrivilege:
                pass
    print(f"N={len(tried)}")
    assert got_through == []


def test_of_the_server_s_functions_none_that_locks_or_keeps_is_anybody_s(fixtures: Fixtures) -> None:
    names = [name for (name,) in fixtures.admin.execute(OF_THE_SERVER.replace("%%", "%").encode())]
    assert len(names) > 40
    anybody = [
        name for name in names for role in ("public", *NO_AUTHORITY)
        if fixtures.one("select has_function_privilege(%s, %s, 'execute')", role, name)
    ]  # fmt: skip
    assert anybody == []
    assert fixtures.one("select has_function_privilege(%s, 'pg_advisory_xact_lock(bigint)', 'execute')", AUTHORITY)
    print(f"N={len(names)} functions")


@pytest.mark.parametrize("role", NO_AUTHORITY)
def test_beside_a_stolen_role_that_tries_everything_guards_halts_and_sign_ins_go_on(
    fixtures: Fixtures, role: str
) -> None:
    held: list[psycopg.Connection] = []
    try:
        url = program_url(fixtures.url, role)
        # The limit is the role's over the whole server: another test's programs may have some of it.
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            held.extend(psycopg.connect(url, autocommit=True) for _ in range(LIMITS[role] + 1))
        assert held
        for number, connection in enumerate(held):
            with contextlib.suppress(pg.InsufficientPrivilege):
                connection.execute(ATTEMPTS[number % len(ATTEMPTS)].encode())
        assert fixtures.guard(guard_body(value=40))["decision"] == "ALLOW"
        attempt = begin_attempt(
            fixtures.console_pool, email="x@y.example", address="192.0.2.1", throttle=Throttle(1000, 1000, 100000)
        )
        assert attempt.attempt_id is not None
        by = local_administrator(fixtures.tenant_id)
        halt = set_halt(fixtures.console_pool, by, scope="agent", target="nobody", reason="drill").halt_id
        lift_halt(fixtures.console_pool, by, halt, reason="over")
        assert ready(fixtures).json["checks"]["guard"] is True
    finally:
        for connection in held:
            connection.close()


def test_mutant_with_the_right_to_lock_stops_guards_and_the_authority_says_that_it_is_not_ready(
    fixtures: Fixtures,
) -> None:
    take = "pg_advisory_lock(bigint)"
    fixtures.admin.execute(f"grant execute on function {take} to {WORKER}".encode())
    try:
        with stolen(fixtures, WORKER) as connection:
            connection.execute(f"select pg_advisory_lock({HALT})".encode())
            answer = ready(fixtures)
            assert (answer.status_code, answer.json["checks"]["guard"]) == (503, False)
            assert all(answer.json["checks"][name] for name in ("database", "writable", "schema"))
    finally:
        fixtures.admin.execute(f"revoke execute on function {take} from {WORKER}".encode())
    assert ready(fixtures).json["checks"]["guard"] is True


@pytest.mark.parametrize("broken", ["drop trigger append_only on sentinel.event_rows; revoke insert on sentinel.event_rows from sentinel_authority",
                                    "alter database {0} set default_transaction_read_only = on", "revoke execute on function sentinel.record_batch from sentinel_authority"])  # fmt: skip
def test_the_authority_is_not_ready_while_a_guard_could_not_be_recorded(database_url: str, broken: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        assert ready(fixtures).json["checks"]["guard"] is True
        before = counts(fixtures)
        fixtures.admin.execute(broken.format(fixtures.admin.info.dbname).encode())
        assert ready(fixtures).json["checks"]["guard"] is False
        assert counts(fixtures) == before
    finally:
        fixtures.close()


def test_trying_leaves_nothing(fixtures: Fixtures) -> None:
    before = counts(fixtures)
    for _ in range(3):
        assert ready(fixtures).status_code == 200
    assert counts(fixtures) == before


def counts(fixtures: Fixtures) -> list[int]:
    return [fixtures.one(f"select count(*) from sentinel.{table}") for table in ("operations", "operation_states", "events", "usage", "reservations", "feed")]  # fmt: skip


@pytest.mark.parametrize("role", [AUTHORITY, CONSOLE, WORKER, ORDERS, EXPORTER, PUBLIC, BOARD])
def test_the_logins_that_the_doctor_takes_are_those_it_names(
    fixtures: Fixtures, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: any program's login would do, its help said, and refused those of sender, public and board: use a program's."""
    named = "the login of the authority, the console, the worker or the intake"
    monkeypatch.setenv("SENTINEL_DATABASE_URL", program_url(fixtures.url, role))
    done = CliRunner().invoke(main, ["doctor"])
    if role in (AUTHORITY, CONSOLE, WORKER, ORDERS):
        assert done.exit_code == 0, done.output
    else:
        assert done.exit_code == 2 and f"use {named}" in done.stderr
    told = " ".join(CliRunner().invoke(main, ["doctor", "--help"]).stdout.split())
    assert named in told


def test_the_doctor_tells_when_anybody_may_lock(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", program_url(fixtures.url, CONSOLE))

    def locks() -> bool:
        told = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
        return bool(next(one["ok"] for one in told if one["name"] == "locks"))

    assert locks()
    fixtures.admin.execute("grant execute on function pg_advisory_lock(bigint) to public")
    try:
        assert not locks()
    finally:
        fixtures.admin.execute("revoke execute on function pg_advisory_lock(bigint) from public")
