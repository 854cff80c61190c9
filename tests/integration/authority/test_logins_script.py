"""deploy/logins.sql, which an administrator runs with psql: the roles can log in, and no password is where others read it."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

import psycopg
from psycopg import sql

from sentinel.store.database import AUTHORITY, BOARD
from sentinel.store.embedded import find_binaries
from tests.support.fixtures import Fixtures
from tests.support.logins import make_login, program_url

SCRIPT = Path(__file__).parents[3] / "deploy" / "logins.sql"


def run(address: str, *, logs: str = "-c log_statement=ddl", **passwords: str) -> subprocess.CompletedProcess[str]:
    """Run the script; what the server would log under `log_statement = ddl` is in the output too."""
    given = {**os.environ, **passwords, "PGOPTIONS": f"-c client_min_messages=log {logs}"}
    psql = [find_binaries().bin_dir / "psql", "--no-psqlrc", "--quiet", f"--file={SCRIPT}", address]
    return subprocess.run(psql, env=given, capture_output=True, text=True, timeout=60, check=False)


def password_of(fixtures: Fixtures, role: str) -> str:
    """The one it has: the server is that of all tests."""
    return str(psycopg.conninfo.conninfo_to_dict(program_url(fixtures.url, role))["password"])


def test_each_role_that_is_given_a_password_logs_in_with_it_and_none_is_in_the_servers_log(fixtures: Fixtures) -> None:
    given = {f"{name}_PASSWORD": password_of(fixtures, role) for name, role in (("AUTHORITY", AUTHORITY), ("BOARD", BOARD))}  # fmt: skip
    before = fixtures.admin.execute("select rolname, rolpassword from pg_authid order by rolname").fetchall()
    done = run(fixtures.url, **given)
    assert done.returncode == 0, done.stderr
    assert not [name for name, secret in given.items() if secret in done.stdout + done.stderr]
    after = fixtures.admin.execute("select rolname, rolpassword from pg_authid order by rolname").fetchall()
    assert {role for role, _ in set(after) - set(before)} == {AUTHORITY, BOARD}
    for role in (AUTHORITY, BOARD):
        psycopg.connect(program_url(fixtures.url, role)).close()


def test_who_may_not_set_them_is_told_so_without_the_password(fixtures: Fixtures) -> None:
    """An error's context names the statement, and goes into the server's log whatever it logs."""
    name = f"login_{uuid.uuid4().hex[:8]}"
    address = make_login(fixtures.url, name)
    try:
        done = run(address, logs="", AUTHORITY_PASSWORD="never-to-be-seen")
    finally:
        fixtures.admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))
    assert done.returncode == 3 and "permission denied" in done.stderr
    assert "never-to-be-seen" not in done.stdout + done.stderr
