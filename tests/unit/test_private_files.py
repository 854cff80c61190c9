"""Files that hold data are closed to other accounts from their first moment, whatever the umask and whoever made them before."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.demo.processes import Processes
from sentinel.platform.private_files import open_private, private_folder, write_private


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Umasks one meets."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_one_is_0640_or_stricter(tmp_path: Path, umask: int) -> None:
    private_folder(tmp_path / "a")
    write_private(tmp_path / "a" / "file", b"one")
    with open_private(tmp_path / "a" / "log", append=True) as log:
        assert mode(tmp_path / "a" / "log") == 0o640 & ~umask
        log.write(b"line")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "file")) == (0o750 & ~umask, 0o640 & ~umask)


def test_one_that_was_open_to_others_is_closed_and_goes_on(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "folder"
    log.write_text("before ")
    log.chmod(0o666)
    folder.mkdir()
    folder.chmod(0o777)
    private_folder(folder)
    with open_private(log, append=True) as file:
        file.write(b"after")
    assert (log.read_text(), mode(log), mode(folder)) == ("before after", 0o640, 0o750)
    write_private(log, b"new")
    assert (log.read_text(), mode(log)) == ("new", 0o640)


def test_what_is_no_file_keeps_its_mode(tmp_path: Path) -> None:
    before = mode(Path("/dev/null"))
    write_private(Path("/dev/null"), b"gone")
    assert mode(Path("/dev/null")) == before


def test_a_childs_log_is_private(tmp_path: Path, umask: int) -> None:
    processes = Processes(tmp_path / "log", threading.Event())
    assert processes.run("one", [sys.executable, "-c", "print('said')"], os.environ) == 0
    log = tmp_path / "log" / "one.log"
    assert (log.read_text(), mode(log), mode(log.parent)) == ("said\n", 0o640 & ~umask, 0o750 & ~umask)
