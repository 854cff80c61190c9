"""Starts one server process, waits until it answers, and reports its output when it does not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from sentinel.platform.log_files import bound_log
from sentinel.store.embedded.account import Account
from sentinel.store.embedded.connection import Address
from sentinel.store.embedded.failures import EmbeddedError, StartGivenUp, from_output, never_stop
from sentinel.store.embedded.layout import open_ours
from sentinel.store.embedded.options import PORT
from sentinel.store.embedded.process import launch_lasting, stop_child

# Recovery after a crash replays up to max_wal_size, on a slow disk too.
_READY_SECONDS = 300.0
_RETRY_SECONDS = 10.0
_POLL_SECONDS = 0.02
_MEMORY_STILL_HELD = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists')


def start_server(
    command: Sequence[str],
    account: Account,
    address: Address,
    log: Path,
    *,
    should_stop: Callable[[], bool] = never_stop,
) -> subprocess.Popen[bytes]:
    """Start the server and return its process once it answers and its database exists.

    Raises `EmbeddedError`, and `StartGivenUp` once `should_stop` returns True; no process is left then.
    """
    deadline = time.monotonic() + _RETRY_SECONDS
    while True:
        with _open_log(log) as output:
            began = output.tell()
            child = launch_lasting(command, account, output)
        if _is_ready(child, address, should_stop):
            return child
        said = _read_from(log, began)
        # Backends of a killed server hold its shared memory for a moment: try again.
        held = any(sign in said for sign in _MEMORY_STILL_HELD)
        if not held or time.monotonic() > deadline:
            raise from_output(said, "starting PostgreSQL", log.parent)
        time.sleep(0.1)


def _is_ready(child: subprocess.Popen[bytes], address: Address, should_stop: Callable[[], bool]) -> bool:
    try:
        if _await_ready(child, address, should_stop):
            address.ensure_database()
            return True
    except BaseException:
        stop_child(child)
        raise
    return False


def _await_ready(child: subprocess.Popen[bytes], address: Address, should_stop: Callable[[], bool]) -> bool:
    """True when a real connection works, False when the child ended first."""
    deadline = time.monotonic() + _READY_SECONDS
    socket = address.socket_dir / f".s.PGSQL.{PORT}"
    while child.poll() is None:
        if socket.exists() and address.answers():
            return child.poll() is None
        if should_stop():
            raise StartGivenUp
        if time.monotonic() > deadline:
            raise EmbeddedError(f"PostgreSQL did not answer within {_READY_SECONDS:.0f} s: see its server.log")
        time.sleep(_POLL_SECONDS)
    return False


def _open_log(path: Path) -> IO[bytes]:
    bound_log(path, open_ours)
    return os.fdopen(open_ours(path, os.O_WRONLY | os.O_APPEND), "ab")


def _read_from(path: Path, offset: int) -> str:
    with path.open("rb") as log:
        log.seek(offset)
        return log.read().decode(errors="replace")
