"""Who may enter the embedded database: each program by its own secret, and nobody else, whatever account he has."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, ORDERS, OWNER, PUBLIC, WORKER
from sentinel.store.embedded import RunningServer, running
from sentinel.store.embedded.logins import LOGINS, SUPERUSER, ensure_logins, scram_verifier
from sentinel.store.migrate import migrate
from tests.support.embedded_servers import Holder, ask, needs_linux, needs_root, refusal
from tests.support.logins import as_login
from tests.support.ports import free_port
from tests.support.served_programs import run

PROGRAMS = (AUTHORITY, WORKER, ORDERS, CONSOLE, PUBLIC, BOARD)
TRUSTING = "# as an older version left it\nlocal all all trust\nhost all all 127.0.0.1/32 reject\nlocal replication all trust\n"


@pytest.fixture
def base(used_base: Path) -> Path:
    """A server has run in it: what a first start makes is not what is tried here."""
    return used_base


@pytest.fixture
def server(base: Path) -> Iterator[RunningServer]:
    with running(base, own=True) as found:
        yield found


def refused(url: str) -> bool:
    """Whether the server lets nobody in by this address for lack of the right secret."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError as error:
        return "password" in str(error) or "no pg_hba.conf entry" in str(error)
    return False


def test_nobody_enters_without_the_secret_of_the_very_login(server: RunningServer) -> None:
    secrets = {login: server.address.passwords.of(login) for login in LOGINS}
    assert len(set(secrets.values())) == len(LOGINS)
    tried = [
        (login, secret) for login in LOGINS for secret in ("", "guessed", *secrets.values()) if secret != secrets[login]
    ]
    let_in = [login for login, secret in tried if not refused(as_login(server.admin_url, login, secret))]
    print(f"N={len(tried)}")
    assert let_in == []
    assert {ask(server.url(user=login), "select session_user::text, current_user::text") for login in LOGINS} == {
        (login, login) for login in LOGINS
    }
    assert refused(as_login(server.admin_url, SUPERUSER, "") + " replication=true")


@needs_root
@needs_linux
def test_another_account_of_this_machine_does_not_enter_even_where_it_reaches_the_socket(server: RunningServer) -> None:
    """As the server's own account, which owns the socket's folder and the data."""
    owner = server.data_dir.stat().st_uid
    # It becomes that account itself, which may be unable to read this Python's modules.
    program = (
        "import os, sys, psycopg\n"
        "os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "for login in sys.argv[3:]:\n"
        "  try: psycopg.connect(host=sys.argv[2], user=login, dbname='sentinel').close()\n"
        "  except psycopg.OperationalError as error: print('refused' if 'password' in str(error) else error)\n"
        "  else: print('let in')"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(owner), str(server.socket_dir), *LOGINS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout.splitlines() == ["refused"] * len(LOGINS), told
    cannot = subprocess.run(
        ["cat", str(server.address.passwords.folder / AUTHORITY)],
        user=owner,
        group=owner,
        extra_groups=[],
        capture_output=True,
    )
    assert cannot.returncode != 0


def test_each_secret_is_a_file_that_its_owner_alone_reads(server: RunningServer) -> None:
    folder = server.address.passwords.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == set(LOGINS)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@needs_linux
def test_no_secret_is_in_a_command_line_or_in_the_server_s_log(base: Path, server: RunningServer) -> None:
    secrets = [server.address.passwords.of(login) for login in LOGINS]
    command_lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_lines.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    assert any(str(server.data_dir).encode() in line for line in command_lines)
    said = b"".join(command_lines) + (base / "postgres" / "server.log").read_bytes()
    assert [secret for secret in secrets if secret.encode() in said] == []


def test_changing_the_role_leads_nowhere(server: RunningServer) -> None:
    migrate(server.admin_url)
    tried = 0
    for login in PROGRAMS:
        with psycopg.connect(server.url(user=login), autocommit=True) as connection:
            for other in {SUPERUSER, OWNER, *PROGRAMS} - {login}:
                for statement in (
                    f"set role {other}",
                    f"set session authorization {other}",
                    f"grant {other} to {login}",
                ):
                    tried += 1
                    with pytest.raises((pg.InsufficientPrivilege, pg.InvalidGrantOperation)):
                        connection.execute(statement.encode())
            for statement in ("reset role", "reset session authorization", "set role none"):
                connection.execute(statement.encode())
                found = connection.execute("select session_user::text, current_user::text").fetchone()
                assert found == (login, login)
            member = connection.execute(
                "select count(*) from pg_auth_members where member = current_user::regrole"
            ).fetchone()
            assert member == (0,)
    print(f"N={tried}")


def as_before(base: Path, binaries_of: RunningServer) -> None:
    """What an older version left: everybody is let in, programs have no login, nothing has a secret."""
    (binaries_of.data_dir / "pg_hba.conf").write_text(TRUSTING)
    shutil.rmtree(base / "postgres" / "passwords")


def test_a_folder_of_an_older_version_is_closed_at_its_next_start_and_keeps_its_data(base: Path) -> None:
    with running(base, own=True) as old:
        ask(old.admin_url, "create table kept as select 7 as n")
        for login in PROGRAMS:
            ask(old.admin_url, f"alter role {login} nologin password null")
        ask(old.admin_url, f"drop role {BOARD}")
        ask(old.admin_url, f"alter role {SUPERUSER} password null")
    as_before(base, old)
    with running(base) as new:
        assert ask(new.admin_url, "select n from kept") == (7,)
        assert [login for login in LOGINS if not refused(as_login(new.admin_url, login, ""))] == []
        assert ask(new.url(user=BOARD), "select current_user::text") == (BOARD,)


def test_who_joins_a_server_that_an_older_version_still_runs_is_told_to_stop_it(
    base: Path, holders: list[Holder]
) -> None:
    holders.append(Holder(base, "own"))
    holders[0].server()
    shutil.rmtree(base / "postgres" / "passwords")
    with (
        pytest.raises(
            Exception,
            match="stop the programs that use this database .an older version made no secrets. and start again",
        ),
        running(base),
    ):
        pass


def test_a_lost_secret_is_made_anew_and_a_wrong_one_is_told(base: Path) -> None:
    with running(base, own=True) as server:
        folder = server.address.passwords.folder
        earlier = server.address.passwords.of(WORKER)
    (folder / WORKER).unlink()
    with running(base) as server:
        assert server.address.passwords.of(WORKER) != earlier
        assert ask(server.url(user=WORKER), "select 1") == (1,)
        assert refused(as_login(server.admin_url, WORKER, earlier))
    (folder / SUPERUSER).write_text("not-the-one")
    told = refusal(base)
    assert "does not accept the secret in" in told
    assert "not-the-one" not in told


def test_what_is_set_already_is_not_set_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not wait for what was done at the first one."""
    with running(base, own=True) as server:
        pass

    def never(*_: object) -> None:
        raise AssertionError("the logins were set again")

    monkeypatch.setattr("sentinel.store.embedded.logins._run_alone", never)
    ensure_logins(server.data_dir, server.address.passwords, None, None)  # type: ignore[arg-type]


def test_the_verifier_is_the_server_s_own(server: RunningServer) -> None:
    verifier = scram_verifier("a secret", b"0123456789abcdef")
    ask(server.admin_url, f"create role verified login password '{verifier}'")
    assert ask(as_login(server.admin_url, "verified", "a secret"), "select 1") == (1,)
    assert refused(as_login(server.admin_url, "verified", "another"))


@pytest.mark.parametrize("command", ["doctor", "tenants list", "serve"])
def test_commands_on_a_folder_without_a_database_say_what_to_run_and_make_none(new_base: Path, command: str) -> None:
    ran = run(*command.split(), SENTINEL_DATA_DIR=str(new_base), SENTINEL_PORT=str(free_port()))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert f"there is no database in {new_base}: `sentinel migrate` creates an empty one there" in ran.stderr
    assert not new_base.exists()


def test_commands_on_a_database_that_was_never_migrated_say_what_to_run(server: RunningServer, base: Path) -> None:
    ran = run("doctor", SENTINEL_DATA_DIR=str(base), SENTINEL_PORT=str(free_port()))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "run `sentinel migrate` first" in ran.stderr
