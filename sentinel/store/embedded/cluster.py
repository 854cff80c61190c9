"""Initialises the data folder, once per major version and atomically."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sentinel.platform.private_files import sync_folder
from sentinel.store.embedded.account import Account, chown_to_account
from sentinel.store.embedded.binaries import Binaries
from sentinel.store.embedded.failures import EmbeddedError, StartGivenUp, from_output
from sentinel.store.embedded.layout import data_folders
from sentinel.store.embedded.logins import SUPERUSER
from sentinel.store.embedded.process import launch

_INITDB_SECONDS = 180
_POLL_SECONDS = 0.05
_INITDB_OPTIONS = (
    f"--username={SUPERUSER}",
    # Without the encoding the C locale means SQL_ASCII, and text comes back as bytes.
    "--encoding=UTF8",
    "--locale=C",
    "--data-checksums",
    # No login is accepted until each has its secret (logins.py).
    "--auth-local=reject",
    "--auth-host=reject",
    # We delete what a failed initdb leaves, after we have checked the free space on the disk.
    "--no-clean",
)


def ensure_cluster(home: Path, binaries: Binaries, account: Account, *, should_stop: Callable[[], bool]) -> Path:
    """The data folder in `home` for this major version, initialised if it is missing. Call with the start lock held.

    Raises `EmbeddedError`, and `StartGivenUp` once `should_stop` returns True; no half-made folder is left then.
    """
    data_dir = home / str(binaries.major)
    present = data_folders(home)
    if binaries.major in present:
        return data_dir
    if present:
        raise _other_version(home, sorted(present), binaries)
    for half_made in home.glob("*.new-*"):
        shutil.rmtree(half_made, ignore_errors=True)
    _require_absent(data_dir)
    _initialise(data_dir, binaries, account, should_stop)
    return data_dir


def _other_version(home: Path, present: list[int], binaries: Binaries) -> EmbeddedError:
    have = " and ".join(map(str, present))
    return EmbeddedError(
        f"the data in {home} was made by PostgreSQL {have}, and the programs found are PostgreSQL {binaries.version}: "
        f"set SENTINEL_PG_BIN to the bin folder of PostgreSQL {present[-1]} to continue with it (or to dump it and "
        "restore it into a new folder), or start empty in another folder with --data-dir"
    )


def _require_absent(data_dir: Path) -> None:
    if not os.path.lexists(data_dir):
        return
    try:
        data_dir.rmdir()
    except OSError as error:
        raise EmbeddedError(f"{data_dir} is not a PostgreSQL data folder: move it away and start again") from error


def _initialise(data_dir: Path, binaries: Binaries, account: Account, should_stop: Callable[[], bool]) -> None:
    # Under another name until it is complete: an interrupted initdb never leaves a folder that is taken for data.
    draft = Path(tempfile.mkdtemp(prefix=f"{data_dir.name}.new-", dir=data_dir.parent))
    try:
        chown_to_account(draft, account)
        _run_initdb(draft, binaries, account, should_stop)
        draft.rename(data_dir)
        sync_folder(data_dir.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _run_initdb(draft: Path, binaries: Binaries, account: Account, should_stop: Callable[[], bool]) -> None:
    command = [str(binaries.bin_dir / "initdb"), "-D", str(draft), *_INITDB_OPTIONS]
    with launch(command, account, subprocess.PIPE) as process:
        try:
            said = _output(process, should_stop)
        except BaseException:
            # The whole group: the server that initdb runs would go on writing into a folder that is being deleted.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
    if process.returncode != 0:
        raise from_output(said.decode(errors="replace"), "initdb", draft.parent)


def _output(process: subprocess.Popen[bytes], should_stop: Callable[[], bool]) -> bytes:
    deadline = time.monotonic() + _INITDB_SECONDS
    while True:
        try:
            return process.communicate(timeout=_POLL_SECONDS)[0]
        except subprocess.TimeoutExpired:
            if should_stop():
                raise StartGivenUp from None
            if time.monotonic() > deadline:
                raise EmbeddedError(f"initdb did not end within {_INITDB_SECONDS} s: is the disk very slow?") from None
