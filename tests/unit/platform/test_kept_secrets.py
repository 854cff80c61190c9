"""A secret beside an embedded database is made once and is there as a whole or not at all, whoever asks at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sentinel.platform.settings import data_dir_secret


def test_who_asks_while_it_is_being_made_gets_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_being_made, goes_on = threading.Event(), threading.Event()
    real = secrets.token_hex

    def slowly(size: int) -> str:
        is_being_made.set()
        assert goes_on.wait(60)
        return real(size)

    monkeypatch.setattr(secrets, "token_hex", slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(data_dir_secret, tmp_path / "data")
        assert is_being_made.wait(60)
        second = threads.submit(data_dir_secret, tmp_path / "data")
        threading.Timer(0.2, goes_on.set).start()
        assert len(first.result()) == 64 and second.result() == first.result()


def test_many_at_once_get_one(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def ask(_: int) -> str:
        together.wait(60)
        return data_dir_secret(tmp_path)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == [".secret_key.lock", "secret_key"]


def test_a_folder_whose_server_locks_only_what_is_open_for_writing_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS, whose client makes record locks of these; a folder cannot be open for writing."""
    real = fcntl.flock

    def of_nfs(held: int, how: int) -> None:
        if how & fcntl.LOCK_EX and fcntl.fcntl(held, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(held, how)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    assert len(data_dir_secret(tmp_path)) == 64
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("left", ["", "\n"])
def test_a_file_that_a_power_cut_left_empty_is_no_secret_and_is_made_again(tmp_path: Path, left: str) -> None:
    (tmp_path / "secret_key").write_text(left)
    made = data_dir_secret(tmp_path)
    assert len(made) == 64 and data_dir_secret(tmp_path) == made
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600


def test_one_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        data_dir_secret(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [".secret_key.lock"]
