"""Migrates a database to this program's schema, and checks its revision.

`schema/` holds the current schema as text: tables, functions, everything. An empty database is built from it. A
database of an earlier revision is upgraded by numbered scripts (`migrations/`), and then its functions are replaced by
the current ones. Grants (`deploy/roles.sql`) come last. All of it is one transaction. Several processes may migrate at
once: one works under an advisory lock, the others find nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.platform.resources import roles_sql
from sentinel.store.database import (
    CONNECT_SECONDS,
    KEEPALIVES,
    OWNER,
    READ_ONLY,
    describe,
    first_line,
    parts_to_connect,
)

if TYPE_CHECKING:
    from alembic.config import Config

BASELINE = "0016"
"""The first released revision; a database of an earlier one cannot be upgraded."""

HEAD = "0049"
"""The revision this program is written for; a test checks that it is the newest script's."""

# Since PostgreSQL 16 the creator of a role may grant it, but may neither use its rights nor SET ROLE to it.
_BECOME = "case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end"

SCHEMA = Path(__file__).parent / "schema"

_LOCK = 7305013942711300
# The login's or the database's own limits, as managed servers give their administrator; PostgreSQL 17 has the second.
_NO_TIME_LIMIT = """
select set_config(name, '0', true) from pg_catalog.pg_settings where name in ('statement_timeout', 'transaction_timeout')
"""
_VERSION_TABLE = """
select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'public' and c.relname = 'schema_version'
"""
_SCHEMA_OWNER = "select pg_get_userbyid(nspowner) from pg_catalog.pg_namespace where nspname = 'sentinel'"
_INCLUDED = re.compile(r"^\\ir (\S+)$", re.MULTILINE)
FUNCTION = re.compile(r"^create or replace function .*?\$\$;$", re.MULTILINE | re.DOTALL)


class SchemaNotReady(SentinelError):
    """The database is not at the revision this program needs; `detail` says what to run."""

    code = "schema-not-ready"


def current_revision(connection: psycopg.Connection) -> str | None:
    """The revision the database is at, or None for an empty one."""
    # Not by to_regclass: a session may answer it from a cache that is older than another session's migration.
    if connection.execute(_VERSION_TABLE).fetchone() is None:
        return None
    row = connection.execute("select version_num from public.schema_version").fetchone()
    return row[0] if row else None


def require_head(connection: psycopg.Connection) -> None:
    """Raise `SchemaNotReady` unless the database is at `HEAD`."""
    found = current_revision(connection)
    _refuse_unreleased(found)
    if found != HEAD:
        state = "empty" if found is None else f"at revision {found}"
        if found is not None and found > HEAD:
            raise SchemaNotReady(
                f"the database is {state}, newer than this program, which needs {HEAD}: install the version that migrated it,"
                " or restore a backup from before that"
            )
        raise SchemaNotReady(f"the database is {state}, this program needs {HEAD}: run `sentinel migrate` first")


def _refuse_unreleased(found: str | None) -> None:
    if found is not None and re.fullmatch(r"\d{4}", found) and "0000" < found < BASELINE:
        raise SchemaNotReady(
            f"the database was made by an unreleased version (revision {found}). To keep its data, check out commit c64cce8,"
            " run `sentinel migrate` there on this database, and return to this version; for a demo, `make clean` deletes the data instead"
        )


def _refuse_another_owner(connection: psycopg.Connection) -> None:
    row = connection.execute(_SCHEMA_OWNER).fetchone()
    if row is not None and row[0] != OWNER:
        raise SchemaNotReady(
            f"the schema sentinel belongs to {row[0]} instead of {OWNER}, as after loading a dump without owners or before its"
            " roles existed. Run `sentinel migrate` on an empty database of this server, which creates the roles, and then load the dump into another"
        )


def migrate(url: str) -> tuple[str | None, str]:
    """Bring the database to `HEAD` and apply the grants; returns (revision before, revision after).

    Needs a login that may create roles and schemas. Raises `SchemaNotReady` with the server's reason when the server
    refuses, and also when the database's revision cannot be upgraded or its schema belongs to another role; raises
    `EngineUnavailable` when the server cannot be reached, or only reads.
    """
    address = make_conninfo(**{"connect_timeout": CONNECT_SECONDS, **KEEPALIVES, **parts_to_connect(url)})
    try:
        with psycopg.connect(address, prepare_threshold=None) as connection:
            _refuse_another_owner(connection)
            found = current_revision(connection)
            _refuse_unreleased(found)
            if found in (None, HEAD):
                return _upgrade(connection, lambda: None)
        return _upgrade_by_scripts(address)
    except psycopg.OperationalError as error:
        if error.sqlstate is None:
            raise EngineUnavailable(f"cannot reach the database at {describe(url)}: {first_line(error)}") from error
        raise SchemaNotReady(f"cannot migrate {describe(url)}: {first_line(error)}") from error
    except READ_ONLY as error:
        raise EngineUnavailable(f"cannot migrate {describe(url)}: it is read-only: {first_line(error)}") from error
    except psycopg.Error as error:
        raise SchemaNotReady(f"cannot migrate {describe(url)}: {first_line(error)}") from error


def _upgrade_by_scripts(address: str) -> tuple[str | None, str]:
    # Imported here: together they take a second, and most runs have no script to run.
    from alembic import command
    from alembic.util import CommandError
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError

    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(address, prepare_threshold=None))
    try:
        with engine.begin() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)
            config = alembic_config()
            config.attributes["connection"] = connection
            return _upgrade(raw, lambda: command.upgrade(config, "head"))
    except DBAPIError as error:
        raise error.orig or error from error
    except CommandError as error:
        raise SchemaNotReady(f"this program does not know the database's revision: {error}") from error
    finally:
        engine.dispose()


def alembic_config() -> Config:
    """The scripts of `migrations/`, for alembic's commands."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(connection: psycopg.Connection, run_scripts: Callable[[], None]) -> tuple[str | None, str]:
    """Migrate in the connection's transaction: build an empty database, else run the scripts and replace the functions."""
    # Not as a start-up option: a pooler would drop it, or keep it for the next client.
    connection.execute("set local lock_timeout = '30s'")
    connection.execute(_NO_TIME_LIMIT)
    connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
    before = current_revision(connection)
    _ensure_owner(connection)
    connection.execute(f"set local role {OWNER}")
    if before is None:
        _build(connection)
    else:
        run_scripts()
        _replace_functions(connection)
    connection.execute("reset role")
    connection.execute(roles_sql().read_text().encode())
    after = current_revision(connection)
    assert after is not None
    return before, after


def schema_text() -> str:
    """The whole schema as it is now: the files of `schema/` in the order of `all.sql`."""
    return "".join((SCHEMA / name).read_text() for name in _INCLUDED.findall((SCHEMA / "all.sql").read_text()))


def _build(connection: psycopg.Connection) -> None:
    connection.execute("set local check_function_bodies = off")  # a body may name objects that a later file creates
    connection.execute(schema_text().encode())
    connection.execute("insert into public.schema_version (version_num) values (%s)", [HEAD])


def _replace_functions(connection: psycopg.Connection) -> None:
    """Make the database's functions those of `schema/`: each is replaced, and a function that is in no file is dropped.

    A function whose parameters' names or result changes must be dropped by the migration that comes with the change.
    """
    connection.execute("set local check_function_bodies = off")
    connection.execute("\n".join(FUNCTION.findall(schema_text())).encode())
    # The functions that this transaction has just replaced carry its transaction id.
    left = connection.execute(
        "select p.oid::regprocedure::text from pg_proc p where p.xmin <> pg_current_xact_id()::xid"
        " and p.pronamespace in ('sentinel'::regnamespace, 'refunds'::regnamespace, 'orders'::regnamespace)"
    ).fetchall()
    for (function,) in left:
        connection.execute(f"drop function {function}".encode())


def _ensure_owner(raw: psycopg.Connection) -> None:
    """Create the owner role, which must exist before its objects; everything else of `roles.sql` needs the objects first."""
    raw.execute(
        f"do $$ begin if not exists (select from pg_roles where rolname = '{OWNER}') then"
        f" create role {OWNER} nologin; end if; exception when duplicate_object or unique_violation then null; end $$"
    )
    raw.execute(
        f"do $$ begin execute format('grant create on database %I to {OWNER}', current_database());"
        f" grant create, usage on schema public to {OWNER};"
        f" if not (pg_has_role(current_user, '{OWNER}', 'usage') and pg_has_role(current_user, '{OWNER}', {_BECOME})) then"
        f" execute format('grant {OWNER} to %I', current_user); end if; end $$"
    )
