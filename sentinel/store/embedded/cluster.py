"""A data folder: made once per major version, never half made, never silently another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sentinel.store.embedded.account import Account, give
from sentinel.store.embedded.binaries import Binaries
from sentinel.store.embedded.failures import EmbeddedError, from_output
from sentinel.store.embedded.launch import launch
from sentinel.store.embedded.layout import data_folders

SUPERUSER = "sentinel_admin"
_INITDB_SECONDS = 180
_INITDB_OPTIONS = (
    f"--username={SUPERUSER}",
    # Without the encoding the C locale means SQL_ASCII, and text comes back as bytes.
    "--encoding=UTF8",
    "--locale=C",
    "--data-checksums",
    "--auth-local=trust",
    "--auth-host=reject",
)


def ensure_cluster(home: Path, binaries: Binaries, account: Account) -> Path:
    """The initialised data folder in `home` for this major version. Call under the gate."""
    data_dir = home / str(binaries.major)
    present = data_folders(home)
    if binaries.major in present:
        return data_dir
    if present:
        raise _other_version(home, sorted(present), binaries)
    for half_made in home.glob("*.new-*"):
        shutil.rmtree(half_made, ignore_errors=True)
    _require_absent(data_dir)
    _initialise(data_dir, binaries, account)
    return data_dir


def _other_version(home: Path, present: list[int], binaries: Binaries) -> EmbeddedError:
    have = " and ".join(map(str, present))
    return EmbeddedError(
        f"the data in {home} is of PostgreSQL {have} and the programs found are PostgreSQL {binaries.version}: "
        f"set SENTINEL_PG_BIN to the bin folder of PostgreSQL {present[-1]} to go on with it (or to dump it and "
        "restore it into a new folder), or start empty in another folder with --data-dir"
    )


def _require_absent(data_dir: Path) -> None:
    if not os.path.lexists(data_dir):
        return
    try:
        data_dir.rmdir()
    except OSError as error:
        raise EmbeddedError(f"{data_dir} is not a PostgreSQL data folder: move it away and start again") from error


def _initialise(data_dir: Path, binaries: Binaries, account: Account) -> None:
    # Under another name until it is complete: whatever cuts initdb short, no half folder is taken for data.
    draft = Path(tempfile.mkdtemp(prefix=f"{data_dir.name}.new-", dir=data_dir.parent))
    try:
        give(draft, account)
        _run_initdb(draft, binaries, account)
        draft.rename(data_dir)
        _sync(data_dir.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _run_initdb(draft: Path, binaries: Binaries, account: Account) -> None:
    command = [str(binaries.bin_dir / "initdb"), "-D", str(draft), *_INITDB_OPTIONS]
    with launch(command, account, subprocess.PIPE) as process:
        try:
            said, _ = process.communicate(timeout=_INITDB_SECONDS)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise from_output(said.decode(errors="replace"), "initdb", draft.parent)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
