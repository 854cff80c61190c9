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
"""Program → its role; "public" and "board" are the public part of the console, which has two logins of its own."""


@dataclass(frozen=True, slots=True)
class DemoDatabase:
    """The demo's database. `admin_url` may migrate it; `program_urls` returns, once the roles exist, a URL per program.

    `scratch` is the environment variable that tells a launch gate on which server to create its scratch database; empty
    where the gate finds one by itself.
    """

    admin_url: str
    program_urls: Callable[[], Mapping[str, str]]
    scratch: dict[str, str]


@contextlib.contextmanager
def demo_database(data_dir: Path, say: Callable[[str], None], stop: threading.Event) -> Iterator[DemoDatabase]:
    """Yield the database of `SENTINEL_DATABASE_URL`, else of the embedded server, which runs during the block.

    In both cases the data folder and its folder of logs exist then. Raises `EmbeddedError`, also where the folders
    cannot be used.
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
    """Create a login per program on the given server, named after the data folder, each a member of only its role; return their URLs."""
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
            f"the login of SENTINEL_DATABASE_URL could not create logins for the demo's programs: {first_line(error)}"
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
