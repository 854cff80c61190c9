"""The contract of the embedded PostgreSQL, on real servers in private folders: what a first start gives."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sentinel.store.embedded import (
    EmbeddedError,
    RunningServer,
    find_binaries,
    layout,
    options,
    remove,
    running,
)
from sentinel.store.embedded.account import server_account
from sentinel.store.embedded.binaries import usable_binaries
from sentinel.store.embedded.connection import Address
from sentinel.store.embedded.logins import Passwords
from tests.support.busy import in_time
from tests.support.embedded_servers import (
    IS_ROOT,
    PACKAGE_ROOT,
    Holder,
    alive,
    ask,
    needs_linux,
    needs_root,
    settings_of,
)

INSTALLED_15 = Path("/usr/lib/postgresql/15/bin")


def test_a_new_folder_gets_a_durable_checksummed_utf8_database_on_a_private_socket(base: Path) -> None:
    with running(base, own=True) as running_server:
        wanted = {
            "server_encoding": "UTF8",
            "data_checksums": "on",
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "max_connections": "216",
            "jit": "off",
            "min_wal_size": "1GB",
            "max_wal_size": "2GB",
            "TimeZone": "UTC",
        }
        assert settings_of(running_server.admin_url, *wanted) == wanted
        identity = ask(running_server.admin_url, "SELECT current_user, current_database(), datcollate FROM pg_database")
        assert identity == ("sentinel_admin", "sentinel", "C")
        assert stat.S_IMODE(running_server.socket_dir.stat().st_mode) == 0o700
        assert running_server.data_dir.name == str(find_binaries().major)
        assert os.getsid(running_server.pid) != os.getsid(0), "Ctrl-C must not reach the server before its users"
    assert not running_server.socket_dir.exists()
    assert not (running_server.data_dir / "postmaster.pid").exists(), "it was not a clean stop"
    assert stat.S_IMODE(base.stat().st_mode) == (0o711 if IS_ROOT else 0o700)


def test_a_warm_start_and_a_clean_stop_take_less_than_two_seconds_and_keep_the_rows(used_base: Path) -> None:
    with running(used_base) as first:
        ask(first.admin_url, "CREATE TABLE kept AS SELECT 7 AS n")
    took = []
    for _ in range(3):  # a process that stands still delays one of them
        began = time.monotonic()
        with running(used_base) as again:
            assert ask(again.admin_url, "SELECT n FROM kept") == (7,)
        took.append(time.monotonic() - began)
    assert in_time(min(took), 2.0)


@needs_linux
@needs_root
def test_as_root_the_server_runs_as_an_existing_unprivileged_account_without_groups(base: Path) -> None:
    accounts = Path("/etc/passwd").read_bytes()
    with running(base) as running_server:
        status = Path(f"/proc/{running_server.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert "0" not in fields["Uid"].split() + fields["Gid"].split()
    assert fields["Groups"].split() == []
    assert Path("/etc/passwd").read_bytes() == accounts


@needs_linux
@needs_root
def test_an_ordinary_user_runs_it_as_themselves(base: Path, holders: list[Holder]) -> None:
    python = next((name for name in (sys.executable, "/usr/bin/python3") if _anybody_can_run(name)), None)
    if python is None:
        pytest.skip("no Python on this machine can be run by an ordinary user")
    account = server_account(None)
    folder = base.parent
    shutil.copytree(PACKAGE_ROOT / "sentinel", folder / "sentinel")
    subprocess.run(["chmod", "-R", "a+rX", str(folder / "sentinel")], check=True)
    binaries = usable_binaries(find_binaries(), account, folder)
    base.mkdir(mode=0o700)
    os.chown(base, account.uid, account.gid)
    # Everything is imported before the change of account: the environment may be under root's home.
    become = (
        f"os.environ['SENTINEL_PG_BIN'] = {str(binaries.bin_dir)!r}; sys.executable = {python!r}; "
        f"os.setgroups([]); os.setgid({account.gid}); os.setuid({account.uid})"
    )
    holders.append(Holder(base, "own", become, package_root=folder))
    pid, started, _ = holders[0].server()
    assert started
    assert Path(f"/proc/{pid}").stat().st_uid == account.uid
    assert (base / "postgres" / "server.log").stat().st_uid == account.uid
    assert holders[0].finish() == 0
    assert not alive(pid)


def _anybody_can_run(program: str) -> bool:
    nobody = server_account(None)
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, "-c", ""], user=nobody.uid, group=nobody.gid, extra_groups=[], cwd="/")
        return done.returncode == 0
    return False


@pytest.mark.skipif(not INSTALLED_15.is_dir(), reason="no PostgreSQL 15 is installed on this machine")
def test_an_installed_postgresql_15_serves_as_well(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_PG_BIN", str(INSTALLED_15))
    with running(base, own=True) as running_server:
        assert settings_of(running_server.admin_url, "fsync", "data_checksums") == {
            "fsync": "on",
            "data_checksums": "on",
        }
        assert running_server.data_dir.name == "15"


def test_a_path_with_a_space_works(base: Path) -> None:
    spaced = base.parent / "my data" / "it's 100%"
    spaced.parent.mkdir()
    spaced.parent.chmod(0o711)
    with running(spaced, own=True) as running_server:
        assert ask(running_server.admin_url, "SELECT 1") == (1,)
    remove(spaced)


@pytest.mark.parametrize(("name", "taken"), [("t mp", True), ("t,mp", False), ("t" * 90, False)])
def test_the_socket_folder_is_in_tmpdir_unless_a_client_could_not_reach_it(
    base: Path, monkeypatch: pytest.MonkeyPatch, name: str, taken: bool
) -> None:
    monkeypatch.setenv("TMPDIR", str(base.parent / name))
    assert (layout.Layout.of(base).socket_dirs()[0].parent == base.parent / name) is taken


def test_neither_a_space_in_tmpdir_nor_the_callers_pgport_matters(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = base.parent / "t mp"
    spaced.mkdir(mode=0o711)
    monkeypatch.setenv("TMPDIR", str(spaced))
    monkeypatch.setenv("PGPORT", "1")
    with running(base) as running_server:
        assert running_server.socket_dir.parent == spaced
        assert ask(running_server.url(user="sentinel_admin", database="postgres"), "SELECT 1") == (1,)


def test_url_percent_encodes_every_part() -> None:
    place = RunningServer(Address(Path("/a b/%?&"), Passwords(Path("/p"))), Path("/d"), 1, True)
    assert place.url(user="x@y", database="d/e") == "postgresql://x%40y@/d%2Fe?host=%2Fa%20b%2F%25%3F%26&port=5432"


def test_settings_replace_ours_and_durability_is_not_for_sale(used_base: Path) -> None:
    with running(used_base, settings={"max_connections": "30", "wal_buffers": "1MB"}) as running_server:
        changed = settings_of(running_server.admin_url, "max_connections", "wal_buffers")
        assert changed == {"max_connections": "30", "wal_buffers": "1MB"}
    for weaker in ({"fsync": "off"}, {"Synchronous_Commit": "off"}, {"full_page_writes": "off"}, {"x -c fsync": "off"}):
        with pytest.raises(EmbeddedError, match="cannot be changed"):
            options.server_options(Path("/tmp/s"), weaker)


@pytest.mark.parametrize(("memory_mib", "buffers_mib"), [(64, 16), (512, 64), (2048, 256), (65536, 256)])
def test_a_small_machine_gets_smaller_buffers(memory_mib: int, buffers_mib: int) -> None:
    assert options.shared_buffers_mib(memory_mib << 20) == buffers_mib
