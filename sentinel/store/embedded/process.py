"""Starts PostgreSQL's programs under the server's account, and finds and stops the server processes of one data folder.

Processes started here end with this process (on Linux). A process id in a file proves nothing: it may be stale and
reused by an unrelated process. On Linux a process is ours if it runs `postgres` inside the data folder (/proc);
elsewhere if its command line says so. Where we may not inspect it, as root in a container without CAP_SYS_PTRACE, that
is unknown: such a process is neither signalled nor taken for gone.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from sentinel.store.embedded.account import Account
from sentinel.store.embedded.failures import EmbeddedError

TRAMPOLINE = Path(__file__).with_name("trampoline.py")


def launch(
    command: Sequence[str], account: Account, output: IO[bytes] | int, *, given: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start `command` with `given` as standard input; all its output goes to `output`. It ends with this thread or process."""
    uid, gid = (str(account.uid), str(account.gid)) if account.switch else ("-", "-")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(TRAMPOLINE), str(os.getpid()), uid, gid, *command],
        stdin=given,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_environment(),
        # Ctrl-C goes to the whole terminal group: the server must stop after its users, not with them.
        start_new_session=True,
    )


def launch_lasting(command: Sequence[str], account: Account, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """As `launch`, but safe to call from a short-lived thread: the kernel ends the child with the *thread* that forked it."""
    if threading.current_thread() is threading.main_thread():
        return launch(command, account, output)
    started: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

    def keep() -> None:
        try:
            process = launch(command, account, output)
        except BaseException as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    threading.Thread(target=keep, daemon=True, name="sentinel-postgres-keeper").start()
    result = started.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _environment() -> dict[str, str]:
    # PGDATA, PGOPTIONS and a foreign locale of the caller must not reach the server.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


STEP_SECONDS = 2.0
_STRAY_SECONDS = 5.0
_POLL_SECONDS = 0.02
_ENDED = ("", "Z", "X")
"""The states (`_name_and_state`) of a process that is gone, or is a zombie."""


def recorded_pid(data_dir: Path) -> int | None:
    """The process id in postmaster.pid, alive or not."""
    lines = _pid_file_lines(data_dir)
    # A single-user or bootstrap process writes a negative number.
    return abs(int(lines[0])) if lines and lines[0].lstrip("-").isdigit() else None


def recorded_socket_dir(data_dir: Path) -> Path | None:
    """The socket folder in postmaster.pid (its fifth line)."""
    lines = _pid_file_lines(data_dir)
    return Path(lines[4]) if len(lines) > 4 and lines[4] else None


def _pid_file_lines(data_dir: Path) -> list[str]:
    try:
        return [line.strip() for line in (data_dir / "postmaster.pid").read_text().splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def live_server(data_dir: Path) -> int | None:
    """The process id of the server that runs on `data_dir`, else None. If we may not inspect it, only its address shows whether it runs."""
    pid = recorded_pid(data_dir)
    return pid if pid is not None and _is_ours(pid, data_dir) is not False else None


def belongs_to(pid: int, data_dir: Path) -> bool:
    """True if `pid` is known to be a living PostgreSQL process of this data folder: only such processes are signalled."""
    return _is_ours(pid, data_dir) is True


def may_belong_to(pid: int, data_dir: Path) -> bool:
    """As `belongs_to`; if we may not inspect it, whether its name and account fit: PostgreSQL's, and the data's owner."""
    found = _is_ours(pid, data_dir)
    if found is not None:
        return found
    try:
        is_of_its_account = os.stat(f"/proc/{pid}").st_uid == os.stat(data_dir).st_uid
        return is_of_its_account and _name_and_state(pid)[0].startswith("postgres")
    except OSError:
        return False


def _is_ours(pid: int, data_dir: Path) -> bool | None:
    """Whether `pid` is a living PostgreSQL process of this data folder; None if we may not inspect it."""
    if sys.platform != "linux":
        said = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
        return "postgres" in said.stdout and str(data_dir) in said.stdout
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        return program.startswith("postgres") and os.path.samefile(f"/proc/{pid}/cwd", data_dir)
    except PermissionError:
        return None if _name_and_state(pid)[1] not in _ENDED else False
    except OSError:
        return False


def _name_and_state(pid: int) -> tuple[str, str]:
    """A process's name and the letter of its state, which everybody may read (proc_pid_stat(5)); both "" if it is gone."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return "", ""
    return name, rest.split()[0]


def strays(data_dir: Path) -> list[int]:
    """The server processes of this folder, including backends (Linux; elsewhere empty)."""
    if sys.platform != "linux":
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and belongs_to(int(name), data_dir)]


def stop_server(pid: int, data_dir: Path) -> None:
    """Stop a server that is not our child: fast, then immediate, then kill. Returns when it is gone."""
    for step in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if not belongs_to(pid, data_dir):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, step)
        if _gone(lambda: not belongs_to(pid, data_dir), STEP_SECONDS):
            return
    raise EmbeddedError(f"process {pid} serves {data_dir} and does not end: end it and start again")


def stop_child(process: subprocess.Popen[bytes]) -> None:
    """Stop our own child: fast shutdown, then immediate, then kill."""
    for step in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(step)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STEP_SECONDS)
    process.wait()


def clear_leftovers(data_dir: Path) -> None:
    """Stop processes that a killed starter or server left behind. Call before a start, with the start lock held.

    Raises `EmbeddedError` when one keeps running that may be ours and that we may not inspect.
    A backend of a killed server may still be in a statement, could still commit it, and holds the
    shared memory that the next server needs; it normally ends by itself within milliseconds.
    """
    pid = recorded_pid(data_dir)
    if pid is None:
        return
    stop_server(pid, data_dir)
    # One that we may not inspect is given time to end by itself: a server ends with its starter.
    if not _gone(lambda: not may_belong_to(pid, data_dir), _STRAY_SECONDS):
        raise EmbeddedError(
            f"process {pid} runs PostgreSQL, and this account may not see whether on {data_dir} (CAP_SYS_PTRACE): if its command line"
            f" names that folder, end it and start again; otherwise delete {data_dir / 'postmaster.pid'}"
        )
    if not _gone(lambda: not strays(data_dir), _STRAY_SECONDS):
        for stray in strays(data_dir):
            with suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
        _gone(lambda: not strays(data_dir), STEP_SECONDS)
    if _is_foreign_process(data_dir):
        # PostgreSQL itself would refuse to start: an unrelated living process has the recorded id.
        (data_dir / "postmaster.pid").unlink(missing_ok=True)


def _is_foreign_process(data_dir: Path) -> bool:
    pid = recorded_pid(data_dir)
    if pid is None or sys.platform != "linux":
        return False
    return os.path.exists(f"/proc/{pid}") and not may_belong_to(pid, data_dir) and not strays(data_dir)


def _gone(test: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
