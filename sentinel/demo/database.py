"""The demo's database: the embedded one, or the given one, with a login of its own for each of the demo's programs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from sentinel.cli.scratch_databases import SERVER
from sentinel.demo.processes import DemoFailed
from sentinel.platform.private_files import private_folder
from sentinel.platform.settings import data_dir_secret
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, EXPORTER, ORDERS, PUBLIC, WORKER, first_line

PROGRAMS = {
    "authority": AUTHORITY,
    "worker": WORKER,
    "orders": ORDERS,
    "console": CONSOLE,
    "public": PUBLIC,
    "board": BOARD,
    "export": EXPORTER,
}
"""The role of each program; what the public reaches is a part of the console with two logins of its own."""


@dataclass(frozen=True, slots=True)
class DemoDatabase:
    """`admin_url` migrates. `program_urls` gives each program's address by its name, once the roles are there.

    `scratch` is the variable that tells a launch gate where to make its scratch database; none where that finds a place by itself.
    """

    admin_url: str
    program_urls: Callable[[], Mapping[str, str]]
    scratch: dict[str, str]


@contextlib.contextmanager
def demo_database(data_dir: Path, say: Callable[[str], None], stop: threading.Event) -> Iterator[DemoDatabase]:
    """`SENTINEL_DATABASE_URL`, else the embedded server, which runs as long as the block. Raises `EmbeddedError`.

    Whichever it is, the data folder is there, with its folder of logs, or cannot be used and that is said.
    """
    from sentinel.store.embedded.failures import postgres_errors_in_one_line

    given = os.environ.get("SENTINEL_DATABASE_URL")
    if given:
        with postgres_errors_in_one_line(data_dir):
            private_folder(data_dir / "log")
        named = os.environ.get(SERVER)
        yield DemoDatabase(given, lambda: _made_logins(given, data_dir), {SERVER: named} if named else {})
        return
    from sentinel.store.embedded import supervised

    say("Starting PostgreSQL …")
    with supervised(data_dir, should_stop=stop.is_set) as server:
        yield DemoDatabase(
            server.admin_url, lambda: {name: server.url(user=role) for name, role in PROGRAMS.items()},
            {SERVER: server.admin_url},
        )  # fmt: skip


def _made_logins(url: str, data_dir: Path) -> dict[str, str]:
    """A login per program on the given server, named after the data folder, each a member of only its role."""
    tag = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:8]
    plain = url.replace("postgresql+psycopg://", "postgresql://", 1)
    found = {}
    try:
        with psycopg.connect(plain) as connection:
            for name, role in PROGRAMS.items():
                login, secret = f"sentinel_demo_{tag}_{name}", data_dir_secret(data_dir, f"{name}_database_secret")
                _make_login(connection, login, secret, role)
                given: dict[str, Any] = {**psycopg.conninfo.conninfo_to_dict(plain), "user": login, "password": secret}
                found[name] = psycopg.conninfo.make_conninfo(**given)
    except psycopg.Error as error:
        raise DemoFailed(
            f"the login of SENTINEL_DATABASE_URL could not make logins for the demo's programs: {first_line(error)}"
        ) from error
    return found


def _make_login(connection: psycopg.Connection[Any], login: str, secret: str, role: str) -> None:
    from sentinel.store.embedded.logins import scram_verifier

    name = sql.Identifier(login)
    if connection.execute("select from pg_roles where rolname = %s", [login]).fetchone() is None:
        connection.execute(sql.SQL("create role {}").format(name))
    limit = connection.execute("select rolconnlimit from pg_roles where rolname = %s", [role]).fetchone()
    terms = sql.SQL("alter role {} login password {} connection limit {}")
    verifier = scram_verifier(secret, secrets.token_bytes(16))
    connection.execute(terms.format(name, sql.Literal(verifier), sql.Literal(limit[0] if limit else -1)))
    connection.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), name))
