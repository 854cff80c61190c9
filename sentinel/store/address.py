"""The database URL of a program or command: the configured one, else the embedded server's where that is allowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.store.database import CONSOLE

if TYPE_CHECKING:
    from sentinel.store.embedded import RunningServer

EMBEDDED = "SENTINEL_EMBEDDED_DATABASE"
"""Set to `off` when an installation has its own database: a missing address is then an error and does not start the embedded one."""


def require_embedded_allowed(*variables: str) -> None:
    """Raise `UnsafeConfiguration` when the embedded server is switched off; its text names `variables`, which may hold a URL."""
    said = os.environ.get(EMBEDDED) or "on"
    if said == "on":
        return
    from sentinel.platform.settings import UnsafeConfiguration  # imported only for the error

    if said != "off":
        raise UnsafeConfiguration(f"{EMBEDDED}: must be on or off")
    raise UnsafeConfiguration(f"{' or '.join(variables)}: required, because {EMBEDDED} is off")


def require_embedded_database(data_dir: Path, *variables: str) -> None:
    """Raise `UnsafeConfiguration` when the folder holds no database, or the embedded server is switched off.

    So a mistyped folder does not become a second, empty database. The error names `variables`, which may hold a URL.
    """
    require_embedded_allowed(*variables)
    from sentinel.platform.settings import UnsafeConfiguration
    from sentinel.store.embedded import has_database

    if not has_database(data_dir):
        raise UnsafeConfiguration(
            f"there is no database in {data_dir.absolute()}: `sentinel migrate` creates an empty one there, `sentinel demo` one with"
            f" demo data; or set SENTINEL_DATA_DIR to another folder, or {' or '.join(variables)} to a PostgreSQL of your own"
        )


@contextlib.contextmanager
def embedded_server(data_dir: Path, *variables: str) -> Iterator[RunningServer]:
    """The embedded server of a folder for the block, started if it does not run. Raises as `require_embedded_database`."""
    require_embedded_database(data_dir, *variables)
    from sentinel.store.embedded import running

    with running(data_dir) as server:
        yield server


def data_dir() -> Path:
    """The folder of the embedded database."""
    return Path(os.environ.get("SENTINEL_DATA_DIR") or "var")


@contextlib.contextmanager
def database_url(login: str = CONSOLE, *, own_variable: str = "SENTINEL_DATABASE_URL") -> Iterator[str]:
    """The URL in `own_variable`, else in `SENTINEL_DATABASE_URL`, else `login`'s URL on the embedded server.

    The embedded server is that of `SENTINEL_DATA_DIR`; it runs for the block, started if it does not run yet.
    """
    given = os.environ.get(own_variable) or os.environ.get("SENTINEL_DATABASE_URL")
    if given:
        yield given
        return
    with embedded_server(data_dir(), *dict.fromkeys((own_variable, "SENTINEL_DATABASE_URL"))) as server:
        yield server.url(user=login)


@contextlib.contextmanager
def administrator_url() -> Iterator[str]:
    """The URL in `SENTINEL_DATABASE_URL`, else the superuser's URL on the embedded server, whose database is created if missing."""
    if given := os.environ.get("SENTINEL_DATABASE_URL"):
        yield given
        return
    require_embedded_allowed("SENTINEL_DATABASE_URL")
    from sentinel.store.embedded import SUPERUSER, running

    with running(data_dir()) as server:
        yield server.url(user=SUPERUSER)
