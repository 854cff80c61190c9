"""The database URL of a command: the configured one, else the embedded server's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sentinel.store.database import CONSOLE
from sentinel.store.embedded import running


@contextlib.contextmanager
def database_url(login: str = CONSOLE) -> Iterator[str]:
    """`SENTINEL_DATABASE_URL`, else `login`'s address of the embedded server of `SENTINEL_DATA_DIR`, started if need be."""
    given = os.environ.get("SENTINEL_DATABASE_URL", "")
    if given:
        yield given
        return
    with running(Path(os.environ.get("SENTINEL_DATA_DIR", "var"))) as server:
        yield server.url(user=login)
