"""Talk to a server over its socket: the URL, a connection, does it answer, the one database."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import psycopg

from sentinel.store.embedded.cluster import SUPERUSER
from sentinel.store.embedded.options import PORT

DATABASE = "sentinel"


def url(socket_dir: Path, user: str, database: str = DATABASE) -> str:
    """The connection URL of a role."""
    # The port is said so that PGPORT in somebody's environment does not change it.
    host = quote(str(socket_dir), safe="")
    return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={PORT}"


def connect(socket_dir: Path, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
    """An autocommit connection as the superuser."""
    return psycopg.connect(url(socket_dir, SUPERUSER, database), connect_timeout=5, autocommit=True)


def answers(socket_dir: Path) -> bool:
    """True if a real connection works now."""
    try:
        connect(socket_dir).close()
    except psycopg.OperationalError:
        return False
    return True


def ensure_database(socket_dir: Path) -> None:
    """Create the database if it is not there yet."""
    with connect(socket_dir) as session:
        known = session.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
        if known is None:
            session.execute(f"CREATE DATABASE {DATABASE} OWNER {SUPERUSER}")
