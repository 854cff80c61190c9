"""A suite that was killed leaves its server's files, in memory: the next one removes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.server_folders import remove_left_behind


def test_only_folders_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left, ours, others = (
        tmp_path / f"sentinel-tests-{name}" for name in (f"{gone.pid}-abc", f"{os.getpid()}-abc", "x-y")
    )
    for folder in (left, ours, others):
        (folder / "postgres").mkdir(parents=True)
        (folder / "postgres" / "file").touch()
    remove_left_behind((tmp_path,))
    assert (left.exists(), ours.exists(), others.exists()) == (False, True, True)
