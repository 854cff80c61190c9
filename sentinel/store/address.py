"""The database URL of a program or command: the configured one, else the embedded server's where that is allowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sentinel.store.database import CONSOLE

EMBEDDED = "SENTINEL_EMBEDDED_DATABASE"
"""`off` where a database of one's own is meant: a forgotten address then starts no other one."""


def require_embedded_allowed(*variables: str) -> None:
    """Raise `UnsafeConfiguration` where the embedded server is switched off; `variables` are those that could have given an address."""
    said = os.environ.get(EMBEDDED) or "on"
    if said == "on":
        return
    from sentinel.platform.settings import UnsafeConfiguration  # only where it is needed

    if said != "off":
        raise UnsafeConfiguration(f"{EMBEDDED}: must be on or off")
    raise UnsafeConfiguration(f"{' or '.join(variables)}: required, as {EMBEDDED}=off says")


@contextlib.contextmanager
def database_url(login: str = CONSOLE, *, own_variable: str = "SENTINEL_DATABASE_URL") -> Iterator[str]:
    """`own_variable`, else `SENTINEL_DATABASE_URL`, else `login`'s address of the embedded server of `SENTINEL_DATA_DIR`, started if need be."""
    given = os.environ.get(own_variable) or os.environ.get("SENTINEL_DATABASE_URL")
    if given:
        yield given
        return
    require_embedded_allowed(*dict.fromkeys((own_variable, "SENTINEL_DATABASE_URL")))
    from sentinel.store.embedded import running  # only where it is needed

    with running(Path(os.environ.get("SENTINEL_DATA_DIR") or "var")) as server:
        yield server.url(user=login)
