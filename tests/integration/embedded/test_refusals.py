"""What the embedded PostgreSQL refuses, each in one line that says what to do."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentinel.store.embedded import (
    Embedded,
    EmbeddedError,
    StartGivenUp,
    cluster,
    connection,
    failures,
    find_binaries,
    layout,
    process,
    running,
)
from sentinel.store.embedded.account import server_account
from sentinel.store.embedded.binaries import inspect
from tests.support.embedded_servers import IS_ROOT, alive, ask, eventually, needs_linux, needs_root, refusal
from tests.support.served_programs import run_warm_command


def _data_of_another_major(base: Path, major: int) -> Path:
    other = base / "postgres" / str(major)
    other.mkdir(parents=True)
    (other / "PG_VERSION").write_text(f"{major}\n")
    for folder in (base, base / "postgres"):
        folder.chmod(0o711)
    if IS_ROOT:
        account = server_account(None)
        os.chown(other, account.uid, account.gid)
    return other


def test_the_data_of_another_major_version_is_never_silently_left_behind(base: Path) -> None:
    _data_of_another_major(base, 14)
    detail = refusal(base)
    assert "PostgreSQL 14" in detail and find_binaries().version in detail
    assert "SENTINEL_PG_BIN" in detail and "--data-dir" in detail


def test_mutant_that_does_not_look_starts_empty(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _data_of_another_major(base, 14)
    monkeypatch.setattr(cluster, "data_folders", lambda _: {})
    with pytest.raises(pytest.fail.Exception):
        refusal(base)


@needs_linux
@needs_root
@pytest.mark.parametrize(("mib", "when"), [(16, "at the first start"), (20, "at the first start"), (120, "later")])
def test_a_full_disk_is_said_in_one_line(base: Path, mib: int, when: str) -> None:
    base.mkdir(mode=0o711)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=711", "none", str(base)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        if when == "later":
            with running(base):
                pass
            _fill(base)
        assert "no space left on the disk" in refusal(base)
        if when == "later":
            (base / "filler").unlink()
            with running(base, own=True) as running_server:
                assert ask(running_server.admin_url, "SELECT 1") == (1,)
    finally:
        subprocess.run(["umount", str(base)], check=True)


def _fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(65536))


def _programs_that_fail(folder: Path, initdb: str) -> Path:
    """A folder with a `postgres` of a good version and an `initdb` that runs this shell line."""
    folder.mkdir(mode=0o711)
    for name, line in (("postgres", "echo 'postgres (PostgreSQL) 17.1'"), ("initdb", initdb)):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


_SAID_BY_A_FULL_DISK = {
    "nothing could be written": 'FATAL:  could not extend file "base/1/1249": No space left on device\nHINT:  Check free disk space.',
    "a part could be written": 'FATAL:  could not extend file "base/1/2691": wrote only 4096 of 8192 bytes at block 10\n'
    "HINT:  Check free disk space.",
    "a quota is used up": 'PANIC:  could not write to file "pg_wal/xlogtemp.7": Disk quota exceeded',
}  # fmt: skip


@pytest.mark.parametrize("said", _SAID_BY_A_FULL_DISK.values(), ids=_SAID_BY_A_FULL_DISK)
def test_a_full_disk_is_named_whatever_the_last_complaint_is(
    base: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    line = f"cat <<'SAID'\n{said}\nPANIC:  cannot abort transaction 1, it was already committed\nSAID\nexit 1"
    monkeypatch.setenv("SENTINEL_PG_BIN", str(_programs_that_fail(base.with_name("bin"), line)))
    assert "no space left on the disk" in refusal(base)
    assert list((base / "postgres").glob("*.new-*")) == []


def test_a_full_disk_is_named_when_nothing_could_be_said(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_PG_BIN", str(_programs_that_fail(base.with_name("bin"), "echo oh: no; exit 1")))
    assert refusal(base) == "initdb failed: oh: no"
    monkeypatch.setattr(failures.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    assert "no space left on the disk" in refusal(base)


@pytest.mark.parametrize("moment", ["before initdb ends", "before the server answers"])
def test_a_start_that_is_given_up_leaves_nothing(base: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    if moment == "before initdb ends":
        lines = 'sleep 60 & echo $! >"$2/child"; chmod 644 "$2/child"; wait'
        monkeypatch.setenv("SENTINEL_PG_BIN", str(_programs_that_fail(base.with_name("bin"), lines)))
    else:
        monkeypatch.setattr(connection.Address, "answers", lambda _: False)
    children: list[int] = []

    def should_stop() -> bool:
        children.extend(int(one.read_text()) for one in base.glob("postgres/*.new-*/child") if one.stat().st_size)
        children.extend(filter(None, (process.live_server(one) for one in base.glob("postgres/[0-9]*[0-9]"))))
        return bool(children)

    embedded = Embedded(base, own=True, should_stop=should_stop)
    with pytest.raises(StartGivenUp):
        embedded.start()
    assert children and eventually(lambda: not any(map(alive, children)))
    assert list((base / "postgres").glob("*.new-*")) == []
    assert not any(folder.exists() for folder in layout.Layout.of(base).socket_dirs())
    embedded.stop()


def test_a_wrong_sentinel_pg_bin_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_PG_BIN", str(base))
    assert "SENTINEL_PG_BIN" in refusal(base)


def test_a_too_old_postgresql_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.mkdir()
    for name in ("postgres", "initdb"):
        (base / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.4'\n")
        (base / name).chmod(0o755)
    found = inspect(base)
    assert found is not None and (found.major, found.version) == (13, "13.4")
    monkeypatch.setenv("SENTINEL_PG_BIN", str(base))
    with pytest.raises(EmbeddedError, match="15 or newer"):
        find_binaries()


def test_a_server_that_cannot_start_says_its_own_reason(used_base: Path) -> None:
    with pytest.raises(EmbeddedError, match='starting PostgreSQL failed: FATAL:.*"work_mem"'):
        Embedded(used_base, settings={"work_mem": "no number"}).start()
    with running(used_base, own=True) as running_server:
        assert running_server.started_by_us


@needs_root
def test_a_socket_folder_made_by_somebody_else_is_refused(base: Path) -> None:
    trap = layout.Layout.of(base).socket_dirs()[0]
    trap.mkdir()
    os.chown(trap, 1, 1)
    try:
        assert "made by somebody else" in refusal(base)
    finally:
        trap.rmdir()


def test_a_folder_that_is_no_data_folder_is_not_overwritten(base: Path) -> None:
    stranger = base / "postgres" / str(find_binaries().major)
    stranger.mkdir(parents=True)
    (stranger / "diary.txt").write_text("mine")
    for folder in (base, base / "postgres"):
        folder.chmod(0o711)
    assert "move it away" in refusal(base)
    assert (stranger / "diary.txt").read_text() == "mine"


def test_the_last_complaint_is_chosen_over_hints_and_notices() -> None:
    output = (
        "2026-11-21 10:00:00.123 UTC [12] LOG:  starting\n"
        "2026-11-21 10:00:00.124 UTC [12] FATAL:  could not do it\n"
        "2026-11-21 10:00:00.124 UTC [12] HINT:  Try again.\n"
        "2026-11-21 10:00:00.125 UTC [12] LOG:  database system is shut down\n"
    )
    assert failures.last_meaningful_line(output) == "FATAL:  could not do it"


def test_what_is_wrong_with_the_settings_is_told_before_the_folder_is_looked_at(base: Path) -> None:
    done = run_warm_command("serve", SENTINEL_DATA_DIR=str(base), SENTINEL_PORT="x", SENTINEL_SECRET_KEYS="short")
    assert done.returncode == 2 and not base.exists(), done.stderr
    assert "SENTINEL_PORT: Not a valid integer" in done.stderr and "SENTINEL_SECRET_KEYS" in done.stderr
