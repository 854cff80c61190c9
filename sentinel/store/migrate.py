"""Bringing a database to the schema this program needs, and saying whether it is there.

Several processes may migrate at once: one works under an advisory lock, the others find nothing to do. Tables, types and
triggers change by numbered scripts (`migrations/`). Functions have one present text (`schema/`), which is applied after
them, and grants (`deploy/roles.sql`) after that, all in the same transaction.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.platform.resources import roles_sql
from sentinel.store.database import OWNER, describe, first_line, parts_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "0016"
"""The revision this program is written for; a test holds it equal to the newest script."""

_LOCK = 7305013942711300


class SchemaNotReady(SentinelError):
    """The database is not at the revision this program needs; `detail` says what to run."""

    code = "schema-not-ready"


def current_revision(connection: psycopg.Connection) -> str | None:
    """The revision the database is at, or None for an empty one."""
    if connection.execute("select to_regclass('public.schema_version')").fetchone() == (None,):
        return None
    row = connection.execute("select version_num from public.schema_version").fetchone()
    return row[0] if row else None


def require_head(connection: psycopg.Connection) -> None:
    """Raise `SchemaNotReady` unless the database is at `HEAD`."""
    found = current_revision(connection)
    if found != HEAD:
        state = "empty" if found is None else f"at revision {found}"
        raise SchemaNotReady(f"the database is {state}, this program needs {HEAD}: run `sentinel migrate` first")


def migrate(url: str) -> tuple[str | None, str]:
    """Upgrade to `HEAD` and apply the grants; returns (revision before, revision after).

    Needs a login that may create roles and schemas. Raises `SchemaNotReady` with the server's reason otherwise,
    and `EngineUnavailable` when there is no server to ask.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError

    address = make_conninfo(**parts_of(url))
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(address, prepare_threshold=None))
    try:
        with engine.begin() as connection:
            return _upgrade(connection)
    except DBAPIError as error:
        cause = error.orig or error
        if error.connection_invalidated or (isinstance(cause, psycopg.OperationalError) and cause.sqlstate is None):
            raise EngineUnavailable(f"cannot reach the database at {describe(url)}: {first_line(cause)}") from error
        raise SchemaNotReady(f"cannot migrate {describe(url)}: {first_line(cause)}") from error
    except psycopg.Error as error:
        raise SchemaNotReady(f"cannot migrate {describe(url)}: {first_line(error)}") from error
    finally:
        engine.dispose()


def _upgrade(connection: Connection) -> tuple[str | None, str]:
    from alembic import command
    from alembic.config import Config

    run = connection.exec_driver_sql
    # Not at the start of the connection: a pooler would drop it, or keep it for the next.
    run("set local lock_timeout = '30s'")
    run(f"select pg_advisory_xact_lock({_LOCK})")
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    before = current_revision(raw)
    _ensure_owner(raw)
    raw.execute(f"set local role {OWNER}")
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _apply_functions(raw)
    raw.execute("reset role")
    raw.execute(roles_sql().read_text().encode())
    after = current_revision(raw)
    assert after is not None
    return before, after


def function_texts() -> list[Path]:
    """The files of `schema/`, in the order in which they are applied."""
    return sorted((Path(__file__).parent / "schema").rglob("*.sql"))


def _apply_functions(raw: psycopg.Connection) -> None:
    """Make the database's functions those of `schema/`: each is replaced, and what stands in no file is dropped.

    A function whose parameters' names or result changes must be dropped by the migration that comes with the change.
    """
    raw.execute("set local check_function_bodies = off")  # a body may name a function of a later file
    for text in function_texts():
        raw.execute(text.read_text().encode())
    # What this transaction has just replaced carries its id.
    left = raw.execute(
        "select p.oid::regprocedure::text from pg_proc p where p.xmin <> pg_current_xact_id()::xid"
        " and p.pronamespace in ('sentinel'::regnamespace, 'refunds'::regnamespace, 'orders'::regnamespace)"
    ).fetchall()
    for (function,) in left:
        raw.execute(f"drop function {function}".encode())


def _ensure_owner(raw: psycopg.Connection) -> None:
    """The owner must be there before its objects; everything else of `roles.sql` needs the objects first."""
    raw.execute(
        f"do $$ begin if not exists (select from pg_roles where rolname = '{OWNER}') then"
        f" create role {OWNER} nologin; end if; exception when duplicate_object or unique_violation then null; end $$"
    )
    raw.execute(
        f"do $$ begin execute format('grant create on database %I to {OWNER}', current_database());"
        f" grant create, usage on schema public to {OWNER};"
        f" if not pg_has_role(current_user, '{OWNER}', 'member') then execute format('grant {OWNER} to %I', current_user);"
        " end if; end $$"
    )
