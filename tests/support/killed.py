"""Killing a program with all that it forked, as the kernel does where memory runs out."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any


def kill_with_children(process: subprocess.Popen[Any]) -> None:
    """SIGKILL it and the processes it forked, and wait for it. It is stopped first, so that it forks no more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
    for pid in [*children_of(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(60)


def children_of(pid: int) -> list[int]:
    """The processes that this one forked."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(folder.name))
    return found
