"""The embedded PostgreSQL's folder: out of the account's reach, lost, and removed."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from sentinel.store.embedded import (
    EmbeddedError,
    find_binaries,
    layout,
    locks,
    remove,
    running,
)
from tests.support.embedded_servers import Holder, ask, needs_root, refusal


@needs_root
def test_an_unreachable_folder_is_relocated_without_opening_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = base.parent / "roots home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("SENTINEL_PG_BIN", str(_unreachable_programs(home)))
    hidden = home / "checkout" / "var"
    with running(hidden, own=True) as running_server:
        assert layout.RELOCATION_PARENTS[0] in running_server.data_dir.parents
        assert (hidden / "postgres" / "relocated").resolve() == running_server.data_dir.parent
        ask(running_server.admin_url, "CREATE TABLE kept AS SELECT 1 AS n")
        program = Path(os.readlink(f"/proc/{running_server.pid}/exe"))
        assert running_server.data_dir.parent in program.parents
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    with running(hidden) as again:
        assert ask(again.admin_url, "SELECT n FROM kept") == (1,)
    remove(hidden)
    assert not again.data_dir.parent.exists() and not hidden.exists()


def _unreachable_programs(home: Path) -> Path:
    """A copy of the programs' tree inside `home`, as in an environment under root's home."""
    tree = find_binaries().bin_dir.parent
    target = home / tree.parent.name / tree.name
    shutil.copytree(tree, target, symlinks=True)
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    return target / "bin"


def test_two_commands_that_start_at_once_may_both_make_the_folders(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: one of them was told that the folder is a file."""
    is_dir = Path.is_dir

    def made_by_another_meanwhile(path: Path) -> bool:
        found = is_dir(path)
        if not found:
            os.mkdir(path)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", made_by_another_meanwhile)
        layout.make_base(layout.Layout.of(base))
    assert (base / "postgres").is_dir()


@needs_root
def test_a_lost_relocated_folder_is_never_replaced_by_an_empty_one(base: Path) -> None:
    home = base.parent / "home"
    home.mkdir(mode=0o700)
    hidden = home / "var"
    with running(hidden) as running_server:
        moved = running_server.data_dir.parent
    shutil.rmtree(moved)
    assert "which is gone" in refusal(hidden)
    remove(hidden)


def test_remove_leaves_nothing_and_is_harmless_twice(used_base: Path) -> None:
    with running(used_base, own=True) as running_server:
        with pytest.raises(EmbeddedError, match="in use"):
            remove(used_base)
        assert ask(running_server.admin_url, "SELECT 1") == (1,)
    remove(used_base)
    remove(used_base)
    assert not used_base.exists()
    assert not running_server.socket_dir.exists()
    assert list(layout.Layout.of(used_base).relocated()) == []


def test_remove_keeps_what_is_not_the_servers(used_base: Path) -> None:
    with running(used_base):
        pass
    (used_base / "keys.json").write_text("{}")
    remove(used_base)
    assert [path.name for path in used_base.iterdir()] == ["keys.json"]


def test_a_lock_on_a_removed_file_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "start.lock"
    held = locks.try_lock(path)
    assert held is not None and locks.try_lock(path) is None
    path.unlink()
    fresh = locks.wait_lock(path, 1.0)
    assert fresh is not None
    assert locks.try_lock(path) is None
    held.close()
    assert locks.try_lock(path) is None, "the old file's lock freed the new one"
    fresh.close()


def test_a_killed_program_leaves_no_stale_lock(used_base: Path, holders: list[Holder]) -> None:
    holders.append(Holder(used_base, "shared"))
    holders[0].server()
    os.kill(holders[0].process.pid, signal.SIGKILL)
    holders[0].process.wait()
    with running(used_base, own=True) as running_server:
        assert running_server.started_by_us


@needs_root
def test_what_root_makes_in_somebodys_folder_is_theirs_and_what_was_there_stays_whose_it_was(base: Path) -> None:
    base.mkdir()
    os.chown(base, 1, 1)
    lock = locks.try_lock(base / locks.USERS_LOCK)
    assert lock is not None
    lock.close()
    assert ((base / locks.USERS_LOCK).stat().st_uid, stat.S_IMODE((base / locks.USERS_LOCK).stat().st_mode)) == (
        1,
        0o600,
    )
    # A name that its owner gave to a file of root's.
    ours = base.with_name("ours")
    ours.touch()
    os.link(ours, base / locks.START_LOCK)
    lock = locks.try_lock(base / locks.START_LOCK)
    assert lock is not None
    lock.close()
    assert ours.stat().st_uid == 0
