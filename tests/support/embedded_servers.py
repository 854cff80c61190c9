"""Embedded servers of other processes, and what tests ask of a server and its folder."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

import sentinel
from sentinel.store.embedded import (
    SUPERUSER,
    EmbeddedError,
    RunningServer,
    process,
    remove,
    running,
)
from sentinel.store.embedded.logins import LOGINS
from tests.support.busy import long_enough
from tests.support.warm_process import WarmProcess

IS_ROOT = os.geteuid() == 0

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can change the account, mount and hand over folders")

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc and the parent-death signal of Linux")

PACKAGE_ROOT = Path(sentinel.__file__).resolve().parents[1]

# Holds a server until a line arrives, then leaves the block. Extra statements go in by exec.
HOLD = """
import os, sys
from pathlib import Path
import psycopg
from sentinel.store.embedded import EmbeddedError, process, running
exec(sys.argv[3])
try:
    with running(Path(sys.argv[1]), own=sys.argv[2] == "own") as server:
        print(server.pid, server.started_by_us, server.admin_url, flush=True)
        sys.stdin.readline()
except EmbeddedError as error:
    print("refused:", error.detail, flush=True)
    sys.exit(3)
"""


WARM = partial(WarmProcess, imported=("psycopg", "sentinel.store.embedded"))


class Holder:
    """Another process that runs or shares the server of a folder."""

    def __init__(self, base: Path, kind: str, extra: str = "", package_root: Path = PACKAGE_ROOT) -> None:
        # Of another place's package nothing is imported yet.
        start = WARM if package_root == PACKAGE_ROOT else subprocess.Popen
        self.process = start(
            [sys.executable, "-c", HOLD, str(base), kind, extra],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=2,  # ours, also where pytest captures it
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package_root), os.environ.get("PYTHONPATH", "")])},
        )

    def output_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def server(self) -> tuple[int, bool, str]:
        pid, started, url = self.output_line().split()
        return int(pid), started == "True", url

    def finish(self) -> int:
        self.process.communicate("\n", timeout=150)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def reachable_folder() -> Path:
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="snt-test-", dir=memory if roomy else None)).resolve()
    folder.chmod(0o711)
    return folder


def wipe(folder: Path) -> None:
    eventually(lambda: try_remove(folder / "var"))
    shutil.rmtree(folder)


def try_remove(base: Path) -> bool:
    with suppress(EmbeddedError):
        remove(base)
        return True
    return False


def eventually(test: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + long_enough(seconds)
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    with suppress(OSError):
        # A zombie that waits for its parent is as good as gone.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def may_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on it is as for root without CAP_SYS_PTRACE: what another account's processes run and where they are is not to be seen."""
    readlink = os.readlink

    def refused(path: str | Path) -> str:
        if str(path).startswith("/proc/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return readlink(path)

    monkeypatch.setattr(os, "readlink", refused)


def ask(url: str, statement: str) -> tuple[object, ...] | None:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchone() if cursor.description else None


def is_answering(url: str) -> bool:
    with suppress(psycopg.OperationalError):
        return ask(url, "SELECT 1") is not None
    return False


def settings_of(url: str, *names: str) -> dict[str, object]:
    with psycopg.connect(url) as connection:
        return {name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()[0] for name in names}  # type: ignore[index]


def launch_without_watch(folder: Path) -> Path:
    """The mutant of the trampoline: the child does not learn that its starter ended."""
    text = process.TRAMPOLINE.read_text()
    broken = text.replace("watch(_PR_SET_PDEATHSIG", "(lambda *_: None)(_PR_SET_PDEATHSIG")
    assert broken != text
    mutant = folder / "trampoline_mutant.py"
    mutant.write_text(broken)
    return mutant


def refusal(base: Path) -> str:
    with pytest.raises(EmbeddedError) as caught, running(base, own=True):
        pass
    assert "\n" not in caught.value.detail
    assert caught.value.code == "embedded-postgres"
    return caught.value.detail


@contextmanager
def running_without_roles() -> Iterator[RunningServer]:
    """A PostgreSQL in which no program has a role yet."""
    folder = reachable_folder()
    try:
        with running(folder / "var", own=True) as server:
            with psycopg.connect(server.admin_url, autocommit=True) as connection:
                for login in LOGINS:
                    if login != SUPERUSER:
                        connection.execute(f"drop role {login}".encode())
            yield server
    finally:
        wipe(folder)
