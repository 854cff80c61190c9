"""The names of scratch databases and of their server, and removal of those that a killed run left behind."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import sql

PREFIX = "sentinel_scratch_"
SERVER = "SENTINEL_SCRATCH_DATABASE_URL"
"""Environment variable of their server's URL, for use where the programs' own logins may not create databases."""


def drop_leftover_databases(connection: psycopg.Connection[Any]) -> None:
    """Drop scratch databases that nobody is connected to.

    Only for a server that has just been started: on another one a run may be about to connect to its database. The
    connection must be in autocommit mode, with a login that may drop databases.
    """
    left = connection.execute("select datname from pg_database where starts_with(datname, %s)", [PREFIX]).fetchall()
    for (name,) in left:
        with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.InvalidCatalogName):
            connection.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))
