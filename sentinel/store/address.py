"""The database URL of a command: the configured one, else the embedded server's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sentinel.store.database import CONSOLE


@contextlib.contextmanager
def database_url(login: str = CONSOLE, *, own_variable: str = "SENTINEL_DATABASE_URL") -> Iterator[str]:
    """`own_variable`, else `SENTINEL_DATABASE_URL`, else `login`'s address of the embedded server of `SENTINEL_DATA_DIR`, started if need be."""
    given = os.environ.get(own_variable) or os.environ.get("SENTINEL_DATABASE_URL")
    if given:
        yield given
        return
    from sentinel.store.embedded import running  # only where it is needed

    with running(Path(os.environ.get("SENTINEL_DATA_DIR") or "var")) as server:
        yield server.url(user=login)
