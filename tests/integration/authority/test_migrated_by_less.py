"""`sentinel migrate` on a server that had nothing of ours: by an administrator who is no superuser, as managed servers have; with a
dump that was loaded before its roles, and with limits of its operator's.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from sentinel.cli.main import main as sentinel
from sentinel.store.database import AUTHORITY, CONSOLE, OWNER
from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import HEAD, SchemaNotReady, migrate
from sentinel.store.safety import require_ready
from tests.conftest import at
from tests.support.embedded_servers import running_without_roles
from tests.support.logins import as_login, make_login

ADMINISTRATOR, DATABASE = "managed_administrator", "managed"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A PostgreSQL without our roles, and a database of an administrator who may make roles and nothing more."""
    with running_without_roles() as found:
        make_login(found.admin_url, ADMINISTRATOR, "createrole")
        with psycopg.connect(found.admin_url, autocommit=True) as connection:
            connection.execute(f"create database {DATABASE} owner {ADMINISTRATOR}".encode())
        yield found


def password(server: RunningServer) -> str:
    return str(conninfo_to_dict(server.admin_url)["password"])


def doctor(url: str) -> str:
    return CliRunner().invoke(sentinel, ["doctor"], env={"SENTINEL_DATABASE_URL": url}).output


def test_it_is_migrated_by_less_than_a_superuser_and_again_by_either(server: RunningServer) -> None:
    whole = at(server.admin_url, DATABASE)
    less = as_login(whole, ADMINISTRATOR, password(server))
    assert migrate(less) == (None, HEAD)
    assert migrate(less) == (HEAD, HEAD)
    with psycopg.connect(less, autocommit=True) as connection:
        for role in (AUTHORITY, CONSOLE):
            connection.execute(f"alter role {role} login password '{password(server)}'".encode())
    for role in (AUTHORITY, CONSOLE):
        require_ready(as_login(whole, role, password(server)), role)

    told = doctor(less)
    assert "may act as none of" in told and f"grant {CONSOLE} to <login>" in told, told
    with psycopg.connect(less, autocommit=True) as connection:
        connection.execute(f"grant {CONSOLE} to current_user".encode())
    assert "run `sentinel migrate` as a superuser" in doctor(less)
    assert CliRunner().invoke(sentinel, ["tenants", "create", "x"], env={"SENTINEL_DATABASE_URL": less}).exit_code == 0

    assert migrate(whole) == (HEAD, HEAD)
    assert "only the authority may take its locks" in doctor(less)
    assert migrate(less) == (HEAD, HEAD)
    require_ready(as_login(whole, AUTHORITY, password(server)), AUTHORITY)


@pytest.fixture
def superuser() -> Iterator[str]:
    """The superuser's address of a database on a server of its own, migrated."""
    with running_without_roles() as found:
        with psycopg.connect(found.admin_url, autocommit=True) as connection:
            connection.execute(f"create database {DATABASE}".encode())
        url = at(found.admin_url, DATABASE)
        assert migrate(url) == (None, HEAD)
        yield url


def test_a_connection_limit_that_somebody_set_stays_and_one_of_minus_one_counts_as_none(superuser: str) -> None:
    """As docs/settings.md says."""
    limits = "select array_agg(rolconnlimit order by rolname) from pg_roles where rolname in (%s, %s)"
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute(f"alter role {AUTHORITY} connection limit 100000".encode())
        connection.execute(f"alter role {CONSOLE} connection limit -1".encode())
        migrate(superuser)
        assert connection.execute(limits, [AUTHORITY, CONSOLE]).fetchone() == ([100000, 24],)


def test_a_dump_that_was_loaded_before_its_roles_were_there_is_refused_by_its_owner(superuser: str) -> None:
    """The finding: it was refused as an object of which nobody knew why it may not be changed."""
    less = make_login(superuser, ADMINISTRATOR, "createrole")
    with psycopg.connect(superuser, autocommit=True) as connection:
        # Who loads a dump owns what its owner is not there for.
        connection.execute(f"reassign owned by {OWNER} to {ADMINISTRATOR}".encode())
        for url in (superuser, less):
            with pytest.raises(
                SchemaNotReady, match=f"^the schema sentinel belongs to {ADMINISTRATOR} instead of {OWNER}"
            ):
                migrate(url)
        connection.execute(f"reassign owned by {ADMINISTRATOR} to {OWNER}".encode())
    assert migrate(superuser) == (HEAD, HEAD)
