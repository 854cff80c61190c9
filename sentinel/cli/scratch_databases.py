"""Where scratch databases are made, and the end of those that a killed run left behind."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import sql

PREFIX = "sentinel_scratch_"
SERVER = "SENTINEL_SCRATCH_DATABASE_URL"
"""Names their server, for where the programs' own logins may not make one."""


def drop_leftover_databases(connection: psycopg.Connection[Any]) -> None:
    """Drop scratch databases that nobody is connected to.

    Only for a server that has just been started: on another a run may be about to connect to its own. The connection
    is an autocommit one of a login that may drop them.
    """
    left = connection.execute("select datname from pg_database where starts_with(datname, %s)", [PREFIX]).fetchall()
    for (name,) in left:
        with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.InvalidCatalogName):
            connection.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))
