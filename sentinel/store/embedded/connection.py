"""Connections to the embedded server: URLs of logins, a liveness check, its one database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from sentinel.store.embedded.failures import EmbeddedError
from sentinel.store.embedded.logins import SUPERUSER, Passwords
from sentinel.store.embedded.options import PORT

DATABASE = "sentinel"


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the secrets of its logins."""

    socket_dir: Path
    passwords: Passwords

    def url(self, user: str, database: str = DATABASE) -> str:
        """The connection URL of a login. Raises `EmbeddedError` when its secret cannot be read."""
        secret = self.passwords.of(user)
        login = quote(user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        host = quote(str(self.socket_dir), safe="")
        # The port is in the URL so that PGPORT in the environment does not change it.
        return f"postgresql://{login}@/{quote(database, safe='')}?host={host}&port={PORT}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """An autocommit connection as the superuser."""
        return psycopg.connect(self.url(SUPERUSER, database), connect_timeout=5, autocommit=True)

    def answers(self) -> bool:
        """True if a real connection works now. Raises `EmbeddedError` when the server rejects the secret."""
        try:
            self.connect().close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise EmbeddedError(
                    f"PostgreSQL does not accept the secret in {self.passwords.folder / SUPERUSER}: restore the right one, or stop the"
                    " programs that use this database and delete that file; the next start then makes a new one"
                ) from None
            return False
        return True

    def ensure_database(self) -> None:
        """Create the database if it is missing."""
        with self.connect() as session:
            known = session.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if known is None:
                session.execute(f"CREATE DATABASE {DATABASE} OWNER {SUPERUSER}")
