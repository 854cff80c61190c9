"""Starts a PostgreSQL program under the server's account, as a child that ends with this process (on Linux)."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sentinel.store.embedded.account import Account

TRAMPOLINE = Path(__file__).with_name("trampoline.py")


def launch(
    command: Sequence[str], account: Account, output: IO[bytes] | int, *, given: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start `command` on the input `given`; standard output and error go to `output`. It ends when this thread or process ends."""
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
    """As `launch`, and safe from a short-lived thread: the kernel watches the *thread* that forked."""
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
