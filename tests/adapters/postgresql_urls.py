"""A database of PostgreSQL as SQLAlchemy names it."""

from __future__ import annotations

from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


def sqlalchemy_url(conninfo: str, *, driver: str = "postgresql+psycopg") -> str:
    """The URL of what libpq's connection string names; its host may be the folder of a socket."""
    parts = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(conninfo).items()}
    user = f"{parts['user']}:{parts['password']}" if "password" in parts else parts["user"]
    return f"{driver}://{user}@/{parts['dbname']}?host={parts['host']}&port={parts.get('port', '5432')}"
