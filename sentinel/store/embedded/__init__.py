"""The embedded PostgreSQL under the data folder: started, shared, recovered and stopped by this program.

The default of every command when no `SENTINEL_DATABASE_URL` is given. This package only runs the
server; schema and roles are the business of `sentinel.store.migrate`. It never creates an
operating-system account, never changes the mode of a folder it did not make, never weakens
durability, and never leaves a server behind. Every failure is an `EmbeddedError` of one line that
says what to do.

    with running(Path("var"), own=True) as server:
        psycopg.connect(server.admin_url)
"""

from __future__ import annotations

from sentinel.store.embedded.binaries import Binaries, find_binaries
from sentinel.store.embedded.failures import EmbeddedError, StartGivenUp
from sentinel.store.embedded.layout import has_database
from sentinel.store.embedded.logins import SUPERUSER
from sentinel.store.embedded.removal import remove
from sentinel.store.embedded.server import Embedded, RunningServer, running, supervised

__all__ = [
    "SUPERUSER",
    "Binaries",
    "Embedded",
    "EmbeddedError",
    "RunningServer",
    "StartGivenUp",
    "find_binaries",
    "has_database",
    "remove",
    "running",
    "supervised",
]
