"""A real pgbouncer in transaction pooling before an embedded server, which drops start-up options as it is commonly told to."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sentinel.store.embedded import RunningServer
from tests.support.ports import free_port, listens

SERVER_CONNECTIONS = 2
"""By database and login: several clients share each."""

_CONFIG = """\
[databases]
* = host={socket_dir} port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 300
ignore_startup_parameters = options,extra_float_digits
logfile = {folder}/pgbouncer.log
log_connections = 0
log_disconnections = 0
"""


@dataclass(frozen=True)
class Pooler:
    """A running pgbouncer; `at` gives the pooled address of a direct one."""

    port: int
    log: Path

    def at(self, direct_url: str) -> str:
        """The same login and database through the pooler."""
        given: dict[str, Any] = {**conninfo_to_dict(direct_url), "host": "127.0.0.1", "port": str(self.port)}
        return make_conninfo(**given)


def program() -> str:
    """pgbouncer's program. Skips the test where it is not installed."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    return found


@contextlib.contextmanager
def running_pgbouncer(server: RunningServer, secrets: Mapping[str, str]) -> Iterator[Pooler]:
    """A pooler for these logins (name → secret), as the account that reaches the server's socket."""
    command = program()
    owner = server.socket_dir.stat().st_uid
    folder = Path(tempfile.mkdtemp(prefix="sentinel-pooler-", dir="/tmp"))
    port = free_port()
    try:
        (folder / "users.txt").write_text("".join(f'"{login}" "{secret}"\n' for login, secret in secrets.items()))
        (folder / "pgbouncer.ini").write_text(
            _CONFIG.format(socket_dir=server.socket_dir, port=port, folder=folder, size=SERVER_CONNECTIONS)
        )
        become: dict[str, Any] = {}
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                os.chown(path, owner, -1)
            become = {"user": owner, "extra_groups": []}
        process = subprocess.Popen(
            [command, str(folder / "pgbouncer.ini")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd="/", **become,
        )  # fmt: skip
        try:
            _wait(process, port, folder)
            yield Pooler(port, folder / "pgbouncer.log")
        finally:
            process.terminate()
            process.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    until = time.monotonic() + 60
    while not listens(port):
        said = (folder / "pgbouncer.log").read_text() if (folder / "pgbouncer.log").exists() else ""
        assert process.poll() is None and time.monotonic() < until, f"pgbouncer does not listen: {said}"
        time.sleep(0.02)


def server_connections(admin_url: str, login: str) -> int:
    """How many connections of a login PostgreSQL itself has."""
    with psycopg.connect(admin_url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where usename = %s and datname = current_database()", [login]
        ).fetchone()
    assert row is not None
    return int(row[0])
